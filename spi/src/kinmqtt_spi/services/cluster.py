"""Cluster backend: members, routes, batches of messages, ownership of client ids and session hand-off.

The core calls this object directly on the data path; hooks carry control only. A backend reports to the core through
the :class:`ClusterListener` it is started with.

A batch is bytes, written and read by the core: packets as they were received, and what the other node must know of
them. A backend transports it unread. The other node's answer is bytes too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum, Flag, auto
from typing import Final, Protocol

from attrs import frozen

from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.values import Maybe, NodeIdentity


class MemberState(Enum):
    """The state of a member, after Akka's membership service."""

    JOINING = "joining"
    """It has started, and restores its sessions."""
    UP = "up"
    """It serves clients; its routes are known."""
    LEAVING = "leaving"
    EXITING = "exiting"
    DOWN = "down"
    """It counts as dead and never comes back under its uid."""
    REMOVED = "removed"


GONE = frozenset({MemberState.DOWN, MemberState.REMOVED})
"""The states of a node that will answer nothing any more."""

MAX_OTHER_NODES: Final = 64
"""The most other nodes that a core takes, those included that are gone and whose sessions have no owner yet."""


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
    ACKNOWLEDGED_DELIVERY = auto()
    """:meth:`ClusterBackend.deliver` answers only after the other node has answered."""
    ORDER_PER_PUBLISHER = auto()
    """Batches for one node arrive in the order in which they were given."""


@frozen(slots=True)
class RouteChange:
    """A topic filter, or a shared group of it, that a node has subscribers of.

    ``filter`` and ``share_group`` identify the route. Announced again, it replaces the route announced before.
    """

    filter: str
    share_group: str | None = None
    qos: int = 2
    """The highest QoS granted to a subscriber: a message sent at QoS 0 only needs no answer."""
    weight: int = 1
    """The number of connected members of the group; 0 if all are disconnected. Always 1 without a group."""

    @property
    def key(self) -> tuple[str, str | None]:
        """What identifies the route among the node's."""
        return (self.filter, self.share_group)


@frozen(slots=True)
class NodeCandidate:
    """A node with members of a shared subscription, for the hook ``choose_node``."""

    node: NodeIdentity
    connected: int
    """The number of its members that are connected."""


@frozen(slots=True)
class LinkState:
    """The state of the link to a node."""

    credit_bytes: int
    """The bytes of batches that the link accepts now."""
    queued_bytes: int
    """The bytes of batches that the node has not acknowledged."""
    round_trip_s: float


@frozen(slots=True)
class Located:
    """Who owns a client id, as the cluster knows it where stores are not shared."""

    owner: NodeIdentity | None
    """The node that owns it; ``None`` if none does."""
    epoch: int
    """No claim of it has a higher epoch: a new one must be above."""


class HandOff(ABC):
    """The transfer of one session from its former owner, in steps."""

    @abstractmethod
    def chunk(self, data: bytes) -> Maybe[None]:
        """Send or accept the next part of the session's state."""

    @abstractmethod
    def commit(self) -> Maybe[None]:
        """Complete the hand-off: the new owner has committed the session, and takes over."""

    @abstractmethod
    def abort(self) -> Maybe[None]:
        """Abort the hand-off: the session stays with its former owner."""


