"""The queue of a persistent session: in the queue store, read on from a cursor when the window has room.

When it is full the turn's writes are committed before it is read for those that give way, so that what gives way is
what the store then holds.
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
from kinmqtt.broker.session.overflow import OverflowAction
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt.broker.session.queue import RETRY_S, SessionQueue
from kinmqtt.broker.session.receive_rights import may_receive
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.queue import Append, Entry, QueueSizes, Remove, Send, make_write

log = Logger("kinmqtt.waiting")

READ_AT_ONCE: Final = 128
"""Entries taken from a queue store in one read."""


@final
class StoredQueue(SessionQueue):
    """In the queue store, for as long as the session lasts."""

    __slots__ = ("_at_rest", "_evicted", "_full", "_reading", "_stale", "cursor")

    def __init__(self, runtime: Runtime, session: QueueOwner) -> None:
        super().__init__(runtime, session)
        self.cursor = 0
        """The sequence number up to which everything has left the queue."""
        self._reading = False
        self._stale = False
        """Whether what is being read counts no more: the queue was loaded meanwhile."""
        self._at_rest = False
        """Whether nothing was on its way to the queue when it was read, and nothing has come since."""
        self._full: list[tuple[OverflowAction, int, str]] = []
        """For newcomers that found the queue full: who is to give way, and their sequence number and topic."""
        self._evicted: set[int] = set()
        """Sequence numbers that gave way, and that a read may still show."""

    def add(self, entry: Entry, publication: Publication, action: OverflowAction | None) -> None:
        """Have a message wait behind the others; with a ``action`` that says who gives way for it."""
        session = self._session
        batch = self._runtime.turn.batch
        if action is not None:
            self._full.append((action, entry.sequence, publication.publish.topic))
        self._comes(entry.size_bytes)
        self._at_rest = False
        batch.queue.append(make_write(Append, (session.client_id, session.epoch, entry, None)))
        batch.queued.append(session)
        if self._runtime.hooks.message_queued.active:
            batch.after_commit.append(partial(self._notify_queued, publication))

    def restore(self, sizes: QueueSizes) -> None:
        """Begin anew with what the store holds."""
        self._hold(sizes.queued, sizes.queued_bytes)
        self.cursor = 0
        self._stale = self._reading
        self._full.clear()
        self._evicted.clear()

    def expired_in_store(self, entry: Entry) -> None:
        """The store has removed an entry; one whose sending is on its way to the store has left already."""
        if entry.sequence > self.cursor and entry.sequence not in self._evicted:
            self.leaves(entry.size_bytes)

    def take_out(self, entry: Entry) -> None:
        """Another takes a message over."""
        self.leaves(entry.size_bytes)
        self._remove(entry)

    def pump(self) -> None:
        """See :meth:`SessionQueue.pump`; those that are too many make room first."""
        session = self._session
        if self._full and not self._reading:
            self._make_room()
        if self.count and not self._reading and session.can_send:
            room = min(READ_AT_ONCE, session.outgoing.capacity_for(self.size_bytes // self.count))
            self._read(room + len(self._evicted), self._send)

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
            self.leaves(entry.size_bytes)
            if entry.message.has_expired(now):
                self._remove(entry)
                self._expired(entry.message)
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
        by_topic = any(action is OverflowAction.QUEUE_DROPPING_SAME_TOPIC for action, _, _ in self._full)
        limit = self.count if by_topic else max(READ_AT_ONCE, len(self._full))
        self._read(limit + len(self._evicted), self._evict)

    def _evict(self, found: Sequence[Entry]) -> None:
        session = self._session
        full, self._full = self._full, []
        entries = [entry for entry in found if entry.sequence not in self._evicted and entry.sequence > self.cursor]
        victims: set[int] = set()
        while self._is_over and entries:
            newcomer = full.pop(0) if full else (OverflowAction.QUEUE_DROPPING_OLDEST, session.sequence, "")
            position = _victim(entries, *newcomer)
            if entries[position].sequence == session.sequence:
                break
            victim = entries.pop(position)
            if not position:
                self.cursor = victim.sequence
            victims.add(victim.sequence)
            self.leaves(victim.size_bytes)
            self._remove(victim)
            overflow.drop(self._runtime, session, victim.message)
        if victims:
            self._evicted |= victims
            self._runtime.turn.batch.after_commit.append(lambda: self._evicted.difference_update(victims))
            if self._is_over:
                self._full.append((OverflowAction.QUEUE_DROPPING_OLDEST, session.sequence, ""))
                session.wants_pump()

    def _remove(self, entry: Entry) -> None:
        session = self._session
        self._runtime.turn.batch.queue.append(make_write(Remove, (session.client_id, session.epoch, entry.sequence)))

    def _read(self, limit: int, use: Callable[[Sequence[Entry]], None]) -> None:
        """Read the queue from the cursor on; one read at a time."""
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
                # The store has less than was counted: it was expired there, and the answer that told so was lost.
                self._hold(0, 0)
        self._session.wants_pump()
        self._runtime.turn.touch()

    def _read_failed(self, failure: Failure) -> None:
        self._reading = self._stale = False
        client_id = self._session.client_id
        if failure.check(ServiceUnavailable):
            # It is no fault of the broker's, and a trace would say no more.
            log.error("the queue of {client_id!r} can't be read: {error}", client_id=client_id, error=failure.value)
        else:
            log.failure("the queue of {client_id!r} can't be read", failure, client_id=client_id)
        self._pump_later()

    def _pump_later(self) -> None:
        """Try again what the store could not do."""
        if not self.retrying:
            self.retrying = True
            self._runtime.clock.later(RETRY_S, self._pump_again)

    def _pump_again(self) -> None:
        self.retrying = False
        self._session.wants_pump()
        self._runtime.turn.touch()


def _victim(entries: Sequence[Entry], action: OverflowAction, sequence: int, topic: str) -> int:
    """The position of the entry that gives way to a newcomer."""
    if action is OverflowAction.QUEUE_DROPPING_SAME_TOPIC:
        for position, entry in enumerate(entries):
            if entry.sequence < sequence and entry.message.topic == topic:
                return position
    return 0
