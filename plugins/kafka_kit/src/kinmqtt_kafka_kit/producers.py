"""A producer that is replaced after a refusal."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer

from kinmqtt_kafka_kit.client import Endings, end_producer, start_producer
from kinmqtt_kafka_kit.settings import Connection
from kinmqtt_spi.errors import ServiceUnavailable


class Producers:
    """Has one producer at a time."""

    def __init__(self, connection: Connection, **more: Any) -> None:
        """``more`` are further arguments of aiokafka's producer."""
        self._connection = connection
        self._more = more
        self._producer: AIOKafkaProducer | None = None
        self._endings = Endings()

    @property
    def is_open(self) -> bool:
        """Whether there is a producer."""
        return self._producer is not None

    @property
    def producer(self) -> AIOKafkaProducer:
        """The producer; raises ``ServiceUnavailable`` if there is none."""
        if self._producer is None:
            raise ServiceUnavailable("not connected to Kafka")
        return self._producer

    async def open(self) -> None:
        """Connect; raises ``SinkRefused`` and ``ServiceUnavailable``."""
        await self.close()
        self._producer = await start_producer(self._connection, **self._more)

    async def renew(self, used: AIOKafkaProducer) -> None:
        """Replace a producer after a batch of it was refused, unless that has happened already.

        aiokafka has counted the refused records, so Kafka would refuse all later ones of that partition as out of
        order. Batches that are under way to other partitions are still sent.
        """
        if self._producer is not used:
            return
        made = await start_producer(self._connection, **self._more)
        if self._producer is not used:
            await self._endings.end(end_producer(made))
            return
        self._producer = made
        await self._endings.end(end_producer(used))

    async def close(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._endings.end(end_producer(producer))
