"""Sessions that have moved to another node: messages are sent after them for a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import frozen
from twisted.logger import Logger

from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.message.settled import settled
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt_spi.values import Maybe, Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.plugin import Timer
    from kinmqtt_spi.services.queue import Entry

log = Logger("kinmqtt.cluster")

MOVED_S: Final = 30.0
"""How long messages are sent after a session that has moved; by then all nodes know the routes of its new owner."""


MERGED_AT_ONCE: Final = 500
"""How many messages of an outdated copy are committed together."""


@frozen(slots=True)
class _Move:
    filters: tuple[str, ...]
    """The filters of its subscriptions that are not shared; this node's routes for them are held."""
    timer: Timer


class MovedSessions:
    """Ends sessions that other nodes have claimed, and sends messages after them."""

    def __init__(self, services: Services) -> None:
        self._runtime = services.runtime
        self._router = services.router
        self._forwarder = services.forwarder
        self._sessions = services.sessions
        self._resender = services.resender
        self._sessions.merge_by(self.merge)
        self._sessions.when_leaving(self.dropped, self.returned)
        self.had_peers = False
        """Whether there was another node; it may own a session after it was taken for dead."""
        self._moves: dict[str, _Move] = {}
        """By client id."""

    def claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """End the session that another node has claimed; a claim older than the session here is ignored.

        Completes when what was delivered to it here is committed: the new owner loads it then.
        """
        session = self._sessions.get(client_id)
        if session is not None and session.epoch < epoch:
            self._sessions.fenced(client_id, session.epoch, owner)
        self._owner_known(client_id, owner)
        return self._runtime.turn.drained()

    async def hand_off(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        """Hand off the session that another node claims.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if it can't be moved.
        """
        if await self._sessions.hand_off(client_id, epoch, owner):
            self._owner_known(client_id, owner)

    async def merge(self, session: Session, entries: Sequence[Entry]) -> None:
        """Give a session the messages of an outdated copy that it lacks; raises CommitFailed.

        Those of shared subscriptions go to any member.
        """
        own = [Publication.of(entry.message) for entry in entries if entry.shared_filter is None]
        refused = 0
        for at in range(0, len(own), MERGED_AT_ONCE):
            refused += await self._resender.deliver_missing(own[at : at + MERGED_AT_ONCE], session)
        for entry in entries:
            if entry.shared_filter is not None:
                await self._to_group(Publication.of(entry.message), entry.shared_filter)
        await self._runtime.turn.committed()
        text = (
            "session {client_id!r} got what it lacked of the {count} messages of an outdated copy; {refused} refused"
        )
        log.info(text, client_id=session.client_id, count=len(entries), refused=refused)

    async def _to_group(self, publication: Publication, shared_filter: str) -> None:
        """Give a message to any member of a shared subscription, wherever it is; raises CommitFailed."""
        share_group, filter = shared_filter.removeprefix("$share/").split("/", 1)
        key = (share_group, filter)
        self._runtime.turn.touch()
        if self._router.groups.has_members(key):
            self._router.deliver_to_group(key, publication)
            return
        self._forwarder.wait_for_member(publication, key)
        ticket = ticket_of(publication)
        await settled(ticket)
        if ticket.failure is not None:
            raise CommitFailed(ticket.failure)

    def _owner_known(self, client_id: str, owner: NodeIdentity) -> None:
        move = self._moves.get(client_id)
        if move is not None:
            link = self._forwarder.known_link(owner.uid)
            self._forwarder.session_moved(client_id, link, move.filters)
            self._links_changed(move.filters)

    def follow(self, client_id: str, message: Message) -> None:
        """Send a message of this broker's own after a session that has moved."""
        if self.had_peers:
            self._forwarder.follow(Publication.of(message), client_id)

    def dropped(self, session: Session) -> None:
        """Send messages after a session that has a newer owner, for a while."""
        if not session.persistent or not self.had_peers or session.is_outbox:
            return
        client_id = session.client_id
        groups = self._router.groups
        filters: dict[str, None] = {}
        for each in session.subscriptions.values():
            if each.share_group is None:
                filters[each.filter] = None
                continue
            key = (each.share_group, each.filter)
            groups.member_moved(key, client_id)
            self._runtime.clock.later(MOVED_S, partial(groups.forget_moved_member, key, client_id))
        before = self._moves.pop(client_id, None)
        if before is not None:
            # It came back, and has moved again: the others may still send by the routes of the first move.
            before.timer.cancel()
            filters.update(dict.fromkeys(before.filters))
        if filters:
            self._begin(client_id, tuple(filters))
        if before is not None:
            self._release(before.filters)

    def returned(self, client_id: str) -> None:
        """Send nothing after a session that could not be moved, and is here again."""
        move = self._moves.get(client_id)
        if move is not None:
            move.timer.cancel()
            self._forget(client_id)

    def _begin(self, client_id: str, filters: tuple[str, ...]) -> None:
        for filter in filters:
            # Until the others know the new owner's routes, they must send here.
            self._router.hold_route(filter)
        self._forwarder.session_moved(client_id, None, filters)
        self._links_changed(filters)
        timer = self._runtime.clock.later(MOVED_S, partial(self._forget, client_id))
        self._moves[client_id] = _Move(filters, timer)

    def _forget(self, client_id: str) -> None:
        filters = self._moves.pop(client_id).filters
        self._release(filters)
        self._forwarder.forget_moved(client_id, filters)
        self._links_changed(filters)

    def _release(self, filters: Iterable[str]) -> None:
        for filter in filters:
            self._router.release_route(filter)

    def _links_changed(self, filters: Iterable[str]) -> None:
        for filter in filters:
            self._router.fanouts.filter_changed(filter)
