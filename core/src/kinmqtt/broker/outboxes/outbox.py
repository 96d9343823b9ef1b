"""One outbox, as a plugin uses it: over its own session, and over those that nodes which are gone have left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.message.filters import checked_filters
from kinmqtt.broker.message.names import check_made_message
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.hooks.awaitables import pause, run
from kinmqtt.hooks.calls import FAILURES
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.outbox import (
    Accepted,
    EntryHandler,
    Outbox,
    OutboxEntry,
    OutboxFigures,
    OutboxSettings,
    WhenFull,
)
from kinmqtt_spi.values import Maybe, Message, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.message.ticket import Ticket
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.outbox_session import OutboxSession
    from kinmqtt.broker.turn.batch import Batch
    from kinmqtt_spi.services.metric import Counter

log = Logger("kinmqtt.outboxes")

SHIFT: Final = 48
MASK: Final = (1 << SHIFT) - 1
"""Below these bits is the number that a session has given; above them, whose session that is."""


_DROPPING: Final = (WhenFull.DROP_OLDEST, WhenFull.DROP_NEWEST)


def _fail(ticket: Ticket, reason: ReasonCode) -> None:
    ticket.failure = reason
    ticket.settle()


def _is_made_of(message: Message, seen: Message) -> bool:
    """Tell whether a message has the id of another, and is not the same."""
    if message is seen or message.id != seen.id:
        return False
    return (message.topic, message.payload, message.properties) != (seen.topic, seen.payload, seen.properties)


class PluginOutbox(Outbox):
    """See :class:`~kinmqtt_spi.services.outbox.Outbox`."""

    def __init__(
        self,
        services: Services,
        plugin: str,
        name: str,
        client_id: str,
        settings: OutboxSettings,
        filters: Sequence[str],
        dropped: Callable[[str], Counter],
        discarded: Callable[[], object],
        lost: Callable[[], object],
    ) -> None:
        """``dropped`` returns the counter of a reason.

        ``discarded`` is called when the outbox is deleted, ``lost`` when another node has claimed it.
        """
        self.name = name
        self.client_id = client_id
        self.settings = settings
        self._plugin = plugin
        self._services = services
        self._runtime = services.runtime
        self._dropped = dropped
        self._discarded = discarded
        self._lost = lost
        self._is_discarded = False
        """Whether it is deleted, or is about to be."""
        self.is_opened = False
        """Whether it has, or had, its own session."""
        self._unopened: list[Deferred[None]] = []
        """What waits for its deletion, before it is opened."""
        self._filters = checked_filters(self._runtime.limits, filters)
        self._own: OutboxSession | None = None
        self._left: dict[int, OutboxSession] = {}
        """By a number: the outboxes of nodes that are gone; they are drained, and then deleted."""
        self._number = 0
        self._handler: EntryHandler | None = None
        self._lost_messages: list[Message] = []
        """Messages that nobody puts in again, and that were put in when another node had claimed the outbox."""

    def is_wanted(self) -> bool:
        """Whether its plugin has not discarded it."""
        return not self._is_discarded

    # Its sessions

    def bind(self, session: OutboxSession) -> None:
        """Use a session from now on: its own, or one that another node has left."""
        if session is self._own:
            return
        session.configure(self.settings, self._count_dropped, partial(self._ended, session))
        if session.client_id == self.client_id:
            self._own = session
            self.is_opened = True
            self._subscribe(session)
            self._put_again()
            number = 0
        elif session in self._left.values():
            return
        else:
            number = self._number = self._number + 1
            self._left[number] = session
        if self._handler is not None:
            self._consume(session, number)
        self._delete_drained()

    def _ended(self, session: OutboxSession) -> None:
        """Forget a session that is deleted, or has another owner now."""
        if session is self._own:
            self._own = None
            if not self._is_discarded:
                self._lost()
        else:
            self._left = {number: each for number, each in self._left.items() if each is not session}

    def refuse_by(self, session: OutboxSession) -> None:
        """Have a session refuse what should come in, while another node has the outbox."""
        session.configure(self.settings, self._count_dropped, lambda: None)
        self._subscribe(session)

    def _subscribe(self, session: OutboxSession) -> None:
        """Make the subscriptions those of the filters; if one is refused, they stay as they are."""
        wanted = {filter: Subscription(filter, 2, retain_as_published=True) for filter in self._filters}
        new = [subscription for filter, subscription in wanted.items() if filter not in session.subscriptions]
        made: list[Subscription] = []
        try:
            for subscription in new:
                self._services.router.subscribe(session.client_id, subscription)
                made.append(subscription)
                session.add_subscription(subscription)
        except BaseException:
            self._unsubscribe(session, [each.filter for each in made])
            raise
        self._unsubscribe(session, [filter for filter in session.subscriptions if filter not in wanted])

    def _unsubscribe(self, session: OutboxSession, filters: Sequence[str]) -> None:
        for filter in filters:
            removed = session.remove_subscription(filter)
            if removed is not None:
                self._services.router.unsubscribe(session.client_id, removed)

    def _count_dropped(self, why: str) -> None:
        self._dropped(why).value += 1

    # For the plugin

    def subscribe(self, filters: Sequence[str]) -> None:
        """See :meth:`Outbox.subscribe`."""
        before, self._filters = self._filters, checked_filters(self._runtime.limits, filters)
        if self._own is not None:
            try:
                self._subscribe(self._own)
            except BaseException:
                self._filters = before
                raise

    def put(self, message: Message) -> Accepted:
        """See :meth:`Outbox.put`."""
        return self.put_by(self._plugin, message)

    def put_by(self, plugin: str, message: Message) -> Accepted:
        """Put a message of a plugin in, see :meth:`Outbox.put`.

        In the call of that plugin's tap, the publisher of the message that the tap sees waits for it.
        """
        runtime = self._runtime
        check_made_message(runtime.limits, message)
        tapped = self._services.router.taps.seen_by(plugin)
        ticket = None if tapped is None else tapped.ticket
        session = self._own
        if session is None:
            if ticket is not None and self.settings.when_full not in _DROPPING:
                ticket.withhold()
            return Accepted.REFUSED
        runtime.turn.touch()
        publisher = self._services.publisher
        if tapped is not None and _is_made_of(message, tapped.publication.stored):
            message = publisher.renewed(message)
        publication = Publication.of(publisher.completed(message))
        if publication.has_expired(runtime.clock.now()):
            return Accepted.DROPPED
        publication.ticket = ticket
        if ticket is None:
            ticket_of(publication).is_unawaited = True
        sequence, passed = session.sequence, session.passed
        if not message.qos:
            session.deliver_particular(publication, message.retain, ())
        elif not session.deliver(publication, message.qos, message.retain):
            return Accepted.REFUSED
        if session.sequence == sequence:
            return Accepted.DROPPED if session.passed == passed else Accepted.ACCEPTED
        if runtime.stores.session.is_shared:
            self._look_after_commit(publication)
        return Accepted.ACCEPTED

    def _look_after_commit(self, publication: Publication) -> None:
        """Look after the commit whether another node had claimed the outbox: then the message is in none.

        Its publisher puts it in again, after a failure; where none waits, the outbox does, once it is back.
        """
        batch = self._runtime.turn.batch
        ticket = ticket_of(publication)
        if ticket.is_unawaited or ticket.is_due:
            batch.after_commit.append(partial(self._keep_if_lost, publication, batch))
            return
        ticket.expect()
        batch.after_commit.append(partial(self._settle, ticket, batch))
        batch.on_commit_failed.append(partial(_fail, ticket))

    def _settle(self, ticket: Ticket, batch: Batch) -> None:
        if self.client_id in batch.fenced:
            ticket.failure = ReasonCode.USE_ANOTHER_SERVER
        ticket.settle()

    def _keep_if_lost(self, publication: Publication, batch: Batch) -> None:
        if self.client_id in batch.fenced and not self._is_discarded:
            self._lost_messages.append(publication.stored)

    def _put_again(self) -> None:
        messages, self._lost_messages = self._lost_messages, []
        for message in messages:
            self.put_by("", message)

    def consume(self, handler: EntryHandler) -> None:
        """See :meth:`Outbox.consume`."""
        if self._handler is not None:
            raise RuntimeError(f"outbox {self.name!r} has a consumer already")
        self._handler = handler
        if self._own is not None:
            self._consume(self._own, 0)
        for number, session in self._left.items():
            self._consume(session, number)

    def _consume(self, session: OutboxSession, number: int) -> None:
        """Hand out a session's entries; those of sessions with a number have it in theirs."""
        session.consume(self._arrived if not number else partial(self._arrived_from, number))

    def _arrived(self, entries: list[OutboxEntry]) -> None:
        if self._handler is not None:
            try:
                self._handler(entries)
            except FAILURES:
                text = "the consumer of outbox {name!r} failed; its entries come again after a restart"
                log.failure(text, name=self.name)

    def _arrived_from(self, number: int, entries: list[OutboxEntry]) -> None:
        self._arrived([entry._replace(number=number << SHIFT | entry.number) for entry in entries])

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """See :meth:`Outbox.acknowledge`."""
        self._runtime.turn.touch()
        for session, its in self._by_session(numbers):
            session.acknowledge(its)
        if self._left:
            self._delete_drained()

    def hold(self, numbers: Sequence[int]) -> None:
        """See :meth:`Outbox.hold`."""
        for session, its in self._by_session(numbers):
            session.hold(its)

    def _by_session(self, numbers: Sequence[int]) -> list[tuple[OutboxSession, Sequence[int]]]:
        """Divide numbers among the sessions that have given them."""
        if not self._left:
            return [] if self._own is None else [(self._own, numbers)]
        divided: list[tuple[OutboxSession, Sequence[int]]]
        divided = [] if self._own is None else [(self._own, [each for each in numbers if each < 1 << SHIFT])]
        for left, session in self._left.items():
            divided.append((session, [each & MASK for each in numbers if each >> SHIFT == left]))
        return divided

    def figures(self) -> OutboxFigures:
        """See :meth:`Outbox.figures`."""
        sessions = self._sessions
        times = [each.oldest_at for each in sessions]
        return OutboxFigures(
            sum(each.queue.count for each in sessions),
            sum(each.queue.size_bytes for each in sessions),
            sum(len(each.outgoing) for each in sessions),
            min((at for at in times if at is not None), default=None),
            0.0 if self._own is None else self._own.fullness,
        )

    def discard(self) -> Maybe[None]:
        """See :meth:`Outbox.discard`."""
        self._is_discarded = True
        self._lost_messages.clear()
        if self.is_opened:
            return run(self._discard())
        deleted: Deferred[None] = Deferred()
        self._unopened.append(deleted)
        return deleted

    async def _discard(self) -> None:
        for session in self._sessions:
            await self.delete(session)
        self._discarded()

    async def delete_unopened(self, session: OutboxSession) -> None:
        """Delete an outbox's own session where it was discarded before it was opened."""
        await self.delete(session)
        self.is_opened = True
        self._discarded()
        unopened, self._unopened = self._unopened, []
        for deleted in unopened:
            deleted.callback(None)

    async def delete(self, session: OutboxSession) -> None:
        """Delete a session, with retries until it is gone, or another node's."""
        outboxes = self._services.sessions.outboxes
        while session in outboxes.all and not await outboxes.discard(session):
            await pause(self._runtime.clock, RETRY_S)

    @property
    def paused(self) -> int:
        """The number of messages whose publishers wait."""
        return 0 if self._own is None else self._own.paused

    @property
    def _sessions(self) -> list[OutboxSession]:
        left = list(self._left.values())
        return left if self._own is None else [self._own, *left]

    def _delete_drained(self) -> None:
        """Delete the outboxes of nodes that are gone, once they are drained."""
        for number, session in list(self._left.items()):
            if session.is_drained:
                del self._left[number]
                run(self._end(session)).addErrback(
                    lambda failure: log.failure("an outbox of a node that is gone could not be deleted", failure)
                )

    async def _end(self, session: OutboxSession) -> None:
        log.info("outbox {client_id!r} of a node that is gone is drained", client_id=session.client_id)
        await self.delete(session)
