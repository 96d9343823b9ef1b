"""One timer wheel for all keep-alives and time limits, with a tick of one second.

A read only stores a time in an attribute. A connection's entry on the wheel is checked when its time would be over,
and moved on if data was received since. A timer per connection would cost memory for each, and a heap operation for
each packet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Timed(Protocol):
    """An entry of the wheel."""

    def time_is_over(self, now: int) -> None:
        """Handle the second for which it was added; it is off the wheel now and may be added again."""


class TimerWheel:
    """Entries in buckets, by the second in which they are due."""

    __slots__ = ("_buckets", "_due", "now")

    def __init__(self) -> None:
        self.now = 0
        """Seconds since the wheel was created; connections read it when they receive data."""
        self._buckets: dict[int, dict[Timed, None]] = {}
        self._due: deque[tuple[Timed, int]] = deque()
        """Due entries that have not been called yet."""

    def add(self, timed: Timed, second: int) -> int:
        """Add an entry for a second in the future; returns the second, for :meth:`remove`."""
        second = max(second, self.now + 1)
        self._buckets.setdefault(second, {})[timed] = None
        return second

    def remove(self, timed: Timed, second: int) -> None:
        """Remove an entry; does nothing if it is not in the bucket of ``second``."""
        bucket = self._buckets.get(second)
        if bucket is not None:
            bucket.pop(timed, None)
            if not bucket:
                del self._buckets[second]

    def __len__(self) -> int:
        """Return the number of entries on the wheel."""
        return sum(map(len, self._buckets.values()))

    def turn(self, now: int) -> None:
        """Advance to ``now`` and call all due entries, including those of missed seconds."""
        self.go_on(now)
        self.ask(lambda: False)

    def go_on(self, now: int) -> None:
        """Advance to ``now``; :meth:`ask` calls the due entries."""
        for second in range(self.now + 1, now + 1):
            self.now = second
            for timed in self._buckets.pop(second, ()):
                self._due.append((timed, second))

    def ask(self, is_over: Callable[[], bool]) -> bool:
        """Call due entries until the slice ``is_over``; returns whether some are left."""
        due = self._due
        while due:
            timed, second = due.popleft()
            timed.time_is_over(second)
            if is_over():
                break
        return bool(due)
