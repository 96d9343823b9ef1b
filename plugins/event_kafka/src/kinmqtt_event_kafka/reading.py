"""Reads topics of Kafka from their beginning, outside of any group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import options, unavailable, why
from kinmqtt_spi.errors import ServiceUnavailable

READ_PAUSE_MS: Final = 1000
"""How long one look for records takes, at most, if there are none."""

Offsets: TypeAlias = Mapping[TopicPartition, int]

Answered = TypeVar("Answered")


@asynccontextmanager
async def reading(
    settings: EventKafkaSettings, topic: str
) -> AsyncIterator[tuple[AIOKafkaConsumer, list[TopicPartition]]]:
    """Give a consumer that reads all partitions from the beginning, outside of any group."""
    consumer = AIOKafkaConsumer(
        **options(settings), enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    try:
        try:
            async with asyncio.timeout(settings.timeout_s):
                await consumer.start()
                await consumer._client.force_metadata_update()
        except Exception as error:
            raise ServiceUnavailable(f"{', '.join(settings.servers)}: {await why(settings, error)}") from error
        partitions = consumer.partitions_for_topic(topic) or ()
        if not partitions:
            raise ServiceUnavailable(f"there is no topic {topic!r} in Kafka, which [plugins.event_kafka] names")
        places = [TopicPartition(topic, each) for each in sorted(partitions)]
        consumer.assign(places)
        yield consumer, places
    finally:
        await consumer.stop()


async def everything(settings: EventKafkaSettings, topic: str) -> AsyncIterator[Any]:
    """Yield all records that are there now, partition by partition in their order.

    Raises as :func:`reading`, and ``ServiceUnavailable`` when nothing has been read for ``timeout_s``.
    """
    now, limit_s = asyncio.get_running_loop().time, settings.timeout_s
    async with reading(settings, topic) as (consumer, places):
        ends, begins = await _in_time(settings, topic, _bounds(consumer, places))
        left = {place: begins[place] for place in places if ends[place] > begins[place]}
        moved_at = now()
        while left:
            found = await consumer.getmany(*left, timeout_ms=READ_PAUSE_MS)
            for records in found.values():
                for record in records:
                    yield record
            positions = await _in_time(settings, topic, _positions(consumer, left))
            if found or positions != left:
                moved_at = now()
            elif now() - moved_at >= limit_s:
                raise _stands_still(settings, topic)
            left = {place: position for place, position in positions.items() if position < ends[place]}


async def _bounds(consumer: AIOKafkaConsumer, places: list[TopicPartition]) -> tuple[Offsets, Offsets]:
    return await consumer.end_offsets(places), await consumer.beginning_offsets(places)


async def _positions(consumer: AIOKafkaConsumer, places: Iterable[TopicPartition]) -> Offsets:
    return {place: await consumer.position(place) for place in places}


async def _in_time(settings: EventKafkaSettings, topic: str, answer: Awaitable[Answered]) -> Answered:
    try:
        async with asyncio.timeout(settings.timeout_s):
            return await answer
    except TimeoutError:
        raise _stands_still(settings, topic) from None
    except KafkaError as error:
        raise unavailable(error) from error


def _stands_still(settings: EventKafkaSettings, topic: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"{', '.join(settings.servers)}: Kafka has answered nothing for {settings.timeout_s:g} s while {topic!r} was "
        "read: check its brokers, or raise plugins.event_kafka.timeout_s"
    )
