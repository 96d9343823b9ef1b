"""What a data directory holds, put together from its log: group by group, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from attrs import define

from kinmqtt.builtins.embedded.records import (
    APPEND,
    INBOUND_CLOSE,
    INBOUND_OPEN,
    ORDER,
    PURGE,
    RELEASE,
    REMOVE,
    REQUEUE,
    SEND,
    STAND,
    Group,
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
from kinmqtt_spi.services.session import OpenSession
from kinmqtt_spi.values import Message, MessageId

EVENTS: Final = RETENTION
EVENTS_BYTES: Final = RETENTION_BYTES
"""Events that are kept, and what they may take; older ones are gone."""


@define(slots=True)
class _Held:
    """An entry. ``about`` is what a record says of it; ``None`` once it is released."""

    message: Record | None
    about: Record | None
    packet_id: int | None
    place: int = 0
    """Where it stands among what is in flight: in the order of sending."""


class _Queue:
    """One client's queue."""

    __slots__ = ("entries", "epoch", "floor", "inbound", "last", "sent")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.floor = 0
        self.last = 0
        self.entries: dict[int, _Held] = {}
        self.inbound: set[int] = set()
        self.sent = 0
        """Counts what went in flight."""

    def send(self, held: _Held, packet_id: int | None) -> None:
        """An entry is in flight, behind all others, if it has a packet identifier."""
        held.packet_id = packet_id
        self.sent += 1
        held.place = self.sent


class QueueImage:
    """The queues of all clients: what :class:`~kinmqtt_spi.services.queue.QueueStore` says of each write.

    Entries are made objects of at the end only: most have come and gone by then.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._carry_out: Final[dict[int, Callable[[_Queue, Record, Sequence[Record]], None]]] = {
            APPEND: self._append,
            SEND: self._send,
            RELEASE: self._release,
            REMOVE: self._remove,
            REQUEUE: self._requeue,
            INBOUND_OPEN: lambda queue, record, messages: queue.inbound.add(record[3]),
            INBOUND_CLOSE: lambda queue, record, messages: queue.inbound.discard(record[3]),
            PURGE: self._purge,
            STAND: self._stand,
            ORDER: self._order,
        }

    def apply(self, records: Sequence[Record], messages: Sequence[Record]) -> None:
        """Carry out a group's records."""
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
        """Have a store that is empty hold all this; ``carry_out`` makes writes in it."""
        made: dict[int, Message] = {}
        same: dict[MessageId, Message] = {}
        for client_id, queue in self._queues.items():
            if queue.entries or queue.inbound:
                carry_out(list(_writes(client_id, queue, made, same)))
            if queue.floor:
                # Numbers are not given twice: what the log says of the first would be taken for the second.
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

    def _purge(self, queue: _Queue, record: Record, messages: Sequence[Record]) -> None:
        queue.entries.clear()
        queue.inbound.clear()
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
    # In order of their numbers: what stands was written behind what came later.
    for sequence, held in sorted(queue.entries.items()):
        if held.about is None or held.message is None:
            entry = Entry(sequence, _RELEASED, 2)
        else:
            key = id(held.message)
            if key not in made:
                message = message_of(held.message)
                # One that was told in several slices is one message again.
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
        yield InboundOpen(client_id, epoch, packet_id)


_RELEASED: Final = Message("released")
"""Stands for a message of which only the packet identifier is left."""


class Image:
    """Everything, as it was when the last group was kept."""

    def __init__(self) -> None:
        # The store that wrote this may have remembered each epoch: none may melt into a floor that shuts others out.
        self.sessions = MemorySessionStore(remembered_epochs=sys.maxsize)
        self.queues = QueueImage()
        self.retained = MemoryRetainStore()
        self._events: dict[int, Recorded] = {}
        self._events_bytes = 0
        self.offsets: dict[str, int] = {}
        self.floor = 0
        self.groups = 0

    def take(self, data: bytes) -> None:
        """Carry out a group, packed; raises ``ValueError`` or its kin for bytes that are none."""
        self.carry_out(unpack(data))

    def carry_out(self, group: Unpacked) -> None:
        """Carry out a group."""
        self.groups += 1
        if group.begins:
            self.retained.forget_deletions()
        for client_id, epoch in group.claims:
            self.sessions.raise_epoch(client_id, epoch)
        if group.sessions:
            try:
                self.sessions.apply(group.sessions)
            except Fenced:
                pass  # As it was when the group was kept: what an older owner wrote is left out.
        if group.queue:
            self.queues.apply(group.queue, group.messages)
        if group.retain:
            self.retained.put(group.retain)
        for recorded in group.events:
            before = self._events.get(recorded.offset)
            self._events[recorded.offset] = recorded
            self._events_bytes += recorded.event.size_bytes - (0 if before is None else before.event.size_bytes)
        if len(self._events) > 2 * EVENTS or self._events_bytes > 2 * EVENTS_BYTES:
            # A log may have been told of many more than are kept: they are never all in memory.
            self._events = {recorded.offset: recorded for recorded in self.events}
            self._events_bytes = sum(recorded.event.size_bytes for recorded in self._events.values())
        self.offsets.update(group.offsets)
        self.floor = max(self.floor, group.floor)

    @property
    def events(self) -> list[Recorded]:
        """The newest events, in order: as many as a log keeps."""
        newest: list[Recorded] = []
        size_bytes = 0
        for offset in sorted(self._events)[: -EVENTS - 1 : -1]:
            recorded = self._events[offset]
            size_bytes += recorded.event.size_bytes
            if newest and size_bytes > EVENTS_BYTES:
                break
            newest.append(recorded)
        return newest[::-1]


