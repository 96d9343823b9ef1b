"""The SPI's values as JSON has them, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from enum import Enum, IntEnum
from inspect import signature
from operator import methodcaller
from typing import Any, Final, get_type_hints

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.plain import Storable, from_plain, to_plain
from kinmqtt_spi.properties import NO_PROPERTIES, Properties, PropertyValues
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import Entry, InflightEntry, Stage
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.values import (
    Address,
    Client,
    Message,
    MessageId,
    Publisher,
    QoS,
    RetainHandling,
    Subscription,
    Will,
)

# Any value there can be

counts = st.integers(0, 2**64 - 1)
times = st.floats(allow_nan=False, allow_infinity=False)
qos = st.integers(0, 2)
uint32 = st.integers(0, 0xFFFF_FFFF)
# With lone surrogates: an MQTT string has none, and whatever got into a store must come out of it.
texts = st.text(st.characters(exclude_categories=[]), max_size=10)
identifiers = st.integers(1, 268_435_455)

SORTS: Final[dict[str, Any]] = get_type_hints(PropertyValues)
OF_SORT: Final[dict[Any, st.SearchStrategy[Any]]] = {
    int: uint32,
    str: texts,
    bytes: st.binary(max_size=10),
    tuple[int, ...]: st.lists(identifiers, min_size=1, max_size=3).map(tuple),
    tuple[tuple[str, str], ...]: st.lists(st.tuples(texts, texts), min_size=1, max_size=3).map(tuple),
}
properties = st.fixed_dictionaries({}, optional={name: OF_SORT[sort] for name, sort in SORTS.items()}).map(
    lambda present: Properties(**present) if present else NO_PROPERTIES
)
messages = st.builds(
    Message,
    topic=texts,
    payload=st.binary(max_size=20),
    qos=qos,
    retain=st.booleans(),
    properties=properties,
    publisher=st.builds(Publisher, texts, st.none() | texts),
    id=st.builds(MessageId, counts, counts),
    received_at=times,
    expires_at=st.none() | times,
)
wills = st.builds(Will, messages, uint32)
subscriptions = st.builds(
    Subscription,
    filter=texts,
    qos=qos,
    share_group=st.none() | texts,
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    retain_handling=st.integers(0, 2),
    identifier=st.none() | identifiers,
)
sessions = st.builds(
    StoredSession,
    client_id=texts,
    expiry_s=uint32,
    subscriptions=st.lists(subscriptions, max_size=3).map(tuple),
    will=st.none() | wills,
    created_at=times,
    username=st.none() | texts,
    protocol_version=st.integers(3, 5),
    expires_at=st.none() | times,
    will_due_at=st.none() | times,
)
entries = st.builds(
    Entry,
    sequence=counts,
    message=messages,
    qos=qos,
    retain=st.booleans(),
    identifiers=st.lists(identifiers, max_size=3).map(tuple),
    shared_filter=st.none() | texts,
)
packet_ids = st.integers(1, 65_535)
sent = st.builds(lambda entry, number: InflightEntry(entry.sequence, number, Stage.SENT, entry), entries, packet_ids)
released = st.builds(
    lambda number, packet_id: InflightEntry(number, packet_id, Stage.RELEASED, None), counts, packet_ids
)
in_flight = sent | released
retained = st.builds(RetainWrite, messages, st.builds(RetainVersion, times, counts, counts))
keys = texts | st.sampled_from(["$base64", "$object"])
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | times | texts | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=10,
)
events = st.builds(
    Event,
    kind=st.sampled_from(EventKind),
    client_id=texts,
    version=st.builds(EventVersion, counts, counts),
    at=times,
    data=st.dictionaries(keys, plain_values, max_size=3),
    schema_version=counts,
)
recorded = st.builds(Recorded, counts, events)
clients = st.builds(
    Client,
    client_id=texts,
    username=st.none() | texts,
    address=st.builds(Address, texts, st.none() | counts),
    listener=texts,
    protocol_version=st.integers(3, 5),
    certificate_subject=st.none() | texts,
    attributes=st.dictionaries(texts, texts, max_size=3),
)


@given(st.one_of(messages, wills, subscriptions, sessions, entries, in_flight, retained, recorded, clients))
def test_what_is_written_is_read_again(value: Storable) -> None:
    """Every value comes back from its plain form, by way of JSON."""
    text = json.dumps(to_plain(value), allow_nan=False)

    again = from_plain(type(value), json.loads(text))

    assert again == value
    assert json.dumps(to_plain(again)) == text


# Samples

MESSAGE = Message(
    "t/1",
    b"\x00\xff",
    1,
    True,
    Properties(content_type="text", correlation_data=b"c", user_property=(("a", "1"), ("a", "2"))),
    Publisher("p", "u"),
    MessageId(2**64 - 1, 7),
    12.5,
    None,
)
SESSION = StoredSession(
    "c", 60, (Subscription("a/#", 1, "g", identifier=5),), Will(MESSAGE, 3), 1.0, "u", 5, 61.0, 4.0
)
ENTRY = Entry(9, MESSAGE, 1, True, (5, 6), "$share/g/a/#")
IN_FLIGHT = InflightEntry(9, 4, Stage.SENT, ENTRY)
EVENT = Recorded(3, Event(EventKind.SUBSCRIBE, "c", EventVersion(1, 2), 5.0, {"filter": "a/#"}))
RETAINED = RetainWrite(MESSAGE, RetainVersion(1.0, 2, 3))
SAMPLES: Final[list[Storable]] = [
    MESSAGE,
    Will(MESSAGE),
    Subscription("a"),
    SESSION,
    ENTRY,
    IN_FLIGHT,
    RETAINED,
    EVENT,
]
each_sample = pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)


def test_how_a_message_looks() -> None:
    """Every field under its name, bytes as base64; the frame it came in is no part of it."""
    message = evolve(MESSAGE, frame=b"\x30", frame_version=5)

    assert to_plain(message) == {
        "topic": "t/1",
        "payload": "AP8=",
        "qos": 1,
        "retain": True,
        "properties": {"content_type": "text", "correlation_data": "Yw==", "user_property": [["a", "1"], ["a", "2"]]},
        "publisher": {"client_id": "p", "username": "u"},
        "id": {"node": 2**64 - 1, "counter": 7},
        "received_at": 12.5,
        "expires_at": None,
    }


@each_sample
def test_no_field_is_forgotten(value: Storable) -> None:
    """A field that a value gains must get a plain form, or an export would lose it.

    What a write depends on (``expected``, ``publisher_epoch``) is no part of what is stored, and a log that is
    exported has one ``partition``.
    """
    left_out = {"frame", "frame_version", "expected", "publisher_epoch", "partition"}
    expected = set(signature(type(value)).parameters) - left_out

    assert set(to_plain(value)) == expected


def test_every_property_has_a_plain_form() -> None:
    """All 27 are written and read."""
    samples: dict[Any, Any] = {int: 1, str: "s", bytes: b"b", tuple[int, ...]: (1,)}
    present: Any = {name: samples.get(sort, (("a", "b"),)) for name, sort in SORTS.items()}
    message = Message("t", properties=Properties(**present))

    again = from_plain(Message, json.loads(json.dumps(to_plain(message))))

    assert len(present) == 27
    assert again == message


class Colour(IntEnum):
    """A plugin's own sort of number."""

    RED = 3


