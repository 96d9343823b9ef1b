"""The reference backend, and a cluster of two nodes in memory, keep the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from kinmqtt_spi.testing.driving import AsyncioDriver
from spi_harness.broken_cluster import SoundNodes
from spi_harness.two_nodes import Hub, Node


class TestSingleNode(ClusterBackendContract):
    """The cluster of one."""

    @pytest.fixture
    def cluster_backend(self) -> SingleNode:
        return SingleNode()


class TestSoundNodes(SoundNodes):
    """Two nodes: what the doubles are made from."""


class TestDistantNodes(SoundNodes):
    """Two nodes whose messages take many moments of the clock."""

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> Node:
        return Node(Hub(clock, delay_s=0.17))


class TestNodesOnAsyncio(SoundNodes):
    """Two nodes on an event loop."""

    reactor = "asyncio"

    @pytest.fixture
    def cluster_backend(self, drive: AsyncioDriver) -> Node:
        return Node(Hub(LoopTimers(drive.loop)))


class LoopTimers:
    """The timers of an event loop. Limits of questions and barriers are real time: a tenth of what they say."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def later(self, delay_s: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s / 10, call)
