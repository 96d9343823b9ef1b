"""Brokers of a cluster over one Redis that die, stall and come back, while clients take notes of their traffic."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from kinmqtt_akka_like_cluster.control import ask
from kinmqtt_spi.errors import SpiError
from root_harness.crash_clients import Client, Notes, PublishingClient, SubscribingClient
from spi_harness.processes import environment, free_port

LIMIT_S: Final = 90.0
"""How long clients may take to go on, and to settle when the brokers are left alone."""

SETTINGS: Final = """
[broker]
node_name = "{name}"
leave_s = 2

[limits]
max_queued_messages = 10000000

[services]
session = "redis_session"
queue = "redis_session"
retain = "redis_session"

[plugins.redis_session]
host = "127.0.0.1"
port = {redis}
timeout_s = 2
reconnect_max_s = 0.2
lease_s = 60

[plugins.akka_like_cluster]
listen = "{address}"
seeds = {seeds}
cookie_file = "{cookie}"
control = "{control}"
heartbeat_s = 0.25
pause_s = 0.75
stable_after_s = {stable_after_s}
"""
"""The lease of a node is long: who adopts its sessions must not have waited for its end."""


class Node:
    """One broker of the cluster: it may be started again and again."""

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.port = free_port()
        self.settings = folder / f"{name}.toml"
        self.control = folder / f"{name}.sock"
        self.log = folder / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None

    @property
    def output(self) -> str:
        """The log of all its lives."""
        return self.log.read_text(errors="replace")

    async def start(self, *prefix: str) -> None:
        """Start it. ``prefix`` is a command that runs the broker's command."""
        command = [
            *prefix, sys.executable, "-m", "kinmqtt", "run", "--data", "memory",
            "--listen", f"tcp:{self.port}:interface=127.0.0.1", "--config", str(self.settings),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, env=environment(), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    def tell(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> None:
        """End its process."""
        if self.is_running:
            assert self.process is not None
            self.tell(number)
            await self.process.wait()


class ClusterRun:
    """A cluster and its clients."""

    def __init__(self, folder: Path, redis: int, seed: int, count: int = 3, stable_after_s: float = 1.5) -> None:
        """``redis`` is the port of a Redis that all brokers use."""
        self.notes = Notes()
        self.chance = random.Random(seed)
        self.kills = 0
        cookie = folder / "cookie"
        cookie.write_text("c" * 64)
        cookie.chmod(0o600)
        self.nodes = [Node(folder, f"n{number}", f"127.0.0.1:{free_port()}") for number in range(1, count + 1)]
        for node in self.nodes:
            node.settings.write_text(
                SETTINGS.format(
                    name=node.name,
                    redis=redis,
                    address=node.address,
                    seeds=[each.address for each in self.nodes[:2]],
                    cookie=cookie,
                    control=node.control,
                    stable_after_s=stable_after_s,
                )
            )
        self.ports = [node.port for node in self.nodes]
        self.publishers = [
            PublishingClient(self.ports, f"p{number}", 1 + number % 2, self.notes, self.chance) for number in range(4)
        ]
        self.subscriber = SubscribingClient(self.ports, "s", self.notes, self.chance)
        self.clients: list[Client] = [self.subscriber, *self.publishers]

    def violations(self) -> Iterator[str]:
        """Return what the cluster did that its promises forbid.

        Order is not promised for what is under way while a session moves or is adopted (C6).
        """
        for text in self.notes.violations():
            if "came behind" not in text:
                yield text

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Start the cluster with its clients, which come to rest in the end; of a run that fails nothing is left."""
        try:
            async with asyncio.TaskGroup() as clients:
                for node in self.nodes:
                    await node.start()
                await self.until(self.all_listen)
                clients.create_task(self.subscriber.run())
                await self.until(lambda: self.subscriber.known)
                for publisher in self.publishers:
                    clients.create_task(publisher.run())
                yield
                await self._rest()
        finally:
            for node in self.nodes:
                await node.end(signal.SIGKILL)

    async def kill(self, node: Node, away_s: float = 0.0) -> None:
        """Kill a node, and start it again after a while."""
        await node.end(signal.SIGKILL)
        self.cut(node)
        self.kills += 1
        await asyncio.sleep(away_s)
        lives = self._lives(node)
        await node.start()
        await self.until(lambda: self._lives(node) > lives)

    async def be_whole(self) -> None:
        """Wait until all nodes are members that see each other UP: a later fault is then the only one."""
        async with asyncio.timeout(LIMIT_S):
            while not all([await self._sees_all(node) for node in self.nodes]):
                await asyncio.sleep(0.1)

    async def _sees_all(self, node: Node) -> bool:
        try:
            members = await asyncio.to_thread(ask, node.control, {"command": "members"}, 10.0)
        except SpiError:
            return False
        states = [(each["state"], each["reachable"]) for each in members]
        return states == [("up", True)] * len(self.nodes)

    def cut(self, node: Node) -> None:
        """End the connections of clients with a node that is gone."""
        for client in self.clients:
            if client.port == node.port:
                client.cut()

    def progress(self, messages: int) -> Callable[[], bool]:
        """Return what says whether so many more messages of each publisher have been acknowledged since this call."""
        promised = self.notes.promised
        before = {topic: len(numbers) for topic, numbers in promised.items()}
        return lambda: all(len(numbers) >= before[topic] + messages for topic, numbers in promised.items())

    def all_listen(self) -> bool:
        """Tell whether each node that runs has opened its listeners."""
        return all(self._lives(node) for node in self.nodes if node.is_running)

    @staticmethod
    def _lives(node: Node) -> int:
        """Return how often a node has opened its listeners."""
        return node.output.count("listening on ")

    async def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait for a condition; fails after a while."""
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError("the cluster did not go on\n" + self.logs()) from None

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"{node.name}:\n{node.output[-4000:]}" for node in self.nodes)

    async def _rest(self) -> None:
        """Let everybody come to rest, and the clients end."""
        for publisher in self.publishers:
            publisher.stopping = True
        try:
            await self.until(lambda: all(publisher.is_idle for publisher in self.publishers))
            await self.until(self._has_come)
        except AssertionError:
            self.notes.problems.append("the clients did not come to rest")
        for client in self.clients:
            client.over = True
            client.cut()

    def _has_come(self) -> bool:
        received = self.notes.received
        return all(numbers <= set(received.get(topic, ())) for topic, numbers in self.notes.promised.items())
