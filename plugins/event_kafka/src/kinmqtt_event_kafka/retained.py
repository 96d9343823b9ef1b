"""Brings retained messages to a compacted topic: of each MQTT topic what the retain store has now.

An outbox has the topics that changed, each committed with its change, and no payloads. What is sent is read from the
store when it is sent, and compared afterwards: if it has changed meanwhile, it is sent again. So the last record of a
topic is what the store has, whichever node sent it and however often, also where an outbox of a node that is gone is
drained late by another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

from kinmqtt_event_kafka.feed import settled
from kinmqtt_event_kafka.reading import everything
from kinmqtt_event_kafka.retained_record import headers_of, key_of, topic_of
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import unavailable
from kinmqtt_kafka_kit.delivery import Record
from kinmqtt_kafka_kit.writer import TopicWriter
from kinmqtt_spi.services.outbox import Accepted, Outbox, OutboxEntry, OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Message, MessageId

OUTBOX: Final = OutboxSettings(max_messages=200_000, window=65_535, when_full=WhenFull.DROP_NEWEST)
"""An entry has a topic and no payload. Topics that are not in it are found by a copy of everything."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""After a failure there is a pause that doubles from the first to the longest."""

COPIED: Final = "copied/"
"""Begins the key of what a node knows of a topic of Kafka; without a value, it has not copied anything there yet."""

DONE: Final = b"done"
"""Everything that was retained has been copied."""

MISSES: Final = b"misses some"
"""The outbox could not take a change since, so another copy is due."""


class RetainedShipper:
    """Writes what is retained, and says what hinders it."""

    def __init__(self, settings: EventKafkaSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._log = context.log
        self._writer = TopicWriter(settings, settings.retained_topic, settings.max_record_bytes)
        self._key = f"{COPIED}{quote(context.node.name, safe='')}/{settings.retained_topic}"
        self._sent = context.metrics.counter("retained.shipped", "messages")
        self._left_out = context.metrics.counter("retained.left_out", "messages")
        context.metrics.gauge("retained.waiting", "topics", lambda: self.waiting)
        self._changed: dict[str, list[int]] = {}
        """By topic: the outbox's entries about it that are not done."""
        self._wakes = asyncio.Event()
        self._progress = asyncio.Event()
        self._outbox: Outbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing: dict[str, list[int]] = {}
        """What is being written now, of the same form."""
        self._is_copied = False
        """Whether everything that is retained has been written once."""
        self._misses_some = False
        """Whether the outbox could not take a change."""
        self.problem: str | None = None
        """Why the last attempt failed."""

    @property
    def waiting(self) -> int:
        """How many topics wait."""
        return len(self._changed) + len(self._writing)

    def start(self) -> None:
        """Open the outbox: changes are noted from now on."""
        self._outbox = self._context.outbox("retained", OUTBOX)
        self._outbox.consume(self._arrived)

    def begin(self) -> None:
        """Begin to write, now that the stores can be read; whether Kafka is there is not waited for."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def note(self, topic: str) -> None:
        """Note with this turn's writes that a topic changes."""
        if topic.startswith("$") or self._outbox is None:
            return
        if self._outbox.put(Message(topic, qos=1)) is not Accepted.ACCEPTED and not self._misses_some:
            self._misses_some = True
            self._context.persist(self._key, MISSES)

    def adopt(self, values: Iterable[bytes]) -> None:
        """Take over what another node has known, which is gone: if it missed a change, everything is compared."""
        if MISSES in values:
            self._misses_some = True
            self._wakes.set()

    async def drain(self, deadline_s: float) -> None:
        """Write what is left if Kafka answers; what it does not take stays in the outbox."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.waiting and self.problem is None:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            pass

    async def stop(self) -> None:
        """Disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._writer.close()

    def _arrived(self, entries: Sequence[OutboxEntry]) -> None:
        doubles = []
        for entry in entries:
            topic = entry.message.topic
            if topic in self._changed:
                doubles.append(entry.number)  # The earlier entry has it written after this change, too.
            else:
                self._changed[topic] = [entry.number]
        if doubles and self._outbox is not None:
            self._outbox.acknowledge(doubles)
        self._wakes.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._work()
                failures = 0
            except Exception as error:
                self._failed(str(unavailable(error)))
                await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** min(failures, 30), LONGEST_PAUSE_S))
                failures += 1

    async def _work(self) -> None:
        assert self._outbox is not None
        if self._misses_some or not self._is_copied:
            await self._copy_once()
        if not self._changed:
            self._wakes.clear()
            await self._wakes.wait()
            return
        batch = self._writing = dict(list(self._changed.items())[: self._settings.batch])
        for topic in batch:
            del self._changed[topic]
        left = set(batch)
        try:
            left = await self._write(list(batch))
        finally:
            self._writing = {}
            for topic in left:
                self._changed[topic] = [*batch[topic], *self._changed.get(topic, ())]
            self._progress.set()
        done = [number for topic, numbers in batch.items() if topic not in left for number in numbers]
        self._outbox.acknowledge(done)

    async def _copy_once(self) -> None:
        """Write everything that is retained: at the first start, and after the outbox could not take a change."""
        state = (await settled(self._context.persisted())).get(self._key)
        if state == DONE and not self._misses_some:
            self._is_copied = True
            return
        has_missed, self._misses_some = self._misses_some or state == MISSES, False
        try:
            topics = await self._copy()
            if has_missed:
                # A deletion may be among what was missed. A store that is new is not compared: it may be empty.
                await self._write_all(await self._topics_in_kafka() - topics)
        except BaseException:
            self._misses_some |= has_missed
            raise
        self._is_copied = True
        if not self._misses_some:
            self._context.persist(self._key, DONE)
        self._log.info("{count} retained messages are in {topic}", count=len(topics), topic=self._writer.topic)

    async def _topics_in_kafka(self) -> set[str]:
        found = set()
        async for record in everything(self._settings, self._writer.topic):
            found.add(topic_of(record.key))
        return found

    async def _copy(self) -> set[str]:
        topics: set[str] = set()
        cursor: object = None
        while True:
            page = await settled(self._context.retained("#", cursor))
            left = {message.topic for message in page.messages}
            topics |= left
            await self._write_all(left)
            cursor = page.cursor
            if cursor is None:
                return topics

    async def _write_all(self, topics: set[str]) -> None:
        """Write topics until none has changed meanwhile."""
        while topics:
            some = sorted(topics)[: self._settings.batch]
            topics = (topics - set(some)) | await self._write(some)

    async def _write(self, topics: Sequence[str]) -> set[str]:
        """Write what the store has for topics; returns those for which it has something else by now."""
        found = await self._read(topics)
        answers = await self._writer.write([self._record(n, topic, found[topic]) for n, topic in enumerate(topics)])
        self._sent.value += len(topics)
        refused = [topic for topic, answer in zip(topics, answers, strict=True) if answer is not None]
        if refused:
            await self._writer.write([self._too_large(n, topic) for n, topic in enumerate(refused)])
        now = await self._read(topics)
        if self.problem is not None:
            self._log.info("retained messages are shipped to Kafka again")
            self.problem = None
        return {topic for topic in topics if _identity(found[topic]) != _identity(now[topic])}

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
            topic=self._writer.topic,
        )
        return self._tombstone(number, topic)

    def _failed(self, problem: str) -> None:
        if self.problem is None:
            self._log.warn("retained messages wait: {problem}", problem=problem)
        self.problem = problem
        self._progress.set()


def _identity(message: Message | None) -> MessageId | None:
    return None if message is None else message.id
