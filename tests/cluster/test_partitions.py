"""Clusters that fall apart: one side goes on, the others end, and afterwards all are one cluster again.

The ordinary run has one split; the others take minutes and run with `-m soak`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kinmqtt_spi.reasons import ReasonCode
from root_harness.cluster_faults import silence, split, unplug
from root_harness.cluster_network import Network
from root_harness.cluster_node import Node
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun, go_through

SHORT_S = 0.7
"""Shorter than the failure detector takes."""
LONG_S = 12.0
"""Longer than it takes until a side has ended, and could form a cluster of its own."""

SIDES = {"n3 alone": ([0, 1], [2]), "first seed alone": ([1, 2], [0]), "each alone": ([0], [1], [2])}


def ended(run: ClusterRun) -> list[Node]:
    """Return the nodes that have started again, each of which must have told its clients (0x8B)."""
    found = [node for node in run.nodes if node.lives > 1]
    for node in found:
        assert set(run.watchers[node.name].reasons) == {ReasonCode.SERVER_SHUTTING_DOWN}
    return found


@pytest.mark.parametrize(
    "name", ["n3 alone", *(pytest.param(name, marks=pytest.mark.soak) for name in list(SIDES)[1:])]
)
def test_one_side_of_a_split_goes_on(tmp_path: Path, hosts: Network, redis_host: Redis, name: str) -> None:
    """C14, C15: only the side with the arbiter's term goes on, and whoever was on another side comes back to it."""
    run = ClusterRun(tmp_path, redis_host.at, seed=7, network=hosts)
    sides = [[run.nodes[number] for number in side] for side in SIDES[name]]

    asyncio.run(go_through(run, lambda: split(run, sides, LONG_S)))

    run.check()
    stayed = [node for node in run.nodes if node not in ended(run)]
    assert stayed in sides


@pytest.mark.soak
def test_the_majority_of_five_goes_on(tmp_path: Path, hosts: Network, redis_host: Redis) -> None:
    """C14, C15: with five brokers, the three that reach each other go on."""
    run = ClusterRun(tmp_path, redis_host.at, seed=8, count=5, network=hosts)

    asyncio.run(go_through(run, lambda: split(run, [run.nodes[:2], run.nodes[2:]], LONG_S)))

    run.check()
    assert ended(run) == run.nodes[:2]


@pytest.mark.soak
def test_a_short_split_harms_nobody(tmp_path: Path, hosts: Network, redis_host: Redis) -> None:
    """Connections that stood still for less than the failure detector takes go on."""
    run = ClusterRun(tmp_path, redis_host.at, seed=9, network=hosts)

    asyncio.run(go_through(run, lambda: split(run, [[node] for node in run.nodes], SHORT_S)))

    run.check()
    assert ended(run) == []


@pytest.mark.soak
def test_a_broker_that_can_only_listen_ends(tmp_path: Path, hosts: Network, redis_host: Redis) -> None:
    """One that the others don't hear, though it hears them, is given up, and comes back."""
    run = ClusterRun(tmp_path, redis_host.at, seed=10, network=hosts)
    silent, *others = run.nodes

    asyncio.run(go_through(run, lambda: silence(run, silent, others, LONG_S)))

    run.check()
    assert ended(run) == [silent]


@pytest.mark.soak
def test_a_broker_without_its_cable_waits_for_redis(tmp_path: Path, hosts: Network, redis_host: Redis) -> None:
    """It reaches neither the others nor the arbiter: it acknowledges nothing, and ends when it is back."""
    run = ClusterRun(tmp_path, redis_host.at, seed=11, network=hosts)

    asyncio.run(go_through(run, lambda: unplug(run, run.nodes[1], LONG_S)))

    run.check()
    assert ended(run) == [run.nodes[1]]
