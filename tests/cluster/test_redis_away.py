"""Redis dies, or its disk is full, while a whole cluster uses it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from root_harness.cluster_faults import fill_disk, kill_redis
from root_harness.cluster_redis import Redis, redis_on_disk
from root_harness.cluster_run import ClusterRun, go_through

REFUSED = "the arbiter can't be asked"


def test_nothing_acknowledged_is_lost_when_redis_is_killed(tmp_path: Path, redis: Redis) -> None:
    """C3, C5: what is acknowledged Redis has on its disk; brokers wait, and no member is given up."""
    run = ClusterRun(tmp_path, redis.at, seed=15)

    async def faults() -> None:
        for away_s in (0.0, 3.0, 0.5):
            await kill_redis(run, redis, away_s)
            await run.until(run.progress(20))

    asyncio.run(go_through(run, faults))

    run.check()
    assert [node.lives for node in run.nodes] == [1] * 3
    assert "marked DOWN" not in run.logs()


@pytest.mark.soak
def test_nobody_is_given_up_while_redis_is_away(tmp_path: Path, redis: Redis) -> None:
    """Without the arbiter's answer no broker may say that another is dead, though it is; with it they do."""
    run = ClusterRun(tmp_path, redis.at, seed=16)
    dead, *others = run.nodes

    def say(text: str) -> bool:
        return all(text in node.output for node in others)

    async def faults() -> None:
        redis.kill()
        await run.end(dead, signal.SIGKILL)
        await run.until(lambda: say(REFUSED))
        assert not any("marked DOWN" in node.output for node in run.nodes)
        await asyncio.to_thread(redis.start)
        await run.until(lambda: any("by arbiter this side goes on" in node.output for node in others))
        await run.start(dead)

    asyncio.run(go_through(run, faults))

    run.check()


@pytest.mark.soak
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_nothing_acknowledged_is_lost_when_redis_has_a_full_disk(tmp_path: Path, fsync: str) -> None:
    """Redis ends (``always``) or refuses writes (``everysec``): brokers acknowledge nothing, and recover with it."""
    with redis_on_disk(tmp_path / "redis", fsync=fsync) as redis:
        run = ClusterRun(tmp_path, redis.at, seed=17)

        async def faults() -> None:
            before = run.acknowledged
            await fill_disk(run, redis, 4.0)
            assert run.acknowledged > before

        asyncio.run(go_through(run, faults))

        run.check()
        assert "marked DOWN" not in run.logs()
        assert [node.lives for node in run.nodes] == [1] * 3
