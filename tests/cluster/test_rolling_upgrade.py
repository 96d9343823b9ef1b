"""Brokers of two releases are one cluster, and are replaced by the newer one, one after the other."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_harness.servers import RedisServer, redis_server
from root_harness import newer_release
from root_harness.cluster_run import ClusterRun, Node

NEWER = (sys.executable, newer_release.__file__)
ENOUGH = 50
"""Acknowledged messages of each publisher while the releases are mixed in one way."""

REFUSAL = re.compile(r"has refused|\] refused|#error\] refused|refuses this|malformed")
"""What a broker logs of another one with which it can't be a cluster; a refused connection is no such thing."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """The Redis of all brokers."""
    with redis_server(tmp_path / "redis", "--appendonly", "yes") as server:
        yield server


def spoken(node: Node) -> set[tuple[str, str]]:
    """The version that a newer broker has spoken with each other one, as its log has them."""
    return {(name, version) for version, name in re.findall(r"^version (\d+) with (\w+)$", node.output, re.MULTILINE)}


async def upgrade(run: ClusterRun) -> None:
    """Stop each broker in good order and start the newer one in its place, while clients publish and receive."""
    async with run.traffic():
        for node in run.nodes:
            await run.be_whole()
            await run.until(run.progress(ENOUGH))
            await node.end(signal.SIGTERM)
            run.cut(node)
            await node.start(*NEWER)
        await run.be_whole()
        await run.until(run.progress(ENOUGH))


def test_nothing_is_lost_while_brokers_are_replaced_by_newer_ones(tmp_path: Path, redis: RedisServer) -> None:
    """A newer broker speaks the older version with older ones, and its own with newer ones; all messages come."""
    run = ClusterRun(tmp_path, redis.port, seed=7)

    asyncio.run(upgrade(run))

    first, second, third = run.nodes
    run.check()
    assert {("n2", "1"), ("n3", "1"), ("n2", "2"), ("n3", "2")} <= spoken(first)
    assert spoken(second) >= {("n1", "2"), ("n3", "1"), ("n3", "2")}
    assert spoken(third) == {("n1", "2"), ("n2", "2")}
    assert "Traceback" not in run.logs()
    assert not REFUSAL.search("".join(node.output for node in run.nodes)), run.logs()
