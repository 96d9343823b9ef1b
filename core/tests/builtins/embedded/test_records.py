"""Groups of writes as bytes and back."""

from __future__ import annotations

import marshal
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_harness.strategies import payloads, properties
from kinmqtt.builtins.embedded import records
from kinmqtt.builtins.embedded.records import CommitGroup, Record, message_of, pack, unpack
from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt_spi.properties import Properties
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
from kinmqtt_spi.values import Message, MessageId, Publisher, QoS, RetainHandling, Subscription, Will
from spi_harness.examples import examples

texts = st.text(max_size=6)
"""Of any characters, lone surrogates included: what a test hands a store need not have come over the wire."""
numbers = st.integers(0, 2**64 - 1)
packet_ids = st.integers(1, 0xFFFF)
moments = st.floats(0, 1e11)
usernames = st.none() | texts

messages = st.builds(
    Message,
    topic=texts,
    payload=payloads,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=properties(PacketType.PUBLISH, V5),
    publisher=st.builds(Publisher, texts, usernames),
    id=st.builds(MessageId, numbers, numbers),
    received_at=moments,
    expires_at=st.none() | moments,
    frame=st.none() | payloads,
)
wills = st.builds(Will, messages, st.integers(0, 2**32 - 1))
subscriptions = st.lists(
    st.builds(
        Subscription,
        filter=texts,
        qos=st.sampled_from(QoS),
        share_group=usernames,
        no_local=st.booleans(),
        retain_as_published=st.booleans(),
        retain_handling=st.sampled_from(RetainHandling),
        identifier=st.none() | packet_ids,
    ),
    max_size=3,
).map(tuple)
stored_sessions = st.builds(
    StoredSession,
    client_id=texts,
    expiry_s=st.integers(0, 2**32 - 1),
    subscriptions=subscriptions,
    will=st.none() | wills,
    created_at=moments,
    username=usernames,
    protocol_version=st.sampled_from((3, 4, 5)),
    expires_at=st.none() | moments,
    will_due_at=st.none() | moments,
    username_unverified=st.booleans(),
)
entries = st.builds(
    Entry,
    sequence=numbers,
    message=messages,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    identifiers=st.lists(packet_ids, max_size=3).map(tuple),
    shared_filter=usernames,
)
session_writes: st.SearchStrategy[SessionWrite] = st.one_of(
    st.builds(OpenSession, numbers, stored_sessions),
    st.builds(
        ResumeSession,
        texts,
        numbers,
        numbers,
        st.none() | wills,
        usernames,
        st.sampled_from((3, 4, 5)),
        st.booleans(),
    ),
    st.builds(SaveSubscriptions, texts, numbers, subscriptions),
    st.builds(RemoveSubscriptions, texts, numbers, st.lists(texts, max_size=3).map(tuple)),
    st.builds(ClearWill, texts, numbers),
    st.builds(ReleaseSession, texts, numbers, st.none() | moments, st.none() | moments),
    st.builds(DiscardSession, texts, numbers),
)
queue_writes: st.SearchStrategy[QueueWrite] = st.one_of(
    st.builds(Append, texts, numbers, entries, st.none() | packet_ids),
    st.builds(Send, texts, numbers, numbers, packet_ids),
    st.builds(Release, texts, numbers, numbers),
    st.builds(Remove, texts, numbers, numbers),
    st.builds(Requeue, texts, numbers),
    st.builds(InboundOpen, texts, numbers, packet_ids, st.none() | st.builds(MessageId, numbers, numbers)),
    st.builds(InboundClose, texts, numbers, packet_ids),
    st.builds(Purge, texts, numbers),
)
retain_writes = st.builds(RetainWrite, messages, st.builds(RetainVersion, moments, numbers, numbers))
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | moments | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
events = st.builds(
    Recorded,
    numbers,
    st.builds(
        Event,
        st.sampled_from(EventKind),
        texts,
        st.builds(EventVersion, numbers, numbers),
        moments,
        st.dictionaries(texts, plain_values, max_size=3),
        st.integers(1, 3),
    ),
)
groups = st.builds(
    CommitGroup,
    sessions=st.lists(session_writes, max_size=4),
    queue=st.lists(queue_writes, max_size=4),
    stands=st.lists(st.tuples(texts, numbers, entries | numbers, st.none() | packet_ids), max_size=3),
    retain=st.lists(retain_writes, max_size=3),
    events=st.lists(events, max_size=3),
    offsets=st.dictionaries(texts, numbers, max_size=2),
    floor=numbers,
)

