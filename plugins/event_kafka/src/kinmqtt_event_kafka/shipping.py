"""Ships the node's event log to Kafka, as a consumer group that holds what it has not shipped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kinmqtt_event_kafka.schema import EventRecord, encode
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import unavailable
from kinmqtt_kafka_kit.writer import TopicWriter
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
        self._writer = TopicWriter(settings, settings.topic, settings.max_record_bytes)
        self._current: asyncio.Future[None] | None = None
        self._progress: asyncio.Event | None = None
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
        await self._writer.close()

    async def _ship(self, batch: Sequence[Recorded]) -> None:
        try:
            await self._send(self._records(batch))
        except asyncio.CancelledError:
            raise ServiceUnavailable("the plugin stops; its events stay in the log") from None
        except Exception as error:
            found = unavailable(error)
            self.problem = str(found)
            raise found from error
        finally:
            if self._progress is not None:
                self._progress.set()
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
            records.append(record)
        return records

    def _leave_out(self, why: str, count: int = 1) -> None:
        self._left_out.value += count
        self._log.warn("not shipped: {why}", why=why)

    async def _send(self, records: Sequence[EventRecord]) -> None:
        answers = await self._writer.write(
            [
                (number, each.key, each.value, list(each.headers), each.timestamp_ms)
                for number, each in enumerate(records)
            ]
        )
        refused = sum(answer is not None for answer in answers)
        self._sent.value += len(answers) - refused
        if refused:
            self._leave_out(
                f"the topic {self._writer.topic!r} (max.message.bytes) does not take {refused} events", refused
            )
