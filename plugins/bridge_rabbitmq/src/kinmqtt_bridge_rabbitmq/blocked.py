"""Keeps a connection that RabbitMQ has blocked, so that a new one does not send again what waits in it."""

from __future__ import annotations

import asyncio
from typing import Final

from kinmqtt_bridge_rabbitmq.link import Link
from kinmqtt_bridge_rabbitmq.settings import ConnectionSettings

BLOCKED_LIMIT_S: Final = 120.0
"""How long a blocked connection stays open after the last attempt to use it."""


class BlockedLink:
    """The blocked connection of the sinks of one name: of the present one, or of one before a reload."""

    def __init__(self) -> None:
        self.link: Link | None = None
        """RabbitMQ does not read from it."""
        self._target: tuple[tuple[str, ...], str] = ((), "")
        self._given_up: asyncio.TimerHandle | None = None

    def keep(self, link: Link, settings: ConnectionSettings) -> None:
        """Keep a connection open until RabbitMQ takes messages again, or for two minutes."""
        self.link = link
        self._target = _target(settings)
        self._wait()

    async def leave(self, settings: ConnectionSettings) -> None:
        """Close it; raises ``ServiceUnavailable`` while it is blocked and a sink with these settings must wait."""
        link = self.link
        if link is None:
            return
        if _target(settings) != self._target:
            self.end()
        elif link.is_blocked:
            self._wait()
            raise link.error()
        else:
            self._forget()
            await link.close()

    def end(self) -> None:
        """Cut it."""
        if self.link is not None:
            self.link.abort()
        self._forget()

    def _wait(self) -> None:
        self._stop_waiting()
        self._given_up = asyncio.get_running_loop().call_later(BLOCKED_LIMIT_S, self.end)

    def _forget(self) -> None:
        self.link = None
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None


def _target(settings: ConnectionSettings) -> tuple[tuple[str, ...], str]:
    """Return where messages go: a sink that goes elsewhere since a reload sends everything anew there."""
    return settings.servers, settings.virtual_host