SORTS: dict[int, Any] = {
    records.SEND: Send,
    records.RELEASE: Release,
    records.REMOVE: Remove,
    records.REQUEUE: Requeue,
    records.INBOUND_OPEN: InboundOpen,
    records.INBOUND_PENDING: lambda client_id, epoch, packet_id, *message: InboundOpen(
        client_id, epoch, packet_id, MessageId(*message)
    ),
    records.INBOUND_CLOSE: InboundClose,
    records.PURGE: Purge,
}


class Colour(IntEnum):
    """A plugin's value that is an integer too."""

    RED = 1


class Word(str):
    """A plugin's value that is a text too."""


class Named(StrEnum):
    """A plugin's name for a value."""

    BLUE = "blue"


class Pair(NamedTuple):
    """A plugin's tuple."""

    left: int
    right: str


def entry_of(record: Record, messages: list[Record]) -> Entry:
    """The entry that a record tells of."""
    sequence, place, qos, retain, identifiers, shared_filter = record[3:9]
    return Entry(sequence, message_of(messages[place]), qos, retain, identifiers, shared_filter)


def write_of(record: Record, messages: list[Record]) -> Any:
    """A queue write, or an entry as it stands, from its record."""
    sort, client_id, epoch = record[:3]
    if sort == records.APPEND:
        return Append(client_id, epoch, entry_of(record, messages), record[9])
    if sort == records.STAND:
        return client_id, epoch, record[3] if record[4] is None else entry_of(record, messages), record[9]
    return SORTS[sort](*record[1:])


def event(data: Any) -> Recorded:
    """An event with these data."""
    return Recorded(0, Event(EventKind.CONNECT, "c", EventVersion(1, 1), 1.5, data))


@given(groups)
@settings(max_examples=examples(300), deadline=None)
def test_a_group_comes_back_as_it_was(group: CommitGroup) -> None:
    """Every sort of write, with all that a message, will, subscription or event can carry, survives packing."""
    back = unpack(pack(group))

    assert back.sessions == group.sessions
    assert [write_of(record, back.messages) for record in back.queue] == [*group.queue, *group.stands]
    assert back.retain == group.retain
    assert back.events == group.events
    assert (back.offsets, back.floor) == (group.offsets, group.floor)


def test_a_group_is_empty_until_something_is_in_it() -> None:
    """A turn that wants nothing kept costs no write; each sort of content makes it one."""
    fillings: list[dict[str, Any]] = [
        {"sessions": [ClearWill("c", 1)]},
        {"queue": [Purge("c", 1)]},
        {"stands": [("c", 1, 1, 1)]},
        {"retain": [RetainWrite(Message("t"), RetainVersion(0.0, 0, 0))]},
        {"events": [event({})]},
        {"offsets": {"group": 0}},
        {"floor": 1},
    ]

    filled = [bool(CommitGroup(**filling)) for filling in fillings]

    assert not CommitGroup()
    assert all(filled)


def test_a_shared_message_stands_once() -> None:
    """A message for many queues, retained and a will besides, takes its bytes once, and is one object afterwards."""
    message = Message("topic", b"x" * 1000)
    stored = StoredSession("c", 1, will=Will(message))
    group = CommitGroup(
        sessions=[OpenSession(1, stored), ResumeSession("d", 1, 1, Will(message))],
        queue=[Append(name, 1, Entry(1, message, 1)) for name in "abc"],
        stands=[("d", 1, Entry(1, message, 1), None)],
        retain=[RetainWrite(message, RetainVersion(0.0, 0, 0))],
    )

    data = pack(group)

    back = unpack(data)
    assert data.count(message.payload) == len(back.messages) == 1
    assert back.sessions[0].session.will.message is back.retain[0].message  # type: ignore[union-attr]


