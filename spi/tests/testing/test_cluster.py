"""The reference backend, and a cluster of two nodes in memory, keep the contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from spi_harness.broken_cluster import SoundNodes


class TestSingleNode(ClusterBackendContract):
    """The cluster of one."""

    @pytest.fixture
    def cluster_backend(self) -> SingleNode:
        return SingleNode()


class TestSoundNodes(SoundNodes):
    """Two nodes: what the doubles are made from."""
