"""Takes what sources publish, and writes records for them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c


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