SLICE_BYTES: Final = 128 << 10
"""About how much a slice of everything holds."""

ENTRY_BYTES: Final = 100
"""What an entry takes besides its message, about."""

FILTER_BYTES: Final = 100
"""What a subscription takes besides its filter, about."""

PASSING: Final = "$SYS/"
"""Retained topics that are not kept: what the broker says of itself, and says anew after a start."""

LOOKED_AT: Final = 2000
"""Queues looked at in one go, whether or not they hold anything."""

_PAGE: Final = 50
"""Sessions or retained messages looked at in one go; of what they are at that moment a slice tells."""


class _Slicer:
    """Gathers what stands until there is a slice of it."""

    def __init__(self, slice_bytes: int) -> None:
        self.group = Group()
        self._slice_bytes = slice_bytes
        self._bytes = 0
        """Of messages, and of whatever else is no mere entry."""
        self._entries_bytes = 0
        self._messages: dict[int, Message] = {}
        """Those in the slice, by their identity: each stands there once, in however many queues it is."""

    def weigh(self, size_bytes: int) -> None:
        """Count what was added."""
        self._bytes += size_bytes + ENTRY_BYTES

    def weigh_entry(self, message: Message | None) -> None:
        """Count an entry that was added."""
        self._entries_bytes += ENTRY_BYTES
        if message is not None and id(message) not in self._messages:
            self._bytes += logged_bytes(message)
            self._messages[id(message)] = message

    def has_room_for(self, message: Message | None) -> bool:
        """Whether an entry still goes into the slice: one of a message that is there already, where others do not."""
        known = message is not None and id(message) in self._messages
        return not self.is_full or (known and self._entries_bytes < self._slice_bytes)

    @property
    def is_full(self) -> bool:
        """Whether there is a slice."""
        return self._bytes + self._entries_bytes >= self._slice_bytes

    def take(self) -> Group:
        """The slice; another begins."""
        group, self.group = self.group, Group()
        self._bytes = self._entries_bytes = 0
        self._messages.clear()
        return group


def everything(
    sessions: MemorySessionStore,
    queues: MemoryQueueStore,
    retained: MemoryRetainStore,
    slice_bytes: int | None = None,
) -> Iterator[Group]:
    """All that these stores hold, in slices; between two of them the stores may go on.

    Each slice tells how things stand when it is made, so that what is written behind it goes on from there. What is
    new by then was written behind the first slice in any case, and what is gone is not missed. A message in many
    queues is told once in each slice: larger ones (``slice_bytes``) are fewer.
    """
    slicer = _Slicer(slice_bytes or SLICE_BYTES)
    yield from _sessions(slicer, sessions)
    for number, client_id in enumerate(queues.clients()):
        if number % LOOKED_AT == LOOKED_AT - 1:
            yield slicer.take()  # Empty perhaps: queues that hold nothing take time too.
        yield from _queue(slicer, queues, client_id)
    yield from _retained(slicer, retained)
    if slicer.group:
        yield slicer.take()


def _sessions(slicer: _Slicer, sessions: MemorySessionStore) -> Iterator[Group]:
    cursor: object = None
    while True:
        # One by one: a session may have very many subscriptions, and must be told as it stands.
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


def _queue(slicer: _Slicer, queues: MemoryQueueStore, client_id: str) -> Iterator[Group]:
    after: int | None = None
    while True:
        standing = queues.snapshot(client_id, after, _PAGE)
        if after is None:
            after = -1
            for packet_id in standing.inbound:
                slicer.group.queue.append(InboundOpen(client_id, standing.epoch, packet_id))
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
    """Behind what stands: in which order the entries in flight were sent, wherever each of them was told."""
    if len(inflight) > 1:
        slicer.group.orders.append((client_id, epoch, tuple(each.sequence for each in inflight)))
        slicer.weigh(8 * len(inflight))


def _retained(slicer: _Slicer, retained: MemoryRetainStore) -> Iterator[Group]:
    cursor: object = None
    while True:
        contents = retained.iterate(cursor, _PAGE)
        for write in contents.writes:
            if write.message.topic.startswith(PASSING):
                continue
            slicer.group.retain.append(write)
            slicer.weigh(logged_bytes(write.message))
            if slicer.is_full:
                # What is written of the topic in the meantime is newer, and wins by its version.
                yield slicer.take()
        cursor = contents.cursor
        if cursor is None:
            return
        if not contents.writes:
            yield slicer.take()  # Empty perhaps: levels where nothing is retained take time too.
