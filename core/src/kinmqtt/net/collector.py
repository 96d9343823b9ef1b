"""When the garbage collector looks for circles of references, and at what.

By itself it looks whenever so many objects have been made: in the middle of a turn of the event loop, when the
messages of that turn are all there, which are no circles; and now and then at everything that there is. With 100,000
sessions that stops a broker for half a second. Here it looks between turns, often enough that no look takes long, and
sets aside what it has looked at. What is set aside is freed as ever when nobody refers to it; only circles stay, and
of those the broker makes none that live long. Those of others are looked for once there may be many.
"""

from __future__ import annotations

import gc
from typing import Final

LOOKS_AT: Final = 10_000
"""New objects that are worth a look, of 0.3 to 0.5 ms a thousand; a turn of many messages makes and frees fewer."""

MOST_SET_ASIDE: Final = 5_000_000
"""Objects that may be set aside before all are looked at, and as a part of all that there are:"""

PART_SET_ASIDE: Final = 4

SET_ASIDE_WHILE_SHORT: Final = 500_000
"""The same while memory is short."""


class Collector:
    """Takes the garbage collector's work out of the turns of the event loop; one for a process."""

    def __init__(self) -> None:
        self._there = 0
        self._set_aside = 0

    def begin(self) -> None:
        """Everything is made that a broker begins with; what comes now comes with its clients."""
        gc.disable()
        self._look_at_all()

    def stop(self) -> None:
        """Leave the garbage collector to itself again, where it was not."""
        if self._there:
            self._there = 0
            gc.unfreeze()
            gc.enable()

    def look(self) -> None:
        """Between two turns: look at what is new, where that is much."""
        young = gc.get_count()[0]
        if young >= LOOKS_AT:
            self._set_aside += young - gc.collect(0)
            gc.freeze()

    def look_at_all(self, is_short: bool) -> None:
        """Once a second: look at everything, where very much has been set aside since that was done.

        It is done sooner where memory ``is_short``.
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
