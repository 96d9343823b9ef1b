"""The time of an event loop, as plugins take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.plugin import Timer


class LoopClock(TurnableClock):
    """Real time: the timers are those of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        return self._loop.call_later(delay_s, call)
