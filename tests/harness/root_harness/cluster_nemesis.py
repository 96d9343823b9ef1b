"""Random faults of a whole cluster, one after the other, each with a weight; half of them kill a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from root_harness.cluster_faults import (
    bad_weather,
    cut_links,
    fill_disk,
    kill,
    kill_redis,
    restart,
    silence,
    split,
    stall,
    unplug,
)
from root_harness.cluster_node import Node
from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun

AWAY_S: Final = 6.0
"""How long a broker is away whose sessions are adopted meanwhile."""
SHORT_S: Final = 0.7
"""Shorter than the failure detector takes."""
LONG_STALL_S: Final = 8.0
"""Longer than it takes until a member is DOWN."""
LONG_SPLIT_S: Final = 12.0
"""Longer than it takes until a side has ended, and could form a cluster of its own."""
WEATHERS: Final = (["delay 0.1"], ["delay 0.05", "loss 0.05"], ["stall"])
BETWEEN_S: Final = 0.3
"""The longest wait between calm and a fault: it falls into another moment each time."""


class Nemesis:
    """Breaks a cluster whose brokers are hosts with proxies, over a Redis that is a host."""

    def __init__(self, run: ClusterRun, redis: Redis, say: Callable[[str], object]) -> None:
        """``say`` gets a line now and then."""
        self._run = run
        self._redis = redis
        self._say = say
        self._chance = run.chance
        self._faults: dict[Callable[[], Awaitable[object]], int] = {
            self._kill: 14,
            self._kill_and_adopt: 6,
            self._stall_shortly: 2,
            self._stall_long: 2,
            self._split: 4,
            self._silence: 2,
            self._unplug: 2,
            self._kill_redis: 2,
            self._fill_disk: 1,
            self._bad_links: 2,
            self._cut_links: 2,
            self._restart_all: 1,
        }

    async def go_on(self, kills: int) -> None:
        """Break the cluster until so many brokers were killed; it is whole afterwards."""
        run, number = self._run, 0
        began_s = asyncio.get_running_loop().time()
        while run.faults["kills"] < kills:
            await run.calm()
            await asyncio.sleep(self._chance.random() * BETWEEN_S)
            (fault,) = self._chance.choices(list(self._faults), list(self._faults.values()))
            await fault()
            number += 1
            if number % 10 == 0:
                await run.settle()
                took_s = asyncio.get_running_loop().time() - began_s
                self._say(
                    f"{number} faults, {run.faults['kills']} of {kills} kills, {run.acknowledged} messages "
                    f"acknowledged, {took_s:.0f} s"
                )
        await run.calm()
        await run.know_fresh_routes()

    def _any(self) -> Node:
        return self._chance.choice(self._run.nodes)

    async def _kill(self) -> None:
        await kill(self._run, self._any())

    async def _kill_and_adopt(self) -> None:
        await kill(self._run, self._any(), AWAY_S)

    async def _stall_shortly(self) -> None:
        await stall(self._run, self._any(), SHORT_S)

    async def _stall_long(self) -> None:
        await stall(self._run, self._any(), LONG_STALL_S)

    async def _split(self) -> None:
        await split(self._run, self._sides(), self._chance.choice((SHORT_S, LONG_SPLIT_S)))

    def _sides(self) -> Sequence[Sequence[Node]]:
        """Sides of any shape: two or more, maybe each broker alone."""
        nodes = list(self._run.nodes)
        self._chance.shuffle(nodes)
        count = self._chance.randint(2, len(nodes))
        sides = [[node] for node in nodes[:count]]
        for node in nodes[count:]:
            self._chance.choice(sides).append(node)
        return sides

    async def _silence(self) -> None:
        nodes = list(self._run.nodes)
        self._chance.shuffle(nodes)
        silent, *others = nodes
        await silence(self._run, silent, others[: self._chance.randint(1, len(others))], LONG_SPLIT_S)

    async def _unplug(self) -> None:
        await unplug(self._run, self._any(), self._chance.choice((SHORT_S, LONG_SPLIT_S)))

    async def _kill_redis(self) -> None:
        await kill_redis(self._run, self._redis, self._chance.choice((0.0, 0.5, 3.0)))

    async def _fill_disk(self) -> None:
        await fill_disk(self._run, self._redis, 4.0)

    async def _bad_links(self) -> None:
        await bad_weather(self._run, self._chance.choice(WEATHERS), 4.0)

    async def _cut_links(self) -> None:
        await cut_links(self._run, self._any(), 1 + self._chance.randrange(200))

    async def _restart_all(self) -> None:
        for node in self._run.nodes:
            await restart(self._run, node)
            await self._run.calm()
