"""The sink: batches of messages become batches of records, one for each partition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaProducer

from kinmqtt_bridge_kafka.records import RECORD_OVERHEAD, HeaderMaker
from kinmqtt_bridge_kafka.settings import ConnectionSettings, SinkSettings
from kinmqtt_bridge_kafka.templates import kafka_topic
from kinmqtt_kafka_kit import is_topic_name, meaning, metadata
from kinmqtt_kafka_kit.delivery import Delivery, Place, Record
from kinmqtt_kafka_kit.partitions import partition_of
from kinmqtt_kafka_kit.producers import Producers
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import REFUSED_PAUSE_S, Answer, Item, Poison, Retry, Sink
from kinmqtt_spi.services.plugin import Health, HealthState

MAX_MISSING: Final = 100
"""The most missing topics that health knows of."""

_HEALTHY: Final = Health(HealthState.HEALTHY)


class KafkaSink(Sink):
    """Sends messages to topics of one Kafka cluster."""

    def __init__(self, name: str, connection: ConnectionSettings, settings: SinkSettings) -> None:
        self.name = name
        self._connection = connection
        self._settings = settings
        self._topic = kafka_topic(settings.topic)
        self._fixed_topic = settings.topic if self._topic.is_constant else None
        self._headers = HeaderMaker(settings.headers)
        self._producers = Producers(
            connection,
            compression_type=None if settings.compression == "none" else settings.compression,
            max_batch_size=settings.max_record_bytes,
        )
        self._delivery = Delivery(self._producers)
        self._stale: AIOKafkaProducer | None = None
        """The producer, after a part of a batch has failed: the next batch replaces it."""
        self._missing: dict[str, str] = {}

    async def open(self) -> None:
        """Connect; raises ``SinkRefused`` and ``ServiceUnavailable``."""
        await self.close()
        try:
            await self._producers.open()
        except SinkRefused as refused:
            raise self._settings.at_connection(refused) from refused
        self._delivery = Delivery(self._producers)

    async def send(self, items: Sequence[Item]) -> Sequence[Answer] | None:
        """Send a batch; see :meth:`kinmqtt_spi.services.bridge.Sink.send`."""
        answers: list[Answer] = [None] * len(items)
        try:
            async with asyncio.timeout(self._connection.timeout_s):
                stale = self._stale
                if stale is not None:
                    await self._producers.renew(stale)
                    if self._stale is stale:
                        self._stale = None
                by_topic = self._by_topic(items, answers)
                await self._leave_out_missing(by_topic, answers)
                by_place = self._by_place(by_topic)
                failures = await self._delivery.deliver(by_place, answers)
        except Exception as error:
            found = meaning(error)
            raise (self._settings.at_connection(found) if isinstance(found, SinkRefused) else found) from error
        if failures:
            self._note_failures(by_place, failures, answers)
        return None if answers.count(None) == len(answers) else answers

    async def close(self) -> None:
        """Disconnect."""
        self._stale = None
        await self._producers.close()

    def check(self) -> Health:
        """Report topics that Kafka does not have."""
        if self._missing:
            return Health(HealthState.DEGRADED, "; ".join(list(self._missing.values())[:3]))
        return _HEALTHY

    @property
    def producer(self) -> AIOKafkaProducer:
        """The producer; raises ``ServiceUnavailable`` if the sink is not connected."""
        return self._producers.producer

    def _by_topic(self, items: Sequence[Item], answers: list[Answer]) -> dict[str, list[Record]]:
        """Return the records by topic; messages that can't be any are answered with ``Poison``."""
        found: defaultdict[str, list[Record]] = defaultdict(list)
        fixed, longest = self._fixed_topic, self._settings.max_record_bytes - RECORD_OVERHEAD
        make_headers = self._headers.make
        for number, (message, key, _) in enumerate(items):
            if fixed is None:
                topic = self._topic.fill_in(message)
                if topic is None or not is_topic_name(topic):
                    answers[number] = Poison(_no_topic(self._settings.topic, topic))
                    continue
            else:
                topic = fixed
            payload = message.payload
            headers, size = make_headers(message)
            size += len(key) + len(payload)
            if size > longest:
                answers[number] = Poison(
                    f"the record has {size} bytes, and max_record_bytes allows {longest}: raise it, and the topic's "
                    "max.message.bytes"
                )
                continue
            found[topic].append((number, key, payload, headers, int(message.received_at * 1000)))
        return found

    async def _leave_out_missing(self, by_topic: dict[str, list[Record]], answers: list[Answer]) -> None:
        """Take out the records of topics that Kafka does not have, and answer them with ``Retry``."""
        producer = self.producer
        unknown = [topic for topic in by_topic if not producer.client.cluster.partitions_for_topic(topic)]
        missing = await metadata.missing(producer, unknown) if unknown else {}
        if missing or self._missing:
            others = [(topic, why) for topic, why in self._missing.items() if topic not in by_topic]
            self._missing = dict([*others, *missing.items()][-MAX_MISSING:])
        for topic, why in missing.items():
            for record in by_topic.pop(topic):
                answers[record[0]] = Retry(f"{why}; create it, its messages wait")

    def _by_place(self, by_topic: dict[str, list[Record]]) -> dict[Place, list[Record]]:
        found: defaultdict[Place, list[Record]] = defaultdict(list)
        for topic, records in by_topic.items():
            partitions = metadata.partitions_of(self.producer, topic)
            if not partitions:
                raise ServiceUnavailable(f"Kafka has just lost its topic {topic!r}")
            if len(partitions) == 1:
                found[topic, partitions[0]] = records
                continue
            places = [(topic, partition) for partition in partitions]
            for record in records:
                found[places[partition_of(record[1], len(places))]].append(record)
        return found

    def _note_failures(
        self,
        by_place: dict[Place, list[Record]],
        failures: dict[Place, SinkRefused | ServiceUnavailable],
        answers: list[Answer],
    ) -> None:
        """Answer the records of partitions that failed with ``Retry``; raises the failure if nothing was sent."""
        if len(failures) == len(by_place):
            # A refusal first: an operator must learn of it.
            raise min(failures.values(), key=lambda failure: not isinstance(failure, SinkRefused))
        self._stale = self.producer
        for place, failure in failures.items():
            pause_s = REFUSED_PAUSE_S if isinstance(failure, SinkRefused) else None
            for record in by_place[place]:
                if answers[record[0]] is None:
                    answers[record[0]] = Retry(str(failure), pause_s)


def _no_topic(template: str, topic: str | None) -> str:
    if topic is None:
        return f"a part of the topic {template!r} is missing in the message"
    return f"{topic[:100]!r} can't be the name of a Kafka topic"
