"""Clusters whose brokers have a mistake: the checker finds what it breaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

from root_harness import cluster_mutated
from root_harness.cluster_faults import bad_weather, kill_redis
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun
from root_harness.cluster_watchers import missed_fresh

MOST_FAULTS = 20
SETTLES_S = 4.0
"""Longer than the messages of a whole cluster take to come."""


def mutated(folder: Path, redis: Redis, name: str, *, seed: int, stay_s: float) -> ClusterRun:
    """Return a run whose brokers have a mistake."""
    program = (cluster_mutated.__file__, name)
    return ClusterRun(folder, redis.at, seed, has_proxies=True, stay_s=stay_s, program=program)


async def find(run: ClusterRun, fault: Callable[[], Awaitable[object]]) -> None:
    """Let a fault happen again and again until a promise is broken."""
    async with run.traffic():
        for _ in range(MOST_FAULTS):
            await run.calm()
            await fault()
            try:
                await run.settle(SETTLES_S)
            except AssertionError:
                break
        run.patience_s = SETTLES_S


def found(run: ClusterRun, fault: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the broken promises that faults bring to light; compiled classes can't be changed."""
    with patch.dict(os.environ, KINMQTT_PURE="1"):
        asyncio.run(find(run, fault))
    return list(run.violations())


def test_a_store_that_reports_commits_too_early_is_found(tmp_path: Path, redis: Redis) -> None:
    """C3: what was on its way to Redis when that died is lost, and was acknowledged."""
    run = mutated(tmp_path, redis, "ack-before-commit", seed=21, stay_s=6.0)

    broken = found(run, lambda: kill_redis(run, redis, 0.0))

    assert any("acknowledged messages never came" in text for text in broken), run.summary()


def test_writes_of_an_owner_that_lost_its_session_are_found(tmp_path: Path, redis: Redis) -> None:
    """C7: a broker that does not know yet that a session has moved goes on writing to it."""
    run = mutated(tmp_path, redis, "no-fencing", seed=22, stay_s=0.5)

    broken = found(run, lambda: bad_weather(run, ["stall"], 0.6))

    assert any("never came" in text or "twice" in text for text in broken), run.summary()


def test_a_suback_before_the_other_brokers_route_is_found(tmp_path: Path, redis: Redis) -> None:
    """C8: over slow links a message that another broker takes right after SUBACK does not come."""
    run = mutated(tmp_path, redis, "no-barrier", seed=23, stay_s=6.0)

    async def subscribe_meanwhile() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bad_weather(run, ["delay 0.3"], 3.0))
            await asyncio.sleep(0.5)
            run.notes.problems += await missed_fresh(run.dial, run.ports[:2], 1)

    broken = found(run, subscribe_meanwhile)

    assert any("did not come" in text for text in broken), run.summary()
