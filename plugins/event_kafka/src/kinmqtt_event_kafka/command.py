"""``kinmqtt events tail|rebuild``: prints events from Kafka, or rebuilds what stores had from there."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from kinmqtt_event_kafka.reading import READ_PAUSE_MS, everything, reading
from kinmqtt_event_kafka.rebuild import LEFT_OUT, NO_RETAINED, Rebuilder, RetainedRebuilder
from kinmqtt_event_kafka.schema import decode
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_spi.errors import SettingsError, SpiError
from kinmqtt_spi.export import line_text
from kinmqtt_spi.files import sync_folder
from kinmqtt_spi.settings import Document, parse


class EventsCommandError(SpiError):
    """The command failed; the text says why, in one line."""


class Events:
    """The command ``kinmqtt events``."""

    summary = "print client events from Kafka, or rebuild sessions and retained messages"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        tail = actions.add_parser("tail", help="print events as they arrive, one JSON object a line")
        tail.add_argument("--oldest", action="store_true", help="begin with the oldest event")
        tail.add_argument("--count", type=int, help="end after so many events")
        rebuild = actions.add_parser("rebuild", help="write what `kinmqtt store import` reads")
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


async def _tail(settings: EventKafkaSettings, oldest: bool, count: int | None) -> None:
    async with reading(settings, settings.topic) as (consumer, places):
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
    rebuilder, retained = Rebuilder(), RetainedRebuilder()
    skipped = 0
    async for record in everything(settings, settings.topic):
        try:
            _, event = decode(record.value)
            rebuilder.take(event)
        except (KeyError, ValueError):
            skipped += 1
    if settings.retained_topic:
        async for record in everything(settings, settings.retained_topic):
            try:
                retained.take(record.key, record.value, record.headers)
            except ValueError:
                skipped += 1
    now = time.time()
    writes = list(retained.writes(now))
    lines = list(rebuilder.lines(now, writes))
    # Not visible to others, and under its name only when it is complete.
    partial = target.with_name(f"{target.name}.partial")
    with open(partial, "x", encoding="ascii", opener=_private) as file:
        file.writelines(f"{line_text(line)}\n" for line in lines)
    partial.rename(target)
    sync_folder(target.parent)
    print(f"{len(lines) - len(writes) - 3} sessions and {len(writes)} retained messages are in {target}")
    for text in _warnings(settings, rebuilder, skipped):
        print(f"kinmqtt: {text}", file=sys.stderr)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _warnings(settings: EventKafkaSettings, rebuilder: Rebuilder, skipped: int) -> list[str]:
    texts = [LEFT_OUT] if settings.retained_topic else [LEFT_OUT, NO_RETAINED]
    if rebuilder.incomplete:
        count = len(rebuilder.incomplete)
        texts.append(f"{count} sessions began before the first event in Kafka: their older subscriptions are missing")
    if rebuilder.old_schema:
        texts.append(f"{rebuilder.old_schema} CONNECT events have schema 1, which does not say when sessions expire")
    if skipped:
        texts.append(f"{skipped} records are neither events nor retained messages that this version knows")
    return texts


command = Events()
