"""Brokers with stores of their own: what a broker that leaves has goes to the others, what a dead one has waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from root_harness.cluster_faults import kill, restart, stall
from root_harness.cluster_own_stores import OwnStoresRun

SHORT_S = 0.7
"""Shorter than the failure detector takes."""
LONG_S = 5.0
"""Longer than it takes until a member is DOWN."""


def test_a_broker_that_leaves_or_stalls_shortly_loses_nothing(tmp_path: Path) -> None:
    """A broker that leaves hands its sessions off, QoS 2 comes once, and no client begins anew."""
    run = OwnStoresRun(tmp_path, seed=31, stay_s=2.0)

    async def go() -> None:
        async with run.traffic():
            for node in run.nodes[:2]:
                await run.calm()
                await restart(run, node)
                await run.calm()
                await stall(run, run.nodes[2], SHORT_S)
            await run.calm()
            await run.know_fresh_routes()

    asyncio.run(go())

    run.check()
    assert run.begun_anew == {}


def test_sessions_of_a_dead_broker_wait_for_its_return(tmp_path: Path) -> None:
    """What was acknowledged before comes from its disk, a will comes once, and then all is as before."""
    run = OwnStoresRun(tmp_path, seed=32, stay_s=2.0)

    async def go() -> None:
        async with run.traffic():
            for away_s in (0.0, LONG_S):
                async with run.without_a_broker():
                    await kill(run, run.nodes[run.ports.index(run.subscriber.port)], away_s)
            await run.calm()
            await run.know_fresh_routes()

    asyncio.run(go())

    print(run.summary())
    run.check()
