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

from root_harness.cluster_faults import kill, restart, stall
from root_harness.cluster_nemesis import AWAY_S, LONG_STALL_S, SHORT_S, Nemesis
from root_harness.cluster_network import Network
from root_harness.cluster_own_stores import OwnStoresRun
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun

SHARES = {3: 0.5, 5: 0.3}
"""By the number of brokers over one Redis, the share of all kills."""
SHARE_OF_OWN_STORES = 0.2


def asked_kills(share: float) -> int:
    """Return how many kills are asked for."""
    return max(1, round(int(os.environ.get("KINMQTT_CLUSTER_KILLS", "200")) * share))


def any_seed() -> int:
    """Return the seed that is asked for, or any."""
    return int(os.environ.get("KINMQTT_CLUSTER_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


@pytest.mark.soak
@pytest.mark.parametrize("count", SHARES)
def test_promises_hold_over_many_faults(tmp_path: Path, hosts: Network, redis_host: Redis, count: int) -> None:
    """C2 to C5, C14, C15: nothing acknowledged is lost, QoS 2 and wills come once, no client has two owners."""
    run = ClusterRun(tmp_path, redis_host.at, any_seed(), count, network=hosts, has_proxies=True)
    say(f"\n{count} brokers, seed {run.seed}, logs in {tmp_path}")

    async def soak() -> None:
        async with run.traffic():
            await Nemesis(run, redis_host, say).go_on(asked_kills(SHARES[count]))

    try:
        asyncio.run(soak())
    finally:
        say(run.summary())

    run.check()


@pytest.mark.soak
def test_brokers_with_stores_of_their_own_lose_only_what_they_may(tmp_path: Path) -> None:
    """What no dead broker had is not lost and comes once; the rest is counted."""
    run = OwnStoresRun(tmp_path, any_seed())
    say(f"\nstores of their own, seed {run.seed}, logs in {tmp_path}")

    async def soak() -> None:
        async with run.traffic():
            for number in range(asked_kills(SHARE_OF_OWN_STORES)):
                async with run.without_a_broker():
                    await kill(run, run.chance.choice(run.nodes), run.chance.choice((0.0, AWAY_S)))
                if number % 5 == 4:
                    async with run.without_a_broker():
                        await stall(run, run.chance.choice(run.nodes), LONG_STALL_S)
                await run.calm()
                if number % 2:
                    await restart(run, run.chance.choice(run.nodes))
                else:
                    await stall(run, run.chance.choice(run.nodes), SHORT_S)
                if number % 5 == 4:
                    say(f"{run.faults['kills']} kills, {run.acknowledged} messages acknowledged")
            await run.calm()
            await run.know_fresh_routes()

    try:
        asyncio.run(soak())
    finally:
        say(run.summary())

    run.check()
