"""Encodes the writes of a turn as bytes: one group of plain tuples, packed by :mod:`marshal`.

Marshal is by far the fastest packer available, and every Python since 3.4 reads its format 4. It must not get
untrusted bytes: a group is unpacked only if its checksum is right and the file is a kinmqtt store's.

A message that several queues share is in the group once; records refer to it by its index. Record codes never change
their meaning; a new meaning gets a new code and a new format. Format 2 has session records that say whether the user
was verified (7 and 8) instead of those of format 1 (0 and 1), which can still be read. Format 3 has inbound
identifiers that are pending (10).
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import (
    Append,
    Entry,
    InboundClose,
    InboundOpen,
    Purge,
    QueueWrite,
    Release,
    Remove,
    Requeue,
    Send,
)
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.values import MESSAGE_BYTES, Message, MessageId, Publisher, Subscription, Will

FORMAT: Final = 3
_MARSHAL: Final = 4

APPEND: Final = 0
SEND: Final = 1
RELEASE: Final = 2
REMOVE: Final = 3
REQUEUE: Final = 4
INBOUND_OPEN: Final = 5
INBOUND_CLOSE: Final = 6
PURGE: Final = 7
STAND: Final = 8
"""The full state of an entry at this point of the log; it replaces earlier records of the entry."""
ORDER: Final = 9
"""The inflight entries of a client at this point of the log, in the order of sending."""
INBOUND_PENDING: Final = 10
"""An inbound identifier whose message other nodes have not committed, with the id of the message."""

BEGINS: Final = 1
"""A broker without memory of deletions had just started: of an earlier release."""
CHECKED: Final = 2
"""See :attr:`CommitGroup.is_checked`. An earlier release takes it for :data:`BEGINS`, which has the same effect."""

Record = tuple[Any, ...]


HELD: Final = "\0held:"
"""Prefix of the names of groups among the offsets, for whether events are held for them. A reader that does not know
it takes it for one more group."""


@define(slots=True)
class CommitGroup:
    """Writes that are persisted together."""

    sessions: list[SessionWrite] = field(factory=list)
    claims: list[tuple[str, int]] = field(factory=list)
    """Claims of stored sessions before these writes, with their new epochs; writes of older epochs are dropped."""
    queue: list[QueueWrite] = field(factory=list)
    stands: list[Record] = field(factory=list)
    """Full entries: client id, epoch, entry (or its sequence number once released) and packet identifier."""
    orders: list[Record] = field(factory=list)
    """Inflight entries in the order of sending: client id, epoch and sequence numbers."""
    retain: list[RetainWrite] = field(factory=list)
    events: list[Recorded] = field(factory=list)
    offsets: dict[str, int] = field(factory=dict)
    """The committed offsets of the event log's consumer groups."""
    holds: dict[str, bool] = field(factory=dict)
    """Groups for which events are held from now on, or no longer."""
    floor: int = 0
    """Epochs up to this one may be in use."""
    is_checked: bool = False
    """Whether the store has accepted all writes in ``retain``: they are applied as they are. A snapshot's are not:
    some may be older than what was logged since the snapshot began."""

    @property
    def asks(self) -> bool:
        """Tell whether the group has writes that a caller waits for; the rest can wait for the next group."""
        return bool(self.sessions or self.queue or self.stands or self.orders or self.retain or self.events)

    def __bool__(self) -> bool:
        return self.asks or bool(self.claims or self.offsets or self.holds or self.floor)


@define(slots=True)
class Unpacked:
    """A decoded group; queue records become objects later, and only those that are still live."""

    messages: list[Record]
    sessions: list[SessionWrite]
    queue: list[Record]
    retain: list[RetainWrite]
    events: list[Recorded]
    offsets: dict[str, int]
    holds: dict[str, bool]
    floor: int
    claims: list[tuple[str, int]]
    flags: int
    """:data:`BEGINS` and :data:`CHECKED`."""


