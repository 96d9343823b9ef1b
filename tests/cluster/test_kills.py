"""A cluster whose brokers are killed loses nothing that it has acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

from root_harness.cluster_faults import kill
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun


async def killed(run: ClusterRun, kills: int) -> None:
    """Kill a node so many times, now at once back, now after its sessions were adopted."""
    async with run.traffic():
        for number in range(kills):
            await run.calm()
            await asyncio.sleep(run.chance.random() * 0.3)
            await kill(run, run.chance.choice(run.nodes), 6.0 if number % 3 == 2 else 0.0)
        await run.calm()
        await run.know_fresh_routes()


def test_no_acknowledged_message_is_lost_when_brokers_are_killed(tmp_path: Path, redis: Redis) -> None:
    """C2, C3, C5: QoS 1 at least once, QoS 2 exactly once, whichever broker dies, and wherever clients come back."""
    run = ClusterRun(tmp_path, redis.at, seed=3)

    asyncio.run(killed(run, 4))

    run.check()
