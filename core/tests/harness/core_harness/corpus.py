"""The packet corpus: ``packets.toml`` beside this module, as objects.

It needs the standard library, attrs and the SPI only, so that tests of any layer can use it. Its package's folder
is on pytest's ``pythonpath``: ``from core_harness.corpus import ENTRIES``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import attrs

from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode

_FILE: Final = Path(__file__).with_name("packets.toml")
_PUBLISH_DEFAULTS: Final = {"qos": 0, "retain": False, "dup": False, "packet_id": 0}


@attrs.frozen
class Entry:
    """One packet of the corpus; the fields are explained at the top of ``packets.toml``.

    ``data`` is the whole packet. Exactly one of ``expected`` and ``reason`` is set.
    """

    name: str
    about: str
    data: bytes
    versions: tuple[int, ...]
    direction: str
    clause: str = ""
    expected: Mapping[str, Any] | None = None
    reason: ReasonCode | None = None
    framing: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the packet decodes."""
        return self.expected is not None

    @property
    def body(self) -> int:
        """The offset of the packet's body, wherever its Remaining Length ends (at most four bytes long)."""
        length = self.data[1:5]
        return 2 + next(index for index, byte in enumerate(length) if byte < 0x80)


def load(path: Path = _FILE) -> dict[str, Entry]:
    """The entries of a corpus file by name, in its order."""
    with path.open("rb") as file:
        rows = tomllib.load(file)["packets"]
    entries = {row["name"]: _entry(row) for row in rows}
    if len(entries) != len(rows):
        raise ValueError(f"{path}: a name is used twice")
    return entries


def cases(good: bool | None = None, direction: str | None = None) -> Iterator[tuple[str, Entry, int]]:
    """(test id, entry, version) for each version of each entry; ``None`` means either."""
    for entry in ENTRIES.values():
        if good in (None, entry.is_good) and direction in (None, entry.direction):
            for version in entry.versions:
                yield f"{entry.name}-v{version}", entry, version


def describe(packet: object) -> dict[str, Any]:
    """A decoded packet in the shape of ``expected``: its type and the fields that have no default value."""
    return {"type": type(packet).__name__.removesuffix("Packet").upper(), **_fields(packet)}


def _entry(row: Mapping[str, Any]) -> Entry:
    if ("expected" in row) == ("reason" in row):
        raise ValueError(f"{row['name']}: needs either expected or reason")
    return Entry(
        name=row["name"],
        about=row["about"],
        data=bytes.fromhex(row["hex"]),
        versions=tuple(row["versions"]),
        direction=row["direction"],
        clause=row.get("clause", ""),
        expected=row.get("expected"),
        reason=ReasonCode[row["reason"]] if "reason" in row else None,
        framing=row.get("framing", False),
    )


def _fields(value: Any) -> dict[str, Any]:
    if not attrs.has(type(value)):
        return _publish_fields(value)
    return {
        each.name: _plain(getattr(value, each.name))
        for each in attrs.fields(type(value))
        if getattr(value, each.name) != each.default
    }


def _publish_fields(publish: Any) -> dict[str, Any]:
    """PUBLISH is no attrs class; its topic and payload are always told."""
    told = {"topic": publish.topic, "payload": publish.payload.hex()}
    for name, default in _PUBLISH_DEFAULTS.items():
        if getattr(publish, name) != default:
            told[name] = getattr(publish, name)
    if publish.properties:
        told["properties"] = _plain(publish.properties)
    return told


def _plain(value: Any) -> Any:
    """A value as TOML has it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Properties):
        return {name: _plain(each) for name, each in value.present.items()}
    return _fields(value) if attrs.has(type(value)) else value


ENTRIES: Final[Mapping[str, Entry]] = load()
