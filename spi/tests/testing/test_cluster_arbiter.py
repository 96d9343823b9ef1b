"""The arbiter in memory keeps the contract, behind answers that come later too."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.testing.cluster_arbiter import ClusterArbiterContract
from kinmqtt_spi.testing.cluster_base import Late
from spi_harness.broken_cluster_arbiter import ArbiterStore, SoundArbiter


class TestMemoryClusterArbiter(ClusterArbiterContract):
    """One object for all nodes."""

    @pytest.fixture
    def cluster_arbiter(self) -> MemoryClusterArbiter:
        return MemoryClusterArbiter()


class TestSoundArbiter(SoundArbiter):
    """What the doubles are made from."""


class LateArbiter(ClusterArbiter):
    """A node's way to the arbiter, on which calls and answers take a while."""

    def __init__(self, store: ArbiterStore) -> None:
        self.store = store

    async def term(self) -> int:
        return await Late(self.store.term)

    async def decide(self, term: int, side: int) -> bool:
        await Late(lambda: None)
        has_it: bool = self.store.decide(term, side)
        return await Late(lambda: has_it)

    async def members(self) -> Any:
        return await Late(self.store.members)

    async def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> bool:
        await Late(lambda: None)
        is_noted: bool = self.store.note_member(address, limit_s, only_first=only_first)
        return await Late(lambda: is_noted)

    async def forget_member(self, address: str) -> None:
        await Late(lambda: self.store.forget_member(address))


class TestLateArbiter(SoundArbiter):
    """An object for each node, with answers to wait for."""

    @pytest.fixture
    def cluster_arbiter(self) -> LateArbiter:
        return LateArbiter(ArbiterStore())

    def peer(self, cluster_arbiter: Any) -> LateArbiter:
        return LateArbiter(cluster_arbiter.store)

    def failing(self, cluster_arbiter: Any) -> Any:
        return super().failing(cluster_arbiter.store)


class TestArbiterOnAsyncio(TestLateArbiter):
    """The same on an event loop."""

    reactor = "asyncio"
