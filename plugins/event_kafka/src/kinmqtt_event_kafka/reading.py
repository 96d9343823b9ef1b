"""Reads topics of Kafka from their beginning, outside of any group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import options, why
from kinmqtt_spi.errors import ServiceUnavailable

READ_PAUSE_MS: Final = 1000
"""How long one look for records takes, at most, if there are none."""


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
    """Yield all records that are there now, partition by partition in their order; raises as :func:`reading`."""
    async with reading(settings, topic) as (consumer, places):
        ends = await consumer.end_offsets(places)
        left = {place for place in places if ends[place] > (await consumer.beginning_offsets([place]))[place]}
        while left:
            found = await consumer.getmany(*left, timeout_ms=READ_PAUSE_MS)
            for records in found.values():
                for record in records:
                    yield record
            for place in list(left):
                if await consumer.position(place) >= ends[place]:
                    left.discard(place)
