"""What waits for one client: here, where the session ends with its connection; in the queue store, where it is kept.

Both hold the bounds of ``[limits]``, and both feed the session's window in order. A queue in the store is no memory
of the broker's: it is read on from a cursor when the window has room. When it is full the turn's writes are committed
before it is read for those that give way, so that what gives way is what the store then holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, final

from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.session import overflow as full_queue
from kinmqtt.broker.session.overflow import Fate
from kinmqtt.broker.session.receive_rights import may_receive
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.queue import Append, Entry, QueueSizes, Remove, Send, make_write
from kinmqtt_spi.values import Message

if TYPE_CHECKING:
    from kinmqtt.broker.message.publication import Publication
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.waiting")

READ_AT_ONCE: Final = 128
"""Entries taken from a queue store in one read."""

RETRY_S: Final = 1.0
"""How long a store that failed is left alone by a session."""


class Waiting(ABC):
    """Messages of QoS 1 and 2 for which the window has no room yet."""

    __slots__ = ("_runtime", "_session", "count", "retrying", "size_bytes")

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self._runtime = runtime
        self._session = session
        self.count = 0
        self.size_bytes = 0
        """What they count for."""
        self.retrying = False
        """Whether the store could not do something, and time is to pass before it is asked again."""

    @abstractmethod
    def pump(self) -> None:
        """Send what waits, as far as the window goes."""

    def fate_of(self, publication: Publication) -> Fate | None:
        """What becomes of a newcomer; ``None`` where there is room for it."""
        return full_queue.decide(self._runtime, self._session, publication) if self.is_full else None

    def leaves(self, size_bytes: int) -> None:
        """A message that counted for so much waits no longer."""
        self._hold(max(0, self.count - 1), max(0, self.size_bytes - size_bytes))

    def end(self) -> Ended:
        """The session ends, and what waited with it; answers what stands in its place."""
        self._hold(0, 0)
        return Ended(self._runtime)

    def _hold(self, count: int, size_bytes: int) -> None:
        self._runtime.waiting.messages += count - self.count
        self._session.count_queued(size_bytes - self.size_bytes)
        self.count = count
        self.size_bytes = size_bytes

    @property
    def is_full(self) -> bool:
        """Whether something must give way for whatever comes next."""
        limits = self._runtime.limits
        return (
            self.count >= limits.max_queued_messages
            or self.size_bytes >= limits.max_queued_bytes
            or self.all_are_full()
        )

    def all_are_full(self) -> bool:
        """Whether the queues of all clients, or those of this one's user, hold as much as they may."""
        limits = self._runtime.limits
        most = limits.max_all_queued_bytes
        if self._runtime.waiting.size_bytes >= most:
            return True
        # As LimitSettings.share_of has it, without the call: each message that waits comes here more than once.
        return self._session.account.queued_bytes >= most * limits.user_share

    def all_hold_too_much(self) -> bool:
        """Whether they hold more than that."""
        limits = self._runtime.limits
        most = limits.max_all_queued_bytes
        if self._runtime.waiting.size_bytes > most:
            return True
        return self._session.account.queued_bytes > most * limits.user_share

    @property
    def _is_over(self) -> bool:
        """Whether more waits than may; the newest stays, however large it is."""
        limits = self._runtime.limits
        too_large = self.size_bytes > limits.max_queued_bytes or self.all_hold_too_much()
        return (too_large and self.count > 1) or self.count > limits.max_queued_messages

    def _comes(self, size_bytes: int) -> None:
        self._hold(self.count + 1, self.size_bytes + size_bytes)

    def _tell_queued(self, publication: Publication) -> None:
        if self._runtime.hooks.message_queued.active:
            self._runtime.hooks.message_queued(self._session.client_id, publication.message)

    def _expired(self, message: Message) -> None:
        client_id = self._session.client_id
        self._runtime.drop(client_id, message, "expired")
        if self._runtime.hooks.message_expired.active:
            self._runtime.hooks.message_expired(client_id, message)


@final
class Ended(Waiting):
    """Nothing waits, and nothing will: the session is over.

    It does not know its session, as the session knows it: a circle of references would stay in memory for long.
    """

    __slots__ = ()

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.count = 0
        self.size_bytes = 0
        self.retrying = False

    def pump(self) -> None:
        """See :meth:`Waiting.pump`."""

    def all_are_full(self) -> bool:
        """See :meth:`Waiting.all_are_full`."""
        return False

    def all_hold_too_much(self) -> bool:
        """See :meth:`Waiting.all_hold_too_much`."""
        return False

    def fate_of(self, publication: Publication) -> Fate:
        """See :meth:`Waiting.fate_of`: whatever is meant for the session comes too late."""
        return Fate.DROPPED

    def leaves(self, size_bytes: int) -> None:
        """See :meth:`Waiting.leaves`."""

    def end(self) -> Ended:
        """See :meth:`Waiting.end`."""
        return self


