"""Carries out the steps of a plan, and mends what they broke."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from kinmqtt.testing.world import plan as kinds
from kinmqtt.testing.world.device import Device
from kinmqtt.testing.world.node import Node
from kinmqtt.testing.world.plan import Step
from kinmqtt.testing.world.schedule import Schedule
from kinmqtt_spi.mesh.network import Network

SLOW_S = 0.5
WRONG_CLOCK_S = 5.0


class Breakable(Protocol):
    """A world, as the nemesis uses it."""

    nodes: list[Node]
    network: Network
    schedule: Schedule

    @property
    def living(self) -> int:
        """The number of nodes that run."""

    @property
    def movable(self) -> list[Device]:
        """The devices that may use any node."""

    def note(self, line: str) -> None:
        """Add a line to the trace."""

    def crash(self, node: Node) -> None:
        """End a node without a word."""

    def tell_down(self, node: Node) -> None:
        """Tell all others that a node is DOWN."""

    def start_again(self, number: int, ended: Node) -> None:
        """Start a process in the place of one that has ended."""


class Nemesis:
    """Breaks one world."""

    def __init__(self, world: Breakable, random: Random) -> None:
        self._world = world
        self._random = random
        self._mend: list[Callable[[], object]] = []
        """Calls that undo what is broken now; each may be made twice."""

    def carry_out(self, step: Step) -> None:
        """Break something now, for the step's duration."""
        self._world.note(f"step {step}")
        undo = getattr(self, f"_{step.kind}")(step)
        if undo is not None:
            self._mend.append(undo)
            self._world.schedule.later(step.duration_s, undo)

    def mend(self) -> None:
        """Undo everything."""
        mend, self._mend = self._mend, []
        for undo in mend:
            undo()

    # Links

    def _pair(self, step: Step) -> tuple[int, int] | None:
        one, other = self._node(step.node), self._node(step.other)
        return None if one is None or other is None else (one.identity.uid, other.identity.uid)

    def _node(self, number: int) -> Node | None:
        node = self._world.nodes[number]
        return node if node.is_alive else None

    def _cut(self, step: Step) -> None:
        pair = self._pair(step)
        pipe = self._world.network.pipes.get(frozenset(pair)) if pair else None
        if pipe is not None:
            pipe.cut(*(self._random.choice((0, 7, 40, 1000)) for _ in range(2)))

    def _block(self, step: Step) -> Callable[[], object] | None:
        pair = self._pair(step)
        return None if pair is None else self._blocked([pair])

    def _one_way(self, step: Step) -> Callable[[], object] | None:
        pair = self._pair(step)
        pipe = self._world.network.pipes.get(frozenset(pair)) if pair else None
        if pipe is None:
            return None
        end = self._random.choice((pipe.left, pipe.right))
        end.stall()
        return end.resume

    def _stall(self, step: Step) -> Callable[[], object] | None:
        node = self._node(step.node)
        return None if node is None else self._world.network.stall(node.identity.uid)

    def _isolate(self, step: Step) -> Callable[[], object] | None:
        node = self._node(step.node)
        if node is None:
            return None
        uid = node.identity.uid
        return self._blocked([(uid, other) for other in self._world.network.nodes if other != uid])

    def _split(self, step: Step) -> Callable[[], object]:
        uids = [node.identity.uid for node in self._world.nodes if node.is_alive]
        parts = {uid: self._random.randrange(3) for uid in uids}
        return self._blocked([(one, two) for one in uids for two in uids if one < two and parts[one] != parts[two]])

    def _blocked(self, pairs: list[tuple[int, int]]) -> Callable[[], object]:
        network = self._world.network
        for pair in pairs:
            network.block(*pair)

        def unblock() -> None:
            for pair in pairs:
                network.unblock(*pair)

        return unblock

    # Nodes

    def _crash(self, step: Step) -> Callable[[], object] | None:
        node = self._node(step.node)
        if node is None or self._world.living < 2:
            return None
        self._world.crash(node)
        return lambda: self._world.start_again(step.node, node)

    def _restart(self, step: Step) -> None:
        node = self._node(step.node)
        if node is not None and node.accepts and self._world.living > 1:
            node.stop(lambda: self._world.start_again(step.node, node))

    def _wrongly_down(self, step: Step) -> Callable[[], object] | None:
        """The others believe that a node is dead, which serves its clients for a while."""
        node = self._node(step.node)
        if node is None or self._world.living < 2:
            return None
        uid = node.identity.uid
        self._blocked([(uid, other) for other in self._world.network.nodes if other != uid])
        self._world.tell_down(node)

        def end() -> None:
            if node.is_alive:
                node.crash()
                self._world.start_again(step.node, node)

        return end

    def _slow(self, step: Step) -> Callable[[], object] | None:
        access = self._world.nodes[step.node].access
        access.slow_s = SLOW_S
        return lambda: setattr(access, "slow_s", 0.0)

    def _away(self, step: Step) -> Callable[[], object] | None:
        access = self._world.nodes[step.node].access
        access.is_away = True
        return lambda: setattr(access, "is_away", False)

    def _clock(self, step: Step) -> Callable[[], object] | None:
        clock = self._world.nodes[step.node].clock
        clock.wrong_by_s = self._random.uniform(-WRONG_CLOCK_S, WRONG_CLOCK_S)
        return lambda: setattr(clock, "wrong_by_s", 0.0)

    # Clients

    def _drop(self, step: Step) -> None:
        movable = self._world.movable
        movable[step.node % len(movable)].drop()

    def _move(self, step: Step) -> None:
        movable = self._world.movable
        device = movable[step.node % len(movable)]
        if device.is_online:
            device.move()


assert all(hasattr(Nemesis, f"_{kind}") for kind in kinds.WEIGHTS)
