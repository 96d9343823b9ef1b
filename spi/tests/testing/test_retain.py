"""The reference retain store keeps its contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.testing.retain import RetainStoreContract


class TestMemoryRetainStore(RetainStoreContract):
    """The store in memory."""

    @pytest.fixture
    def retain_store(self) -> MemoryRetainStore:
        return MemoryRetainStore()