class Word(Enum):
    """A plugin's own sort of word."""

    YES = "yes"


def test_values_of_subclasses_become_plain() -> None:
    """An IntEnum is a number, and an enum its value; JSON has nothing else."""
    subscription = Subscription("a", QoS.AT_LEAST_ONCE, retain_handling=RetainHandling.SEND_IF_NEW)
    event = Event(EventKind.CONNECT, "c", EventVersion(1, 1), 1, {"a": Colour.RED, "b": (1, Word.YES), "c": {2, 1}})

    assert {type(to_plain(subscription)[name]) for name in ("qos", "retain_handling")} == {int}
    assert to_plain(Recorded(0, event))["event"]["data"] == {"a": 3, "b": [1, "yes"], "c": [1, 2]}
    assert type(to_plain(Recorded(0, event))["event"]["at"]) is float


# What is wrong


def changed(plain: Any, change: Callable[[Any], object], *path: str | int) -> Any:
    """A plain form with a change somewhere in it."""
    copy = deepcopy(plain)
    place = copy
    for step in path:
        place = place[step]
    change(place)
    return copy


def test_the_user_of_an_older_export_is_unverified() -> None:
    """It does not say whether anybody had verified the name, and so it is no verified one."""
    plain = to_plain(StoredSession("c", 60, username="ha"))
    del plain["username_unverified"]

    assert from_plain(StoredSession, plain) == StoredSession("c", 60, username="ha", username_unverified=True)


