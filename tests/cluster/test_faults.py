"""What a cluster of real brokers over one Redis does when a part of it stands still, and goes on later."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5, DisconnectPacket, Publish
from kinmqtt_akka_like_cluster.control import ask
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisServer, redis_server
from root_harness.cluster_run import ClusterRun, Node


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """The Redis of all brokers."""
    with redis_server(tmp_path / "redis", "--appendonly", "yes") as server:
        yield server


@asynccontextmanager
async def started(run: ClusterRun) -> AsyncIterator[list[Node]]:
    """Start the cluster; of a run that fails nothing is left."""
    try:
        for node in run.nodes:
            await node.start()
        await run.until(run.all_listen)
        await run.be_whole()
        yield run.nodes
    finally:
        for node in run.nodes:
            if node.is_running:
                node.tell(signal.SIGCONT)
            await node.end(signal.SIGKILL)


async def members(node: Node) -> dict[str, dict[str, Any]]:
    """The members that a broker sees, by name."""
    found = await asyncio.to_thread(ask, node.control, {"command": "members"}, 10.0)
    return {each["node"]: each for each in found}


async def until_gone(run: ClusterRun, node: Node, uid: str) -> None:
    """Wait until a broker has no member with a uid any more."""
    async with asyncio.timeout(60.0):
        while any(each["uid"] == uid and each["state"] != "down" for each in (await members(node)).values()):
            await asyncio.sleep(0.1)


def passes(here: Node, there: Node, payload: bytes) -> bool:
    """Publish at one broker, and tell whether that comes to a subscriber of another one."""
    with wire(there.port, "sub", V5) as sub, wire(here.port, "pub", V5) as pub:
        sub.subscribe("t")
        pub.publish("t", payload)
        return bytes(sub.expect(Publish).payload) == payload


async def lose_redis_and_a_broker(run: ClusterRun, redis: RedisServer) -> dict[str, Any]:
    """Stop Redis and kill a broker; returns what another one says of it then, and lets Redis go on."""
    async with started(run) as (first, second, third):
        uid = (await members(first))["n3"]["uid"]
        with wire(second.port, "sub", V5) as sub, wire(first.port, "pub", V5) as pub:
            sub.subscribe("t")
            redis.pause()
            await third.end(signal.SIGKILL)
            await run.until(lambda: "the arbiter can't be asked, so nobody is downed yet" in first.output)
            said = (await members(first))["n3"]
            pub.publish("t", b"x")
            assert bytes((await asyncio.to_thread(sub.expect, Publish)).payload) == b"x"
        redis.go_on()
        await until_gone(run, first, uid)
        return said


def test_nobody_is_downed_while_the_arbiter_is_away(tmp_path: Path, redis: RedisServer) -> None:
    """The member stays UP and unreachable, messages that nobody keeps go on, and it is DOWN when Redis is back."""
    run = ClusterRun(tmp_path, redis.port, seed=1)

    said = asyncio.run(lose_redis_and_a_broker(run, redis))

    assert (said["state"], said["reachable"]) == ("up", False)


async def stall_and_go_on(run: ClusterRun) -> tuple[ReasonCode, str, str]:
    """Stop a broker until the others have given it up; returns what its client is told, and both its uids."""
    async with started(run) as (first, _, third):
        before = (await members(first))["n3"]["uid"]
        with wire(third.port, "c", V5) as client:
            third.tell(signal.SIGSTOP)
            await until_gone(run, first, before)
            third.tell(signal.SIGCONT)
            told = await asyncio.to_thread(client.expect, DisconnectPacket)
        await run.be_whole()
        after = (await members(first))["n3"]["uid"]
        assert await asyncio.to_thread(passes, first, third, b"again")
        return told.reason, before, after


def test_a_broker_that_stood_still_until_it_was_down_starts_again(tmp_path: Path, redis: RedisServer) -> None:
    """Its clients are sent away by 0x8B, and it comes back as a new member that works."""
    run = ClusterRun(tmp_path, redis.port, seed=1)

    reason, before, after = asyncio.run(stall_and_go_on(run))

    assert reason is ReasonCode.SERVER_SHUTTING_DOWN
    assert before != after
    assert "this node is out of its cluster" in run.nodes[2].output
    assert "Traceback" not in run.logs()
