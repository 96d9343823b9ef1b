"""How the nodes of a world are connected, and how each learns who else is a member.

A world works with any :class:`Links`. With :class:`~kinmqtt.testing.world.told.ToldLinks` the world itself knows who
is gone, and tells everybody; a plugin's tests hand in links on which its own nodes find that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt.testing.world.stores import StoreAccess
from kinmqtt_spi.values import NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.testing.world.plan import Plan

Undo: TypeAlias = Callable[[], object]
"""Ends a fault; it may be called twice."""


class NodeProcess(Protocol):
    """One broker's process, as links use it."""

    identity: NodeIdentity
    clock: NodeClock
    access: StoreAccess

    @property
    def name(self) -> str:
        """The node's name, which a later process may have too."""

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call in one of the next turns."""

    def crash(self) -> None:
        """End at once: nothing is said to anybody."""


class Surroundings(Protocol):
    """A world, as its links use it."""

    plan: Plan
    schedule: Schedule

    @property
    def nodes(self) -> Sequence[NodeProcess]:
        """The nodes by number; a node that was started again has its place."""

    def note(self, line: str) -> None:
        """Add a line to the trace."""

    def violated(self, line: str) -> None:
        """Note a broken promise."""

    def start_again(self, number: int, ended: NodeProcess) -> None:
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

    def link(self, node: NodeProcess) -> Link:
        """Return what a new process needs. Of the node there are ``identity``, ``clock``, ``access`` and ``soon``."""

    def starts(self, node: NodeProcess) -> None:
        """The process is about to start."""

    def crashed(self, node: NodeProcess) -> None:
        """The process has crashed."""

    # Faults

    def connections(self, one: NodeProcess, other: NodeProcess) -> Sequence[Breaks]:
        """Return the connections of two nodes."""

    def block(self, pairs: Iterable[tuple[NodeProcess, NodeProcess]]) -> Undo:
        """Let the nodes of each pair reach each other no more."""

    def isolate(self, node: NodeProcess) -> Undo:
        """Let a node and all others reach each other no more."""

    def one_way(self, one: NodeProcess, other: NodeProcess, random: Random) -> Undo | None:
        """Let what one of two nodes sends arrive at the other no more; ``random`` says which."""

    def stall(self, node: NodeProcess) -> Undo:
        """Let a node neither send nor receive."""

    def lose(self, node: NodeProcess, random: Random) -> Undo:
        """Lose some of what a node sends and receives, so that it comes later."""

    def give_up(self, node: NodeProcess) -> Undo:
        """Cut a node off, which serves its clients for a while, and let the others believe that it is dead."""


LinksFactory: TypeAlias = Callable[[Surroundings, Random], Links]
"""Makes the links of a world; the random numbers are those of its faults."""