class ClusterListener(Protocol):
    """The core's interface for reports of a backend about other nodes, and what a backend may use of the core's."""

    @property
    def arbiter(self) -> ClusterArbiter | None:
        """The arbiter that decides splits of the cluster; ``None`` if no plugin provides one."""

    @property
    def shares_stores(self) -> bool:
        """Whether the nodes use one session, one queue and one retain store. Else each has all three for itself."""

    def received(self, origin: NodeIdentity, batch: bytes, assured: bool) -> Maybe[bytes]:
        """Route another node's messages to this node's subscribers.

        ``assured``: the batch came by :meth:`ClusterBackend.deliver`. The answer is available when every local queue
        has committed the messages, and is passed back unread. Raises :class:`~kinmqtt_spi.errors.MalformedBatch` for
        a batch that this core can't read: the backend closes the link.
        """

    def asked(self, origin: NodeIdentity, method: str, data: bytes) -> Maybe[bytes]:
        """Answer another node's :meth:`ClusterBackend.ask`.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` for an unknown method: the other node's call fails.
        """

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Apply changes to another node's routes, up to its ``version``.

        A node that is new here begins without routes: its first change has all of them.
        """

    def member_changed(self, member: Member) -> None:
        """Report that a member's state or reachability changed.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` for a new node if there are :data:`MAX_OTHER_NODES`.
        """

    def expelled(self, reason: str) -> None:
        """Report that the other nodes have declared this process DOWN, or that it must count itself as DOWN.

        It serves nobody any more: the broker closes its listeners, disconnects its clients (0x8B), acknowledges
        nothing that is open, and starts again as a new process with a new uid.
        """

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """Report that another node claims a client id, which may be connected here.

        Completes when this node has let go of it. Where stores are not shared, the session was handed off by then;
        :class:`~kinmqtt_spi.errors.ServiceUnavailable` says that this node still has it.
        """

    def handing(self, client_id: str, epoch: int, origin: NodeIdentity) -> HandOff:
        """Accept a session that ``origin`` hands off to this node; its new epoch is ``epoch`` at least.

        A session of the client id that is here keeps its state, and gets the messages of the other one that it lacks.
        """

    def owned(self) -> Iterable[tuple[str, int]]:
        """Return the client ids that this node owns, with their epochs: for a node that keeps the register anew."""

    def epoch_of(self, client_id: str) -> int | None:
        """Return the epoch under which this node owns a client id; ``None`` if it does not."""


class ClusterBackend(ABC):
    """The interface to the other nodes of the cluster, if there are any.

    Calls for a node that is no member raise :class:`~kinmqtt_spi.errors.NodeGone`.
    """

    guarantees: Guarantee = Guarantee.NONE
    needs_shared_stores: bool = False
    """Whether all nodes must use one session, one queue and one retain store: the broker refuses to start else."""
    with_shared_stores: Guarantee = Guarantee.NONE
    """Those of the guarantees that hold only where all nodes use one session, one queue and one retain store."""

    @abstractmethod
    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        """Join the cluster; completes when this node is JOINING, and knows the members and their routes."""

    @abstractmethod
    def up(self) -> Maybe[None]:
        """Become UP: sessions are restored and their routes announced; completes when the others have the routes."""

    def leaving(self) -> Maybe[None]:
        """Become LEAVING, before this node's clients are disconnected: messages still come and go.

        The default does nothing: then :meth:`leave` begins it.
        """
        return None

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
        """Announce changes of this node's routes to the other nodes, as ``version``; called once a turn."""

    @abstractmethod
    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until every reachable node has this node's routes of ``version``; SUBACK waits for it.

        After ``limit_s`` seconds it returns the nodes that do not have them yet.
        """

    @abstractmethod
    def push(self, node: NodeIdentity, batch: bytes) -> bool:
        """Send a batch of QoS 0 messages. ``False`` if the link is full: then the whole batch is dropped."""

    @abstractmethod
    def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Maybe[bytes]:
        """Send a batch of ``messages`` messages that must not be lost; returns the node's answer.

        The batch is sent again after a lost connection, and reaches the node once. The call fails with
        :class:`~kinmqtt_spi.errors.NodeGone` when the node is DOWN or REMOVED, and never because of time. It fails
        with :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the node could not commit the messages, or if the link
        has no room for the batch: then it was not sent.
        """

    @abstractmethod
    def link(self, node: NodeIdentity) -> LinkState:
        """Return the state of the link to a node."""

    def locate(self, client_id: str) -> Maybe[Located | None]:
        """Begin a claim: return the owner of a client id; ``None`` where the session store knows it.

        No other node, and no second caller on this one, claims the client id until :meth:`end_claim`, which must
        follow unless this call fails. It fails with :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the owner
        can't be found, or can't be reached.

        The default is for nodes that share their stores.
        """
        return None

    @abstractmethod
    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        """Announce a claim of a client id; completes when the former owner has let go of it.

        Where stores are not shared, the former owner hands the session off before: see
        :meth:`ClusterListener.handing`.
        """

    def end_claim(self, client_id: str) -> None:
        """End what :meth:`locate` has begun. The default is for nodes that share their stores."""
        return None

    def register(self, client_id: str, epoch: int) -> None:
        """Announce that this node owns a client id under an epoch: after a claim, and for a session that has come.

        The default is for nodes that share their stores.
        """
        return None

    @abstractmethod
    def release(self, client_id: str, epoch: int) -> None:
        """Announce that this node has nothing of a client id any more: no connection and no session."""

    @abstractmethod
    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
        """Begin to transfer a session's state to its new owner."""

    @abstractmethod
    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        """Send a request to another node's core; fails after ``limit_s`` seconds."""
