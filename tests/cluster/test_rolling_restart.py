"""Brokers of a cluster that are restarted one after the other under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kinmqtt_spi.reasons import ReasonCode
from root_harness.cluster_faults import restart
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun, go_through


def test_a_rolling_restart_loses_nothing(tmp_path: Path, redis: Redis) -> None:
    """C13: each broker sends its clients to others (0x9C, 0x9D), leaves the cluster, and comes back."""
    run = ClusterRun(tmp_path, redis.at, seed=18)

    async def faults() -> None:
        for node in run.nodes:
            await restart(run, node)
            await run.calm()

    asyncio.run(go_through(run, faults))

    run.check()
    for watcher in run.watchers.values():
        assert len(watcher.reasons) == 1
        assert watcher.reasons[0] in (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED)
