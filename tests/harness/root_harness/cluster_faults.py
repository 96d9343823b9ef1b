"""Faults of a cluster: each happens while clients go on, and is over when its call ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from root_harness.cluster_network import Host
from root_harness.cluster_node import Node
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun


async def kill(run: ClusterRun, node: Node, away_s: float = 0.0) -> None:
    """SIGKILL a node, and start it again after a while."""
    await run.end(node, signal.SIGKILL)
    run.faults["kills"] += 1
    await asyncio.sleep(away_s)
    await run.start(node)


async def stall(run: ClusterRun, node: Node, seconds: float) -> None:
    """Have a node stand still for a while."""
    run.faults["stalls"] += 1
    node.tell(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        node.tell(signal.SIGCONT)


async def restart(run: ClusterRun, node: Node) -> None:
    """Stop a node in good order, and start it again."""
    run.faults["restarts"] += 1
    await run.end(node, signal.SIGTERM)
    await run.start(node)


async def split(run: ClusterRun, sides: Sequence[Sequence[Node]], seconds: float) -> None:
    """Cut all connections between sides for a while."""
    run.faults["splits"] += 1
    assert run.network is not None
    run.network.split(*([_host(node) for node in side] for side in sides))
    await _heal_after(run, seconds)


async def silence(run: ClusterRun, node: Node, others: Sequence[Node], seconds: float) -> None:
    """Let nothing of a node reach others for a while; what they send still arrives."""
    run.faults["one-way cuts"] += 1
    for other in others:
        _host(node).block(_host(other))
    await _heal_after(run, seconds)


async def unplug(run: ClusterRun, node: Node, seconds: float) -> None:
    """Pull a node's cable for a while: it reaches neither the others nor Redis."""
    run.faults["pulled cables"] += 1
    _host(node).unplug()
    await _heal_after(run, seconds)


async def _heal_after(run: ClusterRun, seconds: float) -> None:
    assert run.network is not None
    try:
        await asyncio.sleep(seconds)
    finally:
        run.network.heal()


def _host(node: Node) -> Host:
    assert node.host is not None, f"{node.name} has no host of its own"
    return node.host


async def kill_redis(run: ClusterRun, redis: Redis, away_s: float) -> None:
    """SIGKILL Redis, and start it again over what it has stored."""
    run.faults["kills of Redis"] += 1
    redis.kill()
    await asyncio.sleep(away_s)
    await asyncio.to_thread(redis.start)


async def fill_disk(run: ClusterRun, redis: Redis, seconds: float) -> None:
    """Fill Redis' disk, and make room after a while; what has ended meanwhile is started again."""
    run.faults["full disks"] += 1
    redis.fill_disk()
    await asyncio.sleep(seconds)
    redis.free_disk()
    if not redis.is_running:
        redis.end()
        await asyncio.to_thread(redis.start)


async def bad_weather(run: ClusterRun, lines: Sequence[str], seconds: float) -> None:
    """Make the links to all nodes bad for a while: see :mod:`root_harness.cluster_proxy`."""
    run.faults["bad links"] += 1
    for node in run.nodes:
        for line in lines:
            await node.weather(line)
    try:
        await asyncio.sleep(seconds)
    finally:
        for node in run.nodes:
            await node.weather("calm")


async def cut_links(run: ClusterRun, node: Node, size: int) -> None:
    """End all connections to a node in the middle of a frame, when so many more bytes have passed."""
    run.faults["cut links"] += 1
    await node.weather(f"cut {size}")
