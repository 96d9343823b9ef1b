"""The form of events in Kafka: JSON values that say everything, with the attributes of CloudEvents 1.0 as headers.

``event.schema.json`` describes the values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from attrs import frozen

from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.services.event import Event, Recorded

TYPE_PREFIX: Final = "io.kinmqtt.event."
"""What ``ce_type`` begins with; the event's kind in lower case follows."""

_CONTENT: Final = ("content-type", b"application/json")
_SPEC: Final = ("ce_specversion", b"1.0")

Headers = Sequence[tuple[str, bytes]]


@frozen(slots=True)
class EventRecord:
    """An event as a record of Kafka."""

    key: bytes
    """The client id, in UTF-8: its events are in one partition."""
    value: bytes
    headers: Headers
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """An upper bound of its size in a batch."""
        headers = sum(len(name) + len(value) + 10 for name, value in self.headers)
        return len(self.key) + len(self.value) + headers + 100


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the values."""
    schema: dict[str, Any] = json.loads(files("kinmqtt_event_kafka").joinpath("event.schema.json").read_bytes())
    return schema


def encode(node: str, event: Event) -> EventRecord:
    """Return the record of a node's event; raises ``ValueError`` for data that can't be written as JSON."""
    plain = {"node": node, **to_plain(Recorded(0, event))["event"]}
    value = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode("ascii")
    headers = (
        _CONTENT,
        _SPEC,
        ("ce_id", event_id(node, event).encode("utf-8", "surrogatepass")),
        ("ce_source", f"kinmqtt/{quote(node, safe='')}".encode("ascii")),
        ("ce_type", (TYPE_PREFIX + event.kind.value.lower()).encode("ascii")),
        ("ce_time", datetime.fromtimestamp(event.at, UTC).isoformat().replace("+00:00", "Z").encode("ascii")),
    )
    return EventRecord(event.client_id.encode("utf-8", "surrogatepass"), value, headers, int(event.at * 1000))


def event_id(node: str, event: Event) -> str:
    """Return the id by which consumers know an event again: node, client id, epoch and counter.

    Events without a session (epoch 0) also have the time: their counters begin anew with each start of the broker.
    """
    version = event.version
    at = "" if version.epoch else f"-{int(event.at * 1_000_000)}"
    return f"{node}-{event.client_id}-{version.epoch}-{version.counter}{at}"


def decode(value: bytes | None) -> tuple[str, Event]:
    """Return the node and the event of a record's value.

    Raises ``ValueError`` if the value is no event, or one of a kind or a form that this version does not know.
    """
    try:
        plain = json.loads(value or b"")
    except (RecursionError, ValueError) as error:
        raise ValueError(f"the value is no JSON: {error}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("node"), str):
        raise ValueError("the value is no event with a node")
    node: str = plain.pop("node")
    return node, from_plain(Recorded, {"offset": 0, "event": plain}).event
