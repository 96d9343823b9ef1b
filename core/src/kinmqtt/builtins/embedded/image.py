"""The contents of a data directory: replays its log, group by group, and writes snapshots of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from attrs import define

from kinmqtt.builtins.embedded.records import (
    APPEND,
    BEGINS,
    CHECKED,
    INBOUND_CLOSE,
    INBOUND_OPEN,
    INBOUND_PENDING,
    ORDER,
    PURGE,
    RELEASE,
    REMOVE,
    REQUEUE,
    SEND,
    STAND,
    CommitGroup,
    Record,
    Unpacked,
    logged_bytes,
    message_of,
    unpack,
)
from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory.event import RETENTION, RETENTION_BYTES
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.event import Recorded
from kinmqtt_spi.services.queue import Append, Entry, InboundOpen, InflightEntry, QueueWrite, Release, Send
from kinmqtt_spi.services.retain import RetainContents
from kinmqtt_spi.services.session import OpenSession
from kinmqtt_spi.values import Message, MessageId

EVENTS: Final = RETENTION
EVENTS_BYTES: Final = RETENTION_BYTES
"""Maximum size of stored events; older ones are dropped."""


@define(slots=True)
class _Held:
    """An entry. ``about`` is the entry's record; ``None`` once it is released."""

    message: Record | None
    about: Record | None
    packet_id: int | None
    place: int = 0
    """Its position among the inflight entries, in the order of sending."""


class _Queue:
    """One client's queue."""

    __slots__ = ("entries", "epoch", "floor", "inbound", "last", "pending", "sent")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.floor = 0
        self.last = 0
        self.entries: dict[int, _Held] = {}
        self.inbound: set[int] = set()
        self.pending: dict[int, MessageId] = {}
        self.sent = 0
        """Counts the entries sent so far."""

    def send(self, held: _Held, packet_id: int | None) -> None:
        """Append an entry to the inflight entries, if it has a packet identifier."""
        held.packet_id = packet_id
        self.sent += 1
        held.place = self.sent


