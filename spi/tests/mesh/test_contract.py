"""Two nodes of a mesh keep the contract of cluster backends, over short and long connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.mesh.network import Network, NetworkNode
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.testing.cluster import ClusterBackendContract


class TestMesh(ClusterBackendContract):
    """Two nodes."""

    has_peers = True
    can_stall = True
    can_cut = True

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> NetworkNode:
        return NetworkNode(Network(clock), RecordingLog())

    def peer(self, cluster_backend: ClusterBackend) -> NetworkNode:
        return NetworkNode(cast("NetworkNode", cluster_backend).network, RecordingLog())

    def stall(self, cluster_backend: ClusterBackend) -> Callable[[], object]:
        node = cast("NetworkNode", cluster_backend)
        assert node.identity is not None
        return node.network.stall(node.identity.uid)

    def cut(self, cluster_backend: ClusterBackend) -> None:
        node = cast("NetworkNode", cluster_backend)
        assert node.identity is not None
        node.network.cut(node.identity.uid)


class TestDistantMesh(TestMesh):
    """Two nodes far from each other."""

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> NetworkNode:
        return NetworkNode(Network(clock, delay_s=0.15), RecordingLog())


class TestChoppedMesh(TestMesh):
    """Two nodes whose bytes arrive in pieces of odd sizes."""

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> NetworkNode:
        network = Network(clock)
        network.chop = chopped
        return NetworkNode(network, RecordingLog())


def chopped(data: bytes) -> Iterator[bytes]:
    """Cut bytes into pieces that end within headers and bodies."""
    at, size = 0, 3
    while at < len(data):
        yield data[at : at + size]
        at, size = at + size, size * 3 + 1
