"""Brings retained messages to a compacted topic: of each MQTT topic what the retain store has now.

An outbox has the topics that changed, each committed with its change, and no payloads. What is sent is read from the
store when it is sent, and compared afterwards: if it has changed meanwhile, it is sent again. So the last record of a
topic is what the store has, whichever node sent it and however often, also where an outbox of a node that is gone is
drained late by another one. It is sent in pieces of ``max_record_bytes``: each has its own time limit, and is
acknowledged to the outbox when Kafka has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final
from urllib.parse import quote

from kinmqtt_event_kafka.reading import everything
from kinmqtt_event_kafka.retained_record import topic_of
from kinmqtt_event_kafka.retained_writer import RetainedWriter
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import pauses, settled, unavailable
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.outbox import Accepted, Outbox, OutboxEntry, OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Message

OUTBOX: Final = OutboxSettings(max_messages=200_000, window=65_535, when_full=WhenFull.DROP_NEWEST)
"""An entry has a topic and no payload. Topics that are not in it are found by a copy of everything."""

COPIED: Final = "copied/"
"""Begins the key of what a node knows of a topic of Kafka; without a value, it has not copied anything there yet."""

DONE: Final = b"done"
"""Everything that was retained has been copied."""

MISSES: Final = b"misses some"
"""The outbox could not take a change since, so another copy is due."""


MAX_NAMED: Final = 3
"""The most foreign keys that a line of the log names."""


class RetainedShipper:
    """Writes what is retained, and says what hinders it."""

    def __init__(self, settings: EventKafkaSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._log = context.log
        self._writer = RetainedWriter(settings, context)
        self._key = f"{COPIED}{quote(context.node.name, safe='')}/{settings.retained_topic}"
        self._skipped = context.metrics.counter("retained.skipped", "records")
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
            self._wakes.set()

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
        waits = pauses()
        while True:
            self._wakes.clear()
            try:
                await self._work()
            except Exception as error:
                self._failed(str(unavailable(error)))
                await asyncio.sleep(waits.next_s())
                continue
            waits.reset()
            self._succeeded()
            if not self._changed:
                await self._wakes.wait()

    async def _work(self) -> None:
        """Copy everything if that is due, and write the next piece of what has changed."""
        assert self._outbox is not None
        if self._misses_some or not self._is_copied:
            await self._copy_once()
        if not self._changed:
            return
        found = await self._writer.read_piece(islice(self._changed, self._settings.batch))
        batch = self._writing = {topic: self._changed.pop(topic) for topic in found}
        left = set(batch)
        try:
            left = await self._writer.write(found)
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
            if has_missed:
                await self._note_misses()
            topics = await self._copy()
            if has_missed:
                # A deletion may be among what was missed. A store that is new is not compared: it may be empty.
                await self._writer.write_all(await self._topics_in_kafka() - topics)
        except BaseException:
            self._misses_some |= has_missed
            raise
        self._is_copied = True
        if not self._misses_some:
            self._context.persist(self._key, DONE)
        self._log.info("{count} retained messages are in {topic}", count=len(topics), topic=self._writer.topic)

    async def _note_misses(self) -> None:
        """Persist that a copy is due, until it is made; what was missed before is in the store when this returns.

        Raises ``ServiceUnavailable`` if that is not committed.
        """
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(is_committed: bool) -> None:
            if not committed.done():
                committed.set_result(is_committed)

        self._context.persist(
            self._key, MISSES, after_commit=partial(answer, True), on_commit_failed=partial(answer, False)
        )
        if not await committed:
            raise ServiceUnavailable("the store has not committed that retained messages are to be compared")

    async def _topics_in_kafka(self) -> set[str]:
        """Return the topics that have a message in Kafka. Keys that are no topics are of others, and stay."""
        found: set[str] = set()
        foreign: set[bytes | None] = set()
        async for record in everything(self._settings, self._writer.topic):
            try:
                topic = topic_of(record.key)
            except ValueError:
                self._skipped.value += 1
                if len(foreign) < MAX_NAMED:
                    foreign.add(record.key)
                continue
            if record.value is None:
                found.discard(topic)
            else:
                found.add(topic)
        if foreign:
            self._log.warn(
                "{topic} has records that are skipped, because their keys are no MQTT topics, such as {keys}",
                topic=self._writer.topic,
                keys=", ".join(repr((key or b"")[:100]) for key in foreign),
            )
        return found

    async def _copy(self) -> set[str]:
        topics: set[str] = set()
        cursor: object = None
        while True:
            page = await settled(self._context.retained("#", cursor))
            left = {message.topic for message in page.messages}
            topics |= left
            await self._writer.write_all(left)
            cursor = page.cursor
            if cursor is None:
                return topics

    def _succeeded(self) -> None:
        if self.problem is not None:
            self._log.info("retained messages are shipped to Kafka again")
            self.problem = None

    def _failed(self, problem: str) -> None:
        if self.problem is None:
            self._log.warn("retained messages wait: {problem}", problem=problem)
        self.problem = problem
        self._progress.set()
