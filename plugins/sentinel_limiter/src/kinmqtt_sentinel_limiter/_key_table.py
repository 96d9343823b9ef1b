"""A rule's cells by key: a bounded table that drops unused cells."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from typing import Final

from kinmqtt_sentinel_limiter._cells import Cell

_CANDIDATES: Final = 64
"""How many of the oldest keys are checked when room is needed, so that no request scans the whole table."""

_MIN_DROPPED: Final = 8
"""How many of them are dropped at least."""


MAX_KEY_LENGTH: Final = 128
"""In characters. A client id may have 64 kB and comes before authentication."""

_SWEEP_FACTOR: Final = 2
"""How many keys are checked for each key that was added."""


def key_of(name: str) -> str:
    """The key of a name: the name itself, or a digest if it is long. Only digests contain a zero character."""
    if len(name) <= MAX_KEY_LENGTH:
        return name
    return "\0" + blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()


class KeyTable:
    """Cells by key, at most ``max_keys``.

    Unused cells are dropped first, then the least used ones, because they lose the least state. Concurrency cells in
    use stay; there are no more of them than open connections. A dropped cell is marked as forgotten for its holders.
    """

    def __init__(self, max_keys: int, make: Callable[[float], Cell]) -> None:
        self.max_keys = max_keys
        self._make = make
        self._to_sweep: list[str] = []
        """The keys that the current round has not swept yet."""
        self._added = 0
        """How many keys were added since the last sweep."""
        self.cells: dict[str, Cell] = {}

    def cell(self, key: str, now: float) -> Cell:
        """The key's cell; makes it if there is none."""
        cell = self.cells.get(key)
        if cell is None:
            if len(self.cells) >= self.max_keys:
                self._make_room(now)
            cell = self.cells[key] = self._make(now)
            self._added += 1
        return cell

    def resize(self, max_keys: int, now: float) -> None:
        """Change the limit at once; drops the least used cells beyond it."""
        self.max_keys = max_keys
        surplus = len(self.cells) - max_keys
        if surplus > 0:
            spent = {key: cell.spent(now) for key, cell in self.cells.items() if not cell.held}
            for key in nsmallest(surplus, spent, key=spent.__getitem__):
                self._drop(key)

    def sweep(self, now: float, keys: int) -> None:
        """Check the next ``keys`` keys, or more if many were added lately, and drop unused cells."""
        keys = max(keys, _SWEEP_FACTOR * self._added)
        self._added = 0
        if not self._to_sweep:
            self._to_sweep = list(self.cells)
        for key in self._to_sweep[-keys:]:
            cell = self.cells.get(key)
            if cell is not None and cell.spent(now) <= 0.0:
                self._drop(key)
        del self._to_sweep[-keys:]

    def _make_room(self, now: float) -> None:
        """Drop some of the oldest keys, and move the others to the end."""
        oldest = {key: cell.spent(now) for key, cell in islice(self.cells.items(), _CANDIDATES)}
        going = {key for key, spent in oldest.items() if spent <= 0.0}
        if not going:
            going = set(nsmallest(_MIN_DROPPED, oldest, key=oldest.__getitem__))
        for key in oldest:
            if key in going and not self.cells[key].held:
                self._drop(key)
            else:
                self.cells[key] = self.cells.pop(key)

    def _drop(self, key: str) -> None:
        self.cells.pop(key).forget()
