"""The common base of suites whose implementations call consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from time import monotonic
from typing import Final

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Event, Recorded
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import LIMIT_S, AsyncioDriver, Driver
from kinmqtt_spi.values import Maybe

_STEP_S: Final = 0.25
_QUIET_S: Final = 2.0
"""How long it is watched that something does not come about."""
_PATIENCE_S: Final = 120.0
"""How long it is waited for that something comes about."""
MANY: Final = 1_000_000


class ConsumingContract(Contract):
    """Consumers run while time passes: on ``clock``, or in the event loop of ``drive``."""

    takes_awaitables = False
    """Whether handlers may answer awaitables: override :meth:`held` where it is not asyncio that runs them."""

    def held(self, drive: Driver) -> tuple[Awaitable[None], Callable[[], object]]:
        """Return an awaitable for a handler, and a call that ends the wait: an asyncio future by default."""
        if not isinstance(drive, AsyncioDriver):
            raise NotImplementedError(f"{type(self).__name__} sets takes_awaitables, and does not override held")
        future: asyncio.Future[None] = drive.loop.create_future()
        return future, lambda: future.set_result(None)

    def pass_time(self, clock: TurnableClock, drive: Driver, seconds: float) -> None:
        """Let consumers run: advance the clock, and run the event loop for a moment if there is one."""
        clock.advance(seconds)
        if self.reactor is not None:
            moment: Maybe[None] = asyncio.sleep(0.01)
            drive(moment)

    def _until(self, clock: TurnableClock, drive: Driver, condition: Callable[[], object]) -> None:
        """Let time pass until a condition holds."""
        passed, limit = 0.0, monotonic() + (0 if self.reactor is None else LIMIT_S)
        while not condition():
            assert passed < _PATIENCE_S or monotonic() < limit, "the condition is not reached"
            self.pass_time(clock, drive, _STEP_S if passed else 0.0)
            passed += _STEP_S

    def _quiet(self, clock: TurnableClock, drive: Driver) -> None:
        """Let time pass, to check that nothing happens."""
        for _ in range(int(_QUIET_S / _STEP_S)):
            self.pass_time(clock, drive, _STEP_S)


class Collector:
    """A handler that collects its events, and raises a number of times."""

    def __init__(self, failures: int = 0, also: list[Recorded] | None = None) -> None:
        self.batches: list[list[Recorded]] = []
        self.handled: list[Recorded] = []
        self._failures = failures
        self._also = also

    def __call__(self, batch: Sequence[Recorded]) -> None:
        self.batches.append(list(batch))
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the test's handler can't at the moment")
        self.handled += batch
        if self._also is not None:
            self._also += batch

    def first(self) -> list[Recorded]:
        """The handled events, without redelivered ones."""
        return first(self.handled)


class Waiting:
    """A handler whose calls end when the test says so."""

    def __init__(self, suite: ConsumingContract, drive: Driver, failures: int = 0) -> None:
        self.begun: list[list[Recorded]] = []
        self.ended: list[Recorded] = []
        self._suite = suite
        self._drive = drive
        self._failures = failures
        self._going: list[Callable[[], object]] = []

    async def __call__(self, batch: Sequence[Recorded]) -> None:
        self.begun.append(list(batch))
        awaitable, go = self._suite.held(self._drive)
        self._going.append(go)
        await awaitable
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the test's handler can't at the moment")
        self.ended += batch

    def go(self) -> None:
        """End the call that was begun."""
        going, self._going = self._going, []
        for go in going:
            go()


def reaches(items: Callable[[], Sized], count: int) -> Callable[[], bool]:
    """Tell whether there are that many of them."""
    return lambda: len(items()) >= count


def first(handled: Iterable[Recorded]) -> list[Recorded]:
    """The events without redelivered ones."""
    first: dict[int, Recorded] = {}
    for recorded in handled:
        first.setdefault(recorded.offset, recorded)
    return list(first.values())


def of(records: Iterable[Recorded], client_id: str) -> list[Event]:
    return [recorded.event for recorded in records if recorded.event.client_id == client_id]


def counters(records: Iterable[Recorded], client_id: str | None = None) -> list[int]:
    return [each.event.version.counter for each in records if client_id in (None, each.event.client_id)]
