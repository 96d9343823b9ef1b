"""Questions to a Kafka that a test has started, as a program that uses Kafka would ask them."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

LIMIT_S: Final = 60.0
"""How long an answer may take."""

_FENCED: Final = 38
"""The code of the error that no broker takes a new partition."""

_METADATA: Final = struct.pack(">hhihi", 3, 1, 0, -1, 0)
"""A metadata request of version 1 that names no topic: no client id, an empty list."""


def ask(question: Coroutine[Any, Any, T]) -> T:
    """The answer, in an event loop of its own: not to be called where one runs, but in a thread beside it."""
    return asyncio.run(asyncio.wait_for(question, LIMIT_S))


def has_broker(port: int) -> bool:
    """Whether a metadata request is answered, and names at least one broker."""
    try:
        answer = _answer(port, _METADATA)
    except OSError:
        return False
    return len(answer) >= 8 and struct.unpack(">ii", answer[:8])[1] > 0


def allow_writing(port: int, user: str, topic: str) -> None:
    """Let a user write to a topic: an ACL, as ``kafka-acls.sh`` makes it."""
    creation = [struct.pack(">b", 2), _string(topic), struct.pack(">b", 3), _string(f"User:{user}"), _string("*")]
    request = struct.pack(">hhihi", 30, 1, 0, -1, 1) + b"".join(creation) + struct.pack(">bb", 4, 3)
    answer = _answer(port, request)
    assert struct.unpack(">iiih", answer[:14])[2:] == (1, 0), answer


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _answer(port: int, request: bytes) -> bytes:
    """The answer to a request of Kafka's protocol, from its number on; shorter if the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">i", len(request)) + request)
        size = answer.read(4)
        return answer.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""


async def create_topic(address: str, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    """Create a topic with one replica, and wait until its partitions have a leader."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        while True:
            answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(configs))])
            [(_, code, *_)] = answer.topic_errors
            if code != _FENCED:
                break
            await asyncio.sleep(0.05)  # It has stood still for long, and its controller has to see it again first.
        assert code == 0, answer
        while True:
            [described] = await admin.describe_topics([name])
            if [each["error_code"] for each in described["partitions"]] == [0] * partitions:
                return
    finally:
        await admin.close()


async def topics(address: str) -> set[str]:
    """The names of all topics, which a request that names none does not create."""
    from aiokafka import AIOKafkaConsumer

    async with AIOKafkaConsumer(bootstrap_servers=address) as consumer:
        return set(await consumer.topics())


async def records(address: str, topic: str) -> list[Any]:
    """All committed records of a topic, partition by partition."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    found: list[Any] = []
    async with AIOKafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    ) as consumer:
        numbers = await _partitions(consumer, topic)
        for each in [TopicPartition(topic, number) for number in numbers]:
            consumer.assign([each])
            end = (await consumer.end_offsets([each]))[each]
            while await consumer.position(each) < end:
                for batch in (await consumer.getmany(each, timeout_ms=500)).values():
                    found += batch
    return found


async def committed(address: str, group: str, topic: str) -> dict[int, int]:
    """The offsets that a group has committed, by partition."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False) as consumer:
        numbers = await _partitions(consumer, topic)
        places = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(places)
        return {each.partition: await consumer.committed(each) or 0 for each in places}


async def _partitions(consumer: Any, topic: str) -> list[int]:
    """The partitions of a topic. Right after its start, Kafka may not know its topics yet."""
    end = time.monotonic() + LIMIT_S / 2
    while True:
        # All topics: a request that names one would create it.
        numbers = (await consumer._client.fetch_all_metadata()).partitions_for_topic(topic)
        if numbers:
            return sorted(numbers)
        assert time.monotonic() < end, f"Kafka has no topic {topic!r}"
