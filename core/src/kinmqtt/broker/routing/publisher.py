"""Publishes messages: retains and routes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from kinmqtt.broker.message.names import check_made_message
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.message.settled import settled
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.routing.taps import SYS_PREFIX, Tapped
from kinmqtt.broker.routing.target import target_of
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import as_deferred, pause, resolve, run
from kinmqtt.hooks.messages import check_message
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import Maybe, Message, MessageId, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.routing.resender import Resender
    from kinmqtt.broker.routing.retained import Retained
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt.broker.turn.ports import Peer


NO_ID: Final = MessageId(0, 0)

_REFUSALS: Final = (Routed.REFUSED, Routed.NOT_RETAINED)


class MessagePublisher:
    """Retains and routes the messages of clients, plugins and the broker itself."""

    def __init__(self, runtime: Runtime, router: Router, retained: Retained, resender: Resender) -> None:
        self._runtime = runtime
        self._router = router
        self._retained = retained
        self._resender = resender

    def take(
        self,
        publication: Publication,
        fanout: Fanout | None = None,
        *,
        after_commit: bool = False,
        connection: Peer | None = None,
    ) -> Maybe[Routed]:
        """Retain a message if its RETAIN flag is set, and route it; ``fanout`` is its topic's, if known.

        While an earlier message of the topic is being delivered in slices, this one waits.
        For ``after_commit`` and ``connection`` see :meth:`~kinmqtt.broker.routing.router.Router.route`.
        """
        topic = publication.publish.topic
        # A QoS 2 message can't wait: until its identifier is stored, a resent one would count as new.
        if self._router.is_topic_busy(topic) and not publication.is_identified:
            take = partial(self._take, publication, None, after_commit, connection)
            return run(self._router.route_in_order(publication, take))
        return self._take(publication, fanout, after_commit, connection)

    def _take(
        self, publication: Publication, fanout: Fanout | None, after_commit: bool, connection: Peer | None
    ) -> Maybe[Routed]:
        if publication.publish.retain:
            full = self._retained.lacks_capacity_for(publication)
            if isinstance(full, Awaitable):
                return run(self._retain_when_known(full, publication, after_commit, connection))
            if full:
                return self._not_retained(publication)
            return self._retain(publication, fanout, after_commit, connection)
        return self._router.route(publication, fanout, after_commit=after_commit, connection=connection)

    def publish(self, message: Message, by: str = "") -> Maybe[Routed]:
        """Publish for the broker itself or a plugin (``by``), without a check of rights.

        In the call of that plugin's tap it is published as the message that the tap sees, whose publisher waits for
        both. Raises ``ValueError`` for a message that is not a valid PUBLISH.
        """
        check_made_message(self._runtime.limits, message)
        self._runtime.turn.touch()
        taps = self._router.taps
        around = taps.current
        tapped = None if around is None else taps.seen_by(by)
        publication = Publication.of(self.completed(message if tapped is None else self.renewed(message)))
        if message.topic.startswith(SYS_PREFIX) and not self._resender.is_alone:
            publication.serve_only(self._router.groups_here(message.topic))
        if around is not None and not taps.nest(publication, around):
            return Routed.REFUSED
        return self.take(publication) if tapped is None else self._take_within(publication, tapped)

    def _take_within(self, publication: Publication, tapped: Tapped) -> Maybe[Routed]:
        """Take what a tap publishes: with this turn's commit, or later, and then the ticket waits for it."""
        ticket = tapped.ticket
        if ticket is None:
            ticket = Ticket()
            ticket.is_unawaited = True
        publication.ticket = ticket
        routed = self.take(publication, after_commit=tapped.after_commit, connection=tapped.connection)
        if isinstance(routed, Routed):
            if routed in _REFUSALS:
                ticket.is_refused = True
            return routed
        ticket.expect()
        return run(self._taken_later(routed, ticket))

    async def _taken_later(self, routed: Awaitable[Routed], ticket: Ticket) -> Routed:
        try:
            answer = await as_deferred(routed)
            if answer in _REFUSALS:
                ticket.is_refused = True
            await self._runtime.turn.committed()
        except CommitFailed as error:
            ticket.failure = error.reason
            return Routed.REFUSED
        except BaseException:
            ticket.failure = ReasonCode.SERVER_UNAVAILABLE
            raise
        finally:
            ticket.settle()
        return answer

    async def publish_with(self, message: Message, along: Callable[[], None], again: bool = False) -> None:
        """Publish in one transaction with the writes of ``along``: without the commit it is not delivered.

        ``again``: an earlier attempt may have reached other nodes.
        Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed`, and ``ValueError`` for a message that PUBLISH
        can't encode.
        """
        check_message(message)
        turn = self._runtime.turn
        turn.touch()
        publication = Publication.of(message)
        ticket_of(publication).is_due = True
        if not self._resender.is_alone or publication.uid != self._runtime.message_ids.uid:
            # The other nodes come first: after the commit here nobody would publish it again. What another process
            # has kept, it may have published.
            await self._publish_first_elsewhere(publication, again)
        await resolve(self.take(publication, after_commit=True))
        along()
        await turn.committed()

    async def _publish_first_elsewhere(self, publication: Publication, again: bool) -> None:
        """Forward a message to the other nodes, and then find out which sessions here need it.

        Meanwhile sessions move: one that was here gets the message from its new owner, and one that has come may have
        got it where it was.
        """
        topic = publication.publish.topic
        resender = self._resender
        wanted = resender.kept_here(topic)
        await self._publish_elsewhere(publication, again)
        while publication.publish.qos:
            here = resender.kept_here(topic)
            for client_id in sorted(wanted - here):
                resender.follow(publication, client_id)
            if wanted - here:
                await self._settled(publication.ticket)
            publication.leave_out(await resender.who_has(publication, here))
            wanted = here
            if resender.kept_here(topic) == here:
                return

    async def _publish_elsewhere(self, publication: Publication, again: bool) -> None:
        """Forward a message to the other nodes, and wait until they have committed it.

        Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed` where one has not.
        """
        await self._settled(self._router.route_elsewhere(publication, again))

    async def _settled(self, ticket: Ticket | None) -> None:
        if ticket is None or not ticket.pending:
            return
        await settled(ticket)
        self._runtime.turn.touch()
        if ticket.failure is not None:
            raise CommitFailed(ticket.failure)

    async def publish_until_committed(
        self,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None = None,
        again: bool = False,
    ) -> None:
        """Publish in one transaction with the writes of ``along``, with retries until that is committed.

        ``again`` as in :meth:`publish_with`.
        ``pending`` is called before each retry; if it returns ``False``, an earlier attempt was committed after all.
        """
        message = self.completed(message)
        while True:
            try:
                await self.publish_with(message, along, again)
                return
            except CommitFailed:
                again = True  # Nothing is awaited here: the error would remain the one being handled.
            await pause(self._runtime.clock, RETRY_S)
            if pending is not None and not await pending():
                return

    async def write_until_committed(
        self, along: Callable[[], None], pending: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """Commit the writes of ``along`` without publishing, with retries; for ``pending`` see above."""
        turn = self._runtime.turn
        while True:
            turn.touch()
            along()
            try:
                await turn.committed()
                return
            except CommitFailed:
                pass  # As in publish_until_committed.
            await pause(self._runtime.clock, RETRY_S)
            if pending is not None and not await pending():
                return

    def deliver(self, session: Session, message: Message) -> bool:
        """Deliver a message to one session, without a subscription; ``False`` if its queue refused it.

        Raises ``ValueError`` for a message that is not a valid PUBLISH.
        """
        check_made_message(self._runtime.limits, message)
        self._runtime.turn.touch()
        target = target_of(session, [Subscription(message.topic, message.qos)])
        return deliver(self._runtime, target, Publication.of(self.completed(message)))

    def _retain(
        self, publication: Publication, fanout: Fanout | None, after_commit: bool, connection: Peer | None
    ) -> Maybe[Routed]:
        retained = self._retained.store(publication)
        if isinstance(retained, Awaitable):
            return run(self._route_after(retained, publication, after_commit, connection))
        return self._router.route(publication, fanout, after_commit=after_commit, connection=connection)

    def _not_retained(self, publication: Publication) -> Routed:
        self._runtime.drop(publication.publisher.client_id, publication.message, "retained_full")
        return Routed.NOT_RETAINED

    async def _retain_when_known(
        self, full: Awaitable[bool], publication: Publication, after_commit: bool, connection: Peer | None
    ) -> Routed:
        """Retain and route a message once the store has answered whether it is ``full``."""
        is_full = await as_deferred(full)
        self._runtime.turn.touch()
        if is_full:
            return self._not_retained(publication)
        return await resolve(self._retain(publication, None, after_commit, connection))

    async def _route_after(
        self, retained: Awaitable[None], publication: Publication, after_commit: bool, connection: Peer | None
    ) -> Routed:
        await as_deferred(retained)
        self._runtime.turn.touch()
        return await resolve(self._router.route(publication, after_commit=after_commit, connection=connection))

    def completed(self, message: Message) -> Message:
        """Return the message as received now, with an id and the time from which its expiry counts.

        One that was kept has its id from the node that kept it, and may have been published there.
        """
        if message.received_at:
            return message
        now = self._runtime.clock.now()
        interval = message.properties.message_expiry_interval
        id = self._runtime.message_ids.mint() if message.id == NO_ID else message.id
        return message.received(id, now, None if interval is None else now + interval)

    def renewed(self, message: Message) -> Message:
        """Return a message that was made of another with an id of its own: ids are unique.

        It keeps the times that it has from the other, so that it does not live longer.
        """
        return message.received(self._runtime.message_ids.mint(), message.received_at, message.expires_at)
