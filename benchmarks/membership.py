#!/usr/bin/env python3
"""How long it takes until a cluster of akka_like_cluster has noticed that a node is gone, on a virtual clock.

    python benchmarks/membership.py [--only 3,10] [--crashes N] [--seed N] [--quick] [--json FILE]

The nodes are the plugin's: its coordinator, its driver, and its connections with their handshakes, over simulated
ones that take 0.5 ms. There are no brokers on them. An arbiter decides, as it does with redis_session. One node after
the other ends, and starts again when all others have marked it DOWN. What ends a node takes turns:

- its machine is off: nothing answers any more;
- its process is killed: its system closes the connections;
- its process stands still, and what is sent to it piles up.

A node that stops in good order says so, and is measured apart. Times are those of the virtual clock: the speed of the
machine does not matter. The goals are those of the design, for the time until all others know it to be unreachable.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from attrs import define, field

from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt_akka_like_cluster.membership_driver import MembershipDriver, node_address
from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.hello import PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.seeds import StaticSeeds
from kinmqtt_akka_like_cluster.noted_members import NotedMembers
from kinmqtt_akka_like_cluster.pure.coordinator import Coordinator, CoordinatorSettings
from kinmqtt_akka_like_cluster.pure.downing import Strategy
from kinmqtt_akka_like_cluster.pure.effects import AskArbiter
from kinmqtt_akka_like_cluster.pure.gossip import NodeInfo
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.memory.plugin import RecordingLog
from kinmqtt_spi.services.cluster import GONE, Member, MemberState
from kinmqtt_spi.values import NodeIdentity

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "harness"))
from root_harness.simulated_akka.ether import Ether, Process
from root_harness.simulated_akka.links import address_of
from root_harness.simulated_akka.loop import NodeLoop
from root_harness.simulated_akka.network import SimulatedNetwork

CRASHES: Final = {3: 60, 5: 60, 10: 40, 30: 12, 65: 6}
"""How many nodes end, by the size of the cluster."""
GOALS_S: Final = {3: 5.0, 10: 6.5, 65: 10.0}
"""The design's goals for the 99th percentile until all others know a node to be unreachable, by size.

That of the largest cluster, of 65 nodes, is the one for 100.
"""
STOPS: Final = 3
DELAY_S: Final = 0.0005
LIMIT_S: Final = 300.0
"""How long anything may take on the virtual clock."""
STEP_S: Final = 0.25
WAYS: Final = ("off", "killed", "still")


class Node:
    """One process; it is the owner of its driver."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self.cluster = cluster
        self.host = host
        self.clock = NodeClock(cluster.schedule)
        self.process = Process(host, self.clock)
        self.unreachable_s: dict[int, float] = {}
        """By uid: when this node first knew that another one can't be reached."""
        self.down_s: dict[int, float] = {}
        """By uid: when it first knew that another one is DOWN."""
        loop = NodeLoop(self.clock, partial(self.clock.later, 0.0), cluster.fail)
        self.clock.around = loop.around
        address, log = address_of(host), RecordingLog()
        identity = NodeIdentity(host, cluster.random.getrandbits(64))
        config = NetworkConfig(Endpoint.parse(address), "benchmark", b"c" * 32, b"d" * 32)
        own = PeerInfo(host, identity.uid, address)
        settings = CoordinatorSettings(seeds=(), digest=b"same", asks_to_form=True, strategy=Strategy.ARBITER)
        self._network = SimulatedNetwork(cluster.ether, self.process, cluster.random, config, own, log, self.clock)
        self.driver = MembershipDriver(
            Coordinator(NodeInfo(identity, node_address(address)), settings, cluster.random.choice),
            self._network,
            StaticSeeds([address_of("n0"), address_of("n1")]),
            NotedMembers(cluster.arbiter, address, identity.uid, self.clock, log),
            self,
            self.clock,
            log,
            settings.detector.tick_s,
        )
        self.uid = identity.uid

    def start(self) -> None:
        """Listen, and join. The ticks of nodes come at different moments."""
        self.cluster.ether.started(self.host)

        def begin() -> None:
            listening = self._network.start_listening(self.driver.links.accept)
            while True:
                try:
                    listening.send(None)
                except StopIteration:
                    break
            self.driver.start()
            self.driver.apply(self.driver.coordinator.set_ready())

        self.clock.later(self.cluster.random.random() * STEP_S, begin)

    def joined(self) -> None:
        """Do nothing: that all are UP is seen elsewhere."""

    def left(self) -> None:
        """Do nothing."""

    def member_changed(self, member: Member, address: str) -> None:
        """Note when this node learns something."""
        now, uid = self.cluster.schedule.time_s, member.node.uid
        if not member.reachable or member.state in GONE:
            self.unreachable_s.setdefault(uid, now)
        else:
            self.unreachable_s.pop(uid, None)
        if member.state in GONE:
            self.down_s.setdefault(uid, now)

    def expelled(self, reason: str) -> None:
        """End."""
        self.end()

    def ask_arbiter(self, question: AskArbiter) -> None:
        """Ask, and take the answer in the next turn."""
        granted = bool(self.cluster.arbiter.decide(question.term, question.side))
        self.clock.later(DELAY_S, lambda: self.driver.arbiter_decided(granted, question))

    def end(self) -> None:
        """The process is over."""
        self.clock.is_dead = True


