"""The queue of a persistent session: in the queue store, read from a cursor while the window has capacity.

When the queue overflows, the turn's writes are committed before it is read, so that the messages to drop are chosen
from the store's contents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, final

from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session import overflow
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt.broker.session.queue import RETRY_S, SessionQueue
from kinmqtt.broker.session.receive_rights import may_receive
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.queue import Append, Entry, QueueSizes, Remove, Send, make_write

log = Logger("kinmqtt.queue")

READ_AT_ONCE: Final = 128
"""The most entries that one read of the queue store returns."""


@final
class StoredQueue(SessionQueue):
    """A queue in the queue store; it lasts as long as the session."""

    __slots__ = ("_at_rest", "_evicted", "_overflows", "_reading", "_stale", "cursor")

    def __init__(self, runtime: Runtime, session: QueueOwner) -> None:
        super().__init__(runtime, session)
        self.cursor = 0
        """All entries up to this sequence number have left the queue."""
        self._reading = False
        self._stale = False
        """Whether to ignore the result of the current read: the queue was restored meanwhile."""
        self._at_rest = False
        """Whether no write to the queue was pending when the read began, and none was made since."""
        self._overflows: list[tuple[OverflowAction, int, str]] = []
        """Messages queued beyond the limit: the overflow action, sequence number and topic of each."""
        self._evicted: set[int] = set()
        """Sequence numbers of dropped entries that a read may still return."""

    def add(self, entry: Entry, publication: Publication, action: OverflowAction | None) -> None:
        """Append an entry; an overflow ``action`` says which queued message is dropped for it."""
        session = self._session
        batch = self._runtime.turn.batch
        if action is not None:
            self._overflows.append((action, entry.sequence, publication.publish.topic))
        self._added(entry.size_bytes)
        self._at_rest = False
        batch.queue.append(make_write(Append, (session.client_id, session.epoch, entry, None)))
        batch.queued.append(session)
        if self._runtime.hooks.message_queued.active and not session.is_outbox:
            batch.after_commit.append(partial(self._notify_queued, publication))

    def restore(self, sizes: QueueSizes) -> None:
        """Start again from the store's contents, of these ``sizes``."""
        self._set_size(sizes.queued, sizes.queued_bytes)
        self.cursor = 0
        self._stale = self._reading
        self._overflows.clear()
        self._evicted.clear()

    def expired_in_store(self, entry: Entry) -> None:
        """Uncount an entry that the store has expired, unless it has left the queue already."""
        if entry.sequence > self.cursor and entry.sequence not in self._evicted:
            self.removed(entry.size_bytes)

    def take_out(self, entry: Entry) -> None:
        """Remove an entry that another session takes over."""
        self.removed(entry.size_bytes)
        self._remove(entry)

    def pump(self) -> None:
        """See :meth:`SessionQueue.pump`; enforces the limits first."""
        session = self._session
        if self._overflows and not self._reading:
            self._make_room()
        if self.count and not self._reading and session.can_send:
            room = min(READ_AT_ONCE, session.outgoing.capacity_for(self.size_bytes // self.count))
            cursor = self.cursor
            self._read(room + len(self._evicted), self._send)
            self._pump_after_commit(cursor)

    def _pump_after_commit(self, cursor: int) -> None:
        """Read again after the commit, if nothing was found: what is counted is written with this turn.

        The session could not send when it was added, and can now.
        """
        turn = self._runtime.turn
        if self.cursor == cursor and not self._reading and turn.writes_for(self._session.client_id):
            turn.batch.after_commit.append(self._pump_again)

    def _send(self, entries: Sequence[Entry]) -> None:
        session = self._session
        batch = self._runtime.turn.batch
        now = self._runtime.clock.now()
        guarded = self._runtime.hooks.authorize_receive.active
        for entry in entries:
            if not session.can_send:
                break
            self.cursor = entry.sequence
            if entry.sequence in self._evicted:
                continue
            self.removed(entry.size_bytes)
            if entry.message.has_expired(now):
                self._remove(entry)
                self._drop_expired(entry.message)
                continue
            if guarded and not may_receive(self._runtime, session, entry.message):
                self._remove(entry)
                continue
            delivery = Delivery.of(entry)
            packet_id = session.assign(delivery)
            batch.queue.append(make_write(Send, (session.client_id, session.epoch, entry.sequence, packet_id)))
            batch.sends.append((session, packet_id, delivery))
        if entries and session.can_send:
            session.wants_pump()

    def _make_room(self) -> None:
        by_topic = any(action is OverflowAction.QUEUE_DROPPING_SAME_TOPIC for action, _, _ in self._overflows)
        limit = self.count if by_topic else max(READ_AT_ONCE, len(self._overflows))
        self._read(limit + len(self._evicted), self._evict)

    def _evict(self, found: Sequence[Entry]) -> None:
        session = self._session
        full, self._overflows = self._overflows, []
        entries = [entry for entry in found if entry.sequence not in self._evicted and entry.sequence > self.cursor]
        victims: set[int] = set()
        while self._exceeds_limits and entries:
            cause = full.pop(0) if full else (OverflowAction.QUEUE_DROPPING_OLDEST, session.sequence, "")
            position = _victim(entries, *cause)
            if entries[position].sequence == session.sequence:
                break
            victim = entries.pop(position)
            if not position:
                self.cursor = victim.sequence
            victims.add(victim.sequence)
            self.removed(victim.size_bytes)
            self._remove(victim)
            overflow.drop(self._runtime, session, victim.message)
        if victims:
            self._evicted |= victims
            self._runtime.turn.batch.after_commit.append(lambda: self._evicted.difference_update(victims))
            if self._exceeds_limits:
                self._overflows.append((OverflowAction.QUEUE_DROPPING_OLDEST, session.sequence, ""))
                session.wants_pump()

    def _remove(self, entry: Entry) -> None:
        session = self._session
        self._runtime.turn.batch.queue.append(make_write(Remove, (session.client_id, session.epoch, entry.sequence)))

    def _read(self, limit: int, use: Callable[[Sequence[Entry]], None]) -> None:
        """Read at most ``limit`` entries after the cursor and call ``use`` with them; one read at a time."""
        self._reading = True
        try:
            entries = self._runtime.stores.queue.read(self._session.client_id, self.cursor, limit)
        except Exception:
            self._read_failed(Failure())
            return
        if isinstance(entries, Awaitable):
            self._at_rest = not self._runtime.turn.writes_for(self._session.client_id)
            as_deferred(entries).addCallbacks(partial(self._read_later, use), self._read_failed)
        else:
            self._reading = False
            use(entries)

    def _read_later(self, use: Callable[[Sequence[Entry]], None], entries: Sequence[Entry]) -> None:
        self._reading = False
        stale, self._stale = self._stale, False
        if not stale:
            use(entries)
            if not entries and self._at_rest:
                # The store has fewer entries than counted: they expired there, and that answer was lost.
                self._set_size(0, 0)
        self._session.wants_pump()
        self._runtime.turn.touch()

    def _read_failed(self, failure: Failure) -> None:
        self._reading = self._stale = False
        client_id = self._session.client_id
        if failure.check(ServiceUnavailable):
            # The store is unavailable: a traceback would add nothing.
            log.error("the queue of {client_id!r} can't be read: {error}", client_id=client_id, error=failure.value)
        else:
            log.failure("the queue of {client_id!r} can't be read", failure, client_id=client_id)
        self._pump_later()

    def _pump_later(self) -> None:
        """Schedule a retry after the store has failed."""
        if not self.retrying:
            self.retrying = True
            self._runtime.clock.later(RETRY_S, self._pump_again)

    def _pump_again(self) -> None:
        self.retrying = False
        self._session.wants_pump()
        self._runtime.turn.touch()


def _victim(entries: Sequence[Entry], action: OverflowAction, sequence: int, topic: str) -> int:
    """Return the position of the entry to drop for a new message."""
    if action is OverflowAction.QUEUE_DROPPING_SAME_TOPIC:
        for position, entry in enumerate(entries):
            if entry.sequence < sequence and entry.message.topic == topic:
                return position
    return 0
