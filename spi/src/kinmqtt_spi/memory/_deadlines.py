"""Deadlines by key, and the keys that are due: a heap whose stale entries are skipped and swept."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

SWEEP_ABOVE: Final = 1024
"""The number of heap entries below which stale ones are not swept."""


class Deadlines:
    """At most one deadline for each key. Setting one takes O(log n); asking for due keys, O(number of due keys)."""

    __slots__ = ("_at", "_heap", "_sweep_at")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._sweep_at = SWEEP_ABOVE

    def set(self, key: str, at: float | None) -> None:
        """Set the deadline of ``key`` in seconds since the epoch, or remove it."""
        if at is None:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > self._sweep_at:
                self._sweep()

    def due(self, now: float, limit: int) -> list[str]:
        """Return at most ``limit`` keys whose deadline is not after ``now``, the earliest first; removes none."""
        found: list[tuple[float, str]] = []
        heap = self._heap
        while heap and heap[0][0] <= now and len(found) < limit:
            item = heappop(heap)
            # A deadline that was set twice has equal entries, which come out of the heap one after the other.
            if self._at.get(item[1]) == item[0] and (not found or found[-1] != item):
                found.append(item)
        for item in found:
            heappush(heap, item)
        return [key for _, key in found]

    def _sweep(self) -> None:
        """Rebuild the heap without stale entries. It doubles in between, so the amortized cost is constant."""
        self._heap = [(at, key) for key, at in self._at.items()]
        heapify(self._heap)
        self._sweep_at = max(SWEEP_ABOVE, 2 * len(self._heap))
