"""Compares memory with three watermarks, and acts above each.

Above the first, clients that send much are slowed; above the second, QoS 0 is dropped; above the third, nothing new
is accepted and the connections that hold most are disconnected. A level ends only when memory has fallen well below
its watermark, to avoid oscillation.

Memory is measured once a second, and whenever much has been received. Until the next measurement, connections may
hold what is left below the highest watermark (:class:`kinmqtt.broker.buffers.Buffers`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.buffers import UNLIMITED, Buffers
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.services.metric import Counter

log = Logger("kinmqtt.overload")

RECOVERS_BELOW: Final = 0.9
"""A level ends when memory is below this fraction of its watermark."""

SLOW_BYTES_PER_S: Final = 640 << 10
"""The read rate of a client that publishes or has an incomplete packet, while such clients are slowed."""

SLOWED_FROM_BYTES: Final = 1 << 10
"""Smaller reads are not slowed: large amounts fill memory, not frequent reads."""

LOOKS_AFTER_BYTES: Final = 1 << 20
"""Memory is measured again after this many received bytes, or a sixteenth of what is left if that is more."""

WORTH_CUTTING: Final = 8
"""Connections are disconnected only while all of them hold more than the third watermark divided by this: otherwise
memory is short for another reason."""

SETTLES_S: Final = 0.2
"""The time until released memory is free; until then no more connections are disconnected."""

_STATM: Final = "/proc/self/statm"


class Level(IntEnum):
    """The measures against memory shortage; each level includes the lower ones."""

    NORMAL = 0
    SLOW = 1
    """Clients that send much are read from slowly."""
    DROP = 2
    """Messages of QoS 0 are dropped."""
    REFUSE = 3
    """New connections, subscriptions and persistent sessions are refused, and the largest buffers are cut."""


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; ``None`` if the system does not provide it."""
    try:
        # Takes half the time of a file object: this is called often when memory is short.
        descriptor = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(descriptor, 256)
        finally:
            os.close(descriptor)
        return int(line.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


class Overload:
    """Measures memory, and sets the level."""

    __slots__ = (
        "_buffers",
        "_call_soon",
        "_changed",
        "_later",
        "_limits",
        "_measure",
        "_received",
        "_scheduled",
        "_settling",
        "_trim",
        "drops",
        "level",
        "look_at",
        "recovered",
        "slows",
    )

    def __init__(
        self,
        limits: Callable[[], LimitSettings],
        measure: Callable[[], int | None],
        changed: Callable[[], None],
        buffers: Buffers,
        received: Counter,
        trim: Callable[[], object],
        call_soon: Callable[[Callable[[], object]], object],
        later: Callable[[float, Callable[[], object]], object],
    ) -> None:
        """``measure`` returns the memory in bytes; ``changed`` is called when the level changes.

        ``received`` counts the received bytes; ``trim`` returns free memory to the system; ``call_soon`` makes a call
        in the next reactor turn, ``later`` after a number of seconds.
        """
        self._limits = limits
        self._measure = measure
        self._changed = changed
        self._buffers = buffers
        self._received = received
        self._trim = trim
        self._call_soon = call_soon
        self._later = later
        self._scheduled = False
        self._settling = False
        self.level = Level.NORMAL
        self.slows = False
        """Whether clients that send much are read from slowly."""
        self.drops = False
        """Whether messages of QoS 0 are dropped."""
        self.recovered = False
        """Whether the level has fallen since this was reset."""
        self.look_at = UNLIMITED
        """The number of received bytes at which to measure memory."""
        buffers.when_grown(self.look_soon)

    @property
    def refuses(self) -> bool:
        """Whether nothing new is accepted."""
        return self.level >= Level.REFUSE

    async def look(self, now: float) -> None:
        """Measure memory and set the level; called once a second."""
        self._look()

    def look_soon(self) -> None:
        """Measure memory in the next reactor turn, as much was received or is held."""
        self.look_at = self._buffers.look_at = UNLIMITED
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        limits = self._limits()
        watermarks = (limits.memory_slow_bytes, limits.memory_drop_bytes, limits.memory_refuse_bytes)
        highest = max(watermarks)
        memory = self._measure() if highest else 0
        if not highest or memory is None:
            # If memory is unknown, the level stays.
            self.look_at = UNLIMITED
            self._buffers.allow(UNLIMITED, UNLIMITED)
            if not highest:
                self._set(Level.NORMAL, 0)
            return
        level = Level.NORMAL
        for candidate, watermark in zip((Level.SLOW, Level.DROP, Level.REFUSE), watermarks, strict=True):
            holds = watermark * RECOVERS_BELOW if self.level >= candidate else watermark
            if watermark and memory >= holds:
                level = candidate
        left = highest - memory
        step = max(LOOKS_AFTER_BYTES, left // 16)
        held = self._buffers.total
        self.look_at = self._received.value + step
        self._buffers.allow(held + left, held + step)
        self._set(level, memory)
        if level is Level.REFUSE:
            self._cut(memory, limits.memory_refuse_bytes)

    def _set(self, level: Level, memory: int) -> None:
        if level is self.level:
            return
        worse = level > self.level
        self.recovered |= not worse
        self.level = level
        self.slows = level >= Level.SLOW
        self.drops = level >= Level.DROP
        write = log.warn if worse else log.info
        write("memory is at {memory} bytes: {grade}", memory=memory, grade=level.name.lower())
        self._changed()

    def _cut(self, memory: int, watermark: int) -> None:
        """Disconnect the connections that hold most, until memory is expected to end the level."""
        excess = min(memory - int(watermark * RECOVERS_BELOW), self._buffers.total - watermark // WORTH_CUTTING)
        if excess > 0 and not self._settling and self._buffers.cut(excess):
            self._settling = True
            self._later(SETTLES_S, self._settled)

    def _settled(self) -> None:
        self._settling = False
        self._trim()
        self._look()
