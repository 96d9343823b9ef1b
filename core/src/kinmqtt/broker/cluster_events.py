"""Handlers of the cluster backend's events."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from kinmqtt.broker.message.publication import Publication
from kinmqtt.hooks.awaitables import as_deferred, run
from kinmqtt_spi.services.cluster import Member, RouteChange
from kinmqtt_spi.values import Commit, Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.routing.router import Routed
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.broker")


class ClusterEvents:
    """Handles messages and changes of other nodes; see :class:`kinmqtt_spi.services.cluster.ClusterBackend`."""

    def __init__(self, services: Services) -> None:
        self._router = services.router
        self._turn = services.runtime.turn
        self._hooks = services.runtime.hooks
        self._sessions = services.sessions

    def forwarded(self, origin: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """Route another node's messages to this node's subscribers; fires when they are committed."""
        commits = []
        for message in messages:
            publication = Publication.of(message)
            route = partial(self._router.route, publication, after_commit=True)
            if self._router.is_topic_busy(message.topic):
                commits.append(run(self._after_commit(self._router.route_in_order(publication, route))))
            else:
                route()
        commits.append(self._turn.committed())
        return run(_all_of(commits))

    async def _after_commit(self, routed: Awaitable[Routed]) -> None:
        """Wait until a message queued behind others of its topic is routed and committed."""
        await as_deferred(routed)
        await self._turn.committed()

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Log that another node's subscriptions changed; a backend of one node has no others to store."""
        log.debug("routes of {node} are at version {version}", node=node.name, version=version)

    def member_changed(self, member: Member) -> None:
        """Notify plugins that a node has joined, left or changed."""
        if self._hooks.cluster_member.active:
            self._hooks.cluster_member(member)

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        """End the session that another node has claimed; an event older than the session here is ignored."""
        session = self._sessions.get(client_id)
        if session is not None and session.epoch < epoch:
            self._sessions.fenced(client_id, session.epoch)


async def _all_of(commits: list[Deferred[None]]) -> None:
    """Wait for all commits; raises the error of the first that failed."""
    outcomes: list[tuple[bool, Any]] = await DeferredList(commits, consumeErrors=True)
    for committed, outcome in outcomes:
        if not committed:
            outcome.raiseException()
