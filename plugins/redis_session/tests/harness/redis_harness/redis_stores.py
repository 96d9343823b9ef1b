"""What the contract suites over Redis share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.testing.contract import StoreContract
from kinmqtt_spi.values import NodeIdentity
from redis_harness.servers import RedisServer, redis_server

SOON: dict[str, Any] = {"timeout_s": 2.0, "reconnect_min_s": 0.01, "reconnect_max_s": 0.05}


class RedisStores(StoreContract):
    """The plugin over one server, which is paused where it is to fail."""

    reactor = "asyncio"
    survives_restart = True
    can_fail = True
    provide: str
    """The name of the plugin's hook that gives the store."""
    running: Any
    """What was started for the test."""
    begin: Callable[[], Any]

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[RedisServer]:
        """A server with nothing in it."""
        with redis_server(tmp_path / "redis") as server:
            yield server

    @pytest.fixture
    def lives(self, server: Any, clock: TurnableClock, drive: Any) -> Iterator[Any]:
        """Begins a life of the plugin, and answers its store."""
        self.running = server
        self.drive = drive
        self.begin = lambda: self._begun(self.settings(server), clock)
        yield self.begin
        drive(self.plugin.stop())

    def settings(self, server: Any) -> RedisSessionSettings:
        """Where the server is."""
        return RedisSessionSettings(host="127.0.0.1", port=server.port, **SOON)

    def reopened(self, store: Any, drive: Any) -> Any:
        drive(self.plugin.stop())
        return self.begin()

    def failing(self, store: Any) -> Callable[[], object]:
        self.running.pause()

        def mend() -> None:
            self.running.go_on()
            self.is_back()

        return mend

    def lost(self, store: Any, node: NodeIdentity, drive: Any) -> None:
        parts: Any = self.plugin._parts
        drive(parts.leases.mark_stopped(node.uid, parts.link.execute))

    def look(self, store: Any, drive: Any) -> None:
        parts: Any = self.plugin._parts
        drive(parts.sessions.check_taken_over(parts.execute))

    def is_back(self) -> None:
        """Wait until the plugin is served again."""
        parts: Any = self.plugin._parts
        self.drive(parts.link.back())
        assert parts.link.is_up

    def _begun(self, settings: RedisSessionSettings, clock: TurnableClock) -> Any:
        self.plugin = RedisSession()
        context = BareContext("redis_session", settings, clock=clock)
        self.plugin.configure(context)
        store = getattr(self.plugin, self.provide)()
        self.drive(self.plugin.start(context))
        return store
