"""The reference queue store keeps its contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.testing.queue import QueueStoreContract


class TestMemoryQueueStore(QueueStoreContract):
    """The store in memory."""

    @pytest.fixture
    def queue_store(self) -> MemoryQueueStore:
        return MemoryQueueStore()
