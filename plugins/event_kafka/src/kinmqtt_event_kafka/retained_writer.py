"""Writes what the store has for topics to the compacted topic, in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from kinmqtt_event_kafka.retained_record import headers_of, key_of
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import settled
from kinmqtt_kafka_kit.delivery import Record
from kinmqtt_kafka_kit.writer import TopicWriter
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Message, MessageId

READ_AT_ONCE: Final = 32
"""The most topics that the store is asked for at a time: what it answers is in memory."""


class RetainedWriter:
    """Reads the store and writes to Kafka. What has failed is to be written again."""

    def __init__(self, settings: EventKafkaSettings, context: Context) -> None:
        self.topic = settings.retained_topic
        self._settings = settings
        self._context = context
        self._log = context.log
        self._writer = TopicWriter(settings, settings.retained_topic, settings.max_record_bytes)
        self._sent = context.metrics.counter("retained.shipped", "messages")
        self._left_out = context.metrics.counter("retained.left_out", "messages")

    async def close(self) -> None:
        """Disconnect."""
        await self._writer.close()

    async def write_all(self, topics: set[str]) -> None:
        """Write topics until none has changed meanwhile."""
        left = dict.fromkeys(sorted(topics))
        while left:
            found = await self.read_piece(islice(left, self._settings.batch))
            changed = await self.write(found)
            for topic in found:
                del left[topic]
            left |= dict.fromkeys(changed)

    async def read_piece(self, topics: Iterable[str]) -> dict[str, Message | None]:
        """Read what the store has for the first of these: together about ``max_record_bytes``, or one message."""
        wanted = list(topics)
        found: dict[str, Message | None] = {}
        size_bytes, count = 0, 1
        while wanted:
            # One at first, and then twice as many as before: where messages are large, few are read in vain.
            some, wanted = wanted[:count], wanted[count:]
            for topic, message in (await self._read(some)).items():
                size_bytes += len(topic) + (0 if message is None else message.size_bytes)
                if found and size_bytes > self._settings.max_record_bytes:
                    return found
                found[topic] = message
            count = min(2 * count, READ_AT_ONCE)
        return found

    async def write(self, found: Mapping[str, Message | None]) -> set[str]:
        """Write what the store had for topics; returns those for which it has something else by now."""
        topics = list(found)
        answers = await self._writer.write([self._record(n, topic, found[topic]) for n, topic in enumerate(topics)])
        self._sent.value += len(topics)
        refused = [topic for topic, answer in zip(topics, answers, strict=True) if answer is not None]
        if refused:
            await self._writer.write([self._too_large(n, topic) for n, topic in enumerate(refused)])
        changed = set()
        for first in range(0, len(topics), READ_AT_ONCE):
            now = await self._read(topics[first : first + READ_AT_ONCE])
            changed |= {topic for topic, message in now.items() if _identity(message) != _identity(found[topic])}
        return changed

    async def _read(self, topics: Sequence[str]) -> dict[str, Message | None]:
        pages = [self._context.retained(topic) for topic in topics]
        found = {}
        for topic, page in zip(topics, pages, strict=True):
            messages = (await settled(page)).messages
            found[topic] = messages[0] if messages else None
        return found

    def _record(self, number: int, topic: str, message: Message | None) -> Record:
        if message is None:
            return self._tombstone(number, topic)
        key, headers = key_of(topic), headers_of(message)
        size = len(key) + len(message.payload) + sum(len(name) + len(data) + 10 for name, data in headers) + 100
        if size > self._settings.max_record_bytes:
            return self._too_large(number, topic)
        return (number, key, message.payload, headers, int(message.received_at * 1000))

    def _tombstone(self, number: int, topic: str) -> Record:
        return (number, key_of(topic), None, [], int(self._context.clock.now() * 1000))

    def _too_large(self, number: int, topic: str) -> Record:
        """Return what takes the place of a message that Kafka can't have: an older one would be wrong."""
        self._left_out.value += 1
        self._log.warn(
            "the retained message of {mqtt_topic!r} is not in {topic}: it is larger than "
            "plugins.event_kafka.max_record_bytes or the topic's max.message.bytes",
            mqtt_topic=topic[:100],
            topic=self.topic,
        )
        return self._tombstone(number, topic)


def _identity(message: Message | None) -> MessageId | None:
    return None if message is None else message.id
