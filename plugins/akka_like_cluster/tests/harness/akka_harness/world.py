"""Clusters of coordinators on one virtual clock, and a network that loses, delays and splits.

All that happens by chance comes from one seed, so a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import count
from random import Random

from kinmqtt_akka_like_cluster.pure.coordinator import Coordinator, CoordinatorSettings
from kinmqtt_akka_like_cluster.pure.downing import Strategy
from kinmqtt_akka_like_cluster.pure.effects import (
    AskArbiter,
    Downed,
    Effect,
    LeaveCompleted,
    MemberChanged,
    Send,
    SendTo,
)
from kinmqtt_akka_like_cluster.pure.gossip import NodeAddress, NodeInfo
from kinmqtt_akka_like_cluster.pure.messages import FrameCutter, Message, encode
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.values import NodeIdentity

TICK_S = 0.25
SEEDS = (NodeAddress("10.0.0.1", 4883), NodeAddress("10.0.0.2", 4883))


class Node:
    """One process: its coordinator, and all that it has reported."""

    def __init__(self, world: World, number: int, uid: int, strategy: Strategy) -> None:
        self.number = number
        self.uid = uid
        info = NodeInfo(NodeIdentity(f"node-{number}", uid), NodeAddress(f"10.0.0.{number}", 4883))
        settings = CoordinatorSettings(seeds=SEEDS, digest=b"same", strategy=strategy)
        self.coordinator = Coordinator(info, settings, world.random.choice)
        self.address = info.address
        self.is_running = True
        self.stalled_until_s = 0.0
        self.changes: list[tuple[float, Member]] = []
        self.effects: list[Effect] = []

    def first(self, other: Node, state: MemberState | None = None, reachable: bool | None = None) -> float | None:
        """Return when this node reported that of another one first."""
        return next(
            (
                at
                for at, member in self.changes
                if member.node.uid == other.uid
                and state in (None, member.state)
                and reachable in (None, member.reachable)
            ),
            None,
        )

    def states(self) -> dict[int, MemberState]:
        """Return the state of each member by the number of its node."""
        return {int(view.info.node.name.split("-")[1]): view.state for view in self.coordinator.members}

    def saw(self, kind: type) -> list[Effect]:
        """Return the effects of a type."""
        return [effect for effect in self.effects if isinstance(effect, kind)]


class World:
    """The nodes, the network between them and the time."""

    def __init__(self, seed: int, strategy: Strategy = Strategy.KEEP_MAJORITY) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.loss = 0.0
        self.nodes: list[Node] = []
        self.sides: tuple[frozenset[int], ...] = ()
        """Each is a set of nodes that no others reach, nor they these."""
        self.cut: set[tuple[int, int]] = set()
        """From whom to whom nothing arrives."""
        self._strategy = strategy
        self.arbiter = MemoryClusterArbiter()
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def start(self, number: int) -> Node:
        """Start a process on a machine; another one that runs there must have ended."""
        node = Node(self, number, self.random.getrandbits(64), self._strategy)
        self.nodes.append(node)
        self._do(node, node.coordinator.set_ready())
        self._later(self.random.random() * TICK_S, lambda: self._tick(node))
        return node

    def cluster(self, size: int) -> list[Node]:
        """Start processes at once, and run until all are UP."""
        nodes = [self.start(number) for number in range(1, size + 1)]
        self.until(lambda: agree(nodes, range(1, size + 1)), 40.0)
        return nodes

    def crash(self, node: Node) -> None:
        """End a process without a word: its connections break."""
        node.is_running = False
        for other in self.running:
            self._do(other, other.coordinator.connection_lost(node.uid))

    def do(self, node: Node, event: Callable[[Coordinator], list[Effect]]) -> None:
        """Let something happen to a node."""
        self._do(node, event(node.coordinator))

    def heal(self) -> None:
        """End all faults of the network."""
        self.sides, self.cut, self.loss = (), set(), 0.0

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end_s = self.now + seconds
        while self._due and self._due[0][0] <= end_s:
            self.now, _, action = heappop(self._due)
            action()
        self.now = end_s

    def until(self, condition: Callable[[], bool], limit_s: float) -> float:
        """Let time pass until something is true; returns how long that took."""
        begun_s = self.now
        while not condition():
            assert self.now - begun_s < limit_s, [(node.number, node.states()) for node in self.running]
            self.run(TICK_S)
        return self.now - begun_s

    @property
    def running(self) -> list[Node]:
        """The processes that have not ended."""
        return [node for node in self.nodes if node.is_running]

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        heappush(self._due, (self.now + delay_s, next(self._order), action))

    def _tick(self, node: Node) -> None:
        if not node.is_running:
            return
        if node.stalled_until_s > self.now:
            self._later(node.stalled_until_s - self.now, lambda: self._tick(node))
            return
        self._do(node, node.coordinator.tick(self.now))
        self._later(TICK_S, lambda: self._tick(node))

    def _do(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(
                    node, next((each for each in self.running if each.uid == effect.uid), None), effect.message
                )
                continue
            node.effects.append(effect)
            if isinstance(effect, SendTo):
                there = next((each for each in self.running if each.address == effect.address), None)
                self._send(node, there, effect.message)
            elif isinstance(effect, MemberChanged):
                node.changes.append((self.now, effect.member))
            elif isinstance(effect, Downed | LeaveCompleted):
                node.is_running = False
            elif isinstance(effect, AskArbiter):
                self._ask(node, effect)

    def _ask(self, node: Node, question: AskArbiter) -> None:
        """Ask the arbiter, which all nodes always reach."""
        granted = self.arbiter.decide(question.term, question.side)

        def answer() -> None:
            if node.is_running:
                self._do(node, node.coordinator.arbiter_decided(granted, self.now, question))

        self._later(0.05, answer)

    def _send(self, node: Node, there: Node | None, message: Message) -> None:
        if there is None or self.random.random() < self.loss or (node.number, there.number) in self.cut:
            return
        if any((node.number in side) != (there.number in side) for side in self.sides):
            return
        self._later(0.001 + self.random.random() * 0.02, lambda: self._arrive(node.uid, there, encode(message)))

    def _arrive(self, sender: int, there: Node, data: bytes) -> None:
        if there.stalled_until_s > self.now:
            self._later(there.stalled_until_s - self.now, lambda: self._arrive(sender, there, data))
        elif there.is_running:
            [message] = FrameCutter().feed(data)
            self._do(there, there.coordinator.received(sender, message, self.now))


def agree(nodes: Collection[Node], numbers: Collection[int], state: MemberState = MemberState.UP) -> bool:
    """Whether these nodes have the same state, in which exactly these members are, all UP."""
    wanted = dict.fromkeys(numbers, state)
    digests = {node.coordinator.digest for node in nodes}
    return len(digests) == 1 and all(node.coordinator.is_converged and node.states() == wanted for node in nodes)


def marked(nodes: Collection[Node], subjects: Collection[Node]) -> list[tuple[int, float, int]]:
    """Return who reported when that one of these members can't be reached, or is DOWN."""
    uids = {subject.uid: subject.number for subject in subjects}
    return [
        (node.number, at, uids[member.node.uid])
        for node in nodes
        for at, member in node.changes
        if member.node.uid in uids and (not member.reachable or member.state is MemberState.DOWN)
    ]
