"""Runs the garbage collector between turns of the event loop.

By default Python runs it after a number of allocations: in the middle of a turn, when that turn's messages are alive
but form no cycles, and now and then over all objects, which stops a broker with 100,000 sessions for half a second.
Here it runs between turns, often enough that no run takes long, and examined objects are frozen, so that later runs
skip them. Frozen objects are still freed by their reference counts; only cycles stay, and the broker creates no
long-lived ones. Cycles of other code are collected once there may be many.
"""

from __future__ import annotations

import gc
from typing import Final

LOOKS_AT: Final = 10_000
"""New objects that start a run, which takes 0.3 to 0.5 ms per thousand; one turn makes and frees fewer."""

MOST_SET_ASIDE: Final = 5_000_000
"""Frozen objects before all objects are examined, as an absolute number and as a share of all objects:"""

PART_SET_ASIDE: Final = 4

SET_ASIDE_WHILE_SHORT: Final = 500_000
"""The same while memory is short."""


class Collector:
    """Moves garbage collection out of the turns of the event loop; one for each process."""

    def __init__(self) -> None:
        self._there = 0
        self._set_aside = 0

    def begin(self) -> None:
        """Freeze the objects that exist at the start; later ones belong to clients."""
        gc.disable()
        self._look_at_all()

    def stop(self) -> None:
        """Restore automatic garbage collection if it was enabled."""
        if self._there:
            self._there = 0
            gc.unfreeze()
            gc.enable()

    def look(self) -> None:
        """Between two turns: examine new objects if there are many."""
        young = gc.get_count()[0]
        if young >= LOOKS_AT:
            self._set_aside += young - gc.collect(0)
            gc.freeze()

    def look_at_all(self, is_short: bool) -> None:
        """Once a second: examine all objects if many have been frozen since the last time.

        If memory ``is_short``, fewer suffice.
        """
        self.look()
        most = SET_ASIDE_WHILE_SHORT if is_short else MOST_SET_ASIDE
        if self._set_aside > max(most, self._there // PART_SET_ASIDE):
            self._look_at_all()

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._there = gc.get_freeze_count()
        self._set_aside = 0