@each_sample
def test_a_missing_field_is_named(value: Storable) -> None:
    """No field is taken for its default, but one that sessions did not always have."""
    plain = to_plain(value)

    for name in plain.keys() - {"username_unverified"}:
        with pytest.raises(ValueError, match=rf"^\w+\.{name} is missing$"):
            from_plain(type(value), changed(plain, methodcaller("pop", name)))


@each_sample
def test_an_unknown_field_is_named(value: Storable) -> None:
    """What this version does not know can't be kept, and so is not passed over."""
    plain = changed(to_plain(value), lambda place: place.update(colour=1))

    with pytest.raises(ValueError, match=r"^\w+\.colour is no known field$"):
        from_plain(type(value), plain)


@each_sample
@pytest.mark.parametrize("wrong", [None, 1, "x", [], True])
def test_what_is_no_object_is_told_of(value: Storable, wrong: object) -> None:
    """A value is an object, and nothing else."""
    with pytest.raises(ValueError, match=r"^\w+: expected an object, not "):
        from_plain(type(value), wrong)


GOOD_FOR: Final[dict[Any, set[str]]] = {
    -7: {"received_at", "expires_at", "created_at", "will_due_at"},
    "any text": {"topic", "client_id", "username", "filter", "share_group", "shared_filter"},
}
"""The fields in which these are nothing wrong."""


@each_sample
@pytest.mark.parametrize("wrong", [{"wrong": 1}, [[]], -7, "any text", float("inf")])
def test_every_field_is_looked_at(value: Storable, wrong: object) -> None:
    """A field of another type or out of range is named, whichever it is; only texts may be any text."""
    plain = to_plain(value)

    taken = []
    for name in plain:
        try:
            from_plain(type(value), plain | {name: wrong})
        except ValueError as error:
            assert re.match(rf"\w+\.{name}\b", str(error))
        else:
            taken.append(name)

    assert set(taken) <= GOOD_FOR.get(wrong if isinstance(wrong, int | str) else None, set())


