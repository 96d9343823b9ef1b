"""Checks of fields that hold tables by name, which a person chooses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from kinmqtt_spi.settings._words import did_you_mean

TABLE_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}")
"""What a person may call a table, as a sink: the name is part of client ids in the stores, and of ``$SYS`` topics."""


def check_names(instance: object, attribute: attrs.Attribute[Any], tables: Mapping[str, Any]) -> None:
    """Check the names of tables, as an attrs validator. Raises ``ValueError``."""
    _raise_all([problem for name in tables for problem in _problems_with(name)])


def referring(key: str, field: str) -> Callable[[Any, attrs.Attribute[Any], Mapping[str, Any]], None]:
    """Return an attrs validator of tables by name, each of which names a table of another field with ``key``.

    ``field`` stands before the checked one in the class.
    """

    def check(instance: Any, attribute: attrs.Attribute[Any], tables: Mapping[str, Any]) -> None:
        there = getattr(instance, field)
        problems = []
        for name, table in tables.items():
            problems += _problems_with(name)
            wanted = getattr(table, key)
            if wanted not in there:
                known = ", ".join(sorted(there)) or "none"
                hint = did_you_mean(wanted, there)
                problems.append(f"{name}.{key}: no {key} {wanted!r}{hint}; there are: {known}")
        _raise_all(problems)

    return check


def _problems_with(name: str) -> list[str]:
    if TABLE_NAME.fullmatch(name):
        return []
    return [f"{name!r} is not a name: use up to 64 of a-z, 0-9, underscore and hyphen"]


def _raise_all(problems: list[str]) -> None:
    if problems:
        raise ValueError("; ".join(problems))
