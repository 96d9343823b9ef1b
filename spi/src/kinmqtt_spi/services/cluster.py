"""Cluster backend: members, routes between them, forwarding, and the hand-off of sessions.

The data path is this object, called directly; hooks carry control only. A backend reports to the core through
the :class:`ClusterListener` it is started with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, Flag, auto
from typing import Protocol

from attrs import frozen

from kinmqtt_spi.values import Commit, Maybe, Message, NodeIdentity


class MemberState(Enum):
    """The life of a member, after Akka's membership service."""

    JOINING = "joining"
    UP = "up"
    LEAVING = "leaving"
    EXITING = "exiting"
    DOWN = "down"
    REMOVED = "removed"


@frozen(slots=True)
class Member:
    """A node of the cluster; ``reachable`` is this node's own view, not a state."""

    node: NodeIdentity
    state: MemberState
    reachable: bool = True


class Guarantee(Flag):
    """What a backend promises; the core refuses settings that ask for more."""

    NONE = 0
    SINGLE_OWNER = auto()
    """At most one node owns a client id, even across a split."""
    ACKNOWLEDGED_FORWARD = auto()
    """:meth:`ClusterBackend.forward_acked` answers only after the other node has committed."""
    ORDER_PER_PUBLISHER = auto()
    """Messages of one publisher and topic arrive in order."""


@frozen(slots=True)
class RouteChange:
    """This node's interest in a topic filter, or in a shared group of it, began or ended."""

    filter: str
    share_group: str | None = None


@frozen(slots=True)
class LinkState:
    """How the link to a node does."""

    credit: int
    """How many messages it would take now."""
    queued: int
    round_trip_s: float


class HandOff(ABC):
    """The transfer of one session from its former owner, in steps."""

    @abstractmethod
    def chunk(self, data: bytes) -> Maybe[None]:
        """Send the next part of the session's state."""

    @abstractmethod
    def commit(self) -> Maybe[None]:
        """The state is whole: the new owner takes over."""

    @abstractmethod
    def abort(self) -> Maybe[None]:
        """Leave the session where it was."""


class ClusterListener(Protocol):
    """What the core does when a backend brings news from other nodes."""

    def forwarded(self, origin: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """Messages for local subscribers; the commit fires when every local queue has kept them."""

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Another node's routes, as of its ``version``."""

    def member_changed(self, member: Member) -> None:
        """A member's state or reachability changed."""

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """Another node has become the owner of a client id that may be connected here."""


class ClusterBackend(ABC):
    """The other nodes, or their absence."""

    guarantees: Guarantee = Guarantee.NONE

    @abstractmethod
    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        """Become a member; done when this node is up."""

    @abstractmethod
    def leave(self, deadline_s: float) -> Maybe[None]:
        """Go in good order: hand over what can be handed over within ``deadline_s`` seconds."""

    @abstractmethod
    def stop(self) -> Maybe[None]:
        """Close all links."""

    @abstractmethod
    def members(self) -> Sequence[Member]:
        """All members as this node sees them, itself included."""

    @abstractmethod
    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        """Tell the other nodes what this node's subscribers want from ``version`` on."""

    @abstractmethod
    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until every reachable node knows this node's routes of ``version``; answers the laggards after
        ``limit_s`` seconds. SUBACK waits for it.
        """

    @abstractmethod
    def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
        """Send QoS 0 messages to a node; dropped and counted where its link is full."""

    @abstractmethod
    def forward_acked(self, node: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """Send messages to a node; the commit fires when that node has committed them."""

    @abstractmethod
    def link(self, node: NodeIdentity) -> LinkState:
        """How the link to a node does."""

    @abstractmethod
    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        """This node has claimed a client id in the session store: done when the former owner has let go of it."""

    @abstractmethod
    def release(self, client_id: str, epoch: int) -> None:
        """This node has no connection of this client id any more."""

    @abstractmethod
    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
        """Begin to hand a session's state to its new owner."""

    @abstractmethod
    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        """Put a question to another node's core; fails after ``limit_s`` seconds."""
