"""Parses a document and the environment into an instance of a settings class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from kinmqtt_spi.settings._document import Document
from kinmqtt_spi.settings._environment import Overrides
from kinmqtt_spi.settings._keys import KeyPath
from kinmqtt_spi.settings._paths import path_problems
from kinmqtt_spi.settings._reader import REFUSED, Place, Reader
from kinmqtt_spi.settings._types import section_of
from kinmqtt_spi.settings._words import did_you_mean

T = TypeVar("T")

_NO_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({})


def parse(
    cls: type[T],
    document: Document,
    path: KeyPath,
    *,
    environ: Mapping[str, str] = _NO_ENVIRONMENT,
    prefix: str = "KINMQTT",
    check_paths: bool = False,
    elsewhere: Callable[[str], str | None] | None = None,
) -> T:
    """Parse the table at ``path`` into the attrs class ``cls``; an absent table means all defaults.

    Variables of ``environ`` such as ``KINMQTT__BROKER__MAX_INFLIGHT`` override single settings. Their text is read as
    a TOML value if the setting accepts that, else as a string. :func:`unknown_environment` finds variables that set
    nothing.

    With ``check_paths`` it checks whether files and folders in the settings can be used. ``elsewhere`` returns the
    table that an unknown key belongs to, or ``None``.

    Raises ``SettingsError`` with all problems, in the order of the file, and ``TypeError`` if the class has a field
    of an unsupported type.
    """
    section = section_of(cls)
    reader = Reader(document, {}, [])
    data = _value_at(path, reader)
    reader.finish()
    overrides = Overrides(section, path, data, environ, prefix)
    reader = Reader(document, overrides.variables, overrides.problems, elsewhere)
    instance = reader.read(section, overrides.apply(path, data), Place(path))
    reader.finish()
    if check_paths:
        for key, problem in path_problems(instance, path):
            reader.at_value(key, problem)
        reader.finish()
    return cast(T, instance)


def unknown_tables(
    document: Document,
    path: KeyPath,
    known: Iterable[str],
    *,
    elsewhere: Callable[[str], str | None] | None = None,
) -> list[str]:
    """Return one problem for each key of the table at ``path`` that is not ``known``, in the order of the file.

    ``elsewhere`` returns the table that a key which is no table belongs to, or ``None``.
    """
    names = list(known)
    reader = Reader(document, {}, [])
    table = _value_at(path, reader)
    if isinstance(table, dict):
        for key, value in table.items():
            if key not in names:
                tables = value if isinstance(value, list) else [value]
                noun = "table" if tables and all(isinstance(item, dict) for item in tables) else "key"
                place = elsewhere(key) if elsewhere is not None and noun == "key" else None
                hint = f"; it belongs to {place}" if place else did_you_mean(key, names)
                reader.at_key((*path, key), f"unknown {noun}{hint}")
    elif table is not REFUSED:
        reader.refuse(Place(path), "a table", table)
    return [problem.text for problem in sorted(reader.problems)]


def _value_at(path: KeyPath, reader: Reader) -> Any:
    """Return the value at the path, an empty table if there is none; ``REFUSED`` if the path is no table."""
    value: Any = reader.document.data
    for depth, key in enumerate(path):
        if isinstance(key, int):
            if not isinstance(value, list):
                return reader.refuse(Place(path[:depth]), "a list", value)
            value = value[key] if key < len(value) else {}
        else:
            if not isinstance(value, dict):
                return reader.refuse(Place(path[:depth]), "a table", value)
            value = value.get(key, {})
    return value
