"""The reference event log keeps its contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.build import event
from kinmqtt_spi.testing.event import EventLogContract
from spi_harness.turning import ClockRunner, Gate

RETENTION = 5000


class TestMemoryEventLog(EventLogContract):
    """The log in memory, with something that runs coroutines."""

    forgets = True
    takes_awaitables = True

    @pytest.fixture
    def event_log(self, clock: TurnableClock) -> MemoryEventLog:
        return MemoryEventLog(clock.later, retention=RETENTION, run=ClockRunner(clock))

    def forgetting(self, log: Any, drive: Any) -> None:
        log.append([event("filler", number) for number in range(RETENTION)])

    def held(self, drive: Any) -> tuple[Awaitable[None], Callable[[], object]]:
        gate = Gate()
        return gate, gate.go


class TestPlainMemoryEventLog(EventLogContract):
    """The log in memory as it comes: handlers answer at once."""

    @pytest.fixture
    def event_log(self, clock: TurnableClock) -> MemoryEventLog:
        return MemoryEventLog(clock.later)
