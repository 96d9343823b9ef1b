"""The core's end of the cluster backend: members, routes, claims and questions of other nodes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.cluster.figures import FIGURES
from kinmqtt.broker.cluster.receiver import Receiver
from kinmqtt.broker.cluster.rerouter import HELD_LIMIT_S, LOOK_S, Rerouter
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import pause, resolve, run
from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.services.cluster import GONE, HandOff, Member, MemberState, RouteChange
from kinmqtt_spi.values import Maybe, Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.cluster.calls import Calls
    from kinmqtt.broker.cluster.figures import NodeFigures
    from kinmqtt.broker.forwarding.node_link import NodeLink
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.cluster")

MOVED_S: Final = 30.0
"""How long messages are sent after a session that has moved; by then all nodes know the routes of its new owner."""

ASK_LIMIT_S: Final = 5.0

ADOPTED: Final = "adopted"
"""The question whether a node that is gone has left no session without owner; the answer follows the routes."""

NOBODY: Final = bytes(8)
"""In place of a node's uid: of all nodes that are gone."""

YES: Final = b"\1"
NO: Final = b"\0"


class Nodes:
    """Handles what the other nodes report; see :class:`kinmqtt_spi.services.cluster.ClusterListener`."""

    def __init__(self, services: Services, calls: Calls, figures: NodeFigures) -> None:
        self._services = services
        self._figures = figures
        self._answers: Mapping[str, Callable[[NodeIdentity, bytes], Maybe[bytes]]] = {
            **calls.answers,
            FIGURES: figures.received,
            ADOPTED: self._answer_adopted,
        }
        """What answers the questions of other nodes, by name."""
        self._runtime = services.runtime
        self._router = services.router
        self._forwarder = services.forwarder
        self._sessions = services.sessions
        self._receiver = Receiver(self._runtime, services.router, services.resender, services.sessions)
        self.rerouter = Rerouter(services, self.succeeded)
        services.forwarder.reroute_by(self.rerouter)
        self._runtime.turn.recovery.when_moved(self._follow)
        services.sessions.when_dropped(self._dropped)
        self._had_peers = False
        """Whether there was another node; it may own a session after it was taken for dead."""
        self._succeeding: dict[NodeLink, list[Deferred[bool]]] = {}
        """The links of nodes that are gone and whose sessions may have no owner; and who waits until they have."""
        self._moving: dict[str, tuple[str, ...]] = {}
        """By client id: the filters of a session that has moved, while messages are sent after it."""

    @property
    def are_others_up(self) -> bool:
        """Whether another node can take this one's clients."""
        backend, own = self._forwarder.backend, self._runtime.node
        return any(each.state is MemberState.UP and each.reachable and each.node != own for each in backend.members())

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
        """Forget a node that is gone, adopt its sessions, and notify plugins of each change."""
        hooks = self._runtime.hooks
        if hooks.cluster_member.active:
            hooks.cluster_member(member)
        self._figures.member_changed(member)
        if member.node == self._runtime.node:
            return
        if member.state not in GONE:
            self._had_peers = True
            # Also one without subscribers may have the session that a message is for.
            self._forwarder.link_to(member.node)
            return
        link = self._forwarder.known_link(member.node.uid)
        if link is not None:
            self._forwarder.remove_node(member.node)
            self._router.invalidate()
            run(self._succeed(link)).addErrback(
                lambda failure: log.failure("node {node} could not be buried", failure, node=member.node.name)
            )

    async def _succeed(self, link: NodeLink) -> None:
        """Adopt what a node leaves behind; its routes are kept until all its sessions have new owners."""
        waiting = self._succeeding[link] = []
        try:
            if not await self._until(lambda: self._bury(link.node)):
                log.error("node {node} can't be buried: what it has left is adopted later", node=link.node.name)
            is_adopted = await self._until(lambda: self._is_adopted(link.node))
            if not is_adopted:
                text = (
                    "sessions of node {node} have no owner after {limit_s:g} s; messages for them are lost until then"
                )
                log.error(text, node=link.node.name, limit_s=HELD_LIMIT_S)
        except BaseException:
            is_adopted = False
            raise
        finally:
            del self._succeeding[link]
            self._forwarder.forget_routes(link)
            self._router.forget_node(link)
            for each in waiting:
                each.callback(is_adopted)

    async def succeeded(self, node: NodeIdentity) -> bool:
        """Wait until the sessions of a node that is gone have new owners, whose routes are known here.

        Returns ``False`` if that takes too long.
        """

        async def is_reported() -> bool:
            return self._forwarder.known_link(node.uid) is None

        # The backend may refuse messages for a node before it reports the node's end.
        if not await self._until(is_reported):
            return False
        for link, waiting in self._succeeding.items():
            if link.node == node:
                done: Deferred[bool] = Deferred()
                waiting.append(done)
                return await done
        return True

    async def _until(self, condition: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Wait until a condition holds; returns ``False`` when it takes too long."""
        clock = self._runtime.clock
        deadline = clock.monotonic() + HELD_LIMIT_S
        while clock.monotonic() < deadline:
            try:
                if await condition():
                    return True
            except ServiceUnavailable:
                pass  # The stores or a node are out of reach for now.
            await pause(clock, LOOK_S)
        return False

    async def settled(self) -> None:
        """Wait until no node that is gone has left sessions without owner: their messages would reach nobody.

        A node that joins waits for it, because it does not know the routes of those that were gone before.
        """
        if not await self._until(self._is_settled):
            log.warn("the sessions of a node that is gone have no owner yet; messages for them are lost until then")

    async def _is_settled(self) -> bool:
        return not self._succeeding and await self._all_answer_yes(NOBODY)

    async def _bury(self, node: NodeIdentity) -> bool:
        """Declare a node dead in the session store, and adopt what falls to this one."""
        await resolve(self._runtime.stores.session.bury(node))
        await self._sessions.adopt_orphaned(self._runtime.clock.now())
        await self._adopt_values()
        return True

    async def _adopt_values(self) -> None:
        """Give plugins the values that they have persisted on a node which is gone."""
        for call in self._runtime.hooks.values_adopted.each():
            try:
                values = await self._services.retained.adopt_values(call.plugin)
                if values:
                    await resolve(call(values))
            except (CommitFailed, ServiceUnavailable) as error:
                log.error("values of plugin {plugin} are not adopted: {error}", plugin=call.plugin, error=error)
            except Exception as error:
                call.failed(error)

    # Sessions

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """End the session that another node has claimed; an event older than the session here is ignored.

        Completes when what was delivered to it here is committed: the new owner loads it then.
        """
        session = self._sessions.get(client_id)
        if session is not None and session.epoch < epoch:
            self._sessions.fenced(client_id, session.epoch)
        if client_id in self._moving:
            link = self._forwarder.known_link(owner.uid)
            self._forwarder.session_moved(client_id, link, self._moving[client_id])
            self._links_changed(self._moving[client_id])
        return self._drained()

    def _drained(self) -> Deferred[None]:
        return self._runtime.turn.drained()

    def _follow(self, client_id: str, message: Message) -> None:
        """Send a message of this broker's own after a session that has moved."""
        if self._had_peers:
            self._forwarder.follow(Publication.of(message), client_id)

    def _dropped(self, session: Session) -> None:
        """Send messages after a session that has a newer owner, for a while."""
        if not session.persistent or not self._had_peers:
            return
        client_id = session.client_id
        subscriptions = session.subscriptions.values()
        groups = [(each.share_group, each.filter) for each in subscriptions if each.share_group is not None]
        for key in groups:
            self._router.groups.member_moved(key, client_id)
            self._runtime.clock.later(MOVED_S, partial(self._router.groups.forget_moved_member, key, client_id))
        filters = tuple([each.filter for each in subscriptions if each.share_group is None])
        if client_id in self._moving or not filters:
            return
        self._moving[client_id] = filters
        for filter in filters:
            # Until the others know the new owner's routes, they must send here.
            self._router.hold_route(filter)
        self._forwarder.session_moved(client_id, None, filters)
        self._links_changed(filters)
        self._runtime.clock.later(MOVED_S, partial(self._forget_moved, client_id))

    def _forget_moved(self, client_id: str) -> None:
        filters = self._moving.pop(client_id)
        for filter in filters:
            self._router.release_route(filter)
        self._forwarder.forget_moved(client_id, filters)
        self._links_changed(filters)

    def _links_changed(self, filters: Iterable[str]) -> None:
        for filter in filters:
            self._router.fanouts.links_changed(filter)

    def handing(self, client_id: str, epoch: int, origin: NodeIdentity) -> HandOff:
        """Refuse a session that another node hands off: the stores of this node don't import sessions."""
        raise ServiceUnavailable("this node's session store does not accept sessions of other nodes")

    def owned(self) -> Iterable[tuple[str, int]]:
        """Return the client ids of this node's sessions, with their epochs."""
        return self._sessions.owned()

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

    def _answer_adopted(self, origin: NodeIdentity, data: bytes) -> Maybe[bytes]:
        return run(self._is_adopted_here(data))

    async def _is_adopted_here(self, data: bytes) -> bytes:
        """Tell whether this node adopts no session of a node any more, after its routes are announced.

        In place of a node, :data:`NOBODY` stands for all that are gone.
        """
        uid = int.from_bytes(data, "big")
        if data == NOBODY and self._succeeding:
            return NO
        if not await self._sessions.adopt_orphaned(self._runtime.clock.now()):
            return NO
        link = self._forwarder.known_link(uid)
        await resolve(self._router.routes_known())
        return NO if link is not None else YES

    async def _is_adopted(self, node: NodeIdentity) -> bool:
        """Tell whether no session of a dead node waits for an owner, and all routes of new owners are known here."""
        store = self._runtime.stores.session
        if not store.is_shared:
            return True
        if not await self._sessions.adopt_orphaned(self._runtime.clock.now()):
            return False
        # Who adopted its sessions may be gone, too.
        for gone in (node, *[link.node for link in self._succeeding]):
            if await resolve(store.owned_by(gone, 1)):
                return False
        return await self._all_answer_yes(node.uid.to_bytes(8, "big"))

    async def _all_answer_yes(self, question: bytes) -> bool:
        """Ask all nodes whether sessions without owner are adopted."""
        for link in self._forwarder.links():
            try:
                backend = self._forwarder.backend
                answer = await resolve(backend.ask(link.node, ADOPTED, question, ASK_LIMIT_S))
            except NodeGone:
                return False  # What it had adopted has no owner.
            if answer != YES:
                return False
        return True