@pytest.mark.parametrize(
    ("value", "path", "wrong", "said"),
    [
        (MESSAGE, ("topic",), 1, "message.topic: expected a string, not a number"),
        (MESSAGE, ("payload",), "*", "message.payload: expected base64: "),
        (MESSAGE, ("payload",), "ä", "message.payload: expected base64: "),
        (MESSAGE, ("payload",), None, "message.payload: expected a string of base64, not null"),
        (MESSAGE, ("qos",), 3, "message.qos: expected a whole number from 0 to 2, not 3"),
        (MESSAGE, ("qos",), True, "message.qos: expected a whole number, not true or false"),
        (MESSAGE, ("qos",), 1.0, "message.qos: expected a whole number, not a number"),
        (MESSAGE, ("retain",), 1, "message.retain: expected true or false, not a number"),
        (MESSAGE, ("properties", "content_type"), 1, "message.properties.content_type: expected a string"),
        (MESSAGE, ("properties", "colour"), 1, "message.properties: no such MQTT property: colour"),
        (MESSAGE, ("properties", "topic_alias"), -1, "message.properties.topic_alias: expected a whole number from"),
        (MESSAGE, ("properties", "user_property"), "a", "message.properties.user_property: expected a list"),
        (
            MESSAGE,
            ("properties", "user_property"),
            [["a"]],
            "message.properties.user_property[0]: expected a list",
        ),
        (
            MESSAGE,
            ("properties", "user_property"),
            [["a", 1]],
            "message.properties.user_property[0][1]: expected a",
        ),
        (MESSAGE, ("publisher", "client_id"), None, "message.publisher.client_id: expected a string, not null"),
        (MESSAGE, ("id", "node"), -1, "message.id.node: expected a whole number not below 0, not -1"),
        (MESSAGE, ("received_at",), "now", "message.received_at: expected a number of seconds, not a string"),
        (MESSAGE, ("received_at",), False, "message.received_at: expected a number of seconds, not true or false"),
        (MESSAGE, ("received_at",), float("inf"), "message.received_at: expected a finite number, not inf"),
        (MESSAGE, ("expires_at",), 10**400, "message.expires_at: the number is too large"),
        (
            SESSION,
            ("subscriptions", 0, "qos"),
            3,
            "session.subscriptions[0].qos: expected a whole number from 0 to 2",
        ),
        (SESSION, ("will", "message", "topic"), 1, "session.will.message.topic: expected a string"),
        (SESSION, ("expiry_s",), 2**32, "session.expiry_s: expected a whole number from 0 to 4294967295"),
        (SESSION, ("protocol_version",), 6, "session.protocol_version: expected a whole number from 3 to 5"),
        (ENTRY, ("identifiers",), [0], "entry.identifiers[0]: expected a whole number from 1 to 268435455, not 0"),
        (IN_FLIGHT, ("packet_id",), 0, "inflight.packet_id: expected a whole number from 1 to 65535, not 0"),
        (IN_FLIGHT, ("stage",), "lost", 'inflight.stage: expected one of "queued", "sent", "released"'),
        (IN_FLIGHT, ("stage",), 1, 'inflight.stage: expected one of "queued", "sent", "released"'),
        (IN_FLIGHT, ("stage",), "queued", 'inflight.stage: expected "sent" or "released"'),
        (IN_FLIGHT, ("stage",), "released", "inflight.entry: expected null exactly where the stage is"),
        (IN_FLIGHT, ("entry",), None, "inflight.entry: expected null exactly where the stage is"),
        (IN_FLIGHT, ("sequence",), 8, "inflight.entry.sequence: expected 8, not 9"),
        (EVENT, ("event", "kind"), "LUNCH", 'recorded.event.kind: expected one of "CONNECT"'),
        (EVENT, ("event", "data"), [], "recorded.event.data: expected an object, not a list"),
        (EVENT, ("event", "data"), {"a": {"$base64": 1}}, "recorded.event.data.a: expected a string of base64"),
        (EVENT, ("event", "data"), {"a": {"$object": 1}}, "recorded.event.data.a: expected an object"),
        (EVENT, ("event", "data"), {"a": [float("nan")]}, "recorded.event.data.a[0]: expected a finite number"),
        (EVENT, ("event", "data"), {"a": b"x"}, "recorded.event.data.a: a bytes is no plain value"),
    ],
)
def test_what_is_wrong_is_told_of_with_its_place(value: Storable, path: Any, wrong: object, said: str) -> None:
    """The text begins with where it is, and says what was expected there."""
    *before, last = path
    plain = changed(to_plain(value), lambda place: place.__setitem__(last, wrong), *before)

    with pytest.raises(ValueError) as caught:
        from_plain(type(value), plain)

    assert str(caught.value).startswith(said)


def test_payloads_do_not_show_in_what_is_said() -> None:
    """What stands in a wrong place may be a secret: the text has its type only."""
    plain = to_plain(MESSAGE) | {"qos": "hush-hush"}

    with pytest.raises(ValueError) as caught:
        from_plain(Message, plain)

    assert "hush" not in str(caught.value)


def test_the_place_can_be_named() -> None:
    """Who reads a line knows better what a value is called there."""
    with pytest.raises(ValueError, match=r"^queued\.message is missing$"):
        from_plain(Entry, {"sequence": 1}, "queued")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a": object()}, "recorded.event.data.a: a object is no plain value"),
        ({"a": float("nan")}, "recorded.event.data.a: expected a finite number, not nan"),
        ({"a": {1: 2}}, "recorded.event.data.a: expected strings as keys, not a int"),
        ([], "recorded.event.data: expected a mapping, not a list"),
    ],
)
def test_what_has_no_plain_form_is_told_of(data: Any, said: str) -> None:
    """A plugin's own object in an event can't be written down."""
    with pytest.raises(ValueError) as caught:
        to_plain(Recorded(0, Event(EventKind.CONNECT, "c", EventVersion(1, 1), 1.0, data)))

    assert str(caught.value) == said
