"""Brokers that stand still: for a moment, which harms nobody, and for so long that the others give them up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kinmqtt_spi.reasons import ReasonCode
from root_harness.cluster_faults import stall
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun, go_through

SHORT_S = 0.7
"""Shorter than the failure detector takes."""
LONG_S = 8.0
"""Longer than it takes until a member is DOWN."""


def test_a_broker_that_stalls_shortly_goes_on(tmp_path: Path, redis: Redis) -> None:
    """It stays a member, and keeps its clients; nothing acknowledged is lost, and QoS 2 comes once."""
    run = ClusterRun(tmp_path, redis.at, seed=5)
    stalled = run.nodes[1]

    asyncio.run(go_through(run, lambda: stall(run, stalled, SHORT_S)))

    run.check()
    assert run.watchers[stalled.name].reasons == []
    assert stalled.lives == 1


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.soak), 2], ids=["first-seed", "no-seed"])
def test_a_broker_that_stalls_long_starts_again_as_a_new_member(tmp_path: Path, redis: Redis, number: int) -> None:
    """It sees that it was given up: it disconnects its clients (0x8B), and what the others did meanwhile stands."""
    run = ClusterRun(tmp_path, redis.at, seed=6)
    stalled = run.nodes[number]

    asyncio.run(go_through(run, lambda: stall(run, stalled, LONG_S)))

    run.check()
    assert run.watchers[stalled.name].reasons == [ReasonCode.SERVER_SHUTTING_DOWN]
    assert [node.lives for node in run.nodes] == [1 + (node is stalled) for node in run.nodes]
