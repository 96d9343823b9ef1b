"""A cluster whose brokers are killed, stalled and restarted loses nothing that it has acknowledged.

The ordinary run has few faults; the long run is a command of its own::

    KINMQTT_CLUSTER_KILLS=200 KINMQTT_CLUSTER_NODES=5 python -m pytest -m soak tests/cluster -s
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_harness.servers import RedisServer, redis_server
from root_harness.cluster_run import ClusterRun

ENOUGH = 20
"""Acknowledged messages of each publisher between two faults: fewer would say little."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """The Redis of all brokers."""
    with redis_server(tmp_path / "redis", "--appendonly", "yes") as server:
        yield server


async def kill(run: ClusterRun, kills: int) -> None:
    """Kill a node so many times, now at once back, now after its sessions were adopted."""
    async with run.traffic():
        for number in range(kills):
            await run.be_whole()
            await run.until(run.progress(ENOUGH))
            await asyncio.sleep(run.chance.random() * 0.3)
            await run.kill(run.chance.choice(run.nodes), 6.0 if number % 3 == 2 else 0.0)
        await run.until(run.progress(ENOUGH))


def test_no_acknowledged_message_is_lost_when_brokers_are_killed(tmp_path: Path, redis: RedisServer) -> None:
    """C2, C3, C5: QoS 1 at least once, QoS 2 exactly once, whichever broker dies, and wherever clients come back."""
    run = ClusterRun(tmp_path, redis.port, seed=3)

    asyncio.run(kill(run, 6))

    assert list(run.violations()) == [], run.logs()
    assert "Traceback" not in run.logs()


@pytest.mark.soak
def test_no_acknowledged_message_is_lost_over_many_kills(tmp_path: Path, redis: RedisServer) -> None:
    """The same, for as many kills and nodes as are asked for."""
    kills = int(os.environ.get("KINMQTT_CLUSTER_KILLS", "200"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = ClusterRun(tmp_path, redis.port, seed, int(os.environ.get("KINMQTT_CLUSTER_NODES", "3")))

    asyncio.run(kill(run, kills))

    promised = sum(map(len, run.notes.promised.values()))
    print(f"seed {seed}: {run.kills} kills of {len(run.nodes)} brokers, {promised} messages acknowledged")
    assert list(run.violations()) == [], run.logs()
