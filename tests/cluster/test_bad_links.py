"""Links between brokers that are slow, lose data, stand still, or end in the middle of a frame."""

from __future__ import annotations

import asyncio
from pathlib import Path

from root_harness.cluster_faults import bad_weather, cut_links
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun, go_through


def test_slow_links_delay_and_lose_nothing(tmp_path: Path, redis: Redis) -> None:
    """With delay and loss sessions move, SUBACK waits until all brokers route, and nobody is given up."""
    run = ClusterRun(tmp_path, redis.at, seed=12, has_proxies=True, stay_s=2.0)

    async def faults() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bad_weather(run, ["delay 0.1", "loss 0.05"], 8.0))
            await asyncio.sleep(1.0)
            await run.know_fresh_routes()
            await run.until(run.progress(10))
            await run.until(lambda: len(run.notes.overlaps) > 3)

    asyncio.run(go_through(run, faults))

    run.check()
    assert [node.lives for node in run.nodes] == [1] * 3
    assert max(overlap.seconds for overlap in run.notes.overlaps) < 3.0


def test_connections_that_end_inside_a_frame_are_made_again(tmp_path: Path, redis: Redis) -> None:
    """What was under way is sent again, and taken once."""
    run = ClusterRun(tmp_path, redis.at, seed=13, has_proxies=True)

    async def faults() -> None:
        for number in range(12):
            await cut_links(run, run.nodes[number % 3], 1 + run.chance.randrange(200))
            await run.until(run.progress(5))

    asyncio.run(go_through(run, faults))

    run.check()
    assert [node.lives for node in run.nodes] == [1] * 3


def test_links_that_stand_still_for_a_moment_go_on(tmp_path: Path, redis: Redis) -> None:
    """Silence that is shorter than the failure detector takes changes no member."""
    run = ClusterRun(tmp_path, redis.at, seed=14, has_proxies=True)

    asyncio.run(go_through(run, lambda: bad_weather(run, ["stall"], 0.6)))

    run.check()
    assert [node.lives for node in run.nodes] == [1] * 3
