"""Warm up: an idle key starts slowly and gets faster with use."""

from __future__ import annotations

from math import inf, sqrt

from kinmqtt_sentinel_limiter._base_rule import BaseRule
from kinmqtt_sentinel_limiter._cells import REFUSED, SLACK_S, Cell
from kinmqtt_sentinel_limiter._pacing import PacingQueue


class WarmUp:
    """The warm-up curve of Guava and Sentinel for a rule: stored tokens slow the rate down.

    A warm key has the rate ``count``. Tokens above ``warning`` make each packet cost more, up to ``cold_factor``
    times as much at ``most``. A busy key spends the tokens from ``most`` to ``warning`` in ``warm_up_s``; an idle key
    regains them in the same time.
    """

    __slots__ = ("cost_s", "most", "refill_per_s", "slope_s", "warning")

    def __init__(self, count: float, warm_up_s: float, cold_factor: float) -> None:
        self.cost_s = 1.0 / count
        self.warning = warm_up_s * count / (cold_factor - 1.0)
        self.most = self.warning + 2.0 * warm_up_s * count / (1.0 + cold_factor)
        self.slope_s = (cold_factor - 1.0) * self.cost_s / (self.most - self.warning)
        self.refill_per_s = self.most / warm_up_s

    def one_s(self, stored: float) -> float:
        """What the next packet costs, in seconds."""
        return self.cost_s + self.slope_s * max(stored - self.warning, 0.0)

    def cost_of(self, stored: float, amount: float) -> float:
        """What an amount costs in seconds: the area under the curve from ``stored`` down."""
        above = stored - self.warning
        if above <= 0:
            return amount * self.cost_s
        slow = min(above, amount)
        return amount * self.cost_s + self.slope_s * slow * (above - slow / 2.0)

    def passed_by(self, elapsed_s: float) -> float:
        """How many packets ideally pass within a time after a cold start under constant demand."""
        above = self.most - self.warning
        cold_s = self.cost_s + self.slope_s * above
        warm_after_s = self.cost_of(self.most, above)
        if elapsed_s >= warm_after_s:
            return above + (elapsed_s - warm_after_s) / self.cost_s
        return (cold_s - sqrt(cold_s * cold_s - 2.0 * self.slope_s * elapsed_s)) / self.slope_s


class WarmUpCell(Cell):
    """Control behaviour ``warm_up``: as :class:`RateCell`, at a speed that rises from cold to warm.

    Up to ``span_s`` of unused time can be used later; more idle time cools the key down.
    """

    __slots__ = ("before", "curve", "due", "span_s", "stored")

    def __init__(self, rule: BaseRule, curve: WarmUp, span_s: float, now: float) -> None:
        super().__init__(rule)
        self.curve = curve
        self.span_s = span_s
        self.due = now
        self.stored = curve.most
        self.before = (now, curve.most)

    def forget(self) -> None:
        super().forget()
        self.due = inf

    def take(self, amount: int, now: float) -> float:
        due = self.due
        if due > now + SLACK_S:
            return REFUSED
        self.before = (due, self.stored)
        self._spend(amount, self._cooled(now - self.span_s))
        return 0.0

    def undo(self, amount: int) -> None:
        self.due, self.stored = self.before

    def spent(self, now: float) -> float:
        curve = self.curve
        return curve.most - self.stored - (now - self.span_s - self.due) * curve.refill_per_s

    def _cooled(self, floor: float) -> float:
        """``due``, but at least ``floor``; the time between is idle and cools the key."""
        if self.due >= floor:
            return self.due
        curve = self.curve
        self.stored = min(curve.most, self.stored + (floor - self.due) * curve.refill_per_s)
        return floor

    def _spend(self, amount: int, since: float) -> None:
        self.due = since + self.curve.cost_of(self.stored, amount)
        self.stored = max(self.stored - amount, 0.0)


class WarmUpPaceCell(WarmUpCell):
    """Control behaviour ``warm_up_pace``: even distances, which shrink as the key gets warm."""

    __slots__ = ("queue",)

    def __init__(self, rule: BaseRule, curve: WarmUp, max_queueing_s: float, now: float) -> None:
        super().__init__(rule, curve, 0.0, now)
        self.queue = PacingQueue(max_queueing_s, curve.one_s(curve.most))
        self.due = now - curve.one_s(curve.most)

    def take(self, amount: int, now: float) -> float:
        curve, queue = self.curve, self.queue
        # The cost of one packet may pass between packets: only the time beyond is idle and cools the key.
        one_s = curve.one_s(self.stored)
        idle_s = now - one_s - self.due
        due, stored = self.due, self.stored
        if idle_s > 0.0:
            if queue.largest_s:
                queue.lost(idle_s, now)
            stored = min(curve.most, stored + idle_s * curve.refill_per_s)
            one_s = curve.one_s(stored)
            due = now - one_s
        cost_s = curve.cost_of(stored, amount)
        wait_s = due + cost_s - now
        if wait_s > queue.limit_s and not queue.has_room(due + one_s - now, cost_s - one_s, now):
            return REFUSED
        self.before = (self.due, self.stored)
        self.due, self.stored = due + cost_s, max(stored - amount, 0.0)
        return wait_s if wait_s > SLACK_S else 0.0
