"""The stores in a real Redis keep their contracts, over restarts of the plugin and of Redis, and while it is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_redis_session import RedisSessionSettings
from kinmqtt_spi.services.queue import QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.testing.queue import QueueStoreContract
from kinmqtt_spi.testing.retain import RetainStoreContract
from kinmqtt_spi.testing.session import SessionStoreContract
from redis_harness.redis_stores import SOON, RedisStores
from redis_harness.servers import RedisServer, redis_server


class TestSessions(RedisStores, SessionStoreContract):
    """Sessions in Redis."""

    provide = "session_store"
    can_lose_nodes = True

    @pytest.fixture
    def session_store(self, lives: Callable[[], SessionStore]) -> SessionStore:
        return lives()


class TestQueues(RedisStores, QueueStoreContract):
    """Queues in Redis."""

    provide = "queue_store"

    @pytest.fixture
    def queue_store(self, lives: Callable[[], QueueStore]) -> QueueStore:
        return lives()


class TestRetained(RedisStores, RetainStoreContract):
    """Retained messages in Redis."""

    provide = "retain_store"

    @pytest.fixture
    def retain_store(self, lives: Callable[[], RetainStore]) -> RetainStore:
        return lives()


class _OnSocket(RedisStores):
    """A server with an append-only file behind a Unix socket, which is killed where it is to fail."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[RedisServer]:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        with redis_server(tmp_path / "redis", *options, on_socket=True) as server:
            yield server

    def settings(self, server: Any) -> RedisSessionSettings:
        return RedisSessionSettings(socket=server.socket, durability="aof", **SOON)

    def reopened(self, store: Any, drive: Any) -> Any:
        drive(self.plugin.stop())
        self.running.kill()
        self.running.start()
        return self.begin()

    def failing(self, store: Any) -> Callable[[], object]:
        self.running.kill()

        def mend() -> None:
            self.running.start()
            self.is_back()

        return mend


class TestSessionsOnSocket(_OnSocket, TestSessions):
    """Sessions, with an append-only file."""


class TestQueuesOnSocket(_OnSocket, TestQueues):
    """Queues, with an append-only file."""


class TestRetainedOnSocket(_OnSocket, TestRetained):
    """Retained messages, with an append-only file."""
