"""The stores in a real Redis Cluster of three masters keep their contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinmqtt_redis_session import RedisSessionSettings
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.queue import Append, InboundOpen, QueueStore, QueueWrite, Remove, Send
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import entry
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.testing.queue import QueueStoreContract
from kinmqtt_spi.testing.retain import RetainStoreContract
from kinmqtt_spi.testing.session import SessionStoreContract
from redis_harness.redis_stores import SOON, RedisStores
from redis_harness.servers import RedisCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three masters."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()


class InCluster(RedisStores):
    """The plugin over a cluster whose masters are all paused where it is to fail."""

    @pytest.fixture
    def server(self, cluster: RedisCluster) -> Iterator[RedisCluster]:
        cluster.ask("flushall")
        yield cluster

    def settings(self, server: Any) -> RedisSessionSettings:
        return RedisSessionSettings(cluster=server.addresses, **SOON)

    def failing(self, store: Any) -> Callable[[], object]:
        self.running.each("pause")

        def mend() -> None:
            self.running.each("go_on")
            self.is_back()

        return mend


class TestSessionsInCluster(InCluster, SessionStoreContract):
    """Sessions in a cluster."""

    provide = "session_store"
    can_lose_nodes = True

    @pytest.fixture
    def session_store(self, lives: Callable[[], SessionStore]) -> SessionStore:
        return lives()


class TestQueuesInCluster(InCluster, QueueStoreContract):
    """Queues in a cluster."""

    provide = "queue_store"

    @pytest.fixture
    def queue_store(self, lives: Callable[[], QueueStore]) -> QueueStore:
        return lives()

    @behaviour("QUEUE-37", needs="can_fail")
    def test_queue_37_a_failed_batch_is_whole_or_not_there(self, queue_store: QueueStore, drive: Driver) -> None:
        """Of a batch that failed an inbound id is never kept without all entries; they may be without it."""
        self._apply(queue_store, drive, Append("a", 1, entry(1)), Append("b", 1, entry(1)))
        mend = self.failing(queue_store)
        batch: list[QueueWrite] = [InboundOpen("a", 1, 7), Append("a", 1, entry(2))]
        batch += [Append("b", 1, entry(2)), Remove("b", 1, 1)]

        with pytest.raises(ServiceUnavailable):
            self._apply(queue_store, drive, *batch)
        mend()

        entries = [[each.sequence for each in self._read(queue_store, drive, name)] for name in "ab"]
        assert not drive(queue_store.load("a")).inbound or entries == [[1, 2], [2]]
        assert 1 in entries[1] or 2 in entries[1]
        self._apply(queue_store, drive, *batch)
        assert [[each.sequence for each in self._read(queue_store, drive, name)] for name in "ab"] == [[1, 2], [2]]

    def test_sends_of_a_turn_are_in_flight_in_order(self, queue_store: QueueStore, drive: Driver) -> None:
        """An entry that is sent as it is appended stands behind one that was sent from the queue before it."""
        self._apply(queue_store, drive, Append("a", 1, entry(1)))

        self._apply(queue_store, drive, Send("a", 1, 1, 5), Append("a", 1, entry(2), 6))

        assert [each.sequence for each in drive(queue_store.load("a")).inflight] == [1, 2]


class TestRetainedInCluster(InCluster, RetainStoreContract):
    """Retained messages in a cluster."""

    provide = "retain_store"

    @pytest.fixture
    def retain_store(self, lives: Callable[[], RetainStore]) -> RetainStore:
        return lives()
