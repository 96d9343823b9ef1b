"""One timer for all keep-alives and time limits: a wheel that turns once a second.

A client that talks costs an attribute's store for each read. Its place on the wheel is looked at only when its
time would be over, and moved on if it has talked since. A timer for each connection would cost memory for each, and a
heap operation for each packet.
"""

from __future__ import annotations

from typing import Protocol


class Timed(Protocol):
    """What stands on the wheel."""

    def time_is_over(self, now: int) -> int | None:
        """Its second has come. Answers the second to be asked again in, or ``None`` to leave the wheel."""


class Wheel:
    """Buckets of whoever is to be asked in a given second."""

    __slots__ = ("_buckets", "now")

    def __init__(self) -> None:
        self.now = 0
        """Seconds since the wheel was made; read by connections when they hear from their client."""
        self._buckets: dict[int, list[Timed]] = {}

    def add(self, timed: Timed, second: int) -> None:
        """Have ``timed`` asked in a second to come."""
        self._buckets.setdefault(max(second, self.now + 1), []).append(timed)

    def turn(self, now: int) -> None:
        """Go on to ``now``, and ask everybody whose second has come; none is left out when seconds were missed."""
        for second in range(self.now + 1, now + 1):
            self.now = second
            for timed in self._buckets.pop(second, ()):
                again = timed.time_is_over(second)
                if again is not None:
                    self.add(timed, again)
