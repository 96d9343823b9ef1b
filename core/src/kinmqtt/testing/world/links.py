"""How the nodes of a world are connected, and how each learns who else is a member.

A world works with any :class:`Links`. With :class:`~kinmqtt.testing.world.told.ToldLinks` the world itself knows who
is gone, and tells everybody; a plugin's tests hand in links on which its own nodes find that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kinmqtt.testing.world.schedule import Schedule

if TYPE_CHECKING:
    from kinmqtt.testing.world.node import Node
    from kinmqtt.testing.world.plan import Plan

Undo: TypeAlias = Callable[[], object]
"""Ends a fault; it may be called twice."""


class Surroundings(Protocol):
    """A world, as its links use it."""

    plan: Plan
    schedule: Schedule
    nodes: list[Node]

    def note(self, line: str) -> None:
        """Add a line to the trace."""

    def violated(self, line: str) -> None:
        """Note a broken promise."""

    def start_again(self, number: int, ended: Node) -> None:
        """Start a process in the place of one that has ended."""


class Link(Protocol):
    """What one process has of the links."""

    plugins: Mapping[str, Any]
    """The plugins that it brings, by name."""
    settings: Mapping[str, Any]
    """The settings of these plugins, by name."""
    services: Mapping[str, str]
    """Which of them provides which service."""

    def around(self, call: Callable[[], object]) -> None:
        """Make a call of the process, in the surroundings that its plugins need."""

    def crash(self) -> None:
        """The process has ended, and says nothing."""


class Breaks(Protocol):
    """A connection that can be cut."""

    def cut(self, left_bytes: int = 0, right_bytes: int = 0) -> None:
        """Break it. Of what is on its way, that many bytes still arrive at each end."""


class Links(Protocol):
    """What connects the nodes of one world."""

    warm_up_s: float
    """How long the nodes have to find each other before the first client comes."""
    lease_s: float | None
    """After how long a silence the stores count a node as gone; ``None``: only when another node says so."""
    starts_failed_again: bool
    """Whether a process that can't start is started again, as a service manager does, and is no mistake."""

    def new_uid(self, serial: int) -> int:
        """Return the uid of a new process, the ``serial``-th thing of the world."""

    def link(self, node: Node) -> Link:
        """Return what a new process needs. Of the node there are ``identity``, ``clock``, ``access`` and ``soon``."""

    def starts(self, node: Node) -> None:
        """The process is about to start."""

    def crashed(self, node: Node) -> None:
        """The process has crashed."""

    # Faults

    def connections(self, one: Node, other: Node) -> Sequence[Breaks]:
        """Return the connections of two nodes."""

    def block(self, pairs: Iterable[tuple[Node, Node]]) -> Undo:
        """Let the nodes of each pair reach each other no more."""

    def isolate(self, node: Node) -> Undo:
        """Let a node and all others reach each other no more."""

    def one_way(self, one: Node, other: Node, random: Random) -> Undo | None:
        """Let what one of two nodes sends arrive at the other no more; ``random`` says which."""

    def stall(self, node: Node) -> Undo:
        """Let a node neither send nor receive."""

    def lose(self, node: Node, random: Random) -> Undo:
        """Lose some of what a node sends and receives, so that it comes later."""

    def give_up(self, node: Node) -> Undo:
        """Cut a node off, which serves its clients for a while, and let the others believe that it is dead."""


LinksFactory: TypeAlias = Callable[[Surroundings, Random], Links]
"""Makes the links of a world; the random numbers are those of its faults."""
