"""One timer for all keep-alives and time limits: a wheel that turns once a second.

A client that talks costs an attribute's store for each read. Its place on the wheel is looked at only when its
time would be over, and moved on if it has talked since. A timer for each connection would cost memory for each, and a
heap operation for each packet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Timed(Protocol):
    """What stands on the wheel."""

    def time_is_over(self, now: int) -> None:
        """Its second has come, and it has left the wheel; it may step on again."""


class TimerWheel:
    """Buckets of whoever is to be asked in a given second."""

    __slots__ = ("_buckets", "_due", "now")

    def __init__(self) -> None:
        self.now = 0
        """Seconds since the wheel was made; read by connections when they hear from their client."""
        self._buckets: dict[int, dict[Timed, None]] = {}
        self._due: deque[tuple[Timed, int]] = deque()
        """Those whose second has come, until they are asked."""

    def add(self, timed: Timed, second: int) -> int:
        """Have ``timed`` asked in a second to come; answers which, for :meth:`remove`."""
        second = max(second, self.now + 1)
        self._buckets.setdefault(second, {})[timed] = None
        return second

    def remove(self, timed: Timed, second: int) -> None:
        """Forget ``timed``; harmless where it does not stand there."""
        bucket = self._buckets.get(second)
        if bucket is not None:
            bucket.pop(timed, None)
            if not bucket:
                del self._buckets[second]

    def __len__(self) -> int:
        """How many stand on the wheel."""
        return sum(map(len, self._buckets.values()))

    def turn(self, now: int) -> None:
        """Go on to ``now``, and ask everybody whose second has come; none is left out when seconds were missed."""
        self.go_on(now)
        self.ask(lambda: False)

    def go_on(self, now: int) -> None:
        """Go on to ``now``; :meth:`ask` asks whose second has come."""
        for second in range(self.now + 1, now + 1):
            self.now = second
            for timed in self._buckets.pop(second, ()):
                self._due.append((timed, second))

    def ask(self, is_over: Callable[[], bool]) -> bool:
        """Ask those whose second has come until the slice ``is_over``; ``True`` where some are left."""
        due = self._due
        while due:
            timed, second = due.popleft()
            timed.time_is_over(second)
            if is_over():
                break
        return bool(due)
