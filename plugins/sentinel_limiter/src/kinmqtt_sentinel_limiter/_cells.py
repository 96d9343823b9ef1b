"""What is known of one key of one rule: how much it may use now, for each control behaviour.

All answer :meth:`Cell.take` with seconds: 0 where the amount passes, more where it passes and nothing more should be
read for so long, :data:`REFUSED` where it may not. Most of those by rate keep one time, ``due``: when what was taken
so far would be used up at the permitted speed. Nothing is refused for its amount alone: where there is room for one,
all of it passes, and what it took beyond is owed and paid back by those who come after. So a read of many packets
waits no longer than a read of one, and the rate holds in the long run.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinmqtt_sentinel_limiter._rules import Rule

REFUSED: Final = -1.0

SLACK_S: Final = 1e-6
"""Sums of floats may be off by less than this: who comes exactly when due is not turned away."""

LONG_AGO: Final = -1e12
"""Before every clock's beginning."""

NEARLY_ONE: Final = 1.0 - 1e-9
"""Sums of fractions may be below one by less than this."""

CARRIED: Final = 0.1
"""How much of a window's count may be left for the next."""

PATIENCE_S: Final = 1.0
"""How long a large amount is refused for want of room before room is kept for it, and how long it is kept."""


AHEAD_SHARE: Final = 0.02
"""How far beyond a rate what passes in a minute may be, where that is not one read's doing alone."""

AHEAD_S: Final = 60.0 * AHEAD_SHARE
"""How much a paced read may leave waiting behind it: so much is that share of a minute."""

KEPT_S: Final = 15.0
"""How long room is kept for a large read in a queue of small ones, at most."""

KEPT_LOSS_S: Final = 0.1
"""How much time that may leave unused before no room is kept for a while, ..."""

KEPT_LOSS_SHARE: Final = 0.01
"""... which is so long that no more than this share of all time is lost."""


