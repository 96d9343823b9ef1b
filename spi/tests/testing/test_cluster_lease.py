"""The lease in memory keeps the contract, behind answers that come later too."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.memory.cluster_lease import MemoryClusterLease
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.testing.cluster_base import Late
from kinmqtt_spi.testing.cluster_lease import ClusterLeaseContract
from kinmqtt_spi.values import NodeIdentity
from spi_harness.broken_cluster_lease import LeaseStore, SoundLease


class TestMemoryClusterLease(ClusterLeaseContract):
    """One object for all nodes."""

    @pytest.fixture
    def cluster_lease(self, clock: TurnableClock) -> MemoryClusterLease:
        return MemoryClusterLease(clock)


class TestSoundLease(SoundLease):
    """What the doubles are made from."""


class LateLease(ClusterLease):
    """A node's way to the lease, on which calls and answers take a while."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store

    async def acquire(self, holder: NodeIdentity, ttl_s: float) -> bool:
        await Late(lambda: None)
        has_it: bool = self.store.acquire(holder, ttl_s)
        return await Late(lambda: has_it)

    async def release(self, holder: NodeIdentity) -> None:
        await Late(lambda: self.store.release(holder))


class TestLateLease(SoundLease):
    """An object for each node, with answers to wait for."""

    @pytest.fixture
    def cluster_lease(self, clock: TurnableClock) -> LateLease:
        return LateLease(LeaseStore(clock))

    def peer(self, cluster_lease: Any) -> LateLease:
        return LateLease(cluster_lease.store)

    def failing(self, cluster_lease: Any) -> Any:
        return super().failing(cluster_lease.store)


class TestLeaseOnAsyncio(TestLateLease):
    """The same on an event loop."""

    reactor = "asyncio"
