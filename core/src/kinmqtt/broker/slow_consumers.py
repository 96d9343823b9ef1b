"""Warns in the log of clients that lose messages because they are too slow, at a limited rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.log_lines import LogLines
from kinmqtt.hooks.denial_log import shown
from kinmqtt_spi.values import Client

log = Logger("kinmqtt.connection")

SLOW_AGAIN_AFTER_S: Final = 60.0
"""The least time between two lines on one client."""

MOST_SLOW: Final = 10_000
"""The most clients whose last line is remembered."""


class SlowConsumers:
    """Logs a client when it begins to lose messages, and once a minute while that continues."""

    __slots__ = ("_log_lines", "_named", "_now")

    def __init__(self, now: Callable[[], float], log_lines: LogLines) -> None:
        """``now`` returns the time in seconds since the epoch."""
        self._now = now
        self._log_lines = log_lines
        self._named: dict[str, float] = {}
        """By client id: the time until which no further line is written, in seconds since the epoch."""

    def queue_is_full(self, client: Client, is_connected: bool, messages: int, size_bytes: int) -> None:
        """Warn that a message is dropped because the client's queue is full."""
        if self._is_news(client.client_id):
            self._warn(client, is_connected, f"its queue is full ({messages} messages, {size_bytes} bytes)")

    def buffer_is_full(self, client: Client, waiting_bytes: int) -> None:
        """Warn that messages are dropped because the client's socket is not read."""
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
