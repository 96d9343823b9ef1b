"""The core's end of the cluster backend: takes what other nodes report, and hands it to the part concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from twisted.logger import Logger

from kinmqtt.broker.cluster.figures import FIGURES
from kinmqtt.broker.cluster.moved_sessions import MovedSessions
from kinmqtt.broker.cluster.receiver import Receiver
from kinmqtt.broker.cluster.rerouter import Rerouter
from kinmqtt.broker.cluster.succession import Succession
from kinmqtt.hooks.awaitables import run
from kinmqtt_spi.errors import MalformedBatch, ServiceUnavailable
from kinmqtt_spi.services.cluster import GONE, HandOff, Member, MemberState, RouteChange
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.values import Maybe, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.cluster.calls import Calls
    from kinmqtt.broker.cluster.figures import NodeFigures
    from kinmqtt.broker.retained_sync.sync import RetainedSync
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.cluster")


class Nodes:
    """Handles what the other nodes report; see :class:`kinmqtt_spi.services.cluster.ClusterListener`."""

    def __init__(
        self,
        services: Services,
        calls: Calls,
        figures: NodeFigures,
        arbiter: ClusterArbiter | None,
        retained_sync: RetainedSync,
    ) -> None:
        self.arbiter = arbiter
        self.retained_sync = retained_sync
        self._figures = figures
        self._on_expelled: Callable[[str], object] = lambda reason: None
        self._is_expelled = False
        self._runtime = services.runtime
        self._router = services.router
        self._forwarder = services.forwarder
        self._sessions = services.sessions
        self._receiver = Receiver(self._runtime, services.router, services.resender, services.sessions)
        self.succession = Succession(services)
        self.rerouter = Rerouter(services, self.succession.succeeded)
        services.forwarder.reroute_by(self.rerouter)
        self._moved = MovedSessions(services)
        self._runtime.turn.recovery.when_moved(self._moved.follow)
        services.sessions.when_dropped(self._moved.dropped)
        self._answers: Mapping[str, Callable[[NodeIdentity, bytes], Maybe[bytes]]] = {
            **calls.answers,
            **self.succession.answers,
            **services.sessions.answers,
            **retained_sync.answers,
            FIGURES: figures.received,
        }
        """What answers the questions of other nodes, by name."""

    @property
    def shares_stores(self) -> bool:
        """Whether the nodes use one session, one queue and one retain store."""
        return self._runtime.stores.are_shared

    @property
    def are_others_up(self) -> bool:
        """Whether another node can take this one's clients."""
        if self._is_expelled:
            return False  # What it believes of the others is out of date.
        own, members = self._runtime.node, self._forwarder.backend.members()
        return any(each.state is MemberState.UP and each.reachable and each.node != own for each in members)

    def when_expelled(self, call: Callable[[str], object]) -> None:
        """Call ``call`` with the reason if the other nodes declare this process DOWN."""
        self._on_expelled = call

    def expelled(self, reason: str) -> None:
        """End this process: it counts as DOWN, and what it owns goes to other nodes."""
        self._is_expelled = True
        log.error("this node is out of its cluster: {reason}; it starts again as a new member", reason=reason)
        self._on_expelled(reason)

    # Messages

    def received(self, origin: NodeIdentity, batch: bytes, assured: bool) -> Maybe[bytes]:
        """Deliver another node's messages to this node's subscribers."""
        try:
            return self._receiver.received(batch, assured)
        except MalformedBatch:
            self._runtime.statistics.malformed.value += 1
            raise

    # Routes and members

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Apply changes to another node's routes."""
        if node == self._runtime.node:
            return
        self._forwarder.routes_changed(node, version, added, removed)
        self._router.node_routes_changed(self._forwarder.link_to(node), added, removed)

    def member_changed(self, member: Member) -> None:
        """Forget a node that is gone, adopt its sessions, and notify plugins of each change.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` for a new node above
        :data:`~kinmqtt_spi.services.cluster.MAX_OTHER_NODES`.
        """
        is_other = member.node != self._runtime.node
        if is_other and member.state not in GONE:
            # Also one without subscribers may have the session that a message is for.
            self._forwarder.link_to(member.node)
            self._moved.had_peers = True
        hooks = self._runtime.hooks
        if hooks.cluster_member.active:
            hooks.cluster_member(member)
        self._figures.member_changed(member)
        self.retained_sync.member_changed(member)
        link = self._forwarder.known_link(member.node.uid)
        if is_other and member.state in GONE and link is not None:
            self._forwarder.remove_node(member.node)
            self._router.invalidate()
            self.succession.begin(link)

    # Sessions

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """End the session that another node claims, or hand it off; see :class:`MovedSessions`."""
        if self.shares_stores:
            return self._moved.claimed(client_id, epoch, owner)
        return run(self._moved.hand_off(client_id, epoch, owner))

    def handing(self, client_id: str, epoch: int, origin: NodeIdentity) -> HandOff:
        """Accept a session that another node hands off. Raises ServiceUnavailable where nodes share their stores."""
        if self.shares_stores:
            raise ServiceUnavailable("this node takes sessions from a store that all nodes share")
        return self._sessions.handing(client_id, epoch, origin)

    def owned(self) -> Iterable[tuple[str, int]]:
        """Return the client ids of this node's sessions, with their epochs."""
        return self._sessions.owned()

    def epoch_of(self, client_id: str) -> int | None:
        """Return the epoch of this node's session of a client id."""
        session = self._sessions.get(client_id)
        return None if session is None else session.epoch

    # Questions

    def asked(self, origin: NodeIdentity, method: str, data: bytes) -> Maybe[bytes]:
        """Answer another node's question."""
        answer = self._answers.get(method)
        if answer is None:
            raise ServiceUnavailable(f"this node does not know the question {method!r}")
        try:
            return answer(origin, data)
        except MalformedBatch as error:
            self._runtime.statistics.malformed.value += 1
            raise ServiceUnavailable(f"the question {method!r} can't be read: {error}") from None
