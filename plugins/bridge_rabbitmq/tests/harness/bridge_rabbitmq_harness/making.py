"""Makes sinks, sources, settings and messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kinmqtt_bridge_rabbitmq.blocked import BlockedLink
from kinmqtt_bridge_rabbitmq.settings import (
    ConnectionSettings,
    PublishSettings,
    SinkSettings,
    SourceSettings,
)
from kinmqtt_bridge_rabbitmq.sink import RabbitMQSink
from kinmqtt_bridge_rabbitmq.source import RabbitMQSource
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.services.bridge import Item, Sink
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.values import Message, MessageId, Publisher
from spi_harness.source_runs import Published

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
    return Item(message(topic, payload, client, **more), client.encode("utf-8", "surrogatepass"), 1)


def connection(address: str, **more: Any) -> ConnectionSettings:
    """A connection of guest."""
    return ConnectionSettings(servers=(address,), **{"timeout_s": 5.0, **more})


def user(address: str, folder: Path, name: str, password: str, **more: Any) -> ConnectionSettings:
    """A connection of a user with a password."""
    file = folder / f"{name}.password"
    file.write_text(f"{password}\n")
    return connection(address, username=name, password_file=file, **more)


def sink(connection: ConnectionSettings, **settings: Any) -> RabbitMQSink:
    """A sink that is not open yet; without an exchange its routing key is ``nowhere``."""
    if "exchange" not in settings:
        settings = {"routing_key": "nowhere", **settings}
    return RabbitMQSink("out", connection, SinkSettings(connection="main", **settings), BlockedLink())


@asynccontextmanager
async def opened(connection: ConnectionSettings, **settings: Any) -> AsyncIterator[RabbitMQSink]:
    """A sink, from its first opening to its end."""
    made = sink(connection, **settings)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


class Made:
    """What is around a source."""

    def __init__(self) -> None:
        self.log = RecordingLog()
        self.clock = TurnableClock()
        self.skipped = Counter("source.skipped", "messages")
        self.redelivered = Counter("source.redelivered", "messages")

    def source(self, connection: ConnectionSettings, *queues: str, to: str = "in/a", **more: Any) -> RabbitMQSource:
        """A source."""
        settings = SourceSettings(connection="main", queues=queues, publish=PublishSettings(topic=to), **more)
        return RabbitMQSource("in", connection, settings, self.log, self.clock, self.skipped, self.redelivered)


async def forever(source: RabbitMQSource, publish: Published) -> None:
    """Run a source again and again, as the broker does."""
    while True:
        try:
            await source.run(publish)
        except ServiceUnavailable:
            await asyncio.sleep(0.05)


async def resolved(answer: Any) -> Any:
    """What a call of a sink answers."""
    return await answer


async def send_at_last(sink: Sink, items: Sequence[Item]) -> None:
    """Send items, again and again until the sink has taken all, as the broker does."""
    while True:
        try:
            await resolved(sink.open())
            if await resolved(sink.send(items)) is None:
                return
        except ServiceUnavailable:
            await asyncio.sleep(0.05)
