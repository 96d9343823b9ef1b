"""Makes sinks, sources, settings and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kinmqtt_bridge_kafka.notices import Notices
from kinmqtt_bridge_kafka.settings import (
    ConnectionSettings,
    PublishSettings,
    SinkSettings,
    SourceSettings,
)
from kinmqtt_bridge_kafka.sink import KafkaSink
from kinmqtt_bridge_kafka.source import KafkaSource
from kinmqtt_kafka_kit import SecuritySettings
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.services.bridge import Item
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.values import Message, MessageId, Publisher

NUMBERS = count(1)
"""The counters of message ids: unique in a test session."""


def message(topic: str = "sensors/a", payload: bytes = b"1", client: str = "ada", **more: Any) -> Message:
    """A message with an id of its own."""
    return Message(
        topic,
        payload,
        publisher=Publisher(client, "user"),
        id=MessageId(7, next(NUMBERS)),
        received_at=1_700_000_000.5,
        **more,
    )


def item(topic: str = "sensors/a", payload: bytes = b"1", client: str = "ada", **more: Any) -> Item:
    """An item whose key is the client's id."""
    return Item(message(topic, payload, client, **more), client.encode(), 1)


def items_of(clients: int, each: int, payload: bytes = b"x" * 100) -> Iterator[Item]:
    """The items of some clients, in turns."""
    for _ in range(each):
        for client in range(clients):
            yield item(payload=payload, client=f"client-{client}")


def identity(message: Message) -> bytes:
    """The id as the header has it."""
    return b"%016x-%d" % (message.id.node, message.id.counter)


def connection(address: str, **more: Any) -> ConnectionSettings:
    """A connection without encryption and user."""
    return ConnectionSettings(servers=(address,), **{"timeout_s": 5.0, **more})


def scram(address: str, folder: Path, user: str, password: str) -> ConnectionSettings:
    """A connection with a user."""
    file = folder / f"{user}.password"
    file.write_text(f"{password}\n")
    security = SecuritySettings(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username=user, password_file=file
    )
    return connection(address, security=security)


class Made:
    """What is around a sink or a source."""

    def __init__(self) -> None:
        self.log = RecordingLog()
        self.clock = TurnableClock()
        self.notices = Notices(self.log, self.clock)
        self.skipped = Counter("source.skipped", "messages")

    def sink(self, connection: ConnectionSettings, topic: str, **more: Any) -> KafkaSink:
        """A sink that is not open yet."""
        return KafkaSink("out", connection, SinkSettings(connection="main", topic=topic, **more))

    def source(self, connection: ConnectionSettings, topics: tuple[str, ...], group: str, to: str) -> KafkaSource:
        """A source."""
        publish = PublishSettings(topic=to)
        settings = SourceSettings(connection="main", topics=topics, group=group, publish=publish)
        return KafkaSource("in", connection, settings, self.notices, self.skipped)


@asynccontextmanager
async def open_sink(address: str, topic: str, made: Made | None = None, **more: Any) -> AsyncIterator[KafkaSink]:
    """A sink, from its first opening to its end."""
    sink = (made or Made()).sink(connection(address), topic, **more)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()
