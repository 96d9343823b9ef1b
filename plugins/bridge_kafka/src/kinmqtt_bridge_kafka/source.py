"""The source: records of a consumer group become messages, and their offsets are committed afterwards."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, RebalanceInProgressError

from kinmqtt_bridge_kafka.notices import Notices
from kinmqtt_bridge_kafka.reading import Offsets, Reader, Records
from kinmqtt_bridge_kafka.records import Incomer
from kinmqtt_bridge_kafka.settings import ConnectionSettings, SourceSettings
from kinmqtt_kafka_kit import Endings, Gate, options, why
from kinmqtt_spi.bridging.singly import publish_all
from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.services.bridge import Publish, Source
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.values import Message

FETCH_BYTES: Final = 8 << 20
"""The most bytes that are fetched at a time."""

TOPICS_PAUSE_MS: Final = 30_000
"""How often to look for topics that were created meanwhile, and for new partitions."""


class DividedAnew(Exception):
    """Partitions were divided anew during a pause."""


async def _rest(gate: Gate, seconds: float) -> None:
    """Pause within a batch, which keeps nobody from dividing the partitions anew. Raises :class:`DividedAnew`."""
    gate.leave()
    await asyncio.sleep(seconds)
    if not gate.enter_again():
        raise DividedAnew


class KafkaSource(Source):
    """Brings the records of some topics into the broker."""

    def __init__(
        self,
        name: str,
        connection: ConnectionSettings,
        settings: SourceSettings,
        notices: Notices,
        skipped: Counter,
    ) -> None:
        """``skipped`` counts records that can't become a PUBLISH."""
        self.name = name
        self._connection = connection
        self._settings = settings
        self._notices = notices
        self._skipped = skipped
        self._incomer = Incomer(settings.publish)
        self._gate: Gate | None = None
        self._endings = Endings()

    async def run(self, publish: Publish) -> None:
        """Publish records until cancelled; raises ``SinkRefused``, ``ServiceUnavailable`` or publish's errors."""
        consumer = self._consumer()
        try:
            try:
                async with asyncio.timeout(self._connection.timeout_s):
                    await consumer.start()
                gate = self._gate = Gate()
                # A pattern, because Kafka would create a topic that is named and missing.
                names = "|".join(map(re.escape, self._settings.topics))
                consumer.subscribe(pattern=f"^(?:{names})$", listener=gate)
                reader = Reader(consumer, self._settings.batch, self._unreadable)
                while True:
                    await self._turn(consumer, reader, gate, publish)
            except (KafkaError, TimeoutError, OSError) as error:
                found = await why(self._connection, error)
                raise (self._settings.at_connection(found) if isinstance(found, SinkRefused) else found) from error
        finally:
            await self._endings.end(consumer.stop())

    def _consumer(self) -> AIOKafkaConsumer:
        start = "earliest" if self._settings.start == "oldest" else "latest"
        return AIOKafkaConsumer(
            **options(self._connection),
            group_id=self._settings.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset=start,
            metadata_max_age_ms=TOPICS_PAUSE_MS,
            fetch_max_bytes=FETCH_BYTES,
        )

    async def _turn(self, consumer: AIOKafkaConsumer, reader: Reader, gate: Gate, publish: Publish) -> None:
        """Publish one batch, and commit it."""
        await gate.opened()
        found, offsets = await reader.read()
        if not offsets or not gate.enter():
            # What was fetched while partitions are divided anew is fetched again, from the committed offset on.
            return
        try:
            messages = [
                message
                for records in found.values()
                for record in records
                if (message := self._message(record)) is not None
            ]
            if messages:
                await publish_all(publish, messages, self._skip_message, partial(_rest, gate))
            reader.published(offsets)
            await self._commit(consumer, found, offsets)
        except DividedAnew:
            pass  # Who has the partitions now gets these records again.
        finally:
            gate.leave()

    async def _commit(self, consumer: AIOKafkaConsumer, found: Records, offsets: Offsets) -> None:
        try:
            await consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError, RebalanceInProgressError) as error:
            count = sum(map(len, found.values()))
            text = f"the group was divided anew meanwhile, so {count} records may be published twice"
            self._notices.warn(f"{self.name} commit", f"source {self.name}: {text}: {type(error).__name__}")

    def _message(self, record: Any) -> Message | None:
        message = self._incomer.message(record.topic, record.key, record.value, record.headers)
        if message is None:
            self._skip(
                f"{record.topic} {record.partition} at offset {record.offset}: its key or headers make no topic"
            )
        return message

    def _unreadable(self, place: TopicPartition, offset: int) -> None:
        self._skip(f"{place.topic} {place.partition} at offset {offset}: a header's name is not UTF-8")

    def _skip_message(self, message: Message, error: ValueError) -> None:
        self._skip(f"the topic {message.topic[:100]!r}: {error}")

    def _skip(self, text: str) -> None:
        self._skipped.value += 1
        self._notices.warn(f"{self.name} skipped", f"source {self.name}: a record was skipped: {text}")
