"""Decides when to release free memory to the system: after much was freed, and while memory is short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinmqtt.broker.buffers import Buffers
from kinmqtt.broker.overload import Level, Overload
from kinmqtt.broker.runtime import QueueTotals

WORTH_BYTES: Final = 8 << 20
"""The least decrease in bytes for a release: finding free memory takes milliseconds."""

AT_MOST_EVERY_S: Final = 5.0
"""The least time between two releases, however much is allocated and freed."""

WHILE_SHORT_S: Final = 10.0
"""The interval of releases above a watermark."""


class Trimming:
    """Checks once a second whether to release memory."""

    __slots__ = ("_at", "_buffers", "_monotonic", "_overload", "_peak", "_trim", "_waiting")

    def __init__(
        self,
        buffers: Buffers,
        waiting: QueueTotals,
        overload: Overload,
        monotonic: Callable[[], float],
        trim: Callable[[], object],
    ) -> None:
        """``waiting`` counts the queued messages; ``trim`` releases free memory."""
        self._buffers = buffers
        self._waiting = waiting
        self._overload = overload
        self._monotonic = monotonic
        self._trim = trim
        self._at = monotonic()
        self._peak = 0

    async def look(self, now: float) -> None:
        """Release free memory where that is worth the time."""
        queued = self._waiting.size_bytes
        held = self._buffers.total + queued
        self._peak = max(self._peak, held, self._buffers.peak + queued)
        since_s = self._monotonic() - self._at
        due = since_s >= AT_MOST_EVERY_S and (self._overload.recovered or self._peak - held >= WORTH_BYTES)
        if due or (self._overload.level > Level.NORMAL and since_s >= WHILE_SHORT_S):
            self._at = self._monotonic()
            self._peak = held
            self._buffers.peak = self._buffers.total
            self._overload.recovered = False
            self._trim()
