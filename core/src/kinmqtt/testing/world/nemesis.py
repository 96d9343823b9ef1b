"""Carries out the steps of a plan, and mends what they broke."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from kinmqtt.testing.world import plan as kinds
from kinmqtt.testing.world.device import Device
from kinmqtt.testing.world.links import Links, Undo
from kinmqtt.testing.world.node import Node
from kinmqtt.testing.world.plan import Step
from kinmqtt.testing.world.schedule import Schedule

SLOW_S = 0.5
WRONG_CLOCK_S = 5.0
PATIENCE_S = (0.5, 5.0)
"""After how long clients leave a node that stands still: at least, at most."""


class Breakable(Protocol):
    """A world, as the nemesis uses it."""

    nodes: list[Node]
    links: Links
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

    def _pair(self, step: Step) -> tuple[Node, Node] | None:
        one, other = self._node(step.node), self._node(step.other)
        return None if one is None or other is None else (one, other)

    def _node(self, number: int) -> Node | None:
        node = self._world.nodes[number]
        return node if node.is_alive else None

    def _cut(self, step: Step) -> None:
        pair = self._pair(step)
        for connection in self._world.links.connections(*pair) if pair else ():
            connection.cut(*(self._random.choice((0, 7, 40, 1000)) for _ in range(2)))

    def _block(self, step: Step) -> Undo | None:
        pair = self._pair(step)
        return None if pair is None else self._world.links.block([pair])

    def _one_way(self, step: Step) -> Undo | None:
        pair = self._pair(step)
        return None if pair is None else self._world.links.one_way(*pair, self._random)

    def _stall(self, step: Step) -> Undo | None:
        node = self._node(step.node)
        return None if node is None else self._world.links.stall(node)

    def _isolate(self, step: Step) -> Undo | None:
        node = self._node(step.node)
        return None if node is None else self._world.links.isolate(node)

    def _split(self, step: Step) -> Undo:
        nodes = [node for node in self._world.nodes if node.is_alive]
        parts = {node: self._random.randrange(3) for node in nodes}
        return self._world.links.block(
            (one, two)
            for one in nodes
            for two in nodes
            if one.identity.uid < two.identity.uid and parts[one] != parts[two]
        )

    def _lose(self, step: Step) -> Undo | None:
        node = self._node(step.node)
        return None if node is None else self._world.links.lose(node, self._random)

    # Nodes

    def _crash(self, step: Step) -> Undo | None:
        node = self._node(step.node)
        if node is None or self._world.living < 2:
            return None
        self._world.crash(node)
        return lambda: self._world.start_again(step.node, node)

    def _restart(self, step: Step) -> None:
        node = self._node(step.node)
        if node is not None and node.accepts and self._world.living > 1:
            node.stop(lambda: self._world.start_again(step.node, node))

    def _wrongly_down(self, step: Step) -> Undo | None:
        """The others believe that a node is dead, which serves its clients for a while."""
        node = self._node(step.node)
        if node is None or self._world.living < 2:
            return None
        return self._world.links.give_up(node)

    def _freeze(self, step: Step) -> Undo | None:
        """Let a process stand still. Clients that may use other nodes don't wait for it for long."""
        node = self._node(step.node)
        if node is None:
            return None
        node.clock.freeze()

        def leave() -> None:
            for device in self._world.movable:
                if node.clock.is_frozen and device.wire is not None and device.wire.node is node:
                    device.drop()

        self._world.schedule.later(self._random.uniform(*PATIENCE_S), leave)
        return node.clock.thaw

    def _slow(self, step: Step) -> Undo | None:
        access = self._world.nodes[step.node].access
        access.slow_s = SLOW_S
        return lambda: setattr(access, "slow_s", 0.0)

    def _away(self, step: Step) -> Undo | None:
        access = self._world.nodes[step.node].access
        access.is_away = True
        return lambda: setattr(access, "is_away", False)

    def _clock(self, step: Step) -> Undo | None:
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


assert all(hasattr(Nemesis, f"_{kind}") for kind in (*kinds.WEIGHTS, kinds.FREEZE, kinds.LOSE))
