"""The reference outbox keeps its contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.outbox import OutboxContract
from spi_harness.memory_outbox_house import MemoryHouse


class TestMemoryOutbox(OutboxContract):
    """The outbox in memory."""

    @pytest.fixture
    def house(self, clock: TurnableClock) -> MemoryHouse:
        return MemoryHouse(clock)
