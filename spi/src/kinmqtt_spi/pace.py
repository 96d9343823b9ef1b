"""A pace for lines of a log: what may happen very often is logged now and then, with how often it happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock


class Pace:
    """Lets one through in so many seconds, and counts the others.

    ::

        held_back = self._pace.due()
        if held_back is not None:
            context.log.warn("the line is full; {more} more since the last such line", more=held_back)
    """

    __slots__ = ("_clock", "_every_s", "_held_back", "_next")

    def __init__(self, clock: Clock, every_s: float) -> None:
        """One in ``every_s`` seconds, by the clock's ``monotonic``; the first one at once."""
        self._clock = clock
        self._every_s = every_s
        self._next: float | None = None
        self._held_back = 0

    def due(self) -> int | None:
        """Count one: ``None`` for one to hold back, else how many were held back since the last let through."""
        now = self._clock.monotonic()
        if self._next is not None and now < self._next:
            self._held_back += 1
            return None
        self._next = now + self._every_s
        held_back, self._held_back = self._held_back, 0
        return held_back
