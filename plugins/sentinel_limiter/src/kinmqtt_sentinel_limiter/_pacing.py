"""Pacing: a leaky bucket with a bounded queue."""

from __future__ import annotations

from math import inf
from typing import Final

from kinmqtt_sentinel_limiter._base_rule import BaseRule
from kinmqtt_sentinel_limiter._cells import REFUSED, SLACK_S, Cell

AHEAD_SHARE: Final = 0.02
"""How far the rate within a minute may be exceeded, as a share, unless a single read exceeds it."""

AHEAD_S: Final = 60.0 * AHEAD_SHARE
"""How much a paced read may leave queued behind it: that share of a minute."""

RESERVED_S: Final = 15.0
"""The longest reservation for a large read in a queue of small ones."""

RESERVATION_LOSS_S: Final = 0.1
"""How much unused time a reservation may cause before there is none for a while, ..."""

RESERVATION_LOSS_SHARE: Final = 0.01
"""... which is long enough that at most this share of all time is unused."""


class PacingQueue:
    """Limits how long paced reads may wait, and how far ahead of the rate a large read may be accepted.

    A read whose last packet is due within ``limit_s`` passes at once; otherwise :meth:`has_room` decides. The read
    passes if the queue is empty, or if its first packet need not wait too long and the read leaves at most
    :data:`AHEAD_S` queued. A refused large read gets a reservation: until a read of that size passes, smaller ones
    must leave room for it. Rare large reads pass eventually too: the amount that may stay queued grows with the time
    since it last exceeded :data:`AHEAD_S`.
    """

    __slots__ = (
        "ahead_at",
        "largest_s",
        "limit_s",
        "lost_s",
        "max_queueing_s",
        "most_s",
        "no_reservation_until",
        "reserved_until",
        "slot_s",
    )

    def __init__(self, max_queueing_s: float, slot_s: float) -> None:
        self.max_queueing_s = self.limit_s = max_queueing_s + SLACK_S
        self.slot_s = min(slot_s, max_queueing_s) + SLACK_S
        """The time for one packet: the queue counts as empty if it holds no more than this."""
        self.most_s = max(self.max_queueing_s, AHEAD_S)
        self.largest_s = 0.0
        """The time for the largest read with a reservation; 0 for none."""
        self.reserved_until = self.lost_s = 0.0
        self.no_reservation_until = -inf
        self.ahead_at: float | None = None

    def has_room(self, wait_s: float, own_s: float, now: float) -> bool:
        """Whether a read passes whose first packet waits ``wait_s`` and whose last packet ``own_s`` longer."""
        if self.ahead_at is None:
            self.ahead_at = now
        if self.largest_s and now >= self.reserved_until:
            self._reserve(0.0)
        most_s = max(self.most_s, AHEAD_SHARE * (now - self.ahead_at))
        left_s = wait_s + own_s
        if wait_s > self.slot_s:
            if wait_s > self.max_queueing_s or left_s > most_s:
                too_large = own_s > self.most_s - self.max_queueing_s
                if too_large and own_s > self.largest_s and now >= self.no_reservation_until:
                    self._reserve(own_s)
                    self.reserved_until, self.lost_s = now + RESERVED_S, 0.0
                return False
            if self.largest_s > own_s and left_s > self.limit_s:
                return False
        if self.largest_s and own_s >= self.largest_s:
            self._reserve(0.0)
        if left_s > self.most_s:
            self.ahead_at = now
        return True

    def lost(self, idle_s: float, now: float) -> None:
        """Record unused time during a reservation; ends the reservation if it adds up to too much."""
        self.lost_s += idle_s
        if self.lost_s > RESERVATION_LOSS_S:
            self._reserve(0.0)
            self.no_reservation_until = now + self.lost_s / RESERVATION_LOSS_SHARE

    def _reserve(self, own_s: float) -> None:
        self.largest_s = own_s
        self.limit_s = min(self.max_queueing_s, max(self.most_s - own_s, self.slot_s))


class PaceCell(Cell):
    """Control behaviour ``pace``: a leaky bucket, one after the other at even distances.

    ``due`` is when the last packet is due. Reading each client again only when it is due keeps the distance; reads
    for which the queue has no room are refused.
    """

    __slots__ = ("cost_s", "due", "queue")

    def __init__(self, rule: BaseRule, count: float, max_queueing_s: float) -> None:
        super().__init__(rule)
        self.cost_s = 1.0 / count
        self.queue = PacingQueue(max_queueing_s, self.cost_s)
        self.due = -inf

    def forget(self) -> None:
        super().forget()
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
