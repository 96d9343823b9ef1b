"""Takes what sources publish, and writes records for them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

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


async def write_wrong_header(address: str, topic: str) -> None:
    """Write a record to partition 0 whose header has a name that is not UTF-8: bytes of a batch are changed."""
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=int(time.time() * 1000), key=None, value=b"x", headers=[("name", b"")])
        batch.close()
        build = batch._build

        def changed() -> bytearray:
            build()
            data = bytearray(bytes(batch._buffer).replace(b"name", b"na\xff\xfe"))
            struct.pack_into(">I", data, 17, calc_crc32c(memoryview(bytes(data))[21:]))
            batch._buffer = data
            return data

        batch._build = changed
        await (await producer.send_batch(batch, topic, partition=0))
