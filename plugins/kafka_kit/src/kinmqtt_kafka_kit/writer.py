"""Writes records to one topic."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from kinmqtt_kafka_kit import metadata
from kinmqtt_kafka_kit.delivery import Delivery, Place, Record
from kinmqtt_kafka_kit.errors import meaning
from kinmqtt_kafka_kit.partitions import partition_of
from kinmqtt_kafka_kit.producers import Producers
from kinmqtt_kafka_kit.settings import Connection
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Answer


class TopicWriter:
    """Writes at least once: what has failed is to be written again, and the order of each key holds."""

    def __init__(
        self, connection: Connection, topic: str, max_batch_bytes: int, compression: str | None = None
    ) -> None:
        """``max_batch_bytes`` is the size before ``compression``, which is one of aiokafka's."""
        self.topic = topic
        self._connection = connection
        self._producers = Producers(connection, max_batch_size=max_batch_bytes, compression_type=compression)
        self._delivery = Delivery(self._producers)

    async def write(self, records: Sequence[Record]) -> list[Answer]:
        """Write records; returns ``Poison`` for those that the topic does not take for their size, else ``None``.

        The first field of each record is its place in the answer. The time limit is that of each answer of Kafka.
        Raises ``SinkRefused`` and ``ServiceUnavailable``, also if the topic is missing: it is never created.
        """
        answers: list[Answer] = [None] * len(records)
        now, limit_s = asyncio.get_running_loop().time, self._connection.timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:

                def advanced() -> None:
                    if not limit.expired():
                        limit.reschedule(now() + limit_s)

                if not self._producers.is_open:
                    await self._producers.open()
                by_place = self._by_place(records, await self._partitions())
                failures = await self._delivery.deliver(by_place, answers, advanced)
            if failures:
                # A refusal first: an operator must learn of it.
                raise min(failures.values(), key=lambda failure: not isinstance(failure, SinkRefused))
        except BaseException as error:
            # aiokafka has counted records that failed, so Kafka would refuse later ones as out of order.
            await self.close()
            if isinstance(error, Exception):
                raise meaning(error) from error
            raise
        return answers

    async def close(self) -> None:
        """Disconnect."""
        await self._producers.close()

    async def _partitions(self) -> Sequence[int]:
        producer = self._producers.producer
        partitions = metadata.partitions_of(producer, self.topic)
        if not partitions:
            missing = await metadata.missing(producer, [self.topic])
            if missing:
                raise ServiceUnavailable(f"{missing[self.topic]}: create it, what is for it waits")
            partitions = metadata.partitions_of(producer, self.topic)
        return partitions

    def _by_place(self, records: Sequence[Record], partitions: Sequence[int]) -> dict[Place, list[Record]]:
        found: defaultdict[Place, list[Record]] = defaultdict(list)
        for record in records:
            found[self.topic, partitions[partition_of(record[1], len(partitions))]].append(record)
        return found
