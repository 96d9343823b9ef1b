"""Events as records of Kafka: what is in the value, in the headers and in the JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from attrs import evolve

from kinmqtt_event_kafka.schema import decode, encode, event_id, json_schema
from kinmqtt_spi.services.event import Event, EventKind, EventVersion
from kinmqtt_spi.testing.build import event

DATA: dict[EventKind, dict[str, Any]] = {
    EventKind.CONNECT: {
        "address": "192.0.2.1:5000",
        "clean_start": False,
        "version": 5,
        "username": None,
        "listener": "tcp",
        "expiry_s": 60,
        "keep_alive_s": 30,
        "session_present": True,
        "created_at": 1_700_000_000.5,
    },
    EventKind.DISCONNECT: {"username": None, "by": "client", "reason": 0, "expires_at": 1_700_000_060.5},
    EventKind.CONNECTION_LOST: {"username": "ada", "expires_at": None},
    EventKind.SUBSCRIBE: {
        "username": "ada",
        "filter": "$share/g/a/#",
        "qos": 1,
        "no_local": False,
        "retain_as_published": True,
        "retain_handling": 2,
        "identifier": 7,
    },
    EventKind.UNSUBSCRIBE: {"username": None, "filter": "a"},
    EventKind.ADD_RETAIN: {"topic": "a", "qos": 1, "bytes": 3, "message_id": "1-2"},
    EventKind.REMOVE_RETAIN: {"topic": "a"},
    EventKind.QUEUE_DROP: {"topic": "a", "messages": 3},
}


def check(value: bytes) -> None:
    """Validate a value against the schema of the wheel."""
    jsonschema.validate(json.loads(value), json_schema(), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_is_described(kind: EventKind) -> None:
    """The JSON Schema takes it, and the event comes back unchanged."""
    its = event("c/ü", kind=kind, data=DATA[kind])

    record = encode("n1", its)

    check(record.value)
    assert decode(record.value) == ("n1", its)
    assert record.key == "c/ü".encode()


@pytest.mark.parametrize(
    ("kind", "data"),
    [(EventKind.CONNECT, {"address": "a"}), (EventKind.DISCONNECT, {"by": "network", "reason": None})],
)
def test_schema_1_is_valid_only_as_such(kind: EventKind, data: dict[str, Any]) -> None:
    """It lacks fields that schema 2 has."""
    check(encode("n1", event(kind=kind, data=data, schema_version=1)).value)

    with pytest.raises(jsonschema.ValidationError):
        check(encode("n1", event(kind=kind, data=data, schema_version=2)).value)


def test_the_headers_are_those_of_cloudevents() -> None:
    """In binary mode: attributes are headers, and the value is the data."""
    its = Event(EventKind.CONNECTION_LOST, "c", EventVersion(7, 9), 1_700_000_000.5, {"expires_at": None})

    record = encode("n 1/ü", its)

    assert dict(record.headers) == {
        "content-type": b"application/json",
        "ce_specversion": b"1.0",
        "ce_id": "n 1/ü-c-7-9".encode(),
        "ce_source": b"kinmqtt/n%201%2F%C3%BC",
        "ce_type": b"io.kinmqtt.event.connection_lost",
        "ce_time": b"2023-11-14T22:13:20.500000Z",
    }
    assert record.timestamp_ms == 1_700_000_000_500


def test_events_without_a_session_have_ids_of_their_own() -> None:
    """Their counters begin anew when a broker is started, so the time is part of the id."""
    one = Event(EventKind.ADD_RETAIN, "", EventVersion(0, 1), 1.0, {})

    assert event_id("n", one) != event_id("n", evolve(one, at=2.0))


@pytest.mark.parametrize(
    "value",
    [None, b"", b"no json", b"[]", b"{}", b'{"node": 1}', b'{"node": "n", "kind": "OTHER"}', b"[" * 100_000],
)
def test_what_is_no_event_is_a_value_error(value: bytes | None) -> None:
    """Whoever has written it: nobody's consumer ends."""
    with pytest.raises(ValueError, match=r"."):
        decode(value)
