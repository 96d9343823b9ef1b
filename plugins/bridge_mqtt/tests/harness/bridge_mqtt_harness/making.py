"""Makes connections, sinks, sources and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

from kinmqtt_bridge_mqtt.connection import Connection
from kinmqtt_bridge_mqtt.settings import ConnectionSettings
from kinmqtt_bridge_mqtt.sink import MqttSink
from kinmqtt_bridge_mqtt.source import MqttSource
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.values import Message, MessageId, Publisher

NUMBERS = count(1)

NOW = 1_700_000_000.0


class Made:
    """A connection with its sink and its source, and what is around them."""

    def __init__(self, address: str, *topics: str, name: str = "far", others: Sequence[str] = (), **more: Any):
        """``others`` are the addresses of further servers; ``more`` are settings of the connection."""
        settings = ConnectionSettings(servers=(address, *others), topics=topics, **{"timeout_s": 2.0, **more})
        self.warnings: list[str] = []
        self.looped = Counter("bridge.looped", "messages")
        self.skipped = Counter("source.skipped", "messages")
        self.connection = Connection(name, settings, "here", self.warnings.append, self._wait)
        self.sink = MqttSink(self.connection, lambda: NOW, self.looped)
        self.source = MqttSource(self.connection, self.looped, self.skipped, self.warnings.append)
        self._waiting: list[asyncio.Future[None]] = []

    async def _wait(self, seconds: float) -> None:
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    @property
    def waits(self) -> int:
        """How often the connection has begun to wait for its first server."""
        return len(self._waiting)

    def waited(self) -> None:
        """End its waiting, as if the time were over."""
        self._waiting[-1].set_result(None)


def message(topic: str, payload: bytes = b"1", qos: int = 1, client: str = "ada", **more: Any) -> Message:
    """A message of a client."""
    return Message(topic, payload, qos, publisher=Publisher(client), id=MessageId(7, next(NUMBERS)), **more)
