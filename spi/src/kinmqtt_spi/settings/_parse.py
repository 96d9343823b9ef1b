"""From a document and the environment to an instance of a settings class."""

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
    """The table at ``path`` as an instance of the attrs class ``cls``; an absent table means all defaults.

    Variables of ``environ`` such as ``KINMQTT__BROKER__MAX_INFLIGHT`` override single settings. Their text
    is read as a TOML value if it is one that the setting takes, else as a string. A variable that sets
    nothing is left for :func:`unknown_environment` to find.

    With ``check_paths`` it is looked whether files and folders that settings name can be used. ``elsewhere`` is asked
    about a key that is not known here: in which table it is, or ``None``.

    Raises ``SettingsError`` with all the problems there are, in the order of the file, and ``TypeError`` if
    the class has a field that settings can't express.
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
    """One problem for each key of the table at ``path`` that is not ``known``, in the order of the file.

    ``elsewhere`` is asked where a key that is no table belongs; ``None`` where it does not know.
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
    """What the document has at the path, an empty table if nothing; ``REFUSED`` if no tables lead there."""
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