class Cell:
    """One key's use by one rule."""

    __slots__ = ("gone", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.gone = False
        """Whether the key was forgotten: who holds the cell must look for its successor."""

    def go(self) -> None:
        """The key is forgotten. From now on no :meth:`take` simply passes, so that passing needs no look at this."""
        self.gone = True

    def take(self, amount: int, now: float) -> float:
        """Take so much now, or nothing where it is refused."""
        raise NotImplementedError

    def undo(self, amount: int) -> None:
        """Give back what the last :meth:`take` took: another rule has refused it."""

    def overrun(self, amount: int) -> bool:
        """Take what was refused all the same, as its rule is in the shadow; whether there was anything to take.

        A rate has nothing to take: what it would have refused would not have been there.
        """
        return False

    def give_back(self, amount: int, now: float) -> None:
        """What was granted is over."""

    @property
    def held(self) -> bool:
        """Whether something must still be given back to the cell."""
        return False

    def is_full(self, now: float) -> bool:
        """Whether nothing would pass now; asked only of those that a system rule has."""
        return False

    def spent(self, now: float) -> float:
        """How far the cell is from one that was never used; not above 0 where it is as good as new."""
        return 0.0


class WindowCell(Cell):
    """Control behaviour ``reject``: ``count`` in each second since the first use; one in ``1 / count`` s below one.

    What a window passed beyond the count is taken off the next. Of what it left over, a tenth (at least one) is added
    to the next, so that who comes at exactly the rate, sometimes a little late, is not turned away.
    """

    __slots__ = ("allowance", "ends_at", "left", "most", "span_s")

    def __init__(self, rule: Rule, count: float) -> None:
        super().__init__(rule)
        self.span_s = max(1.0, 1.0 / count)
        self.allowance = count * self.span_s
        self.most = self.allowance + max(1.0, self.allowance * CARRIED)
        self.left = 0.0
        self.ends_at = LONG_AGO

    def go(self) -> None:
        super().go()
        self.ends_at, self.left = inf, -inf

    def take(self, amount: int, now: float) -> float:
        if now >= self.ends_at:
            self._begin(now)
        if self.left < NEARLY_ONE:
            return REFUSED
        self.left -= amount
        return 0.0

    def undo(self, amount: int) -> None:
        self.left += amount

    def is_full(self, now: float) -> bool:
        return now < self.ends_at and self.left < NEARLY_ONE

    def spent(self, now: float) -> float:
        # Only a window later does the next begin with its first use, as a new cell's does.
        return max(self.ends_at + self.span_s - now, -self.left)

    def _begin(self, now: float) -> None:
        """Begin the window of ``now``; where none is left over from long ago, it begins now."""
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

    A call passes where one token is there, whatever its amount.
    """

    __slots__ = ("cost_s", "due", "span_s")

    def __init__(self, rule: Rule, count: float, burst: float) -> None:
        super().__init__(rule)
        self.cost_s = 1.0 / count
        self.span_s = (burst - 1.0) * self.cost_s + SLACK_S
        self.due = -inf

    def go(self) -> None:
        super().go()
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
    """The same bucket with the verdict ``delay``: everything passes, and a debt is waited for."""

    __slots__ = ()

    def take(self, amount: int, now: float) -> float:
        floor = now - self.span_s - self.cost_s
        due = self.due
        self.due = due = (due if due > floor else floor) + amount * self.cost_s
        return due - now if due > now + SLACK_S else 0.0

    def spent(self, now: float) -> float:
        return super().spent(now) + self.cost_s


class Queue:
    """How long those may wait who are paced, and how far ahead of the rate a large read may be let in.

    A read whose last packet's turn is within ``limit_s`` simply passes; any other is asked about. It passes where
    nothing waits, or where its first packet need not wait too long and it leaves no more than :data:`AHEAD_S` behind.
    A large one that was refused has room kept for it: until one as large passes, others let no more wait than leaves
    that room. What comes too seldom for that passes in the end as well: what may be left behind grows with the time
    since more than :data:`AHEAD_S` was.
    """

    __slots__ = (
        "ahead_at",
        "kept_until",
        "largest_s",
        "limit_s",
        "lost_s",
        "max_queueing_s",
        "most_s",
        "rests_until",
        "slot_s",
    )

    def __init__(self, max_queueing_s: float, slot_s: float) -> None:
        self.max_queueing_s = self.limit_s = max_queueing_s + SLACK_S
        self.slot_s = min(slot_s, max_queueing_s) + SLACK_S
        """What one packet takes: nothing waits where no more than one does."""
        self.most_s = max(self.max_queueing_s, AHEAD_S)
        self.largest_s = 0.0
        """What the largest read is worth for which room is kept; 0 for none."""
        self.kept_until = self.lost_s = 0.0
        self.rests_until = -inf
        self.ahead_at: float | None = None

    def has_room(self, wait_s: float, own_s: float, now: float) -> bool:
        """Whether a read passes whose first packet waits so long, and whose last so much longer."""
        if self.ahead_at is None:
            self.ahead_at = now
        if self.largest_s and now >= self.kept_until:
            self._keep(0.0)
        most_s = max(self.most_s, AHEAD_SHARE * (now - self.ahead_at))
        left_s = wait_s + own_s
        if wait_s > self.slot_s:
            if wait_s > self.max_queueing_s or left_s > most_s:
                too_large = own_s > self.most_s - self.max_queueing_s
                if too_large and own_s > self.largest_s and now >= self.rests_until:
                    self._keep(own_s)
                    self.kept_until, self.lost_s = now + KEPT_S, 0.0
                return False
            if self.largest_s > own_s and left_s > self.limit_s:
                return False
        if self.largest_s and own_s >= self.largest_s:
            self._keep(0.0)
        if left_s > self.most_s:
            self.ahead_at = now
        return True

    def lost(self, idle_s: float, now: float) -> None:
        """While room was kept so much time was not used: what is lost by that is to be little."""
        self.lost_s += idle_s
        if self.lost_s > KEPT_LOSS_S:
            self._keep(0.0)
            self.rests_until = now + self.lost_s / KEPT_LOSS_SHARE

    def _keep(self, own_s: float) -> None:
        self.largest_s = own_s
        self.limit_s = min(self.max_queueing_s, max(self.most_s - own_s, self.slot_s))


class PaceCell(Cell):
    """Control behaviour ``pace``: a leaky bucket, one after the other at even distances.

    ``due`` is when the last one's turn is. Who is read from again only at its turn keeps the distance; whom the
    queue has no room for is refused.
    """

    __slots__ = ("cost_s", "due", "queue")

    def __init__(self, rule: Rule, count: float, max_queueing_s: float) -> None:
        super().__init__(rule)
        self.cost_s = 1.0 / count
        self.queue = Queue(max_queueing_s, self.cost_s)
        self.due = -inf

    def go(self) -> None:
        super().go()
        self.due = inf

    def take(self, amount: int, now: float) -> float:
        cost_s = self.cost_s
        floor = now - cost_s
        due, queue = self.due, self.queue
        if due < floor:
            if queue.largest_s:
                queue.lost(floor - due, now)
            due = floor
        after = due + amount * cost_s
        if after - now > queue.limit_s and not queue.has_room(due - floor, (amount - 1) * cost_s, now):
            return REFUSED
        self.due = after
        return after - now if after > now + SLACK_S else 0.0

    def undo(self, amount: int) -> None:
        self.due -= amount * self.cost_s

    def spent(self, now: float) -> float:
        return self.due + self.cost_s - now


class ConcurrencyCell(Cell):
    """Grade ``concurrency``: so many at once, given back one by one.

    An amount above the count passes when nothing else is in use. Where small amounts keep a large one out for
    :data:`PATIENCE_S`, as much room as it needs is kept for it for as long again.
    """

    __slots__ = ("count", "in_use", "largest", "waits_since")

    def __init__(self, rule: Rule, count: float) -> None:
        super().__init__(rule)
        self.count = int(count)
        self.in_use = 0
        self.largest = 0
        """The largest amount that was refused since it last passed; 0 for none."""
        self.waits_since = 0.0

    def go(self) -> None:
        super().go()
        self.count, self.in_use = 0, 1 << 60

    def take(self, amount: int, now: float) -> float:
        in_use = self.in_use + amount
        if self.largest and self._is_kept_out(amount, now):
            return REFUSED
        if in_use > self.count and self.in_use:
            self._wait(amount, now)
            return REFUSED
        self.in_use = in_use
        return 0.0

    def undo(self, amount: int) -> None:
        self.in_use = max(self.in_use - amount, 0)

    def overrun(self, amount: int) -> bool:
        self.in_use += amount
        return True

    def give_back(self, amount: int, now: float) -> None:
        # What was granted before the rule was there is given back too.
        self.in_use = max(self.in_use - amount, 0)

    @property
    def held(self) -> bool:
        return self.in_use > 0

    def is_full(self, now: float) -> bool:
        return self.in_use >= self.count

    def spent(self, now: float) -> float:
        return float(self.in_use)

    def _wait(self, amount: int, now: float) -> None:
        if amount > 1 and amount > self.largest:
            if not self.largest:
                self.waits_since = now
            self.largest = amount

    def _is_kept_out(self, amount: int, now: float) -> bool:
        """Whether room is being kept for something larger; forgets what does not come again."""
        waited_s = now - self.waits_since
        if waited_s > 2 * PATIENCE_S or (amount >= self.largest and self._has_room(amount)):
            self.largest = 0
            return False
        kept = min(self.largest, self.count)
        return waited_s > PATIENCE_S and amount < self.largest and self.in_use + kept + amount > self.count

    def _has_room(self, amount: int) -> bool:
        return self.in_use + amount <= self.count or not self.in_use


class ClientsCell(ConcurrencyCell):
    """Grade ``concurrency`` of ``connect``: so many clients, of which each may have several connections."""

    __slots__ = ("connections",)

    def __init__(self, rule: Rule, count: float) -> None:
        super().__init__(rule, count)
        self.connections: dict[str, int] = {}
        """How many each client has, by its id."""


class ClientCell(Cell):
    """One client's face to a :class:`ClientsCell`, made for each question.

    A client that comes again while its old connection is still open takes that one's place: it counts once, and a
    rule that is used up does not lock it out.
    """

    __slots__ = ("_clients", "_id")

    def __init__(self, rule: Rule, clients: ClientsCell, client_id: str) -> None:
        super().__init__(rule)
        self._clients = clients
        self._id = client_id

    def take(self, amount: int, now: float) -> float:
        clients = self._clients
        if self._id not in clients.connections and clients.take(1, now):
            return REFUSED
        self._count(amount)
        return 0.0

    def undo(self, amount: int) -> None:
        self.give_back(amount, 0.0)

    def overrun(self, amount: int) -> bool:
        if self._id not in self._clients.connections:
            self._clients.overrun(1)
        self._count(amount)
        return True

    def give_back(self, amount: int, now: float) -> None:
        connections = self._clients.connections
        if self._id not in connections:
            return
        connections[self._id] -= amount
        if connections[self._id] <= 0:
            del connections[self._id]
            self._clients.give_back(1, now)

    def _count(self, amount: int) -> None:
        connections = self._clients.connections
        connections[self._id] = connections.get(self._id, 0) + amount
