"""The house of the core's tests with its sessions, queues and retained messages in a real Redis.

A call to it returns, as over memory, when everything that it led to is over: here, that Redis has answered too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kinmqtt.testing import BrokerHarness
from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from redis_harness.servers import RedisServer, redis_server

OURS = ("session", "queue", "retain")
"""The families whose services are the plugin's."""

LIMIT_S = 30.0
"""How long Redis may take to answer before a test fails."""


class RedisHouse(BrokerHarness):
    """A broker in memory over a Redis; every house has a prefix of its own there."""

    server: ClassVar[RedisServer | None] = None
    houses: ClassVar[list[RedisHouse]] = []
    """Those of the test that runs."""
    number: ClassVar[int] = 0

    def __init__(
        self,
        *,
        plugins: Mapping[str, Any] | None = None,
        services: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        given = dict(plugins or {})
        if any(hasattr(each, f"{family}_store") for each in given.values() for family in OURS):
            pytest.skip("it brings stores of its own, and is the same over whatever the others are")
        assert RedisHouse.server is not None, "no Redis was started: see conftest.py at the root"
        RedisHouse.number += 1
        RedisHouse.houses.append(self)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.session_plugin = RedisSession()
        settings = more.setdefault("plugin_settings", {})
        more["plugin_settings"] = dict(settings) | {
            "redis_session": RedisSessionSettings(
                socket=RedisHouse.server.socket, prefix=f"{RedisHouse.number}:", timeout_s=LIMIT_S
            )
        }
        super().__init__(
            plugins=given | {"redis_session": self.session_plugin},
            services=dict.fromkeys(OURS, "redis_session") | dict(services or {}),
            **more,
        )

    def settle(self) -> None:
        """Run reactor turns and the event loop until neither has anything to do without time passing."""
        while True:
            super().settle()
            asyncio.set_event_loop(self.loop)
            waited_for = asyncio.all_tasks(self.loop)
            self.loop.run_until_complete(self._turn(waited_for))
            if not (waited_for or self._soon or asyncio.all_tasks(self.loop)):
                return

    def close(self) -> None:
        """End its connections to Redis, and its loop."""
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.session_plugin.stop())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)

    async def _turn(self, waited_for: set[asyncio.Task[Any]]) -> None:
        if waited_for:
            done, _ = await asyncio.wait(waited_for, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            assert done, f"Redis has not answered: {waited_for}"
        await asyncio.sleep(0)  # Whoever waited for what is done is told in the next turn of the loop.


@contextlib.contextmanager
def redis_for_houses(folder: Path) -> Iterator[None]:
    """The Redis of all houses."""
    with redis_server(folder, on_socket=True) as server:
        RedisHouse.server = server
        yield
        RedisHouse.server = None


@contextlib.contextmanager
def houses_that_end() -> Iterator[None]:
    """The houses that a test makes, until it is over."""
    yield
    while RedisHouse.houses:
        RedisHouse.houses.pop().close()
