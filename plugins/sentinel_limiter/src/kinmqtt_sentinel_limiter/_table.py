"""A rule's cells by key: so many at most, and none that is as good as new for long."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import Final

from kinmqtt_sentinel_limiter._cells import Cell

_SHARE: Final = 8
"""One in so many is dropped at once, so that who holds cells is told seldom."""


class KeyTable:
    """Cells by key, at most ``max_keys``; ``dropped`` is called after cells were forgotten.

    A cell that is as good as new is dropped first, then those with the least use: what is lost by that is the
    smallest debt there is. Cells of a concurrency that are in use stay: they are no more than what is open.
    """

    def __init__(self, max_keys: int, make: Callable[[float], Cell], dropped: Callable[[], None]) -> None:
        self.max_keys = max_keys
        self.dropped = dropped
        self._make = make
        self._room = max_keys
        self.cells: dict[str, Cell] = {}

    def cell(self, key: str, now: float) -> Cell:
        """The key's cell, perhaps a new one."""
        cell = self.cells.get(key)
        if cell is None:
            if len(self.cells) >= self._room:
                self._make_room(now)
            cell = self.cells[key] = self._make(now)
        return cell

    def sweep(self, now: float) -> None:
        """Drop all cells that are as good as new."""
        idle = [key for key, cell in self.cells.items() if cell.spent(now) <= 0.0]
        self._drop(idle)

    def _make_room(self, now: float) -> None:
        idle = [key for key, cell in self.cells.items() if cell.spent(now) <= 0.0]
        number = max(self.max_keys // _SHARE, 1)
        if len(idle) < number:
            idle = nsmallest(number, self.cells, key=lambda key: self.cells[key].spent(now))
        self._drop([key for key in idle if not self.cells[key].held])
        # Where all are held, the next look is as far away as the next share.
        self._room = max(self.max_keys, len(self.cells) + number) if len(self.cells) >= self._room else self.max_keys

    def _drop(self, keys: list[str]) -> None:
        if keys:
            for key in keys:
                del self.cells[key]
            self.dropped()