@define(eq=False)
class Cluster:
    """Some nodes, and the time."""

    size: int
    seed: int
    schedule: Schedule = field(factory=Schedule)
    nodes: list[Node] = field(factory=list)
    random: Random = field(init=False)
    ether: Ether = field(init=False)
    arbiter: MemoryClusterArbiter = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random = Random(f"{self.size} {self.seed}")
        self.ether = Ether(self.schedule, DELAY_S, self.random)
        self.arbiter = MemoryClusterArbiter(self.schedule.monotonic)
        for number in range(self.size):
            self._start(number)
        self.until(self.is_whole)

    def fail(self, what: str) -> None:
        """Stop, because something was raised into an event loop."""
        raise RuntimeError(what)

    def _start(self, number: int) -> None:
        node = Node(self, f"n{number}")
        if number < len(self.nodes):
            self.nodes[number] = node
        else:
            self.nodes.append(node)
        node.start()

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until something is true."""
        end_s = self.schedule.time_s + LIMIT_S
        while not condition():
            if self.schedule.time_s > end_s:
                raise RuntimeError(f"{self.size} nodes: not done within {LIMIT_S:.0f} s")
            self.schedule.run_until(self.schedule.time_s + STEP_S, lambda: None)

    def is_whole(self) -> bool:
        """Tell whether all nodes have the same state, in which all are UP."""
        uids = {node.uid for node in self.nodes}
        digests = {node.driver.coordinator.digest for node in self.nodes}
        return len(digests) == 1 and all(
            node.driver.coordinator.is_converged
            and {view.info.uid for view in node.driver.coordinator.members} == uids
            and all(view.state is MemberState.UP for view in node.driver.coordinator.members)
            for node in self.nodes
        )

    def end_one(self, way: str) -> tuple[float, float]:
        """End a node at some moment; returns when all others knew it unreachable, and DOWN, in seconds from then."""
        self.schedule.run_until(self.schedule.time_s + self.random.uniform(5.0, 6.0), lambda: None)
        number = self.random.randrange(self.size)
        node = self.nodes[number]
        others = [each for each in self.nodes if each is not node]
        began_s = self.schedule.time_s
        if way == "still":
            node.clock.freeze()
        elif way == "stopped":
            node.clock.run(node.driver.stop)
        else:
            node.end()
            self.ether.ended(node.process, vanished=way == "off")
        self.until(lambda: all(node.uid in each.down_s for each in others))
        if any(each.clock.is_dead for each in others):
            raise RuntimeError(f"{self.size} nodes: one that was alive has ended, too")
        times = [max(getattr(each, what)[node.uid] for each in others) for what in ("unreachable_s", "down_s")]
        node.end()
        node.clock.thaw()
        self._start(number)
        self.until(self.is_whole)
        return times[0] - began_s, times[1] - began_s


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile; the 99th percentile of few values is the highest."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def measure(size: int, crashes: int, seed: int) -> dict[str, Any]:
    """Return the times of one size."""
    cluster = Cluster(size, seed)
    ended = [cluster.end_one(WAYS[number % len(WAYS)]) for number in range(crashes)]
    stopped = [cluster.end_one("stopped") for _ in range(min(STOPS, crashes))]
    return {
        "size": size,
        "unreachable_s": [times[0] for times in ended],
        "down_s": [times[1] for times in ended],
        "stopped_s": [times[1] for times in stopped],
    }


def row(figures: dict[str, Any]) -> str:
    """Return a line of the table."""
    size, found = figures["size"], figures["unreachable_s"]
    goal_s = GOALS_S.get(size)
    met = "" if goal_s is None else f"{goal_s:g}: {'met' if quantile(found, 0.99) <= goal_s else 'MISSED'}"
    columns = [str(size), str(len(found))]
    columns += [f"{quantile(found, part):.1f}" for part in (0.5, 0.99)]
    columns += [met, *(f"{quantile(figures['down_s'], part):.1f}" for part in (0.5, 0.99))]
    columns.append(f"{max(figures['stopped_s']):.2f}")
    return f"| {' | '.join(columns)} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time until a cluster knows that a node is gone.")
    parser.add_argument("--only", help="sizes of clusters, for example 3,10")
    parser.add_argument("--crashes", type=int, help="how many nodes end in each cluster (default: by its size)")
    parser.add_argument("--seed", type=int, default=1, help="decides everything (default: 1)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--json", type=Path, help="store every single figure in this file")
    options = parser.parse_args()
    sizes = [int(size) for size in options.only.split(",")] if options.only else list(CRASHES)
    if options.quick:
        sizes, options.crashes = [3, 5], 3
    heads = "nodes | ends | unreachable: p50, s | p99 | goal of p99, s | DOWN: p50, s | p99 | stopped in order, s"
    print(f"| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
    all_figures = []
    for size in sizes:
        figures = measure(size, options.crashes or CRASHES.get(size, 10), options.seed)
        all_figures.append(figures)
        print(row(figures), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(all_figures, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