class _Messages:
    """The messages of a group, each once."""

    __slots__ = ("places", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.places: dict[int, int] = {}

    def place(self, message: Message) -> int:
        """Return a message's index in the group. The message must live as long as this object."""
        key = id(message)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = len(self.records)
            properties = message.properties
            publisher = message.publisher
            self.records.append((
                message.topic,
                message.payload,
                message.qos,
                message.retain,
                dict(properties.present) if properties else None,
                publisher.client_id,
                publisher.username,
                *message.id,
                message.received_at,
                message.expires_at,
            ))  # fmt: skip
        return place


def logged_bytes(message: Message) -> int:
    """Return the approximate variable size of a message in the log: topic, payload and properties."""
    return message.size_bytes - MESSAGE_BYTES


def message_of(record: Record) -> Message:
    """Decode a message."""
    topic, payload, qos, retain, properties, client_id, username, node, counter, received_at, expires_at = record
    return Message(
        topic,
        payload,
        qos,
        retain,
        NO_PROPERTIES if properties is None else Properties.from_wire(properties),
        Publisher(client_id, username),
        MessageId(node, counter),
        received_at,
        expires_at,
    )


def pack(group: CommitGroup) -> bytes:
    """Encode a group."""
    messages = _Messages()
    place = messages.place
    queue: list[Record] = []
    keep = queue.append
    for write in group.queue:
        if isinstance(write, Append):
            client_id, epoch, entry, packet_id = write
            keep((
                APPEND,
                client_id,
                epoch,
                entry.sequence,
                place(entry.message),
                entry.qos,
                entry.retain,
                entry.identifiers,
                entry.shared_filter,
                packet_id,
            ))  # fmt: skip
        elif isinstance(write, InboundOpen):
            keep(_pack_inbound(write))
        else:
            keep((_CODES[type(write)], *write))
    queue.extend(_pack_stand(stand, place) for stand in group.stands)
    queue.extend((ORDER, *order) for order in group.orders)
    sessions = [_PACK_SESSION[type(write)](write, place) for write in group.sessions]
    retain = [
        (place(write.message), write.version.received_at, write.version.node, write.version.counter)
        for write in group.retain
    ]
    events = [_pack_event(recorded) for recorded in group.events]
    whole = (
        messages.records,
        sessions,
        queue,
        retain,
        events,
        group.offsets | {HELD + name: int(held) for name, held in group.holds.items()},
        group.floor,
        group.claims,
        CHECKED if group.is_checked else 0,
    )
    try:
        return marshal.dumps(whole, _MARSHAL)
    except ValueError:
        # A plugin's value may be of a subclass, such as an IntEnum, but marshal takes exact types only.
        return marshal.dumps(_plain(whole), _MARSHAL)


def unpack(data: bytes) -> Unpacked:
    """Decode a group; raise ``ValueError`` or a related error for invalid bytes."""
    messages, sessions, queue, retain, events, offsets, floor, claims, flags = marshal.loads(data)
    made: dict[int, Message] = {}

    def message(place: int) -> Message:
        if place not in made:
            made[place] = message_of(messages[place])
        return made[place]

    return Unpacked(
        messages,
        [_UNPACK_SESSION[record[0]](record, message) for record in sessions],
        queue,
        [RetainWrite(message(place), RetainVersion(*version)) for place, *version in retain],
        [_unpack_event(record) for record in events],
        {name: offset for name, offset in offsets.items() if not name.startswith(HELD)},
        {name.removeprefix(HELD): bool(held) for name, held in offsets.items() if name.startswith(HELD)},
        floor,
        claims,
        int(flags),
    )


def _plain(value: Any) -> Any:
    """Convert a value to the types that marshal takes; raise ``TypeError`` if that is impossible."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return tuple(map(_plain, value))
    raise TypeError(f"a {type(value).__name__} is not a plain value and can't be stored")


_Place = Callable[[Message], int]
_At = Callable[[int], Message]

_CODES: Final[Mapping[type[QueueWrite], int]] = {
    Send: SEND,
    Release: RELEASE,
    Remove: REMOVE,
    Requeue: REQUEUE,
    InboundClose: INBOUND_CLOSE,
    Purge: PURGE,
}
"""The codes in front of the fields of a write."""


def _pack_inbound(write: InboundOpen) -> Record:
    client_id, epoch, packet_id, message = write
    if message is None:
        return INBOUND_OPEN, client_id, epoch, packet_id
    return INBOUND_PENDING, client_id, epoch, packet_id, *message


def _pack_stand(stand: Record, place: _Place) -> Record:
    client_id, epoch, entry, packet_id = stand
    if not isinstance(entry, Entry):
        return STAND, client_id, epoch, entry, None, 2, False, (), None, packet_id
    return (
        STAND,
        client_id,
        epoch,
        entry.sequence,
        place(entry.message),
        entry.qos,
        entry.retain,
        entry.identifiers,
        entry.shared_filter,
        packet_id,
    )


def _pack_will(will: Will | None, place: _Place) -> Record | None:
    return None if will is None else (place(will.message), will.delay_s)


def _unpack_will(record: Record | None, at: _At) -> Will | None:
    return None if record is None else Will(at(record[0]), record[1])


def _pack_subscription(each: Subscription) -> Record:
    return (
        each.filter,
        int(each.qos),
        each.share_group,
        each.no_local,
        each.retain_as_published,
        int(each.retain_handling),
        each.identifier,
    )


def _pack_subscriptions(subscriptions: Sequence[Subscription]) -> Record:
    return tuple(map(_pack_subscription, subscriptions))


def _unpack_subscriptions(records: Sequence[Record]) -> tuple[Subscription, ...]:
    return tuple(Subscription(*record) for record in records)


def _pack_open(write: OpenSession, place: _Place) -> Record:
    session = write.session
    return (
        7,
        session.client_id,
        write.epoch,
        session.expiry_s,
        _pack_subscriptions(session.subscriptions),
        _pack_will(session.will, place),
        session.created_at,
        session.username,
        session.protocol_version,
        session.expires_at,
        session.will_due_at,
        session.username_unverified,
    )


def _unpack_open(record: Record, at: _At) -> OpenSession:
    _, client_id, epoch, expiry_s, subscriptions, will, *rest = record
    stored = StoredSession(client_id, expiry_s, _unpack_subscriptions(subscriptions), _unpack_will(will, at), *rest)
    return OpenSession(epoch, stored)


def _unpack_resume(record: Record, at: _At) -> ResumeSession:
    _, client_id, epoch, expiry_s, will, *rest = record
    return ResumeSession(client_id, epoch, expiry_s, _unpack_will(will, at), *rest)


_PACK_SESSION: Final[Mapping[type[SessionWrite], Callable[[Any, _Place], Record]]] = {
    OpenSession: _pack_open,
    ResumeSession: lambda write, place: (
        8,
        write.client_id,
        write.epoch,
        write.expiry_s,
        _pack_will(write.will, place),
        write.username,
        write.protocol_version,
        write.username_unverified,
    ),
    SaveSubscriptions: lambda write, place: (
        2,
        write.client_id,
        write.epoch,
        _pack_subscriptions(write.subscriptions),
    ),
    RemoveSubscriptions: lambda write, place: (3, write.client_id, write.epoch, tuple(write.filters)),
    ClearWill: lambda write, place: (4, write.client_id, write.epoch),
    ReleaseSession: lambda write, place: (5, write.client_id, write.epoch, write.expires_at, write.will_due_at),
    DiscardSession: lambda write, place: (6, write.client_id, write.epoch),
}

_UNPACK_SESSION: Final[Sequence[Callable[[Record, _At], SessionWrite]]] = (
    # Format 1: the user name is that of CONNECT, unverified.
    lambda r, at: _unpack_open((*r, True), at),
    lambda r, at: _unpack_resume((*r, True), at),
    lambda r, at: SaveSubscriptions(r[1], r[2], _unpack_subscriptions(r[3])),
    lambda r, at: RemoveSubscriptions(r[1], r[2], r[3]),
    lambda r, at: ClearWill(r[1], r[2]),
    lambda r, at: ReleaseSession(r[1], r[2], r[3], r[4]),
    lambda r, at: DiscardSession(r[1], r[2]),
    _unpack_open,
    _unpack_resume,
)


def _pack_event(recorded: Recorded) -> Record:
    event = recorded.event
    return (
        recorded.offset,
        event.kind.value,
        event.client_id,
        event.version.epoch,
        event.version.counter,
        event.at,
        dict(event.data),
        event.schema_version,
    )


def _unpack_event(record: Record) -> Recorded:
    offset, kind, client_id, epoch, counter, at, data, schema_version = record
    return Recorded(offset, Event(EventKind(kind), client_id, EventVersion(epoch, counter), at, data, schema_version))
