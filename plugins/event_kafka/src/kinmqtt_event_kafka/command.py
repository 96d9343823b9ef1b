"""``kinmqtt events tail|rebuild``: prints events from Kafka, or rebuilds sessions from them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from kinmqtt_event_kafka.rebuild import LEFT_OUT, Rebuilder
from kinmqtt_event_kafka.schema import decode
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_kafka_kit import options, why
from kinmqtt_spi.errors import SettingsError, SpiError
from kinmqtt_spi.export import line_text
from kinmqtt_spi.files import sync_folder
from kinmqtt_spi.settings import Document, parse

READ_PAUSE_MS: Final = 1000


class EventsCommandError(SpiError):
    """The command failed; the text says why, in one line."""


class Events:
    """The command ``kinmqtt events``."""

    summary = "print client events from Kafka, or rebuild sessions from them"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        tail = actions.add_parser("tail", help="print events as they arrive, one JSON object a line")
        tail.add_argument("--oldest", action="store_true", help="begin with the oldest event")
        tail.add_argument("--count", type=int, help="end after so many events")
        rebuild = actions.add_parser("rebuild", help="write sessions and subscriptions for `kinmqtt store import`")
        rebuild.add_argument("--from", dest="source", choices=("kafka",), required=True, help="where the events are")
        rebuild.add_argument("--to", dest="target", type=Path, required=True, metavar="FILE", help="a new file")
        for each in (tail, rebuild):
            each.add_argument(
                "-c", "--config", type=Path, required=True, help="the broker's settings, with [plugins.event_kafka]"
            )

    def run(self, parsed: Namespace) -> int:
        """Run it."""
        settings = parse(EventKafkaSettings, Document.read(parsed.config), ("plugins", "event_kafka"))
        if not settings.servers:
            raise SettingsError([f"{parsed.config}: plugins.event_kafka.servers names no server"])
        try:
            if parsed.action == "tail":
                asyncio.run(_tail(settings, parsed.oldest, parsed.count))
            else:
                asyncio.run(_rebuild(settings, parsed.target))
        except KeyboardInterrupt:
            return 0
        return 0


@asynccontextmanager
async def _reading(settings: EventKafkaSettings) -> AsyncIterator[tuple[AIOKafkaConsumer, list[TopicPartition]]]:
    """Give a consumer that reads all partitions from the beginning, outside of any group."""
    consumer = AIOKafkaConsumer(
        **options(settings), enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    try:
        try:
            async with asyncio.timeout(settings.timeout_s):
                await consumer.start()
                await consumer._client.force_metadata_update()
        except Exception as error:
            raise EventsCommandError(f"{', '.join(settings.servers)}: {await why(settings, error)}") from error
        partitions = consumer.partitions_for_topic(settings.topic) or ()
        if not partitions:
            raise EventsCommandError(f"there is no topic {settings.topic!r} in Kafka (plugins.event_kafka.topic)")
        places = [TopicPartition(settings.topic, each) for each in sorted(partitions)]
        consumer.assign(places)
        yield consumer, places
    finally:
        await consumer.stop()


async def _tail(settings: EventKafkaSettings, oldest: bool, count: int | None) -> None:
    async with _reading(settings) as (consumer, places):
        if not oldest:
            await consumer.seek_to_end(*places)
        shown = 0
        while count is None or shown < count:
            found = await consumer.getmany(timeout_ms=READ_PAUSE_MS)
            for records in found.values():
                for record in records:
                    if count is None or shown < count:
                        print((record.value or b"").decode("utf-8", "replace"))
                        shown += 1
            if found:
                sys.stdout.flush()


async def _rebuild(settings: EventKafkaSettings, target: Path) -> None:
    if target.exists():
        raise EventsCommandError(f"{target} exists: name a new file")
    rebuilder = Rebuilder()
    skipped = 0
    async for value in _everything(settings):
        try:
            _, event = decode(value)
            rebuilder.take(event)
        except (KeyError, ValueError):
            skipped += 1
    now = time.time()
    lines = list(rebuilder.lines(now))
    # Not visible to others, and under its name only when it is complete.
    partial = target.with_name(f"{target.name}.partial")
    with open(partial, "x", encoding="ascii", opener=_private) as file:
        file.writelines(f"{line_text(line)}\n" for line in lines)
    partial.rename(target)
    sync_folder(target.parent)
    print(f"{len(lines) - 3} sessions are in {target}")
    for text in _warnings(rebuilder, skipped):
        print(f"kinmqtt: {text}", file=sys.stderr)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _warnings(rebuilder: Rebuilder, skipped: int) -> list[str]:
    texts = [LEFT_OUT]
    if rebuilder.incomplete:
        count = len(rebuilder.incomplete)
        texts.append(f"{count} sessions began before the first event in Kafka: their older subscriptions are missing")
    if rebuilder.old_schema:
        texts.append(f"{rebuilder.old_schema} CONNECT events have schema 1, which does not say when sessions expire")
    if skipped:
        texts.append(f"{skipped} records are no events that this version knows")
    return texts


async def _everything(settings: EventKafkaSettings) -> AsyncIterator[Any]:
    """Yield the values of all records that are there now."""
    async with _reading(settings) as (consumer, places):
        ends = await consumer.end_offsets(places)
        left = {place for place in places if ends[place] > (await consumer.beginning_offsets([place]))[place]}
        while left:
            found = await consumer.getmany(*left, timeout_ms=READ_PAUSE_MS)
            for records in found.values():
                for record in records:
                    yield record.value
            for place in list(left):
                if await consumer.position(place) >= ends[place]:
                    left.discard(place)


command = Events()