@final
class WaitingHere(Waiting):
    """In memory, for as long as the session's connection lasts."""

    __slots__ = ("_deliveries", "_expiring_at")

    def __init__(self, runtime: Runtime, session: Session) -> None:
        super().__init__(runtime, session)
        self._deliveries: deque[Delivery] | None = None
        self._expiring_at: float | None = None
        """The first moment at which something that waits may have expired."""

    @property
    def deliveries(self) -> deque[Delivery]:
        """What waits, in order."""
        if self._deliveries is None:
            self._deliveries = deque()
        return self._deliveries

    def fate_of(self, publication: Publication) -> Fate | None:
        """See :meth:`Waiting.fate_of`; what has expired takes no place."""
        if self.is_full:
            self._forget_expired()
        return super().fate_of(publication)

    def add(self, delivery: Delivery, fate: Fate | None) -> None:
        """Have a message wait behind the others; with a ``fate`` that says who gives way for it."""
        publication = delivery.publication
        self.deliveries.append(delivery)
        self._comes(delivery.size_bytes)
        expires_at = publication.expires_at
        if expires_at is not None and (self._expiring_at is None or expires_at < self._expiring_at):
            self._expiring_at = expires_at
        if fate is not None:
            self._make_room(fate)
        self._tell_queued(publication)

    def take_out(self, delivery: Delivery) -> None:
        """Another takes a message over."""
        self.deliveries.remove(delivery)
        self.leaves(delivery.size_bytes)

    def pump(self) -> None:
        """See :meth:`Waiting.pump`."""
        session = self._session
        deliveries = self.deliveries
        now = self._runtime.clock.now()
        guarded = self._runtime.hooks.authorize_receive.active
        while deliveries and session.can_send:
            delivery = deliveries.popleft()
            publication = delivery.publication
            self.leaves(delivery.size_bytes)
            # A message is made of it only where somebody looks: it would hold the payload once more.
            if publication.has_expired(now):
                self._expired(publication.stored)
            elif not guarded or may_receive(self._runtime, session, publication.stored):
                session.transmit(session.assign(delivery), delivery)

    def _make_room(self, fate: Fate) -> None:
        deliveries = self.deliveries
        topic = deliveries[-1].publication.publish.topic if fate is Fate.QUEUED_FOR_TOPIC else None
        while self._is_over:
            older = range(len(deliveries) - 1)
            same = (n for n in older if deliveries[n].publication.publish.topic == topic)
            position = 0 if topic is None else next(same, 0)
            victim = deliveries[position]
            del deliveries[position]
            self.leaves(victim.size_bytes)
            full_queue.drop(self._runtime, self._session, victim.publication.message)

    def _forget_expired(self) -> None:
        """Make room of what has expired while it waited."""
        now = self._runtime.clock.now()
        if self._expiring_at is None or now < self._expiring_at:
            return
        good: deque[Delivery] = deque()
        for delivery in self.deliveries:
            publication = delivery.publication
            if publication.has_expired(now):
                self.leaves(delivery.size_bytes)
                self._expired(publication.stored)
            else:
                good.append(delivery)
        self._deliveries = good
        moments = [d.publication.expires_at for d in good if d.publication.expires_at is not None]
        self._expiring_at = min(moments, default=None)


@final
class WaitingInStore(Waiting):
    """In the queue store, for as long as the session lasts."""

    __slots__ = ("_at_rest", "_evicted", "_full", "_reading", "_stale", "cursor")

    def __init__(self, runtime: Runtime, session: Session) -> None:
        super().__init__(runtime, session)
        self.cursor = 0
        """The sequence number up to which everything has left the queue."""
        self._reading = False
        self._stale = False
        """Whether what is being read counts no more: the queue was loaded meanwhile."""
        self._at_rest = False
        """Whether nothing was on its way to the queue when it was read, and nothing has come since."""
        self._full: list[tuple[Fate, int, str]] = []
        """For newcomers that found the queue full: who is to give way, and their sequence number and topic."""
        self._evicted: set[int] = set()
        """Sequence numbers that gave way, and that a read may still show."""

    def add(self, entry: Entry, publication: Publication, fate: Fate | None) -> None:
        """Have a message wait behind the others; with a ``fate`` that says who gives way for it."""
        session = self._session
        batch = self._runtime.turn.batch
        if fate is not None:
            self._full.append((fate, entry.sequence, publication.publish.topic))
        self._comes(entry.size_bytes)
        self._at_rest = False
        batch.queue.append(make_write(Append, (session.client_id, session.epoch, entry, None)))
        batch.queued.append(session)
        if self._runtime.hooks.message_queued.active:
            batch.afterwards.append(partial(self._tell_queued, publication))

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
        """See :meth:`Waiting.pump`; those that are too many make room first."""
        session = self._session
        if self._full and not self._reading:
            self._make_room()
        if self.count and not self._reading and session.can_send:
            room = min(READ_AT_ONCE, session.outgoing.room_for(self.size_bytes // self.count))
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
        by_topic = any(fate is Fate.QUEUED_FOR_TOPIC for fate, _, _ in self._full)
        limit = self.count if by_topic else max(READ_AT_ONCE, len(self._full))
        self._read(limit + len(self._evicted), self._evict)

    def _evict(self, found: Sequence[Entry]) -> None:
        session = self._session
        full, self._full = self._full, []
        entries = [entry for entry in found if entry.sequence not in self._evicted and entry.sequence > self.cursor]
        victims: set[int] = set()
        while self._is_over and entries:
            newcomer = full.pop(0) if full else (Fate.QUEUED_FOR_OLDEST, session.sequence, "")
            position = _victim(entries, *newcomer)
            if entries[position].sequence == session.sequence:
                break
            victim = entries.pop(position)
            if not position:
                self.cursor = victim.sequence
            victims.add(victim.sequence)
            self.leaves(victim.size_bytes)
            self._remove(victim)
            full_queue.drop(self._runtime, session, victim.message)
        if victims:
            self._evicted |= victims
            self._runtime.turn.batch.afterwards.append(lambda: self._evicted.difference_update(victims))
            if self._is_over:
                self._full.append((Fate.QUEUED_FOR_OLDEST, session.sequence, ""))
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


def _victim(entries: Sequence[Entry], fate: Fate, sequence: int, topic: str) -> int:
    """The position of the entry that gives way to a newcomer."""
    if fate is Fate.QUEUED_FOR_TOPIC:
        for position, entry in enumerate(entries):
            if entry.sequence < sequence and entry.message.topic == topic:
                return position
    return 0
