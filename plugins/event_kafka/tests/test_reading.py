"""Reading everything from a topic ends, whatever Kafka does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from event_kafka_harness.making import settings, shipper
from kinmqtt_event_kafka import reading
from kinmqtt_event_kafka.command import command
from kinmqtt_event_kafka.reading import everything
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.event import Recorded
from kinmqtt_spi.testing.build import event

_topics = count()

PLACE = TopicPartition("t", 0)


class Consumer:
    """Has two records, then nothing: a third one is promised."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs
        self._next = 0

    async def end_offsets(self, places: Any) -> dict[TopicPartition, int]:
        return {PLACE: 3}

    async def beginning_offsets(self, places: Any) -> dict[TopicPartition, int]:
        return {PLACE: 0}

    async def position(self, place: TopicPartition) -> int:
        if self._hangs:
            await asyncio.Event().wait()
        return self._next

    async def getmany(self, *places: Any, timeout_ms: int) -> dict[TopicPartition, list[int]]:
        await asyncio.sleep(0)
        if self._next == 2:
            return {}
        self._next += 1
        return {PLACE: [self._next]}


@pytest.mark.parametrize("hangs", [False, True])
def test_a_kafka_that_stands_still_ends_it(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit, with what was read before; aiokafka itself waits for ever."""

    @asynccontextmanager
    async def reads(*_: Any) -> AsyncIterator[Any]:
        yield Consumer(hangs), [PLACE]

    monkeypatch.setattr(reading, "reading", reads)
    found: list[int] = []

    async def main() -> None:
        async for record in everything(settings("k:9092", "t", timeout_s=0.1), "t"):
            found.append(record)

    with pytest.raises(ServiceUnavailable, match=r"k:9092: Kafka has answered nothing for 0\.1 s while 't' was read"):
        asyncio.run(main())

    assert found == ([1] if hangs else [1, 2])


def test_a_rebuild_says_that_kafka_stands_still(kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no file."""
    topic = kafka.create_topic(f"reading-{next(_topics)}")

    async def ship() -> None:
        its = shipper(settings(kafka.address, topic))
        await its.ship([Recorded(0, event())])
        await its.close()

    asyncio.run(ship())
    servers, name = json.dumps([kafka.address]), json.dumps(topic)
    (tmp_path / "c.toml").write_text(f"[plugins.event_kafka]\nservers = {servers}\ntopic = {name}\ntimeout_s = 1\n")
    begin = reading.reading

    @asynccontextmanager
    async def reads(*more: Any) -> AsyncIterator[Any]:
        async with begin(*more) as (consumer, places):
            kafka.pause()
            yield consumer, places

    monkeypatch.setattr(reading, "reading", reads)
    parsed: Any = type("Parsed", (), {"config": tmp_path / "c.toml", "action": "rebuild", "target": tmp_path / "out"})

    with pytest.raises(ServiceUnavailable, match=f"answered nothing for 1 s while '{topic}' was read"):
        command.run(parsed)

    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]
