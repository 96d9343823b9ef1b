"""A rule's cells by key: so many at most, and none that is as good as new for long."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from typing import Final

from kinmqtt_sentinel_limiter._cells import Cell

_LOOK_AT: Final = 64
"""How many of the oldest keys are looked at where room is needed, so that no request waits for a walk over all."""

_DROP: Final = 8
"""How many of them go at least."""


LONGEST_KEY: Final = 128
"""In characters. A client id may have 64 kB, and is told before anybody knows who sends it."""

_COMES_DOUBLE: Final = 2
"""How many keys are looked at for each that came."""


def key_of(name: str) -> str:
    """What a name is remembered by: a digest where it is long, which no other name is, as none has a zero in it."""
    if len(name) <= LONGEST_KEY:
        return name
    return "\0" + blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()


class KeyTable:
    """Cells by key, at most ``max_keys``.

    A cell that is as good as new is dropped first, then those with the least use: what is lost by that is the
    smallest debt there is. Cells of a concurrency that are in use stay: they are no more than what is open. Who still
    holds a cell that was dropped is told by it.
    """

    def __init__(self, max_keys: int, make: Callable[[float], Cell]) -> None:
        self.max_keys = max_keys
        self._make = make
        self._round: list[str] = []
        """The keys that this round of sweeping has not come to."""
        self._came = 0
        """How many are new since the last sweep."""
        self.cells: dict[str, Cell] = {}

    def cell(self, key: str, now: float) -> Cell:
        """The key's cell, perhaps a new one."""
        cell = self.cells.get(key)
        if cell is None:
            if len(self.cells) >= self.max_keys:
                self._make_room(now)
            cell = self.cells[key] = self._make(now)
            self._came += 1
        return cell

    def resize(self, max_keys: int, now: float) -> None:
        """Another bound, which holds at once: those with the least use go."""
        self.max_keys = max_keys
        surplus = len(self.cells) - max_keys
        if surplus > 0:
            spent = {key: cell.spent(now) for key, cell in self.cells.items() if not cell.held}
            for key in nsmallest(surplus, spent, key=spent.__getitem__):
                self._drop(key)

    def sweep(self, now: float, keys: int) -> None:
        """Drop those of the next so many keys that are as good as new, of more where many came lately."""
        keys = max(keys, _COMES_DOUBLE * self._came)
        self._came = 0
        if not self._round:
            self._round = list(self.cells)
        for key in self._round[-keys:]:
            cell = self.cells.get(key)
            if cell is not None and cell.spent(now) <= 0.0:
                self._drop(key)
        del self._round[-keys:]

    def _make_room(self, now: float) -> None:
        """Look at the oldest keys: some go, the others are young again."""
        oldest = {key: cell.spent(now) for key, cell in islice(self.cells.items(), _LOOK_AT)}
        going = {key for key, spent in oldest.items() if spent <= 0.0}
        if not going:
            going = set(nsmallest(_DROP, oldest, key=oldest.__getitem__))
        for key in oldest:
            if key in going and not self.cells[key].held:
                self._drop(key)
            else:
                self.cells[key] = self.cells.pop(key)

    def _drop(self, key: str) -> None:
        self.cells.pop(key).go()
