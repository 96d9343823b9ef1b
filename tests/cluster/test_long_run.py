"""Random faults of clusters for hours; a command of its own::

KINMQTT_CLUSTER_KILLS=200 python -m pytest -m soak tests/cluster -s

The seed is printed, and ``KINMQTT_CLUSTER_SEED`` repeats it: the same faults, not the same moments.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from root_harness.cluster_nemesis import Nemesis
from root_harness.cluster_network import Network
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun

SHARES = {3: 0.6, 5: 0.4}
"""By the number of brokers, the share of all kills."""


def asked_kills() -> int:
    """Return how many kills are asked for."""
    return int(os.environ.get("KINMQTT_CLUSTER_KILLS", "200"))


def any_seed() -> int:
    """Return the seed that is asked for, or any."""
    return int(os.environ.get("KINMQTT_CLUSTER_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


@pytest.mark.soak
@pytest.mark.parametrize("count", SHARES)
def test_promises_hold_over_many_faults(tmp_path: Path, hosts: Network, redis_host: Redis, count: int) -> None:
    """C2 to C5, C14, C15: nothing acknowledged is lost, QoS 2 and wills come once, no client has two owners."""
    run = ClusterRun(tmp_path, redis_host.at, any_seed(), count, network=hosts, has_proxies=True)
    print(f"\n{count} brokers, seed {run.seed}, logs in {tmp_path}", flush=True)

    async def soak() -> None:
        async with run.traffic():
            await Nemesis(run, redis_host, lambda line: print(line, flush=True)).go_on(
                max(1, round(asked_kills() * SHARES[count]))
            )

    try:
        asyncio.run(soak())
    finally:
        print(run.summary(), flush=True)

    run.check()
