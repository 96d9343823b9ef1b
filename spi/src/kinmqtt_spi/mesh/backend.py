"""A cluster backend over links. Its owner brings the membership and the connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from attrs import frozen

from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.mesh.calls import BACKEND, pack_ask, pack_claim
from kinmqtt_spi.mesh.connection import Connection
from kinmqtt_spi.mesh.handoff import SentHandOff
from kinmqtt_spi.mesh.link import LinkLimits, Transport
from kinmqtt_spi.mesh.local import Local
from kinmqtt_spi.mesh.peer import Peer, later_state
from kinmqtt_spi.mesh.results import PendingResult, Result, Run
from kinmqtt_spi.mesh.waits import Waits
from kinmqtt_spi.services.cluster import (
    GONE,
    ClusterBackend,
    ClusterListener,
    Guarantee,
    HandOff,
    LinkState,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.services.plugin import Clock, Log, Timer
from kinmqtt_spi.values import Maybe, NodeIdentity

LEAVE_PACE_S: Final = 0.05
"""How often a node that leaves looks whether all is answered, in seconds."""
QUESTIONS_SHARE: Final = 0.5
"""The share of a link's queue for questions: claims and hand-offs have room when plugins ask too much."""
MOST_REMOVED: Final = 10_000
"""How many uids of removed nodes are remembered."""


@frozen(slots=True)
class _Question:
    """The token of a question: its answer, and the timer of its limit."""

    result: Result
    timer: Timer

    def set(self, value: bytes) -> None:
        self.timer.cancel()
        self.result.set(value)

    def fail(self, error: Exception) -> None:
        self.timer.cancel()
        self.result.fail(error)


@frozen(slots=True)
class _Claim:
    """The token of a claim: a former owner that is gone holds nothing."""

    result: Result

    def set(self, value: bytes) -> None:
        self.result.set(None)

    def fail(self, error: Exception) -> None:
        if isinstance(error, NodeGone):
            self.result.set(None)
        else:
            self.result.fail(error)


