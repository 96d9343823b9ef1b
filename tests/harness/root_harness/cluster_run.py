"""Brokers of a cluster over one Redis, and clients that take notes of their traffic while everything fails."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from akka_harness.certificates import Authority
from kinmqtt.mqtt.packets import V5, V311
from root_harness.cluster_clients import (
    STAY_S,
    WILLS,
    ClusterNotes,
    Roaming,
    RoamingPublisher,
    RoamingSubscriber,
    Streams,
)
from root_harness.cluster_network import Network
from root_harness.cluster_node import KINMQTT, Node, Timings
from root_harness.cluster_watchers import Ended, Mortals, Watcher, missed_fresh

LIMIT_S: Final = 90.0
"""How long clients may take to go on, and to settle when the brokers are left alone."""
WILL_TOPIC: Final = f"{WILLS}/2"
SETTLED_S: Final = 12.0
"""How long a broker may go on serving a client that has come to another one, in the middle of any fault.

It is longer than a side of a split takes to end: detection, the wait for a stable view, half of it again for a
minority, and a busy machine.
"""
ENOUGH: Final = 20
"""Acknowledged messages of each publisher between two faults: fewer would say little."""


class ClusterRun:
    """A cluster and its clients."""

    def __init__(
        self,
        folder: Path,
        redis: tuple[str, int] | None,
        seed: int,
        count: int = 3,
        *,
        network: Network | None = None,
        has_proxies: bool = False,
        timings: Timings | None = None,
        stay_s: float = STAY_S,
        program: Sequence[str] = KINMQTT,
    ) -> None:
        """``redis`` is the address of a Redis that all brokers use, if any; with a ``network`` each broker is a host.

        ``stay_s``: how long clients stay at a broker, on average; ``program``: what runs as a broker.
        """
        self.notes = ClusterNotes()
        self.seed = seed
        self.chance = random.Random(seed)
        self.patience_s = LIMIT_S
        """How long clients may take to come to rest."""
        self.faults: Counter[str] = Counter()
        """What has happened, by name."""
        self.network = network
        self._redis = redis
        self._timings = timings or Timings()
        self._cookie = folder / "cookie"
        self._cookie.write_text("c" * 64)
        self._cookie.chmod(0o600)
        self._authority = None if network is None else Authority(folder)
        self.nodes = [
            Node(folder, f"n{number}", None if network is None else network.host(), has_proxy=has_proxies)
            for number in range(1, count + 1)
        ]
        for node in self.nodes:
            node.program = program
        self.ports = [node.port for node in self.nodes]
        self.publishers = [
            RoamingPublisher(
                self.ports, f"p{number}", 1 + number % 2, self.notes, self.chance,
                dial=self.dial, version=V5 if number < 2 else V311, stay_s=stay_s,
            )
            for number in range(4)
        ]  # fmt: skip
        self.subscriber = RoamingSubscriber(
            self.ports, "s", self.notes, self.chance,
            dial=self.dial, version=self.chance.choice((V5, V311)), stay_s=stay_s,
        )  # fmt: skip
        self.clients: list[Roaming] = [self.subscriber, *self.publishers]
        self.watchers = {node.name: Watcher(node.port, f"watcher-{node.name}", self.dial) for node in self.nodes}
        self.mortals = Mortals(self.ports, self.notes, self.chance, self.dial)
        self._fresh = 0

    async def dial(self, port: int) -> Streams:
        """Connect a client to the broker of a port."""
        return await next(node for node in self.nodes if node.port == port).dial()

    # What comes out

    @property
    def acknowledged(self) -> int:
        """How many messages have been acknowledged."""
        return sum(map(len, self.notes.promised.values()))

    def violations(self) -> Iterator[str]:
        """Return what the cluster did that its promises forbid.

        Order is not promised for what is under way while a session moves or is adopted (C6).
        """
        yield from self.broken_for_messages()
        for overlap in self.notes.overlaps:
            if overlap.seconds > SETTLED_S:
                yield f"{overlap.client_id} had two owners for {overlap.seconds:.1f} s"
        for node in self.nodes:
            if "Traceback" in node.output:
                yield f"{node.name} has an unexpected error in its log"

    def broken_for_messages(self) -> Iterator[str]:
        """Return what of it concerns messages and wills."""
        for text in self.notes.violations():
            if "came behind" not in text:
                yield text
        came = Counter(self.notes.received.get(WILL_TOPIC, ()))
        for number, is_due in self.notes.wills.items():
            if came[number] > 1 or (is_due and not came[number]):
                yield f"the will of client {number} came {came[number]} times"

    def check(self) -> None:
        """Fail, with the ends of all logs, if the cluster broke a promise."""
        found = list(self.violations())
        assert not found, "\n".join([*found, self.summary(), self.logs()])

    def summary(self) -> str:
        """Return what the run was, in one line."""
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        wills = sum(self.notes.wills.values())
        longest_s = max((overlap.seconds for overlap in self.notes.overlaps), default=0.0)
        return (
            f"seed {self.seed}, {len(self.nodes)} brokers: {faults}; {self.acknowledged} messages acknowledged, "
            f"{wills} wills, {len(self.notes.overlaps)} takeovers from living connections, the longest overlap "
            f"{longest_s:.2f} s"
        )

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"{node.name}:\n{node.output[-4000:]}" for node in self.nodes)

    # Its life

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Start the cluster with its clients, which come to rest in the end; of a run that fails nothing is left."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._start_all()
                supervisor = tasks.create_task(self._supervise())
                tasks.create_task(self.subscriber.run())
                await self.until(lambda: self.subscriber.known)
                watching = [tasks.create_task(watcher.run()) for watcher in self.watchers.values()]
                mortals = tasks.create_task(self.mortals.run())
                for publisher in self.publishers:
                    tasks.create_task(publisher.run())
                yield
                await self._rest(mortals)
                for task in (*watching, supervisor):
                    task.cancel()
        finally:
            for node in self.nodes:
                await node.close()

    async def _start_all(self) -> None:
        """Start all brokers. The first one forms the cluster without waiting for others, this once."""
        seeds = [node.advertise for node in self.nodes[:2]]
        for node in self.nodes:
            self._write_settings(node, seeds[:1] if node is self.nodes[0] else seeds)
            await node.start()
            node.is_wanted = True
        await self.until(lambda: all(node.lives for node in self.nodes))
        self._write_settings(self.nodes[0], seeds)

    def _write_settings(self, node: Node, seeds: list[str]) -> None:
        node.write_settings(seeds, self._cookie, self._redis, self._timings, self._authority)

    async def _supervise(self) -> None:
        """Start brokers again that have ended, as a service manager does: one can't start while Redis is away."""
        while True:
            await asyncio.sleep(0.2)
            for node in self.nodes:
                if node.is_wanted and not node.is_running:
                    self.faults["ends of their own accord"] += 1
                    await node.start()

    async def end(self, node: Node, number: signal.Signals) -> None:
        """End a node, which stays away. What clients have not read of one that was killed they never see."""
        node.is_wanted = False
        await node.end(number)
        if number == signal.SIGKILL:
            for client in self.clients:
                client.cut_from(node.port)

    async def start(self, node: Node) -> None:
        """Start a node that has ended, and wait until it serves clients."""
        lives = node.lives
        await node.start()
        node.is_wanted = True
        await self.until(lambda: node.lives > lives)

    async def _rest(self, mortals: asyncio.Task[None]) -> None:
        """Let everybody come to rest, and the clients end."""
        self.mortals.end()
        for publisher in self.publishers:
            publisher.stopping = True
        try:
            await self.until(mortals.done)
            await self.until(lambda: all(publisher.is_idle for publisher in self.publishers))
            await self.until(self._has_come, self.patience_s)
        except AssertionError:
            waiting = {each.name: each.unacknowledged for each in self.publishers if not each.is_idle}
            self.notes.problems.append(f"the clients did not come to rest; not acknowledged: {waiting}")
        for client in self.clients:
            client.over = True
            client.cut()

    def _has_come(self) -> bool:
        due = {number for number, is_due in self.notes.wills.items() if is_due}
        wills = set(self.notes.received.get(WILL_TOPIC, ()))
        return due <= wills and self.notes.have_come(self.notes.promised)

    # Waiting

    async def calm(self) -> None:
        """Wait until all nodes are members that see each other UP, and all publishers have gone on a little.

        A later fault is then the only one.
        """
        await self.be_whole()
        await self.until(self.progress(ENOUGH))

    async def be_whole(self) -> None:
        """Wait until all nodes are members that see each other UP."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not all([self._is_whole(await node.members()) for node in self.nodes]):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            seen = {node.name: await node.members() for node in self.nodes}
            raise AssertionError(f"the cluster did not become whole: {seen}\n{self.logs()}") from None

    def _is_whole(self, members: list[dict[str, Any]] | None) -> bool:
        states = [(each["state"], each["reachable"]) for each in members or ()]
        return states == [("up", True)] * len(self.nodes)

    async def settle(self, limit_s: float = LIMIT_S) -> None:
        """Wait until all that has been acknowledged so far has come; fails if a promise is broken already."""
        promised = {topic: set(numbers) for topic, numbers in self.notes.promised.items()}
        await self.until(lambda: self.notes.have_come(promised), limit_s)
        found = [text for text in self.violations() if "never came" not in text and "came 0 times" not in text]
        assert not found, "\n".join([*found, self.summary(), self.logs()])

    async def know_fresh_routes(self) -> None:
        """Note a problem where SUBACK came before all brokers had the route."""
        self._fresh += 1
        try:
            self.notes.problems += await missed_fresh(self.dial, self.ports, self._fresh)
        except (Ended, TimeoutError) as error:
            self.notes.problems.append(f"a broker without faults did not serve a client: {error!r}")

    def progress(self, messages: int) -> Callable[[], bool]:
        """Return what says whether so many more messages of each publisher have been acknowledged since this call."""
        promised = self.notes.promised
        before = {topic: len(numbers) for topic, numbers in promised.items()}
        return lambda: all(len(numbers) >= before[topic] + messages for topic, numbers in promised.items())

    async def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait for a condition; fails after a while."""
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"the cluster did not go on (seed {self.seed})\n" + self.logs()) from None


async def go_through(run: ClusterRun, faults: Callable[[], Awaitable[object]]) -> None:
    """Have faults happen under traffic; before and afterwards the cluster is whole, and clients go on."""
    async with run.traffic():
        await run.calm()
        await faults()
        await run.calm()
        await run.know_fresh_routes()
