"""Memory watermarks: above the first publishers are slowed, above the second QoS 0 is dropped, above the third nobody
more is let in. Each gives way again only when memory has fallen well below it, so that the broker does not swing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.settings import LimitSettings

log = Logger("kinmqtt.overload")

RECOVERS_BELOW: Final = 0.9
"""The part of a watermark below which it is over."""

SLOWED_BY_S: Final = 0.1
"""How long a connection that publishes is not read from after each read, while publishers are slowed."""

_STATM: Final = Path("/proc/self/statm")


class Level(IntEnum):
    """What is done about memory, each with everything before it."""

    NORMAL = 0
    SLOW = 1
    """Publishers are read from slowly."""
    DROP = 2
    """Messages of QoS 0 are dropped."""
    REFUSE = 3
    """New connections are refused."""


def resident_bytes() -> int | None:
    """The memory of this process; ``None`` where the system does not tell."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


class Overload:
    """The present level, looked at once a second."""

    __slots__ = ("_changed", "_limits", "_measure", "drops", "level", "slows")

    def __init__(
        self, limits: Callable[[], LimitSettings], measure: Callable[[], int | None], changed: Callable[[], None]
    ) -> None:
        """``measure`` tells the memory in bytes; ``changed`` is called when the level is another."""
        self._limits = limits
        self._measure = measure
        self._changed = changed
        self.level = Level.NORMAL
        self.slows = False
        """Whether publishers are read from slowly."""
        self.drops = False
        """Whether messages of QoS 0 are dropped."""

    async def look(self, now: float) -> None:
        """Measure, and set the level."""
        limits = self._limits()
        watermarks = (limits.memory_slow_bytes, limits.memory_drop_bytes, limits.memory_refuse_bytes)
        if all(watermark is None for watermark in watermarks):
            self._set(Level.NORMAL, 0)
            return
        memory = self._measure()
        if memory is None:
            return
        level = Level.NORMAL
        for candidate, watermark in zip((Level.SLOW, Level.DROP, Level.REFUSE), watermarks, strict=True):
            if watermark is None:
                continue
            holds = watermark * RECOVERS_BELOW if self.level >= candidate else watermark
            if memory >= holds:
                level = candidate
        self._set(level, memory)

    def _set(self, level: Level, memory: int) -> None:
        if level is self.level:
            return
        worse = level > self.level
        self.level = level
        self.slows = level >= Level.SLOW
        self.drops = level >= Level.DROP
        tell = log.warn if worse else log.info
        tell("memory is at {memory} bytes: {grade}", memory=memory, grade=level.name.lower())
        self._changed()
