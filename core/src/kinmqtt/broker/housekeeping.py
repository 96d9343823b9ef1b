"""Periodic work: keep-alive timers, expiries and due wills once a second, ``$SYS`` at longer intervals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.keepalive import TimerWheel
from kinmqtt.broker.turn.slices import Slices
from kinmqtt.hooks.awaitables import run
from kinmqtt_spi.services.plugin import Clock, Timer

log = Logger("kinmqtt.housekeeping")

INTERVAL_S: Final = 1.0

Chore = Callable[[float], Coroutine[Any, Any, None]]
"""Work of each second; its argument is the time in seconds since the epoch."""


class Housekeeping:
    """Runs the chores independently: one that waits for a slow store does not delay the others."""

    def __init__(self, clock: Clock, slices: Slices, wheel: TimerWheel, chores: dict[str, Chore]) -> None:
        self._clock = clock
        self._slices = slices
        self._wheel = wheel
        self._chores: dict[str, Chore] = {"wheel": self._check_timers, **chores}
        self._busy: set[str] = set()
        self._timer: Timer | None = None
        self._began = 0.0
        self._intervals: list[tuple[float, float, Callable[[], object]]] = []

    def start(self) -> None:
        """Start the timer."""
        self._began = self._clock.monotonic()
        self._timer = self._clock.later(INTERVAL_S, self._tick)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def every(self, interval_s: float, call: Callable[[], object], *, at_once: bool = True) -> None:
        """Make a call at each interval, and with ``at_once`` also when housekeeping starts."""
        first = self._clock.monotonic() + (0.0 if at_once else interval_s)
        self._intervals.append((interval_s, first, call))

    def _tick(self) -> None:
        self._timer = self._clock.later(INTERVAL_S, self._tick)
        self._slices.begin()
        self._wheel.go_on(int(self._clock.monotonic() - self._began))
        now = self._clock.now()
        for name, chore in self._chores.items():
            if name not in self._busy:
                self._busy.add(name)
                self._watch(name, run(chore(now)))
        self._call_due()

    async def _check_timers(self, now: float) -> None:
        """Check the keep-alive timers in slices: after a network failure thousands may expire in one second."""
        while self._wheel.ask(self._slices.is_over):
            await self._slices.turn()

    def _watch(self, name: str, work: Deferred[None]) -> None:
        def done(result: object) -> None:
            self._busy.discard(name)
            if isinstance(result, Failure):
                log.failure("housekeeping: {name} failed", result, name=name)

        work.addBoth(done)

    def _call_due(self) -> None:
        now = self._clock.monotonic()
        for position, (interval_s, due, call) in enumerate(self._intervals):
            if now >= due:
                self._intervals[position] = (interval_s, now + interval_s, call)
                try:
                    call()
                except Exception:
                    log.failure("housekeeping: {call} failed", call=call)
