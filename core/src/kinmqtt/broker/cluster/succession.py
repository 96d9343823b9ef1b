"""What nodes that are gone leave behind: their sessions get new owners, and their values new nodes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import TimeLimitExceeded, limited, pause, resolve, run
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.values import Maybe, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.forwarding.node_link import NodeLink
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.cluster")

HELD_LIMIT_S: Final = 30.0
"""How long a message waits for the adoption of a dead node's sessions, or for the owner of a session that moved."""

LOOK_S: Final = 0.25
"""The pause between two looks."""

ASK_LIMIT_S: Final = 5.0

ADOPTED: Final = "adopted"
"""The question whether a node that is gone has left no session without owner; the answer follows the routes."""

NOBODY: Final = bytes(8)
"""In place of a node's uid: of all nodes that are gone."""

YES: Final = b"\1"
NO: Final = b"\0"

Condition = Callable[[], Coroutine[Any, Any, bool]]


class Succession:
    """Adopts what nodes that are gone have left, and tells when all of it has new owners."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runtime = services.runtime
        self._router = services.router
        self._forwarder = services.forwarder
        self._sessions = services.sessions
        self._waiting: dict[NodeLink, list[Deferred[bool]]] = {}
        """The links of nodes that are gone and whose sessions may have no owner; and who waits until they have."""
        self._is_stopped = False
        self.answers: Mapping[str, Callable[[NodeIdentity, bytes], Maybe[bytes]]] = {ADOPTED: self._answer_adopted}
        """What answers the questions of other nodes, by name."""

    def begin(self, link: NodeLink) -> None:
        """Adopt what a node has left that is gone; its routes stay until all its sessions have new owners."""
        run(self._succeed(link)).addErrback(
            lambda failure: log.failure("node {node} could not be buried", failure, node=link.node.name)
        )

    def stop(self) -> None:
        """Stop looking: the broker stops."""
        self._is_stopped = True

    async def _succeed(self, link: NodeLink) -> None:
        waiting = self._waiting[link] = []
        is_adopted = False
        try:
            is_adopted = await self._insist(
                lambda: self._bury(link.node), "node {node} can't be buried yet: {problem}", link.node
            ) and await self._insist(
                lambda: self._is_adopted(link.node),
                "sessions of node {node} have no owner after {limit_s:g} s; messages for them are refused: {problem}",
                link.node,
            )
        finally:
            del self._waiting[link]
            self._forwarder.forget_routes(link)
            self._router.forget_node(link)
            for each in waiting:
                each.callback(is_adopted)

    async def succeeded(self, node: NodeIdentity) -> bool:
        """Wait until the sessions of a node that is gone have new owners, whose routes are known here.

        Returns ``False`` if that takes longer than :data:`HELD_LIMIT_S` after the node's end was reported.
        """

        async def is_reported() -> bool:
            return self._forwarder.known_link(node.uid) is None

        # The backend may refuse messages for a node before it reports the node's end.
        if not await self._until(is_reported):
            return False
        for link, waiting in self._waiting.items():
            if link.node == node:
                done: Deferred[bool] = Deferred()
                waiting.append(done)
                try:
                    return await limited(done, self._runtime.clock, HELD_LIMIT_S)
                except TimeLimitExceeded:
                    if done in waiting:
                        waiting.remove(done)
                    return False
        return True

    async def settled(self) -> None:
        """Wait until no node that is gone has left sessions without owner: their messages would reach nobody.

        A node that joins waits for it, because it does not know the routes of those that were gone before.
        """
        if not await self._until(self._is_settled):
            log.warn("the sessions of a node that is gone have no owner yet; messages for them are lost until then")

    async def _insist(self, condition: Condition, text: str, node: NodeIdentity) -> bool:
        """Wait until a condition holds, and log what is late again and again; ``False`` if the broker stops."""
        while not self._is_stopped:
            problems: list[str] = []
            if await self._until(condition, problems):
                return True
            problem = problems[-1] if problems else "not all nodes have adopted what falls to them"
            log.error(text, node=node.name, limit_s=HELD_LIMIT_S, problem=problem)
        return False

    async def _until(self, condition: Condition, problems: list[str] | None = None) -> bool:
        """Wait until a condition holds; returns ``False`` when it takes too long, or the broker stops."""
        clock = self._runtime.clock
        deadline = clock.monotonic() + HELD_LIMIT_S
        while clock.monotonic() < deadline and not self._is_stopped:
            try:
                if await condition():
                    return True
            except ServiceUnavailable as error:  # The stores or a node are out of reach for now.
                if problems is not None:
                    problems[:] = [str(error)]
            except Exception as error:
                if problems is None:
                    raise
                # One session that can't be read must not make the others' messages be lost.
                problems[:] = [f"{type(error).__name__}: {error}"]
            await pause(clock, LOOK_S)
        return False

    # A node that is gone

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

    async def _is_adopted(self, node: NodeIdentity) -> bool:
        """Tell whether no session of a dead node waits for an owner, and all routes of new owners are known here."""
        stores = self._runtime.stores
        if not stores.are_shared:
            return True
        if not await self._sessions.adopt_orphaned(self._runtime.clock.now()):
            return False
        if node.uid in self._sessions.coming_from:
            return False
        # Who adopted its sessions may be gone, too.
        for gone in (node, *[link.node for link in self._waiting]):
            if await resolve(stores.session.owned_by(gone, 1)):
                return False
        return await self._all_answer_yes(node.uid.to_bytes(8, "big"))

    # Questions

    async def _is_settled(self) -> bool:
        return not self._waiting and await self._all_answer_yes(NOBODY)

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

    def _answer_adopted(self, origin: NodeIdentity, data: bytes) -> Maybe[bytes]:
        return run(self._is_adopted_here(data))

    async def _is_adopted_here(self, data: bytes) -> bytes:
        """Tell whether this node adopts no session of a node any more, after its routes are announced.

        In place of a node, :data:`NOBODY` stands for all that are gone.
        """
        uid = int.from_bytes(data, "big")
        if data == NOBODY and self._waiting:
            return NO
        if not await self._sessions.adopt_orphaned(self._runtime.clock.now()):
            return NO
        coming = self._sessions.coming_from
        if uid in coming or (data == NOBODY and any(self._forwarder.known_link(each) is None for each in coming)):
            return NO
        link = self._forwarder.known_link(uid)
        await resolve(self._router.routes_known())
        return NO if link is not None else YES