def test_equal_messages_are_not_mixed_up() -> None:
    """Two messages that look alike, but came in different frames, keep a place each: neither takes the other's."""
    one, other = Message("t", b"1"), Message("t", b"2")
    writes: list[QueueWrite] = [Append("c", 1, Entry(1, one, 1)), Append("c", 1, Entry(2, other, 1))]

    back = unpack(pack(CommitGroup(queue=writes)))

    assert [write_of(record, back.messages) for record in back.queue] == writes


def test_values_of_subclasses_become_plain() -> None:
    """A plugin's IntEnum, text or mapping of its own is kept as the plain value that it stands for."""
    message = Message(Word("topic"), b"x", QoS.AT_LEAST_ONCE, properties=Properties(content_type=Word("text")))
    data = MappingProxyType(
        {
            "colour": Colour.RED,
            Word("word"): Word("said"),
            "name": Named.BLUE,
            "inner": MappingProxyType({"deep": (Colour.RED, [Pair(1, "r")])}),
            "flag": True,
            "set": frozenset({Colour.RED}),
        }
    )
    group = CommitGroup(
        queue=[Append(Word("c"), 1, Entry(1, message, QoS.AT_LEAST_ONCE, identifiers=(Colour.RED,)))],
        events=[event(data)],
    )

    back = unpack(pack(group))

    record = back.queue[0]
    assert write_of(record, back.messages) == group.queue[0]
    assert [type(value) for value in (record[1], record[5], record[7][0])] == [str, int, int]
    assert type(back.messages[0][0]) is str
    kept = dict(back.events[0].event.data)
    assert kept == {
        "colour": 1,
        "word": "said",
        "name": "blue",
        "inner": {"deep": (1, [(1, "r")])},
        "flag": True,
        "set": (1,),
    }
    assert [type(kept[name]) for name in ("colour", "word", "name", "flag")] == [int, str, str, bool]


@pytest.mark.parametrize("value", [object(), Decimal(1), datetime(2026, 1, 1, tzinfo=UTC), print, iter(())])
def test_a_value_that_is_not_plain_is_refused(value: object) -> None:
    """What could not be read again is refused when it is written, not found out at the next start."""
    group = CommitGroup(events=[event({"deep": [{"value": value}]})])

    with pytest.raises(TypeError, match="is not a plain value and can't be stored"):
        pack(group)


def test_a_payload_of_another_sort_of_bytes_stays_bytes() -> None:
    """Another value of a subclass in its group does not change how a payload is kept."""
    payload: Any = bytearray(b"abc")
    plain = CommitGroup(retain=[RetainWrite(Message("t", payload), RetainVersion(0.0, 0, 0))])
    mixed = CommitGroup(retain=plain.retain, events=[event({"colour": Colour.RED})])

    kept = [unpack(pack(group)).retain[0].message.payload for group in (plain, mixed)]

    assert kept == [b"abc", b"abc"]


def test_a_list_comes_back_alike_whatever_else_is_in_its_group() -> None:
    """What an event holds does not depend on the events that it was kept with."""
    one = event({"list": [1]})

    alone = unpack(pack(CommitGroup(events=[one]))).events[0]
    beside = unpack(pack(CommitGroup(events=[one, event({"colour": Colour.RED})]))).events[0]

    assert beside == alone


@pytest.mark.parametrize("data", [b"", b"?", marshal.dumps(None), marshal.dumps((1, 2)), pack(CommitGroup())[:-1]])
def test_bytes_that_are_no_group_are_told_of(data: bytes) -> None:
    """Bytes that are no group raise an error that a reader can catch."""
    with pytest.raises((ValueError, EOFError, TypeError)):
        unpack(data)