class QueueImage:
    """The queues of all clients; :class:`~kinmqtt_spi.services.queue.QueueStore` defines the effect of each write.

    Objects for entries are created only at the end, because most entries are gone by then.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._carry_out: Final[dict[int, Callable[[_Queue, Record, Sequence[Record]], None]]] = {
            APPEND: self._append,
            SEND: self._send,
            RELEASE: self._release,
            REMOVE: self._remove,
            REQUEUE: self._requeue,
            INBOUND_OPEN: self._inbound_open,
            INBOUND_CLOSE: self._inbound_close,
            INBOUND_PENDING: self._inbound_pending,
            PURGE: self._purge,
            STAND: self._stand,
            ORDER: self._order,
        }

    def apply(self, records: Sequence[Record], messages: Sequence[Record]) -> None:
        """Apply a group's records."""
        queues = self._queues
        carry_out = self._carry_out
        for record in records:
            client_id, epoch = record[1], record[2]
            queue = queues.get(client_id)
            if queue is None:
                queue = queues[client_id] = _Queue(epoch)
            if epoch < queue.epoch:
                continue
            queue.epoch = epoch
            carry_out[record[0]](queue, record, messages)

    def bring_about(self, store: MemoryQueueStore, carry_out: Callable[[Sequence[QueueWrite]], None]) -> None:
        """Fill an empty store with these queues; ``carry_out`` applies writes to it."""
        made: dict[int, Message] = {}
        same: dict[MessageId, Message] = {}
        for client_id, queue in self._queues.items():
            if queue.entries or queue.inbound:
                carry_out(list(_writes(client_id, queue, made, same)))
            if queue.floor:
                # Sequence numbers are never reused: log records of the old entry would apply to the new one.
                store.restore_counters(client_id, queue.epoch, queue.last, queue.floor)

    def _append(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        sequence = record[3]
        if sequence <= queue.floor:
            return
        queue.floor = sequence
        queue.last = max(queue.last, sequence)
        held = queue.entries[sequence] = _Held(messages[record[4]], record, None)
        queue.send(held, record[9])

    def _send(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        held = queue.entries.get(record[3])
        if held is not None and held.packet_id is None:
            queue.send(held, record[4])

    def _release(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        held = queue.entries.get(record[3])
        if held is not None and held.packet_id is not None:
            held.message = held.about = None

    def _remove(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        queue.entries.pop(record[3], None)

    def _requeue(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        for held in queue.entries.values():
            if held.about is not None:
                held.packet_id = None

    def _inbound_open(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        queue.inbound.add(record[3])
        queue.pending.pop(record[3], None)

    def _inbound_pending(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        queue.inbound.add(record[3])
        queue.pending[record[3]] = MessageId(record[4], record[5])

    def _inbound_close(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        queue.inbound.discard(record[3])
        queue.pending.pop(record[3], None)

    def _purge(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        queue.entries.clear()
        queue.inbound.clear()
        queue.pending.clear()
        queue.floor = 0

    def _stand(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        sequence = record[3]
        released = record[4] is None
        message, about = (None, None) if released else (messages[record[4]], record)
        before = queue.entries.get(sequence)
        held = queue.entries[sequence] = _Held(message, about, None)
        if before is not None and before.packet_id is not None and before.packet_id == record[9]:
            held.packet_id, held.place = before.packet_id, before.place
        else:
            queue.send(held, record[9])
        queue.last = max(queue.last, sequence)
        queue.floor = max(queue.floor, sequence)

    def _order(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        for sequence in record[3]:
            held = queue.entries.get(sequence)
            if held is not None and held.packet_id is not None:
                queue.send(held, held.packet_id)


def _writes(
    client_id: str, queue: _Queue, made: dict[int, Message], same: dict[MessageId, Message]
) -> Iterator[QueueWrite]:
    epoch = queue.epoch
    sent: list[tuple[int, int, int, bool]] = []
    # In order of sequence numbers: a snapshot record was written after records of later entries.
    for sequence, held in sorted(queue.entries.items()):
        if held.about is None or held.message is None:
            entry = Entry(sequence, _RELEASED, 2)
        else:
            key = id(held.message)
            if key not in made:
                message = message_of(held.message)
                # A message that was written in several slices becomes one message again.
                known = same.setdefault(message.id, message)
                made[key] = known if known == message else message
            qos, retain, identifiers, shared_filter = held.about[5:9]
            entry = Entry(sequence, made[key], qos, retain, tuple(identifiers), shared_filter)
        yield Append(client_id, epoch, entry)
        if held.packet_id is not None:
            sent.append((held.place, sequence, held.packet_id, held.about is None))
    for _, sequence, packet_id, released in sorted(sent):
        yield Send(client_id, epoch, sequence, packet_id)
        if released:
            yield Release(client_id, epoch, sequence)
    for packet_id in sorted(queue.inbound):
        yield InboundOpen(client_id, epoch, packet_id, queue.pending.get(packet_id))


_RELEASED: Final = Message("released")
"""Placeholder for a released message of which only the packet identifier is left."""


class Image:
    """The contents of all stores at the last persisted group."""

    def __init__(self) -> None:
        # Keep every epoch that the writing store may have remembered; a merged floor would fence out other clients.
        self.sessions = MemorySessionStore(remembered_epochs=sys.maxsize)
        self.queues = QueueImage()
        self.retained = MemoryRetainStore()
        self._events: dict[int, Recorded] = {}
        self._events_bytes = 0
        self._trim_at = (2 * EVENTS, 2 * EVENTS_BYTES)
        """The number and size of events at which those that are not needed are dropped."""
        self.offsets: dict[str, int] = {}
        self.holds: dict[str, bool] = {}
        """Whether events are held for a consumer group."""
        self.floor = 0
        self.groups = 0

    def take(self, data: bytes) -> None:
        """Apply a packed group. Raises ``ValueError`` or a related error for invalid bytes."""
        self.carry_out(unpack(data))

    def carry_out(self, group: Unpacked) -> None:
        """Apply a group."""
        self.groups += 1
        if group.flags & BEGINS:
            self.retained.forget_deletions()
        for client_id, epoch in group.claims:
            self.sessions.raise_epoch(client_id, epoch)
        if group.sessions:
            try:
                self.sessions.apply(group.sessions)
            except Fenced:
                pass  # Writes of a former owner are dropped here as they were when the group was written.
        if group.queue:
            self.queues.apply(group.queue, group.messages)
        if group.retain and group.flags & CHECKED:
            # The store may have forgotten a newer deletion, or a newer message may have expired there.
            self.retained.restore(group.retain)
        elif group.retain:
            self.retained.put(group.retain)
        for recorded in group.events:
            before = self._events.get(recorded.offset)
            self._events[recorded.offset] = recorded
            self._events_bytes += recorded.event.size_bytes - (0 if before is None else before.event.size_bytes)
        self.offsets.update(group.offsets)
        self.holds.update(group.holds)
        count, size_bytes = self._trim_at
        if len(self._events) > count or self._events_bytes > size_bytes:
            # A log may have had many more events than are kept; they are never all in memory.
            self._events = {recorded.offset: recorded for recorded in self.events}
            self._events_bytes = sum(recorded.event.size_bytes for recorded in self._events.values())
            self._trim_at = (2 * max(EVENTS, len(self._events)), 2 * max(EVENTS_BYTES, self._events_bytes))
        self.floor = max(self.floor, group.floor)

    @property
    def events(self) -> list[Recorded]:
        """Return the newest events in order, as many as a log keeps, and all that groups hold."""
        newest: list[Recorded] = []
        size_bytes = 0
        floor = self._held_above
        for offset in sorted(self._events, reverse=True):
            recorded = self._events[offset]
            size_bytes += recorded.event.size_bytes
            is_beyond = len(newest) >= EVENTS or size_bytes > EVENTS_BYTES
            if newest and is_beyond and (floor is None or offset <= floor):
                break
            newest.append(recorded)
        return newest[::-1]

    @property
    def held(self) -> list[str]:
        """Return the groups for which events are held."""
        return [group for group, is_held in self.holds.items() if is_held]

    @property
    def _held_above(self) -> int | None:
        """The offset above which events are held; ``None`` if none are."""
        return min((self.offsets.get(group, -1) for group in self.held), default=None)


SLICE_BYTES: Final = 128 << 10
"""Approximate size of a snapshot's slice."""

ENTRY_BYTES: Final = 100
"""Approximate size of an entry without its message."""

FILTER_BYTES: Final = 100
"""Approximate size of a subscription without its filter."""

PASSING: Final = "$SYS/"
"""Prefix of retained topics that are not persisted: the broker publishes them again after a start."""

LOOKED_AT: Final = 2000
"""Queues examined in one step, empty or not."""

_PAGE: Final = 50
"""Sessions or retained messages examined in one step; a slice describes their state at that moment."""


class _Slicer:
    """Gathers snapshot records until a slice is full."""

    def __init__(self, slice_bytes: int) -> None:
        self.group = CommitGroup()
        self._slice_bytes = slice_bytes
        self._bytes = 0
        """The size of messages, and of everything else that is larger than an entry."""
        self._entries_bytes = 0
        self._messages: dict[int, Message] = {}
        """The slice's messages by identity: each is written once, even if several queues have it."""

    def weigh(self, size_bytes: int) -> None:
        """Add to the size."""
        self._bytes += size_bytes + ENTRY_BYTES

    def weigh_entry(self, message: Message | None) -> None:
        """Add the size of an entry."""
        self._entries_bytes += ENTRY_BYTES
        if message is not None and id(message) not in self._messages:
            self._bytes += logged_bytes(message)
            self._messages[id(message)] = message

    def has_room_for(self, message: Message | None) -> bool:
        """Tell whether an entry fits; one whose message is in the slice may fit where others do not."""
        known = message is not None and id(message) in self._messages
        return not self.is_full or (known and self._entries_bytes < self._slice_bytes)

    @property
    def is_full(self) -> bool:
        """Tell whether the slice is full."""
        return self._bytes + self._entries_bytes >= self._slice_bytes

    def take(self) -> CommitGroup:
        """Return the slice and begin another."""
        group, self.group = self.group, CommitGroup()
        self._bytes = self._entries_bytes = 0
        self._messages.clear()
        return group


def everything(
    sessions: MemorySessionStore,
    queues: MemoryQueueStore,
    retained: MemoryRetainStore,
    slice_bytes: int | None = None,
) -> Iterator[CommitGroup]:
    """Yield a snapshot of these stores, in slices; the stores may change between two slices.

    Each slice describes the state when it is made, and later log records continue from there. Entries that are new
    by then were logged after the first slice; deleted ones are not needed. A message in many queues is written once
    in each slice, so larger slices (``slice_bytes``) write it less often.
    """
    slicer = _Slicer(slice_bytes or SLICE_BYTES)
    yield from _sessions(slicer, sessions)
    for number, client_id in enumerate(queues.clients()):
        if number % LOOKED_AT == LOOKED_AT - 1:
            yield slicer.take()  # May be empty: empty queues take time too.
        yield from _queue(slicer, queues, client_id)
    yield from _retained(slicer, retained.iterate)
    yield from _retained(slicer, retained.deletions)
    if slicer.group:
        yield slicer.take()


def _sessions(slicer: _Slicer, sessions: MemorySessionStore) -> Iterator[CommitGroup]:
    cursor: object = None
    while True:
        # One session at a time: it may have very many subscriptions, and must be consistent.
        page = sessions.iterate(cursor, 1)
        for epoch, stored in page.sessions:
            slicer.group.sessions.append(OpenSession(epoch, stored))
            slicer.weigh(sum(FILTER_BYTES + text_bytes(each.full_filter) for each in stored.subscriptions))
            if stored.will is not None:
                slicer.weigh(logged_bytes(stored.will.message))
        if slicer.is_full:
            yield slicer.take()
        cursor = page.cursor
        if cursor is None:
            return


def _queue(slicer: _Slicer, queues: MemoryQueueStore, client_id: str) -> Iterator[CommitGroup]:
    after: int | None = None
    while True:
        standing = queues.snapshot(client_id, after, _PAGE)
        if after is None:
            after = -1
            for packet_id in standing.inbound:
                slicer.group.queue.append(InboundOpen(client_id, standing.epoch, packet_id))
                slicer.weigh(0)
            for packet_id, pending in standing.pending:
                slicer.group.queue.append(InboundOpen(client_id, standing.epoch, packet_id, pending))
                slicer.weigh(0)
        full = False
        for sequence, in_flight, entry in standing.entries:
            message = None if entry is None else entry.message
            if not slicer.has_room_for(message):
                full = True
                break
            slicer.group.stands.append((client_id, standing.epoch, sequence if entry is None else entry, in_flight))
            slicer.weigh_entry(message)
            after = sequence
        if full:
            yield slicer.take()
        elif len(standing.entries) < _PAGE:
            _tell_order(slicer, client_id, standing.epoch, queues.load(client_id).inflight)
            return


def _tell_order(slicer: _Slicer, client_id: str, epoch: int, inflight: Sequence[InflightEntry]) -> None:
    """Add the order in which the inflight entries were sent, after the entries, whichever slices these are in."""
    if len(inflight) > 1:
        slicer.group.orders.append((client_id, epoch, tuple(each.sequence for each in inflight)))
        slicer.weigh(8 * len(inflight))


def _retained(slicer: _Slicer, read: Callable[[object, int], RetainContents]) -> Iterator[CommitGroup]:
    """Yield the messages, or the deletions, that ``read`` returns by page."""
    cursor: object = None
    while True:
        contents = read(cursor, _PAGE)
        for write in contents.writes:
            if write.message.topic.startswith(PASSING):
                continue
            slicer.group.retain.append(write)
            slicer.weigh(logged_bytes(write.message))
            if slicer.is_full:
                # Later writes to the topic are newer, and win by their version.
                yield slicer.take()
        cursor = contents.cursor
        if cursor is None:
            return
        if not contents.writes:
            yield slicer.take()  # May be empty: topic levels without retained messages take time too.
