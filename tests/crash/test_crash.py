"""A broker that is killed at random moments keeps what it has acknowledged, by the notes of its clients.

25 kills by default; the long run is a command of its own::

    KINMQTT_KILLS=1000 python -m pytest -m soak tests/crash -s
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crash_clients import Client, Notes, PublishingClient, SubscribingClient
from processes import environment, free_port

MUTATED = Path(__file__).with_name("mutated_broker.py")
LIMIT_S = 60.0
"""How long the clients may take to settle when the broker is left alone."""


class Run:
    """A broker that dies and comes back, and its clients."""

    def __init__(self, data: Path, seed: int, durability: str = "commit", mutation: str = "none") -> None:
        self.port = free_port()
        self.notes = Notes()
        self.chance = random.Random(seed)
        self.kills = 0
        self.life_s = 0.3
        """The longest that the broker lives under traffic."""
        self.patience_s = LIMIT_S if mutation == "none" else 5.0
        self._command = [
            sys.executable, str(MUTATED), mutation, "run", "--listen", f"tcp:{self.port}:interface=127.0.0.1",
            "--data", str(data), "--log-level", "warn",
        ]  # fmt: skip
        self._environment = environment(
            KINMQTT__PLUGINS__EMBEDDED__DURABILITY=durability,
            # What gives way in a full queue is another matter.
            KINMQTT__LIMITS__MAX_QUEUED_MESSAGES="10000000",
        )
        self._log = data.with_suffix(".log").open("ab")
        self._broker: asyncio.subprocess.Process | None = None
        self.publishers = [
            PublishingClient(self.port, f"p{number}", 1 + number % 2, self.notes, self.chance) for number in range(4)
        ]
        self.subscriber = SubscribingClient(self.port, "s", self.notes, self.chance)
        self.clients: list[Client] = [self.subscriber, *self.publishers]

    async def kill(self, kills: int, until_caught: bool = False) -> None:
        """Kill the broker so many times under traffic, then let everybody come to rest."""
        await self._start()
        tasks = [asyncio.create_task(self.subscriber.run())]
        await self._until(lambda: self.subscriber.known)
        tasks += [asyncio.create_task(publisher.run()) for publisher in self.publishers]
        for _ in range(kills):
            before = [client.connections for client in self.clients]
            await asyncio.sleep(0.02 + self.life_s * self.chance.random())
            await self._die()
            await self._start()
            await self._until(partial(self._are_back, before))
            if until_caught and any("twice" in text or "lost" in text for text in self.notes.violations()):
                break
        for publisher in self.publishers:
            publisher.stopping = True
        try:
            await self._until(lambda: all(publisher.is_idle for publisher in self.publishers))
            await self._until(self._has_come)
        except TimeoutError:
            self.notes.problems.append("the clients did not come to rest")
        for client in self.clients:
            client.over = True
            client.cut()
        await asyncio.gather(*tasks)
        await self._die()
        self._log.close()

    def _are_back(self, before: list[int]) -> bool:
        return all(client.connections > number for client, number in zip(self.clients, before, strict=True))

    def _has_come(self) -> bool:
        received = self.notes.received
        return all(numbers <= set(received.get(topic, ())) for topic, numbers in self.notes.promised.items())

    async def _start(self) -> None:
        self._broker = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    async def _die(self) -> None:
        assert self._broker is not None
        assert self._broker.returncode is None, "the broker ended of its own accord; see its log"
        self._broker.kill()
        for client in self.clients:
            client.cut()
        await self._broker.wait()
        self.kills += 1

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.patience_s):
            while not condition():
                await asyncio.sleep(0.01)


def said(path: Path) -> str:
    """The broker's log."""
    return path.with_suffix(".log").read_text(errors="replace")


@pytest.mark.parametrize("durability", ["commit", "fsync"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, durability: str) -> None:
    """QoS 1 comes at least once, QoS 2 exactly once, each in order, over kills [MQTT-4.4.0-1, MQTT-4.3.3-13]."""
    run = Run(tmp_path / "data", seed=5, durability=durability)

    asyncio.run(run.kill(25 if durability == "commit" else 5))

    assert list(run.notes.violations()) == [], said(tmp_path / "data")
    assert all(len(numbers) > 20 for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "data")


@pytest.mark.parametrize("mutation", ["acknowledge-before-commit", "forget-the-pubrel-stage", "drop-the-dedup-set"])
def test_the_checker_catches_a_broken_promise(tmp_path: Path, mutation: str) -> None:
    """A broker that breaks one of its promises is found out."""
    run = Run(tmp_path / "data", seed=7, mutation=mutation)

    asyncio.run(run.kill(20 if mutation == "acknowledge-before-commit" else 40, until_caught=True))

    assert list(run.notes.violations()) != []


@pytest.mark.parametrize(
    ("fault", "durability"),
    [
        ("failing-writes", "commit"),
        ("failing-writes", "fsync"),
        ("failing-fsync", "fsync"),
        ("slow-fsync", "fsync"),
    ],
)
def test_a_disk_that_fails_loses_nothing(tmp_path: Path, fault: str, durability: str) -> None:
    """What could not be kept was not acknowledged; clients come back, and everything goes on."""
    run = Run(tmp_path / "data", seed=11, durability=durability, mutation=fault)
    run.patience_s = LIMIT_S
    run.life_s = 4.0 if fault == "slow-fsync" else 0.3

    asyncio.run(run.kill(3))

    assert list(run.notes.violations()) == [], said(tmp_path / "data")
    assert all(run.notes.promised.values())
    if fault != "slow-fsync":
        assert "the embedded store" in said(tmp_path / "data")


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path) -> None:
    """The same, for as many kills as are asked for."""
    kills = int(os.environ.get("KINMQTT_KILLS", "1000"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = Run(tmp_path / "data", seed)

    asyncio.run(run.kill(kills))

    promised = sum(map(len, run.notes.promised.values()))
    print(f"seed {seed}: {run.kills} kills, {promised} messages acknowledged")
    assert list(run.notes.violations()) == [], said(tmp_path / "data")