class MeshBackend(ClusterBackend):
    """A cluster backend over links.

    Its owner calls :meth:`member` for each change of the membership, :meth:`connected` or :meth:`accepted` for each
    connection, and connects again after a loss. It decides which of two nodes connects: a second connection replaces
    the first.
    """

    def __init__(
        self,
        clock: Clock,
        log: Log,
        run: Run,
        new_result: Callable[[], Result] = PendingResult,
        limits: LinkLimits | None = None,
        guarantees: Guarantee = Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER,
    ) -> None:
        """``run`` drives the listener's awaitables, ``new_result`` makes those that callers get."""
        self.guarantees = guarantees
        self.malformed = 0
        """How often a connection was closed because of malformed input."""
        self._clock = clock
        self._log = log
        self._run = run
        self._new_result = new_result
        self._limits = limits or LinkLimits()
        self._waits = Waits(clock, new_result)
        self._local: Local | None = None
        self._early: list[Member] = []
        self._peers: dict[int, Peer] = {}
        self._known: dict[int, MemberState] = {}
        """The state of each peer as the owner told it, by uid."""
        self._down: dict[int, Member] = {}
        self._removed: dict[int, None] = {}
        self._hand_offs = 0

    # The owner's side

    def member(self, member: Member) -> None:
        """Take a change of the membership. A node that is DOWN or REMOVED never comes back under its uid.

        States only go forward. A new uid under a name removes the process that had it before. A node is reported as
        UP when its routes are known, and as reachable again when it knows this node's. Members may be told before
        :meth:`start`, which waits for the routes of these. Raises
        :class:`~kinmqtt_spi.errors.ServiceUnavailable` for a new member if the core takes no more nodes.
        """
        local = self._local
        node = member.node
        if local is None:
            self._early.append(member)
        elif node.uid == local.node.uid:
            self._become(local, member.state)
        elif node.uid in self._peers:
            self._known[node.uid] = later_state(self._known[node.uid], member.state)
            self._peers[node.uid].reach(member.reachable)
            self._update(self._peers[node.uid])
        elif node.uid in self._down:
            if member.state is MemberState.REMOVED:
                del self._down[node.uid]
                self._forget(local, node, MemberState.REMOVED)
        elif node.uid not in self._removed:
            if member.state in GONE:
                self._forget(local, node, member.state)
            else:
                self._join(local, member)

    def connected(self, node: NodeIdentity, transport: Transport) -> Connection:
        """Use a connection to a member. Raises :class:`~kinmqtt_spi.errors.NodeGone`."""
        return Connection(self, transport, self._peer(node))

    def accepted(self, transport: Transport) -> Connection:
        """Use a connection whose other end says which member it is. It is closed if that is none."""
        return Connection(self, transport, None)

    def established(self, node: NodeIdentity) -> bool:
        """Tell whether there is a connection to a member, and it has said HELLO."""
        peer = self._peers.get(node.uid)
        return peer is not None and peer.link.established

    def known_routes(self) -> Iterator[tuple[NodeIdentity, Sequence[RouteChange]]]:
        """Yield each node with the routes that are known of it, this node first."""
        local = self._started()
        yield local.node, local.routes.routes()
        for peer in tuple(self._peers.values()):
            yield peer.node, peer.routes.routes()

    @property
    def is_started(self) -> bool:
        """Whether it was started, and has not been stopped."""
        return self._local is not None

    # The core's side

    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        """Join; completes when the routes of all reachable members that were told before are known."""
        local = Local(
            node, listener, self._clock, self._log, self._run, self._new_result, self._limits, self.backend_asked
        )
        self._local = local
        listener.member_changed(Member(node, MemberState.JOINING))
        early, self._early = self._early, []
        for member in early:
            self.member(member)
        return self._waits.until_none(self._unsynchronised, _nothing)

    def up(self) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        local = self._started()
        version = local.routes.version
        return self._waits.until_none(
            lambda: self._behind(version), lambda laggards: self._become(local, MemberState.UP)
        )

    def leaving(self) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        if self._local is not None:
            self._become(self._local, MemberState.LEAVING)

    def leave(self, deadline_s: float) -> Maybe[None]:
        """Leave; completes when all calls and batches in both directions are answered, or at the deadline."""
        local = self._local
        if local is None:
            return None
        self._become(local, MemberState.LEAVING)
        self._look(self._clock.monotonic() + deadline_s)
        return self._waits.until_none(self._busy, _nothing, deadline_s)

    def stop(self) -> Maybe[None]:
        """Close all links; the other nodes learn that this process is gone. What is unanswered fails."""
        local, self._local = self._local, None
        if local is None:
            return None
        local.state = MemberState.REMOVED
        self._waits.end()
        peers = tuple(self._peers.values())
        for kept in (self._peers, self._known, self._down, self._removed):
            kept.clear()
        for peer in peers:
            peer.tell_state()
            for token in peer.close():
                token.fail(ServiceUnavailable(f"node {local.node.name} has stopped"))
        return None

    def members(self) -> Sequence[Member]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        if self._local is None:
            return ()
        own = Member(self._local.node, self._local.state)
        return (own, *(peer.member for peer in self._peers.values()), *self._down.values())

    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`. Raises ``ValueError`` for an old version."""
        self._started().routes.update(version, added, removed)
        for peer in self._peers.values():
            peer.feed.pump()

    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        return self._waits.until_none(lambda: self._behind(version), lambda laggards: laggards, limit_s)

    def push(self, node: NodeIdentity, batch: bytes) -> bool:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`. ``False`` too while there is no connection."""
        peer = self._peers.get(node.uid)
        if peer is None:
            raise self._absent(node)
        return peer.link.push(batch)

    def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the link's queue is full: see
        :class:`~kinmqtt_spi.mesh.link.LinkLimits`.
        """
        peer = self._peers.get(node.uid)
        if peer is None:
            raise self._absent(node)
        result = self._new_result()
        peer.link.deliver(batch, result)
        return result.awaitable

    def link(self, node: NodeIdentity) -> LinkState:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        return self._peer(node).link.state()

    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        """Tell the former owner, and wait for its release. One that is gone or unknown holds nothing."""
        peer = None if previous_owner is None else self._peers.get(previous_owner.uid)
        if peer is None:
            return None
        result = self._new_result()
        peer.link.call(pack_claim(client_id, epoch), _Claim(result))
        return result.awaitable

    def release(self, client_id: str, epoch: int) -> None:
        """Do nothing: the session store knows the owners, and no other node waits for it."""

    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        peer = self._peer(to)
        self._hand_offs += 1
        return SentHandOff(self._started(), peer.link, self._hand_offs).begin(client_id, epoch)

    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        return self._ask(node, pack_ask(method, data), repr(method), limit_s, QUESTIONS_SHARE)

    def ask_backend(self, node: NodeIdentity, data: bytes, limit_s: float) -> Maybe[bytes]:
        """Send a question to another node's backend, which answers by :meth:`backend_asked`; like :meth:`ask`."""
        return self._ask(node, bytes((BACKEND,)) + data, "its backend's question", limit_s)

    def backend_asked(self, origin: NodeIdentity, data: bytes) -> Maybe[bytes]:
        """Answer another node's :meth:`ask_backend`; this one knows no questions.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable`: the other node's call fails.
        """
        raise ServiceUnavailable("this node's backend answers no questions")

    def _ask(self, node: NodeIdentity, body: bytes, name: str, limit_s: float, share: float = 1.0) -> Maybe[bytes]:
        peer = self._peer(node)
        result = self._new_result()
        expired = ServiceUnavailable(f"node {node.name} did not answer {name} within {limit_s:g} s")
        number = 0

        def expire() -> None:
            peer.link.withdraw(number)
            result.fail(expired)

        timer = self._clock.later(limit_s, expire)
        try:
            number = peer.link.call(body, _Question(result, timer), share)
        except ServiceUnavailable:
            timer.cancel()
            raise
        return result.awaitable

    # What peers and connections report

    def progressed(self, peer: Peer) -> None:
        """See :class:`~kinmqtt_spi.mesh.peer.PeerOwner`."""
        if self._peers.get(peer.node.uid) is peer:
            self._update(peer)

    def malformed_late(self, peer: Peer, error: Exception) -> None:
        """See :class:`~kinmqtt_spi.mesh.peer.PeerOwner`."""
        self.malformed_on(peer.node, error)
        transport, peer.transport = peer.transport, None
        peer.link.lost()
        if transport is not None:
            transport.close()

    def find(self, uid: int) -> Peer | None:
        """See :class:`~kinmqtt_spi.mesh.connection.ConnectionOwner`."""
        return self._peers.get(uid)

    def malformed_on(self, node: NodeIdentity | None, error: Exception) -> None:
        """See :class:`~kinmqtt_spi.mesh.connection.ConnectionOwner`."""
        self.malformed += 1
        self._log.warn("the link to {node} is closed: {error}", node=_name(node), error=error)

    def refused(self, node: NodeIdentity | None, error: Exception) -> None:
        """See :class:`~kinmqtt_spi.mesh.connection.ConnectionOwner`."""
        self._log.warn("a connection for {node} is refused: {error}", node=_name(node), error=error)

    # Members

    def _join(self, local: Local, member: Member) -> None:
        for other in tuple(self._peers.values()):
            if other.node.name == member.node.name:
                self._bury(local, other, MemberState.REMOVED)
        uid = member.node.uid
        peer = self._peers[uid] = Peer(local, member, self)
        self._known[uid] = member.state
        try:
            local.listener.member_changed(peer.member)
        except ServiceUnavailable:
            del self._peers[uid], self._known[uid]
            peer.close()
            raise
        self._update(peer)
        peer.begin()

    def _update(self, peer: Peer) -> None:
        local = self._local
        if local is None:
            return
        reachable = peer.is_reachable and peer.has_caught_up()
        member = Member(peer.node, peer.state(self._known[peer.node.uid]), reachable)
        if member.state in GONE:
            self._bury(local, peer, member.state)
        elif member != peer.member:
            peer.member = member
            local.listener.member_changed(member)
        self._waits.check()

    def _bury(self, local: Local, peer: Peer, state: MemberState) -> None:
        """End the link to a node that is gone, and let all that waits for it fail."""
        node = peer.node
        del self._peers[node.uid], self._known[node.uid]
        self._forget(local, node, state)
        gone = NodeGone(f"node {node.name} ({node.uid:016x}) is {state.value}")
        for token in peer.close():
            token.fail(gone)

    def _forget(self, local: Local, node: NodeIdentity, state: MemberState) -> None:
        member = Member(node, state, reachable=False)
        if state is MemberState.DOWN:
            self._down[node.uid] = member
        else:
            self._removed[node.uid] = None
            if len(self._removed) > MOST_REMOVED:
                del self._removed[next(iter(self._removed))]
        local.listener.member_changed(member)

    def _become(self, local: Local, state: MemberState) -> None:
        later = later_state(local.state, state)
        if later is local.state or self._local is not local:
            return
        local.state = later
        for peer in self._peers.values():
            peer.tell_state()
        local.listener.member_changed(Member(local.node, later))

    def _peer(self, node: NodeIdentity) -> Peer:
        peer = self._peers.get(node.uid)
        if peer is None:
            raise self._absent(node)
        return peer

    def _absent(self, node: NodeIdentity) -> NodeGone:
        down = self._down.get(node.uid)
        state = "no other member of the cluster" if down is None else down.state.value
        return NodeGone(f"node {node.name} ({node.uid:016x}) is {state}")

    def _started(self) -> Local:
        if self._local is None:
            raise ServiceUnavailable("the cluster backend is not started")
        return self._local

    # Who is behind

    def _behind(self, version: int) -> list[NodeIdentity]:
        peers = self._peers.values()
        return [peer.node for peer in peers if peer.feed.known < version and peer.is_reachable]

    def _unsynchronised(self) -> list[NodeIdentity]:
        peers = self._peers.values()
        return [peer.node for peer in peers if peer.is_reachable and not peer.is_synchronised]

    def _busy(self) -> list[NodeIdentity]:
        return [peer.node for peer in self._peers.values() if not peer.link.idle]

    def _look(self, until: float) -> None:
        """Check repeatedly whether the links are idle: they do not report it."""
        self._waits.check()
        if self._busy() and self._clock.monotonic() < until:
            self._clock.later(LEAVE_PACE_S, lambda: self._look(until))


def _nothing(laggards: Sequence[NodeIdentity]) -> None:
    """The result of a call that returns nothing."""


def _name(node: NodeIdentity | None) -> str:
    return "an unknown node" if node is None else f"node {node.name}"
