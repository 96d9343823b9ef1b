"""Ships the node's event log to Kafka, as a consumer group that holds what it has not shipped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import DefaultPartitioner

from kinmqtt_event_kafka.schema import EventRecord, encode
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import Endings, end_producer, is_too_large, start_producer, unavailable
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.event import Recorded
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.plugin import Log

GROUP: Final = "event_kafka"
"""The consumer group in the node's event log."""


class Shipper:
    """Sends events, and says what hinders it. The log delivers a batch again until it is sent."""

    def __init__(self, node: str, settings: EventKafkaSettings, log: Log, metrics: Metrics) -> None:
        """``node`` is this node's name."""
        self._node = node
        self._settings = settings
        self._log = log
        self._sent = metrics.counter("events.shipped", "events")
        self._left_out = metrics.counter("events.left_out", "events")
        self._producer: AIOKafkaProducer | None = None
        self._partitioner = DefaultPartitioner()
        self._endings = Endings()
        self._current: asyncio.Future[None] | None = None
        self._progress: asyncio.Event | None = None
        self._one_by_one = False
        """Whether each event is a batch: a batch was too large for the topic."""
        self._too_large: set[bytes] = set()
        """The values of events that are too large for the topic even so; the next attempt leaves them out."""
        self.problem: str | None = None
        """Why the last attempt failed."""

    def ship(self, batch: Sequence[Recorded]) -> asyncio.Future[None]:
        """Send a batch; the future fails with ``ServiceUnavailable``. It is the handler of the group."""
        self._current = asyncio.ensure_future(self._ship(batch))
        return self._current

    async def progress(self) -> None:
        """Wait until the next attempt has ended."""
        if self._progress is None:
            self._progress = asyncio.Event()
        self._progress.clear()
        await self._progress.wait()

    def give_up(self) -> None:
        """End the attempt that is under way: its events stay in the log."""
        if self._current is not None:
            self._current.cancel()

    async def close(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._endings.end(end_producer(producer))

    async def _ship(self, batch: Sequence[Recorded]) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._send(self._records(batch))
        except asyncio.CancelledError:
            await self.close()
            raise ServiceUnavailable("the plugin stops; its events stay in the log") from None
        except Exception as error:
            # aiokafka has counted records that failed, so Kafka would refuse later ones as out of order.
            await self.close()
            found = unavailable(error)
            self.problem = str(found)
            raise found from error
        finally:
            if self._progress is not None:
                self._progress.set()
        self._one_by_one = False
        self._too_large.clear()
        if self.problem is not None:
            self._log.info("events are shipped to Kafka again")
            self.problem = None

    def _records(self, batch: Sequence[Recorded]) -> list[EventRecord]:
        records = []
        for recorded in batch:
            try:
                record = encode(self._node, recorded.event)
            except (TypeError, ValueError) as error:
                self._leave_out(f"the event at offset {recorded.offset} can't be written as JSON: {error}")
                continue
            if record.size_bytes > self._settings.max_record_bytes:
                self._leave_out(
                    f"the event at offset {recorded.offset} has more than "
                    f"plugins.event_kafka.max_record_bytes = {self._settings.max_record_bytes}"
                )
                continue
            if record.value not in self._too_large:
                records.append(record)
        return records

    def _leave_out(self, why: str) -> None:
        self._left_out.value += 1
        self._log.warn("{why}; it is not shipped", why=why)

    async def _send(self, records: Sequence[EventRecord]) -> None:
        if self._producer is None:
            self._producer = await start_producer(self._settings, max_batch_size=self._settings.max_record_bytes)
        producer, topic = self._producer, self._settings.topic
        partitions = await self._partitions(producer)
        by_partition: dict[int, list[EventRecord]] = {}
        for record in records:
            partition = self._partitioner(record.key, partitions, partitions)
            by_partition.setdefault(partition, []).append(record)
        results = await asyncio.gather(
            *(self._send_to(producer, topic, partition, each) for partition, each in by_partition.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _partitions(self, producer: AIOKafkaProducer) -> list[int]:
        topic = self._settings.topic
        cluster = producer.client.cluster
        if not cluster.partitions_for_topic(topic):
            # A list of all topics, which creates none. aiokafka's requests that name a topic would create it.
            await producer.client.force_metadata_update()
        partitions = sorted(cluster.partitions_for_topic(topic) or ())
        if not partitions:
            raise ServiceUnavailable(f"there is no topic {topic!r} in Kafka: create it, the events wait in the log")
        return partitions

    async def _send_to(
        self, producer: AIOKafkaProducer, topic: str, partition: int, records: Sequence[EventRecord]
    ) -> None:
        """Send records to a partition, in order, in as few batches as possible."""
        left = list(records)
        while left:
            batch = producer.create_batch()
            count = 0
            for record in left:
                appended = batch.append(
                    key=record.key, value=record.value, timestamp=record.timestamp_ms, headers=list(record.headers)
                )
                if appended is None:
                    break
                count += 1
                if self._one_by_one:
                    break
            batch.close()
            try:
                sent = await producer.send_batch(batch, topic, partition=partition)
                sent.add_done_callback(_looked_at)
                # A cancelled batch would confuse aiokafka's account of those that are under way.
                await asyncio.shield(sent)
            except Exception as error:
                if not is_too_large(error):
                    raise
                if count == 1:
                    self._too_large.add(left[0].value)
                    self._leave_out(f"the topic {topic!r} (max.message.bytes) does not take an event of a client")
                self._one_by_one = True
                raise
            self._sent.value += count
            left = left[count:]


def _looked_at(sent: asyncio.Future[Any]) -> None:
    """Keep a failure from being reported as lost where nobody waits for it any more."""
    if not sent.cancelled():
        sent.exception()
