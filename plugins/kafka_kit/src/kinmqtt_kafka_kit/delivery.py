"""Sends the records of each partition, one batch of a partition at a time, and halves what is too large."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from aiokafka import AIOKafkaProducer

from kinmqtt_kafka_kit.errors import is_too_large, meaning
from kinmqtt_kafka_kit.metadata import partitions_of
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Answer, Poison

Header: TypeAlias = tuple[str, bytes]

Record: TypeAlias = tuple[int, bytes, bytes | None, list[Header], int | None]
"""A record on its way to Kafka: the place of its answer in the batch, key, value (``None`` deletes the key from a
compacted topic), headers, and its time in milliseconds since the epoch (``None``: when it is sent). A plain tuple,
because one is made for each message."""

Place: TypeAlias = tuple[str, int]
"""A topic and the number of a partition."""

MAX_LEARNED: Final = 1000
"""The most topics whose largest batch is remembered."""

SMALLEST_BATCH: Final = 4096
"""Batches aren't made smaller than this, in bytes, because of what a topic has refused."""


class HasProducer(Protocol):
    """Has a producer, and a new one after a refusal."""

    @property
    def producer(self) -> AIOKafkaProducer:
        """The producer."""

    async def renew(self, used: AIOKafkaProducer) -> None:
        """Replace it."""


class _TooLarge(Exception):
    """Kafka refuses a batch of so many records for its size."""

    def __init__(self, records: int, size_bytes: int) -> None:
        super().__init__(records, size_bytes)
        self.records = records
        self.size_bytes = size_bytes


def _nothing() -> None:
    """What nobody waits for."""


class Delivery:
    """The partitions that a sink sends to."""

    def __init__(self, producers: HasProducer) -> None:
        self._producers = producers
        self._locks: dict[Place, asyncio.Lock] = {}
        self._learned: dict[str, int] = {}
        """The size of batches, before they are compressed, to topics that have refused larger ones."""

    async def deliver(
        self,
        by_place: Mapping[Place, Sequence[Record]],
        answers: list[Answer],
        advanced: Callable[[], object] = _nothing,
    ) -> dict[Place, SinkRefused | ServiceUnavailable]:
        """Send the records of several partitions; returns the failures.

        Records that a topic will never take are answered with ``Poison``. ``advanced`` is called after each answer of
        Kafka.
        """
        if len(by_place) == 1:
            [(place, records)] = by_place.items()
            results = [await self._one(place, records, answers, advanced)]
        else:
            results = await asyncio.gather(*(self._one(*each, answers, advanced) for each in by_place.items()))
        return {place: failure for place, failure in zip(by_place, results, strict=True) if failure is not None}

    async def _one(
        self, place: Place, records: Sequence[Record], answers: list[Answer], advanced: Callable[[], object]
    ) -> SinkRefused | ServiceUnavailable | None:
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        async with lock:
            try:
                await self._all(place, records, answers, advanced)
            except Exception as error:
                return meaning(error)
        return None

    async def _all(
        self, place: Place, records: Sequence[Record], answers: list[Answer], advanced: Callable[[], object]
    ) -> None:
        waiting = deque([records])
        while waiting:
            part = waiting.popleft()
            producer = self._producers.producer
            try:
                sent = await self._batch(producer, place, part)
            except _TooLarge as error:
                advanced()
                await self._producers.renew(producer)
                if error.records == 1:
                    size = error.size_bytes
                    text = f"the topic {place[0]!r} takes no record of {size} bytes: raise its max.message.bytes"
                    answers[part[0][0]] = Poison(text)
                    part = part[1:]
                else:
                    self._learn(place[0], error.size_bytes)
                    half = error.records // 2
                    waiting.appendleft(part[half:])
                    part = part[:half]
                if part:
                    waiting.appendleft(part)
                continue
            advanced()
            if sent < len(part):
                waiting.appendleft(part[sent:])

    async def _batch(self, producer: AIOKafkaProducer, place: Place, records: Sequence[Record]) -> int:
        """Send as many of the records as fit into a batch; returns how many."""
        topic, partition = place
        batch = producer.create_batch()
        append, largest = batch.append, self._learned.get(topic)
        count = 0
        for _, key, value, headers, at_ms in records:
            if largest is not None and count and batch.size() + len(key) + len(value or b"") > largest:
                break
            if append(timestamp=at_ms, key=key, value=value, headers=headers) is None:
                break
            count += 1
        batch.close()
        size = batch.size()
        # Without this aiokafka would ask for the topic by its name, and so create it if it was deleted just now.
        if partition not in partitions_of(producer, topic):
            raise ServiceUnavailable(f"Kafka has just lost partition {partition} of {topic!r}")
        try:
            await (await producer.send_batch(batch, topic, partition=partition))
        except Exception as error:
            if is_too_large(error):
                raise _TooLarge(count, size) from error
            raise
        return count

    def _learn(self, topic: str, refused_bytes: int) -> None:
        if len(self._learned) >= MAX_LEARNED and topic not in self._learned:
            del self._learned[next(iter(self._learned))]
        self._learned[topic] = max(SMALLEST_BATCH, refused_bytes // 2)
