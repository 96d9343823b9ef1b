"""The feed of all nodes' events, from Kafka."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError

from kinmqtt_event_kafka.schema import decode
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import Endings, Gate, options, pauses, settled, unavailable, why
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.event import Consumer, EventFeed, Handler, Recorded, Start, node_group
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.plugin import Log

STOP_LIMIT_S: Final = 5.0
"""How long the plugin's stop waits for handlers that are at work."""

READ_PAUSE_MS: Final = 1000
"""How long one look for events takes, at most, if there are none."""

TOPICS_PAUSE_MS: Final = 30_000
"""How often to look for the topic, if it was missing, and for new partitions."""

Records = Mapping[TopicPartition, Sequence[Any]]


class KafkaFeed(EventFeed):
    """Has the events of all nodes that ship to the same topic."""

    def __init__(
        self,
        node: str,
        settings: EventKafkaSettings,
        log: Log,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``node`` is this node's name; consumers run in ``loop``, by default the one in which they are made."""
        self._loop = loop
        self._node = node
        self._settings = settings
        self._log = log
        self._metrics = metrics
        self._skipped = metrics.counter("events.skipped", "events")
        self._consumers: set[KafkaConsumer] = set()
        self._endings = Endings()

    def consume(
        self, group: str, handler: Handler, start: Start = Start.OLDEST, *, each_node: bool = False
    ) -> Consumer:
        name = node_group(group, self._node) if each_node else group
        loop = self._loop or asyncio.get_running_loop()
        consumer = KafkaConsumer(self, name, handler, start, self._consumers.discard, loop)
        self._consumers.add(consumer)
        self._metrics.gauge("events.lag", "events", lambda: self._lag_here(name), {"group": name})
        return consumer

    async def lag(self, group: str) -> int:
        try:
            return await self._lag_in_kafka(group)
        except Exception as error:
            raise unavailable(await why(self._settings, error)) from error

    async def _lag_in_kafka(self, group: str) -> int:
        consumer = self.client(group, Start.OLDEST)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await consumer.start()
                places = [TopicPartition(self._settings.topic, each) for each in await self._partitions(consumer)]
                consumer.assign(places)
                ends = await consumer.end_offsets(places)
                begins = await consumer.beginning_offsets(places)
                left = 0
                for place in places:
                    committed = await consumer.committed(place)
                    left += ends[place] - max(begins[place], committed or 0)
                return left
        finally:
            await self._endings.end(consumer.stop())

    async def close(self) -> None:
        """Stop all consumers; the last calls of their handlers are waited for, but not for long."""
        consumers = list(self._consumers)
        if consumers:
            await asyncio.wait([consumer.stop() for consumer in consumers], timeout=STOP_LIMIT_S)
            await asyncio.gather(*(consumer.end() for consumer in consumers))

    def client(self, group: str | None, start: Start) -> AIOKafkaConsumer:
        """Return a consumer of Kafka that is not started."""
        return AIOKafkaConsumer(
            **options(self._settings),
            group_id=None if group is None else self._settings.group_prefix + group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest" if start is Start.OLDEST else "latest",
            metadata_max_age_ms=TOPICS_PAUSE_MS,
        )

    @property
    def settings(self) -> EventKafkaSettings:
        """The settings."""
        return self._settings

    def read(self, found: Records) -> list[Recorded]:
        """Return the events of records; what is no event is counted and logged."""
        events = []
        for place, records in found.items():
            for record in records:
                try:
                    _, event = decode(record.value)
                except ValueError as error:
                    self._skipped.value += 1
                    self._log.warn(
                        "{topic} {partition} at offset {offset} is skipped: {error}",
                        topic=place.topic,
                        partition=place.partition,
                        offset=record.offset,
                        error=error,
                    )
                else:
                    events.append(Recorded(record.offset, event, place.partition))
        return events

    def report(self, group: str, error: BaseException) -> None:
        """Log the error of a handler, or of Kafka."""
        self._log.error("consumer group {group}: {error}", group=group, error=error)

    def _lag_here(self, group: str) -> int:
        return sum(consumer.lag for consumer in self._consumers if consumer.group == group)

    async def _partitions(self, consumer: AIOKafkaConsumer) -> set[int]:
        if not await consumer._client.force_metadata_update():
            raise ServiceUnavailable("Kafka does not say which topics it has")
        partitions: set[int] = consumer.partitions_for_topic(self._settings.topic) or set()
        if not partitions:
            raise ServiceUnavailable(f"there is no topic {self._settings.topic!r} in Kafka")
        return partitions


class KafkaConsumer(Consumer):
    """A member of a consumer group in Kafka."""

    def __init__(
        self,
        feed: KafkaFeed,
        group: str,
        handler: Handler,
        start: Start,
        ended: Callable[[KafkaConsumer], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.group = group
        self.lag = 0
        """The events of its partitions that it has not handled, as far as it knows."""
        self._feed = feed
        self._handler = handler
        self._start = start
        self._pauses = pauses()
        self._stopping = False
        self._in_hand = False
        self._endings = Endings()
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(lambda task: ended(self))

    def stop(self) -> asyncio.Future[None]:
        """Take no further batches; completes when the handler's last call has completed and is committed."""
        if not self._stopping:
            self._stopping = True
            if not self._in_hand:
                self._task.cancel()
        return self._task.get_loop().create_task(self._ended())

    async def end(self) -> None:
        """End it, whatever its handler does: what that has in hand is not committed."""
        self._task.cancel()
        await self._ended()

    async def _ended(self) -> None:
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._consume()
            except Exception as error:
                self._feed.report(self.group, await why(self._feed.settings, error))
                await self._pause()

    async def _consume(self) -> None:
        client = self._feed.client(self.group, self._start)
        try:
            async with asyncio.timeout(self._feed.settings.timeout_s):
                await client.start()
            gate = Gate()
            # A pattern, because Kafka would create a topic that is named and missing.
            client.subscribe(pattern=f"^{re.escape(self._feed.settings.topic)}$", listener=gate)
            while not self._stopping:
                await gate.opened()
                found = await client.getmany(timeout_ms=READ_PAUSE_MS, max_records=self._feed.settings.batch)
                # What was fetched while partitions are divided anew is fetched again, from the committed offset on.
                if found and gate.enter():
                    try:
                        await self._take(client, gate, found)
                    finally:
                        gate.leave()
        finally:
            self.lag = 0
            await self._endings.end(client.stop())

    async def _take(self, client: AIOKafkaConsumer, gate: Gate, found: Records) -> None:
        """Hand over a batch until it is handled, and commit it; give it up when the partitions are divided anew."""
        batch = self._feed.read(found)
        while batch and not await self._handled(batch):
            if self._stopping:
                return
            gate.leave()
            await self._pause()
            if not gate.enter_again():
                return
        self._pauses.reset()
        offsets = {place: records[-1].offset + 1 for place, records in found.items()}
        try:
            await client.commit(offsets)
        except (CommitFailedError, IllegalStateError, RebalanceInProgressError):
            pass  # Its partitions have gone to others meanwhile, who get these events again.
        self.lag = 0
        for place in client.assignment():
            self.lag += max(0, (client.highwater(place) or 0) - await client.position(place))

    async def _handled(self, batch: Sequence[Recorded]) -> bool:
        self._in_hand = True
        try:
            await settled(self._handler(batch))
        except Exception as error:
            self._feed.report(self.group, error)
            return False
        else:
            return True
        finally:
            self._in_hand = False

    async def _pause(self) -> None:
        await asyncio.sleep(self._pauses.next_s())
