"""Cluster backend: members, routes, message forwarding and session hand-off.

The core calls this object directly on the data path; hooks carry control only. A backend reports to the core through
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
    """The state of a member, after Akka's membership service."""

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
    """The guarantees of a backend. The core refuses settings that require more."""

    NONE = 0
    SINGLE_OWNER = auto()
    """At most one node owns a client id, even across a split."""
    ACKNOWLEDGED_FORWARD = auto()
    """:meth:`ClusterBackend.forward_acked` answers only after the other node has committed."""
    ORDER_PER_PUBLISHER = auto()
    """Messages of one publisher and topic arrive in order."""


@frozen(slots=True)
class RouteChange:
    """A topic filter, or a shared group of it, that this node has begun or ceased to subscribe to."""

    filter: str
    share_group: str | None = None


@frozen(slots=True)
class LinkState:
    """The state of the link to a node."""

    credit: int
    """The number of messages that the link accepts now."""
    queued: int
    round_trip_s: float


class HandOff(ABC):
    """The transfer of one session from its former owner, in steps."""

    @abstractmethod
    def chunk(self, data: bytes) -> Maybe[None]:
        """Send the next part of the session's state."""

    @abstractmethod
    def commit(self) -> Maybe[None]:
        """Complete the hand-off: the new owner takes over."""

    @abstractmethod
    def abort(self) -> Maybe[None]:
        """Abort the hand-off: the session stays with its former owner."""


class ClusterListener(Protocol):
    """The core's interface for reports of a backend about other nodes."""

    def forwarded(self, origin: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """Deliver messages to local subscribers; the commit fires when every local queue has committed them."""

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Apply changes to another node's routes, up to its ``version``."""

    def member_changed(self, member: Member) -> None:
        """Report that a member's state or reachability changed."""

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """Report that another node owns a client id now, which may be connected here."""


class ClusterBackend(ABC):
    """The interface to the other nodes of the cluster, if there are any."""

    guarantees: Guarantee = Guarantee.NONE

    @abstractmethod
    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        """Join the cluster; completes when this node is up."""

    @abstractmethod
    def leave(self, deadline_s: float) -> Maybe[None]:
        """Leave the cluster gracefully: hand off sessions for at most ``deadline_s`` seconds."""

    @abstractmethod
    def stop(self) -> Maybe[None]:
        """Close all links."""

    @abstractmethod
    def members(self) -> Sequence[Member]:
        """Return all members as this node sees them, including itself."""

    @abstractmethod
    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        """Announce changes of this node's routes to the other nodes, as ``version``."""

    @abstractmethod
    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until every reachable node has this node's routes of ``version``; SUBACK waits for it.

        After ``limit_s`` seconds it returns the nodes that do not have them yet.
        """

    @abstractmethod
    def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
        """Send QoS 0 messages to a node. If its link is full, they are dropped and counted."""

    @abstractmethod
    def forward_acked(self, node: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """Send messages to a node; the commit fires when that node has committed them."""

    @abstractmethod
    def link(self, node: NodeIdentity) -> LinkState:
        """Return the state of the link to a node."""

    @abstractmethod
    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        """Announce a claim of a client id in the session store; completes when the former owner has released it."""

    @abstractmethod
    def release(self, client_id: str, epoch: int) -> None:
        """Announce that this node has no connection of this client id any more."""

    @abstractmethod
    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
        """Begin to transfer a session's state to its new owner."""

    @abstractmethod
    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        """Send a request to another node's core; fails after ``limit_s`` seconds."""
