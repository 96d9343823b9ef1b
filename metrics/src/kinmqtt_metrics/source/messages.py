"""Rows as MQTT messages, checked before the first one is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from attrs import field, frozen

ID: Final = "kinmqtt-id"
"""The user property that has the id of a message."""

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "payload": ("string", "binary"),
    "qos": ("int", "bigint", "smallint", "tinyint"),
    "retain": ("boolean",),
    "properties": ("map<string,string>",),
    "message_id": ("string",),
}
"""The columns of rows that are published, and their types; the first two are needed."""

TEXT_BYTES: Final = 65_535
"""So long a text of MQTT may be,"""
PACKET_BYTES: Final = 268_435_460
"""and so long a packet."""


class NotPublished(Exception):
    """A partition that could not be published: which message, where, and why."""


def text_problem(text: str, most_bytes: int) -> str:
    """Why MQTT has no such text; empty where it has."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode: it has half of a surrogate pair"
    if "\0" in text:
        return "contains a NUL"
    return f"has {size_bytes} bytes: it may have {most_bytes}" if size_bytes > most_bytes else ""


def shown(text: str | None) -> str:
    return repr(text) if text is None or len(text) <= 100 else f"{text[:100]!r}…"


@frozen(slots=True)
class Message:
    """A row, looked at."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int
    retain: bool
    properties: tuple[tuple[str, str], ...]

    @property
    def size_bytes(self) -> int:
        """What its packet takes."""
        said = sum(5 + len(name.encode()) + len(value.encode()) for name, value in self.properties)
        rest = 2 + len(self.topic.encode()) + (2 if self.qos else 0) + _length_bytes(said) + said + len(self.payload)
        return 1 + _length_bytes(rest) + rest


def _length_bytes(length: int) -> int:
    """How many bytes say a length."""
    return max(1, -(-length.bit_length() // 7))


def rows_of(batch: pa.RecordBatch, names: list[str]) -> Iterator[dict[str, Any]]:
    columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def message_of(row: Mapping[str, Any], number: int, default_id: str) -> Message:
    """Raises :class:`NotPublished` for a row that is no message."""
    topic, payload, qos = row["topic"], row["payload"], row.get("qos")
    here = f"row {number} of the partition"
    if (
        not topic
        or any(sign in topic for sign in "+#\0")
        or text_problem(topic, TEXT_BYTES)
        or topic.startswith("$share/")
    ):
        raise NotPublished(
            f"{here}: topic {shown(topic)} is not valid: a topic has 1 to {TEXT_BYTES} bytes, no '+', '#' or "
            "NUL, and does not begin with $share/"
        )
    here += f", topic {shown(topic)}"
    if payload is None:
        raise NotPublished(f"{here}: payload is null; an empty one is ''")
    if qos is not None and qos not in (0, 1, 2):
        raise NotPublished(f"{here}: qos is {qos}: it is 0, 1 or 2")
    properties = [(ID, row.get("message_id") or default_id)]
    if why := text_problem(properties[0][1], TEXT_BYTES):
        raise NotPublished(f"{here}: message_id {why}")
    # Arrow gives maps as pairs.
    for name, value in row.get("properties") or ():
        if value is not None and name != ID:
            if why := text_problem(name, TEXT_BYTES):
                raise NotPublished(f"{here}: properties: the name {shown(name)} {why}")
            if why := text_problem(value, TEXT_BYTES):
                raise NotPublished(f"{here}: properties: the value of {shown(name)} {why}")
            properties.append((name, value))
    message = Message(
        topic,
        payload.encode() if isinstance(payload, str) else bytes(payload),
        1 if qos is None else qos,
        bool(row.get("retain")),
        tuple(properties),
    )
    if message.size_bytes > PACKET_BYTES:
        raise NotPublished(
            f"{here}: payload and properties need a packet of {message.size_bytes} bytes: MQTT allows at most "
            f"{PACKET_BYTES}"
        )
    return message
