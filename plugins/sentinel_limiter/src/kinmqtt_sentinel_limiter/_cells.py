"""Cells: the state of one key of one rule, for each control behaviour.

:meth:`Cell.take` returns seconds: 0 if the amount passes, a positive number if it passes but the connection must not
be read for that long, :data:`REFUSED` if it may not pass. Most rate cells store one time, ``due``: when everything
taken so far would be used up at the permitted rate. An amount is never refused for its size: if one unit has room,
the whole amount passes, and later requests pay back the excess. So a read of many packets waits no longer than a read
of one, and the rate holds in the long run.
"""

from __future__ import annotations

from math import inf
from typing import Final

from kinmqtt_sentinel_limiter._base_rule import BaseRule

REFUSED: Final = -1.0

SLACK_S: Final = 1e-6
"""The tolerance for rounding errors: a request that comes exactly when due is not refused."""

LONG_AGO: Final = -1e12
"""Earlier than any clock's start."""

ALMOST_ONE: Final = 1.0 - 1e-9
"""One, less the tolerance for rounding errors of sums of fractions."""

CARRY_OVER_SHARE: Final = 0.1
"""The share of a window's count that may be carried over to the next window."""


class Cell:
    """The state of one key of one rule."""

    __slots__ = ("forgotten", "rule")

    def __init__(self, rule: BaseRule) -> None:
        self.rule = rule
        self.forgotten = False
        """Whether the key was forgotten; holders of the cell must then look up its successor."""

    def forget(self) -> None:
        """Mark the key as forgotten. From now on :meth:`take` never returns 0, so the fast path need not check."""
        self.forgotten = True

    def take(self, amount: int, now: float) -> float:
        """Take an amount now, or nothing if it is refused."""
        raise NotImplementedError

    def undo(self, amount: int) -> None:
        """Undo the last :meth:`take`, because another rule has refused the request."""

    def take_anyway(self, amount: int) -> bool:
        """Take a refused amount anyway, because its rule is in shadow mode; returns whether the cell counts it.

        A rate cell does not: without the shadow mode the request would not have happened.
        """
        return False

    def release(self, amount: int, now: float) -> None:
        """Release an amount that was taken."""

    @property
    def held(self) -> bool:
        """Whether some amount must still be released."""
        return False

    def is_full(self, now: float) -> bool:
        """Whether nothing would pass now; only called for cells of system rules."""
        return False

    def spent(self, now: float) -> float:
        """How much the cell is used; at most 0 if it is equivalent to an unused one."""
        return 0.0


class WindowCell(Cell):
    """Control behaviour ``reject``: ``count`` in each second since the first use; one in ``1 / count`` s below one.

    An excess in one window is deducted from the next. A tenth of the count (at least one) may be carried over, so
    that a client at exactly the rate, sometimes slightly late, is not refused.
    """

    __slots__ = ("allowance", "ends_at", "left", "most", "span_s")

    def __init__(self, rule: BaseRule, count: float) -> None:
        super().__init__(rule)
        self.span_s = max(1.0, 1.0 / count)
        self.allowance = count * self.span_s
        self.most = self.allowance + max(1.0, self.allowance * CARRY_OVER_SHARE)
        self.left = 0.0
        self.ends_at = LONG_AGO

    def forget(self) -> None:
        super().forget()
        self.ends_at, self.left = inf, -inf

    def take(self, amount: int, now: float) -> float:
        if now >= self.ends_at:
            self._begin(now)
        if self.left < ALMOST_ONE:
            return REFUSED
        self.left -= amount
        return 0.0

    def undo(self, amount: int) -> None:
        self.left += amount

    def is_full(self, now: float) -> bool:
        return now < self.ends_at and self.left < ALMOST_ONE

    def spent(self, now: float) -> float:
        # One window later the next window starts with its first use, as for a new cell.
        return max(self.ends_at + self.span_s - now, -self.left)

    def _begin(self, now: float) -> None:
        """Begin the window that contains ``now``; after an idle time it begins at ``now``."""
        missed = (now - self.ends_at) // self.span_s
        left = self.left + (missed + 1.0) * self.allowance
        if missed >= 1.0 and left >= self.allowance:
            self.left = self.allowance
            self.ends_at = now + self.span_s
        else:
            self.left = min(left, self.most)
            self.ends_at += (missed + 1.0) * self.span_s


class RateCell(Cell):
    """Control behaviour ``reject`` with a burst: a token bucket that holds ``burst`` and gets ``count`` a second.

    A request passes if there is one token, whatever its amount.
    """

    __slots__ = ("cost_s", "due", "span_s")

    def __init__(self, rule: BaseRule, count: float, burst: float) -> None:
        super().__init__(rule)
        self.cost_s = 1.0 / count
        self.span_s = (burst - 1.0) * self.cost_s + SLACK_S
        self.due = -inf

    def forget(self) -> None:
        super().forget()
        self.due = inf

    def take(self, amount: int, now: float) -> float:
        now += SLACK_S
        due = self.due
        if due > now:
            return REFUSED
        floor = now - self.span_s
        self.due = (due if due > floor else floor) + amount * self.cost_s
        return 0.0

    def undo(self, amount: int) -> None:
        self.due -= amount * self.cost_s

    def is_full(self, now: float) -> bool:
        return self.due > now + SLACK_S

    def spent(self, now: float) -> float:
        return self.due - (now - self.span_s)


class DelayCell(RateCell):
    """The same bucket with the verdict ``delay``: everything passes, and a deficit delays the next read."""

    __slots__ = ()

    def take(self, amount: int, now: float) -> float:
        floor = now - self.span_s - self.cost_s
        due = self.due
        self.due = due = (due if due > floor else floor) + amount * self.cost_s
        return due - now if due > now + SLACK_S else 0.0

    def spent(self, now: float) -> float:
        return super().spent(now) + self.cost_s
