"""Writes records into a topic of Kafka: each line is a record, whose key is the node.

The writing thread has an event loop of its own for aiokafka, which runs during its steps. So the sink needs no
certain reactor, and neither encoding nor compression takes the reactor's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import DefaultPartitioner

from kinmqtt_kafka_kit import Endings, end_producer, is_too_large, start_producer, unavailable
from kinmqtt_metrics.line_writer import BREATH_S, IDLE_S, RETRY_S, STUCK_S, Batch, LineWriter, Unwritten
from kinmqtt_metrics.spool import UNFIT, WRITE_FAILED, Spool

if TYPE_CHECKING:
    from kinmqtt_metrics.kafka_settings import KafkaSettings
    from kinmqtt_metrics.settings import MetricsSettings

_AT_ONCE: Final = 2048
"""Records of a step at most: they wait for one answer, or a few."""


class KafkaWriter(LineWriter):
    """Sends lines in batches, in order. What Kafka may not have got is sent again: readers know it by ``seq``."""

    def __init__(
        self, spool: Spool, settings: KafkaSettings, node: str, boot: str, monotonic: Callable[[], float]
    ) -> None:
        super().__init__(spool, node, boot, monotonic)
        self.stuck_s = settings.timeout_s + STUCK_S
        self._settings = settings
        self._key = node.encode()
        self._lines: list[bytes] = []
        """Of the batch, without their ends; what was acknowledged is no more there."""
        self._most = _AT_ONCE
        """Lines in a batch of Kafka's: fewer after the topic refused one as too large."""
        self._runner: asyncio.Runner | None = None
        self._producer: AIOKafkaProducer | None = None
        self._partitioner = DefaultPartitioner()
        self._endings = Endings()

    @property
    def stuck(self) -> str:
        """The topic."""
        return f"topic {self._settings.topic!r}: the Kafka client does not respond"

    def go_by(self, settings: MetricsSettings) -> None:
        """Nothing can change."""

    def _turn(self) -> float:
        try:
            busy = self.step()
        except (OSError, Unwritten) as error:
            self._figures.failures.value += 1
            # The first reason stays: later ones differ with each attempt, and each would be a line of the log.
            self._failed(WRITE_FAILED, self.trouble or f"topic {self._settings.topic!r}: {error}")
            return RETRY_S
        self._well()
        return BREATH_S if busy else IDLE_S

    def step(self) -> bool:
        """Send the next records, and wait until Kafka has acknowledged them; whether there are more."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._step())

    def publish(self) -> None:
        """What was acknowledged is published."""

    async def _step(self) -> bool:
        if self._batch is None:
            await self._gather()
        if self._batch is None:
            # aiokafka looks after its connections meanwhile.
            await asyncio.sleep(0)
            return bool(self.spool)
        try:
            async with asyncio.timeout(self._limit_s()):
                await self._send()
        except Exception as error:
            # aiokafka has counted records that failed, so Kafka would refuse later ones as out of order.
            await self._disconnect()
            if is_too_large(error):
                self._made_smaller()
                return True
            raise Unwritten(str(error if isinstance(error, Unwritten) else unavailable(error))) from error
        self.spool.done(self._batch.size_bytes)
        self._batch = None
        self._most = _AT_ONCE
        return bool(self.spool)

    def _limit_s(self) -> float:
        limit_s = self._settings.timeout_s
        return limit_s if self.ends_at is None else max(0.1, min(limit_s, self.ends_at - self._monotonic()))

    async def _gather(self) -> None:
        """Encode some slices; between two of them the reactor gets the interpreter."""
        size_bytes = 0
        while len(self._lines) < _AT_ONCE and size_bytes < self._settings.max_batch_bytes:
            encoded = self._encoded()
            if encoded is None:
                return
            size_bytes += len(encoded.data)
            self._lines += encoded.data.splitlines()
            before = self._batch.size_bytes if self._batch is not None else 0
            self._batch = Batch(b"", len(self._lines), before + encoded.size_bytes)
            await asyncio.sleep(BREATH_S)

    async def _send(self) -> None:
        if self._producer is None:
            self._producer = await start_producer(
                self._settings, max_batch_size=self._settings.max_batch_bytes, compression_type="gzip"
            )
        partition = await self._partition(self._producer)
        while self._lines:
            batch = self._producer.create_batch()
            number = 0
            for line in self._lines[: self._most]:
                if batch.append(key=self._key, value=line, timestamp=None) is None:
                    break
                number += 1
            if not number:
                self._drop_first()
                continue
            batch.close()
            sent = await self._producer.send_batch(batch, self._settings.topic, partition=partition)
            sent.add_done_callback(_looked_at)
            # A cancelled batch would confuse aiokafka's account of those that are under way.
            await asyncio.shield(sent)
            self._acknowledged(number)

    async def _partition(self, producer: AIOKafkaProducer) -> int:
        """The node's. Raises :class:`Unwritten`."""
        topic, cluster = self._settings.topic, producer.client.cluster
        if not cluster.partitions_for_topic(topic):
            # A list of all topics, which creates none. aiokafka's requests that name a topic would create it.
            await producer.client.force_metadata_update()
        partitions = sorted(cluster.partitions_for_topic(topic) or ())
        if not partitions:
            raise Unwritten("there is no such topic in Kafka: create it; records wait in memory")
        partition: int = self._partitioner(self._key, partitions, partitions)
        return partition

    def _acknowledged(self, number: int) -> None:
        line_bytes = sum(map(len, self._lines[:number])) + number
        del self._lines[:number]
        self._written(number, line_bytes, 0)
        self._account()

    def _drop_first(self) -> None:
        """Leave out a line that is too long."""
        del self._lines[0]
        self._figures.dropped[UNFIT].value += 1
        self._account()

    def _account(self) -> None:
        assert self._batch is not None
        self._batch.number = len(self._lines)

    def _made_smaller(self) -> None:
        """Send fewer lines at a time, as the topic takes no batch of that size; leave out one that is too long."""
        most = min(self._most, len(self._lines))
        if most == 1:
            self._drop_first()
        self._most = max(1, most // 2)

    async def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._endings.end(end_producer(producer))

    def let_go(self) -> None:
        """Disconnect."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        try:
            runner.run(self._disconnect())
        finally:
            runner.close()


def _looked_at(sent: asyncio.Future[Any]) -> None:
    """Keep a failure from being reported as lost where nobody waits for it any more."""
    if not sent.cancelled():
        sent.exception()
