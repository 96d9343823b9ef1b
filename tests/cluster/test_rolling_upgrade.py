"""Brokers of two releases are one cluster, and are replaced by the newer one, one after the other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from root_harness import newer_release
from root_harness.cluster_faults import restart
from root_harness.cluster_node import Node
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun, go_through

REFUSAL = re.compile(r"has refused|\] refused|#error\] refused|refuses this|malformed")
"""What a broker logs of another one with which it can't be a cluster; a refused connection is no such thing."""


def spoken(node: Node) -> set[tuple[str, str]]:
    """The version that a newer broker has spoken with each other one, as its log has them."""
    return {(name, version) for version, name in re.findall(r"^version (\d+) with (\w+)$", node.output, re.MULTILINE)}


def test_nothing_is_lost_while_brokers_are_replaced_by_newer_ones(tmp_path: Path, redis: Redis) -> None:
    """A newer broker speaks the older version with older ones, and its own with newer ones; all messages come."""
    run = ClusterRun(tmp_path, redis.at, seed=7)

    async def upgrade() -> None:
        for node in run.nodes:
            node.program = (newer_release.__file__,)
            await restart(run, node)
            await run.calm()

    asyncio.run(go_through(run, upgrade))

    run.check()
    first, second, third = run.nodes
    assert {("n2", "1"), ("n3", "1"), ("n2", "2"), ("n3", "2")} <= spoken(first)
    assert spoken(second) >= {("n1", "2"), ("n3", "1"), ("n3", "2")}
    assert spoken(third) == {("n1", "2"), ("n2", "2")}
    assert not REFUSAL.search("".join(node.output for node in run.nodes)), run.logs()
