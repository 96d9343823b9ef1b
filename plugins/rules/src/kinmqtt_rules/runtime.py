"""What the functions of rules call besides the functions of the language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from kinmqtt_rules.fields import Subject

MAX_ROWS: Final = 1000
"""The most rows that FOREACH makes of a message."""

Row: TypeAlias = dict[str, Any]


class TooManyRows(Exception):
    """FOREACH had an array with more than :data:`MAX_ROWS` elements."""


def get(value: Any, key: str) -> Any:
    """Return what is at a key of a map."""
    return value.get(key) if type(value) is dict else None


def at(value: Any, index: int) -> Any:
    """Return the element at an index of an array, from 0."""
    if type(value) is not list:
        return None
    return value[index] if -len(value) <= index < len(value) else None


def elements(value: Any) -> Sequence[Any]:
    """Return the elements of an array, none of anything else; raises :class:`TooManyRows`."""
    if type(value) is not list:
        return ()
    if len(value) > MAX_ROWS:
        raise TooManyRows(f"FOREACH has {len(value)} elements; {MAX_ROWS} are the most")
    return value


def put(row: Row, *path_and_value: Any) -> None:
    """Put a value at a path; maps on the way are copied, as they may be the message's own."""
    *path, last, value = path_and_value
    for key in path:
        inner = row.get(key)
        row[key] = dict(inner) if type(inner) is dict else {}
        row = row[key]
    row[last] = value


def now(subject: Subject) -> float:
    """Return the moment, in seconds since the epoch."""
    return subject.now


def put_in_payload(row: Row, *arguments: Any) -> None:
    """Put a value into the payload of a row with all fields: it becomes a map, if it is JSON with one."""
    *rest, document = arguments
    if type(row.get("payload")) is not dict:
        row["payload"] = document if type(document) is dict else {}
    put(row, *rest)
