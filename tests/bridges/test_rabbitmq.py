"""What a broker has acknowledged comes to a real RabbitMQ, whichever of the two is killed.

The long run is a command of its own: 20 kills of the broker, and 20 of RabbitMQ::

    KINMQTT_RABBITMQ_KILLS=20 python -m pytest -m soak tests/bridges/test_rabbitmq.py -s
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from root_harness.crash_run import Run, said
from root_harness.rabbitmq import RabbitMQ, Taken


class RabbitMQRun(Run):
    """A broker with a sink in RabbitMQ, its clients, and a RabbitMQ that is killed now and then."""

    def __init__(self, folder: Path, rabbitmq: RabbitMQ, queue: str, seed: int) -> None:
        self.settings = folder / "kinmqtt.toml"
        self.settings.write_text(
            '[plugins]\nonly = ["embedded", "bridge_rabbitmq"]\n'
            f'[plugins.bridge_rabbitmq.connections.main]\nservers = ["{rabbitmq.address}"]\ntimeout_s = 5\n'
            '[plugins.bridge_rabbitmq.sinks.out]\nconnection = "main"\nfilters = ["crash/#"]\n'
            f'routing_key = "{queue}"\nsending = {{ longest_pause_s = 1 }}\n'
        )
        super().__init__(folder / "data", seed, config=self.settings)
        self.rabbitmq = rabbitmq
        self.queue = queue
        self.taken: list[Taken] = []
        self.rests_when = self._has_left
        self.patience_s = 120.0

    def by_topic(self) -> dict[str, list[int]]:
        """Return the numbers of what has come so far by MQTT topic, in the order of the queue."""
        self.taken += self.rabbitmq.take(self.queue)
        found: dict[str, list[int]] = {}
        for each in self.taken:
            found.setdefault(each.properties.headers["mqtt-topic"], []).append(int(each.body))
        return found

    def _has_left(self) -> bool:
        return self.notes.have_come_to(self.by_topic())

    async def kill_both(self, kills: int) -> None:
        """Kill the broker so many times under traffic, and RabbitMQ as often."""
        async with self.under_traffic():
            for _ in range(kills):
                await self.kill_once()
                await asyncio.to_thread(self.rabbitmq.kill)
                await asyncio.to_thread(self.rabbitmq.start)


def check(run: RabbitMQRun) -> int:
    """Fail if something acknowledged is missing or out of order; returns how many messages came twice."""
    out = run.by_topic()
    log = said(run.settings.with_name("data"))
    assert "Traceback" not in log, log
    for topic, promised in run.notes.promised.items():
        missing = promised - set(out[topic])
        assert not missing, f"{topic}: {len(missing)} are missing: {sorted(missing)[:5]}"
        first = list(dict.fromkeys(out[topic]))
        assert all(before < after for before, after in pairwise(first)), topic
    ids = [each.properties.message_id for each in run.taken]
    return len(ids) - len(set(ids))


def test_nothing_acknowledged_is_lost_on_its_way_to_rabbitmq(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    """B1, B2, B3: at least once, and in the order of each publisher, over kills of the broker and of RabbitMQ."""
    run = RabbitMQRun(tmp_path, rabbitmq, rabbitmq.declare("crashes", x_queue_type="quorum"), seed=21)

    asyncio.run(run.kill_both(3))

    check(run)


@pytest.mark.soak
def test_nothing_is_lost_over_many_kills(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    """The same, for as many kills of both as are asked for."""
    kills = int(os.environ.get("KINMQTT_RABBITMQ_KILLS", "20"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = RabbitMQRun(tmp_path, rabbitmq, rabbitmq.declare(f"soak-{seed}", x_queue_type="quorum"), seed)

    asyncio.run(run.kill_both(kills))

    twice = check(run)
    promised = sum(map(len, run.notes.promised.values()))
    print(
        f"seed {seed}: {run.kills} kills, {kills} of RabbitMQ, {promised} messages acknowledged, {twice} came twice"
    )
