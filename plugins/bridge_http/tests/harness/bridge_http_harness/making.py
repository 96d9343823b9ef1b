"""Makes sinks, settings and messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.sink import HttpSink
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.bridge import Answer, Item
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


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop, whose end it must not outlive by much."""
    asyncio.run(asyncio.wait_for(test, 60))


@asynccontextmanager
async def open_sink(url: str, clock: TurnableClock | None = None, **more: Any) -> AsyncIterator[HttpSink]:
    """A sink, from its first opening to its end."""
    sink = HttpSink("out", SinkSettings(url=url, **{"timeout_s": 5.0, **more}), clock or TurnableClock())
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


def send(url: str, items: list[Item], clock: TurnableClock | None = None, **more: Any) -> list[Answer]:
    """Send one batch, and return the answers; raises what the sink raises."""
    answers: list[Answer] = [None] * len(items)

    async def test() -> None:
        async with open_sink(url, clock, **more) as sink:
            answers[:] = await sink.send(items) or answers

    run(test())
    return answers
