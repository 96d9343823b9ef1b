"""What the log says of clients that lose messages because they are too slow: a line each, now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.log_lines import LogLines
from kinmqtt.hooks.denial_log import shown
from kinmqtt_spi.values import Client

log = Logger("kinmqtt.connection")

SLOW_AGAIN_AFTER_S: Final = 60.0
"""A client that goes on losing messages gets a line a minute."""

MOST_SLOW: Final = 10_000
"""Clients of whom it is remembered that they were named."""


class SlowConsumers:
    """Names a client when it begins to lose messages, and once a minute while it goes on."""

    __slots__ = ("_log_lines", "_named", "_now")

    def __init__(self, now: Callable[[], float], log_lines: LogLines) -> None:
        """``now`` answers the time in seconds since the epoch."""
        self._now = now
        self._log_lines = log_lines
        self._named: dict[str, float] = {}
        """Client ids, and the moment of the clock until which no further line is written of each."""

    def queue_is_full(self, client: Client, is_connected: bool, messages: int, size_bytes: int) -> None:
        """A message for a client gives way because its queue is full."""
        if self._is_news(client.client_id):
            self._warn(client, is_connected, f"its queue is full ({messages} messages, {size_bytes} bytes)")

    def buffer_is_full(self, client: Client, waiting_bytes: int) -> None:
        """A client's socket does not take what is sent."""
        if self._is_news(client.client_id):
            self._warn(client, True, f"{waiting_bytes} bytes wait for its socket, and QoS 0 is dropped")

    def _is_news(self, client_id: str) -> bool:
        now = self._now()
        if self._named.get(client_id, 0.0) > now:
            return False
        if len(self._named) >= MOST_SLOW:
            self._named = {name: until for name, until in self._named.items() if until > now}
            if len(self._named) >= MOST_SLOW:
                return False
        self._named[client_id] = now + SLOW_AGAIN_AFTER_S
        return True

    def _warn(self, client: Client, is_connected: bool, what: str) -> None:
        if self._log_lines.may("slow"):
            where = f"at {client.address}" if is_connected else "(not connected)"
            log.warn(
                "client {client} {where} loses messages: {what}",
                client=shown(client.client_id),
                where=where,
                what=what,
            )
