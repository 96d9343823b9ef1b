"""The reference session store keeps its contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.testing.session import SessionStoreContract
from spi_harness.homed import HomedSessionStore, Shared


class TestMemorySessionStore(SessionStoreContract):
    """The store in memory."""

    @pytest.fixture
    def session_store(self) -> MemorySessionStore:
        return MemorySessionStore()


class TestHomedSessionStore(Shared, SessionStoreContract):
    """One that nodes share, as the doubles of its promises do."""

    @pytest.fixture
    def session_store(self) -> HomedSessionStore:
        return HomedSessionStore()
