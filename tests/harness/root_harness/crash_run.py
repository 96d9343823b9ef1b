"""A broker that dies and comes back under the traffic of clients that take notes."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from root_harness.crash_clients import Client, Notes, PublishingClient, SubscribingClient
from spi_harness.processes import environment, free_port

MUTATED = Path(__file__).with_name("mutated_broker.py")
LIMIT_S = 60.0
"""How long clients may take to come back, and to settle when the broker is left alone."""

LAST_SAID = 4000
"""Characters of a broker's log that say why it ended."""

ENOUGH = 21
"""Acknowledged messages of each publisher: a run of fewer would say little."""


class Run:
    """A broker that dies and comes back, and its clients."""

    def __init__(
        self,
        data: Path,
        seed: int,
        durability: str = "commit",
        mutation: str = "none",
        config: Path | None = None,
        **variables: str,
    ) -> None:
        """``config`` is a settings file; ``variables`` are added to the broker's environment."""
        self.port = free_port()
        self.notes = Notes()
        self.chance = random.Random(seed)
        self.kills = 0
        self.life_s = 0.3
        """The longest that the broker lives under traffic."""
        self.lives_until: Callable[[], bool] = lambda: True
        """What must have come about before it is killed, however long that takes."""
        self.rests_when: Callable[[], bool] = lambda: True
        """What must have come about in the end, beside what has come to the clients."""
        self.patience_s = LIMIT_S if mutation == "none" else 5.0
        """How long the clients may take to settle: what a broken promise has cost them does not come."""
        self._command = [
            sys.executable, str(MUTATED), mutation, "run", "--listen", f"tcp:{self.port}:interface=127.0.0.1",
            "--data", str(data), "--log-level", "warn", *([] if config is None else ["--config", str(config)]),
        ]  # fmt: skip
        self._environment = environment(
            KINMQTT__PLUGINS__EMBEDDED__DURABILITY=durability,
            # What gives way in a full queue is another matter.
            KINMQTT__LIMITS__MAX_QUEUED_MESSAGES="10000000",
            **variables,
        )
        self._log = data.with_suffix(".log").open("ab")
        self._broker: asyncio.subprocess.Process | None = None
        self.publishers = [
            PublishingClient((self.port,), f"p{number}", 1 + number % 2, self.notes, self.chance)
            for number in range(4)
        ]
        self.subscriber = SubscribingClient((self.port,), "s", self.notes, self.chance)
        self.clients: list[Client] = [self.subscriber, *self.publishers]

    async def kill(self, kills: int, until_caught: bool = False) -> None:
        """Kill the broker so many times under traffic, then let everybody come to rest."""
        async with self.under_traffic():
            for _ in range(kills):
                await self.kill_once(0 if until_caught else ENOUGH / kills)
                if until_caught and any("twice" in text or "lost" in text for text in self.notes.violations()):
                    break

    async def kill_once(self, messages: float = 1) -> None:
        """Kill the broker after so many more messages of each publisher, start it, and wait for the clients."""
        before = [client.connections for client in self.clients]
        goes_on = self.progress(messages)
        await asyncio.sleep(0.02 + self.life_s * self.chance.random())
        # On a machine that has much to do that was next to nothing.
        await self.until(partial(self._has_lived, goes_on))
        await self._die()
        await self._start()
        await self.until(partial(self._are_back, before))

    @asynccontextmanager
    async def under_traffic(self) -> AsyncIterator[None]:
        """The broker with its clients, which come to rest in the end; of a run that fails nothing is left."""
        try:
            async with asyncio.TaskGroup() as clients:
                await self._start()
                clients.create_task(self.subscriber.run())
                await self.until(lambda: self.subscriber.known)
                for publisher in self.publishers:
                    clients.create_task(publisher.run())
                yield
                await self._rest()
            await self._die()
        finally:
            if self._broker is not None and self._broker.returncode is None:
                self._broker.kill()
                await self._broker.wait()
            self._log.close()

    def progress(self, messages: float) -> Callable[[], bool]:
        """What says whether so many more messages of each publisher have been acknowledged since this call."""
        promised = self.notes.promised
        before = {topic: len(numbers) for topic, numbers in promised.items()}
        return lambda: all(len(numbers) >= before[topic] + messages for topic, numbers in promised.items())

    def _has_lived(self, goes_on: Callable[[], bool]) -> bool:
        return goes_on() and self.lives_until()

    async def _rest(self) -> None:
        """Let everybody come to rest, and the clients end."""
        for publisher in self.publishers:
            publisher.stopping = True
        try:
            await self.until(lambda: all(publisher.is_idle for publisher in self.publishers), self.patience_s)
            await self.until(self._has_come, self.patience_s)
        except TimeoutError:
            self.notes.problems.append("the clients did not come to rest")
        for client in self.clients:
            client.over = True
            client.cut()

    def _are_back(self, before: list[int]) -> bool:
        return all(client.connections > number for client, number in zip(self.clients, before, strict=True))

    def _has_come(self) -> bool:
        return self.notes.have_come(self.notes.promised) and self.rests_when()

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
        self._still_runs()
        self._broker.kill()
        for client in self.clients:
            client.cut()
        await self._broker.wait()
        self.kills += 1

    async def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        async with asyncio.timeout(limit_s):
            while not condition():
                self._still_runs()
                await asyncio.sleep(0.01)

    def _still_runs(self) -> None:
        assert self._broker is not None
        ended = self._broker.returncode is not None
        assert not ended, f"the broker ended of its own accord: {said(Path(self._log.name))[-LAST_SAID:]}"


def said(path: Path) -> str:
    """The broker's log."""
    return path.with_suffix(".log").read_text(errors="replace")
