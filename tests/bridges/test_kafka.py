"""What a broker has acknowledged comes to a real Kafka, whichever of the two is killed, and waits while it is away.

The long run is a command of its own: 30 kills of the broker, and 10 of Kafka::

    KINMQTT_KAFKA_KILLS=30 python -m pytest -m soak tests/bridges/test_kafka.py -s
"""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from root_harness.crash_run import Run, said
from root_harness.kafka import Kafka


class KafkaRun(Run):
    """A broker with a sink in Kafka, its clients, and a Kafka that is killed now and then."""

    def __init__(self, folder: Path, kafka: Kafka, topic: str, seed: int) -> None:
        self.settings = folder / "kinmqtt.toml"
        self.settings.write_text(
            f'[plugins.bridge_kafka.connections.main]\nservers = ["{kafka.address}"]\ntimeout_s = 5\n'
            '[plugins.bridge_kafka.sinks.out]\nconnection = "main"\nfilters = ["crash/#"]\n'
            f'topic = "{topic}"\nkey = "${{topic}}"\nsending = {{ parallel = 2, longest_pause_s = 1 }}\n'
        )
        super().__init__(folder / "data", seed, config=self.settings)
        self.kafka = kafka
        self.topic = topic
        self.rests_when = self._has_left
        self.patience_s = 120.0
        self._threads = ThreadPoolExecutor(1)
        self._look: Future[list[Any]] | None = None

    def records(self) -> list[Any]:
        """Return the records that have come so far."""
        return self.kafka.records(self.topic)

    def _has_left(self) -> bool:
        """Whether the last look found everything; looks take time, and one follows the other."""
        look = self._look
        has_left = look is not None and look.done() and self.notes.have_come_to(by_topic(look.result()))
        if look is None or (look.done() and not has_left):
            self._look = self._threads.submit(self.records)
        return has_left

    async def kill_both(self, kills: int, kafka_kills: int) -> None:
        """Kill the broker so many times under traffic, and Kafka in between, spread over them."""
        async with self.under_traffic():
            for number in range(kills):
                await self.kill_once()
                if number * kafka_kills // kills < (number + 1) * kafka_kills // kills:
                    await asyncio.to_thread(self.kafka.kill)
                    await asyncio.sleep(self.chance.random() * 2)
                    await asyncio.to_thread(self.kafka.start)


def by_topic(records: list[Any]) -> dict[str, list[int]]:
    """Return the numbers of records by MQTT topic, in the order in which they are stored."""
    found: dict[str, list[int]] = {}
    for record in records:
        topic = dict(record.headers)["mqtt-topic"].decode()
        found.setdefault(topic, []).append(int(record.value))
    return found


def check(run: KafkaRun) -> int:
    """Fail if something acknowledged is missing or out of order; returns how many records came twice."""
    records = run.records()
    out = by_topic(records)
    assert "Traceback" not in said(run.settings.with_name("data")), said(run.settings.with_name("data"))
    for topic, promised in run.notes.promised.items():
        missing = promised - set(out[topic])
        assert not missing, f"{topic}: {len(missing)} are missing: {sorted(missing)[:5]}"
        first = list(dict.fromkeys(out[topic]))
        assert all(before < after for before, after in pairwise(first)), topic
    ids = [dict(record.headers)["mqtt-id"] for record in records]
    return len(ids) - len(set(ids))


def test_nothing_acknowledged_is_lost_on_its_way_to_kafka(tmp_path: Path, kafka: Kafka) -> None:
    """B1, B2, B3: at least once, and in the order of each key, over kills of the broker and of Kafka."""
    run = KafkaRun(tmp_path, kafka, kafka.create_topic("crashes", partitions=3), seed=21)

    asyncio.run(run.kill_both(4, 1))

    check(run)


@pytest.mark.soak
def test_nothing_is_lost_over_many_kills(tmp_path: Path, kafka: Kafka) -> None:
    """The same, for as many kills as are asked for, and a third as many of Kafka."""
    kills = int(os.environ.get("KINMQTT_KAFKA_KILLS", "30"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = KafkaRun(tmp_path, kafka, kafka.create_topic(f"soak-{seed}", partitions=3), seed)

    asyncio.run(run.kill_both(kills, kills // 3))

    twice = check(run)
    promised = sum(map(len, run.notes.promised.values()))
    print(
        f"seed {seed}: {run.kills} kills, {kills // 3} of Kafka, {promised} messages acknowledged, {twice} came twice"
    )


def test_messages_wait_for_a_kafka_that_hangs_and_come_in_order(tmp_path: Path, kafka: Kafka) -> None:
    """B4: publishers and subscribers notice nothing; everything comes when Kafka goes on."""
    run = KafkaRun(tmp_path, kafka, kafka.create_topic("hangs", partitions=3), seed=22)

    async def hang() -> None:
        async with run.under_traffic():
            await run.until(run.progress(50))
            await asyncio.to_thread(kafka.pause)
            await run.until(run.progress(300))
            await asyncio.to_thread(kafka.go_on)

    asyncio.run(hang())

    check(run)
