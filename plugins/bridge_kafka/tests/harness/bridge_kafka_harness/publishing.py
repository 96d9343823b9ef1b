"""Takes what sources publish, and writes records for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaProducer

from kinmqtt_bridge_kafka.source import KafkaSource
from kinmqtt_spi.values import Message


class Published:
    """What sources have published; ``before`` is called with each batch, and may raise or wait."""

    def __init__(self, before: Callable[[Sequence[Message]], Any] | None = None) -> None:
        self.messages: list[Message] = []
        self._before = before

    async def __call__(self, messages: Sequence[Message]) -> None:
        """Publish, as the broker would."""
        if self._before is not None:
            answer = self._before(messages)
            if answer is not None:
                await answer
        self.messages += messages

    @property
    def payloads(self) -> list[bytes]:
        """The payloads, in order."""
        return [message.payload for message in self.messages]


@asynccontextmanager
async def running(source: KafkaSource, publish: Published) -> AsyncIterator[asyncio.Task[None]]:
    """A source that runs, until it is cancelled as the broker does."""
    task = asyncio.ensure_future(source.run(publish))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def write(address: str, topic: str, payloads: Sequence[bytes], **more: Any) -> None:
    """Write records, in turns to the partitions of the topic unless ``more`` has a key."""
    async with AIOKafkaProducer(bootstrap_servers=address, linger_ms=5) as producer:
        count = len(await producer.partitions_for(topic))
        given = [more if more.get("key") else {**more, "partition": place % count} for place in range(len(payloads))]
        sent = [await producer.send(topic, payload, **each) for payload, each in zip(payloads, given, strict=True)]
        await asyncio.gather(*sent)
