"""Clusters whose brokers have a mistake: the checker finds what it breaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from root_harness import cluster_mutated
from root_harness.cluster_faults import bad_weather, kill_redis, split
from root_harness.cluster_network import Network
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun
from root_harness.cluster_watchers import missed_fresh

pytestmark = pytest.mark.soak

MOST_FAULTS = 10
SPLIT_S = 5.0
"""Longer than a side of a split takes to end."""
SETTLES_S = 10.0
"""Longer than the messages of a whole cluster take to come."""


def mutated(folder: Path, redis: Redis, name: str, **named: Any) -> ClusterRun:
    """Return a run whose brokers have a mistake."""
    return ClusterRun(folder, redis.at, program=(cluster_mutated.__file__, name), **named)


async def find(run: ClusterRun, fault: Callable[[], Awaitable[object]]) -> None:
    """Let a fault happen again and again until a promise is broken."""
    async with run.traffic():
        await run.calm()
        for _ in range(MOST_FAULTS):
            await fault()
            await run.calm()
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
    run = mutated(tmp_path, redis, "ack-before-commit", seed=21)

    broken = found(run, lambda: kill_redis(run, redis, 0.0))

    assert any("acknowledged messages never came" in text for text in broken), run.summary()


def test_writes_of_an_owner_that_lost_its_session_are_found(
    tmp_path: Path, hosts: Network, redis_host: Redis
) -> None:
    """C7: the smaller side of a split serves the subscriber for a moment longer than the others leave it that."""
    run = mutated(tmp_path, redis_host, "no-fencing", seed=22, stay_s=30.0, network=hosts)

    async def cut_off_the_subscriber() -> None:
        cut_off = run.nodes[run.ports.index(run.subscriber.port)]
        await split(run, [[cut_off], [node for node in run.nodes if node is not cut_off]], SPLIT_S)

    broken = found(run, cut_off_the_subscriber)

    assert any("never came" in text or "twice" in text for text in broken), run.summary()


def test_a_suback_before_the_other_brokers_route_is_found(tmp_path: Path, redis: Redis) -> None:
    """C8: over slow links a message that another broker takes right after SUBACK does not come."""
    run = mutated(tmp_path, redis, "no-barrier", seed=23, has_proxies=True)

    async def subscribe_meanwhile() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bad_weather(run, ["delay 0.3"], 3.0))
            await asyncio.sleep(0.5)
            run.notes.problems += await missed_fresh(run.dial, run.ports[:2], 1)

    broken = found(run, subscribe_meanwhile)

    assert any("did not come" in text for text in broken), run.summary()
