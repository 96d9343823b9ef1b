"""Formats keys and values for messages and examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

import attrs

from kinmqtt_spi.settings._fields import MASK, rule_of
from kinmqtt_spi.settings._keys import KeyPath

_LONGEST: Final = 60
_LONGEST_NUMBER: Final = 128
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quoted(text: str) -> str:
    """Return a TOML basic string, which can't break a line or control a terminal."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def bare_or_quoted(key: str) -> str:
    """Return a key as TOML requires it."""
    return key if _BARE_KEY.fullmatch(key) else quoted(key)


def dotted(path: KeyPath) -> str:
    """Return a path as messages show it: ``listeners[0].port``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{bare_or_quoted(part)}" if text else bare_or_quoted(part)
    return text


def got(value: Any, secret: bool = False) -> str:
    """Describe a TOML value, shortened if long; for a secret only its type."""
    match value:
        case str():
            shown = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
            return f"the string {quoted(MASK if secret else shown)}"
        case list():
            return "a list"
        case dict():
            return "a table"
        case int() if value.bit_length() > _LONGEST_NUMBER:
            return "a number too long to show"  # and Python refuses to write one of thousands of digits
        case _:
            return MASK if secret else toml_value(value)


def toml_value(value: Any) -> str:
    """Return a value as TOML; sets are sorted, and ``None`` within a table is omitted."""
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return toml_value(value.value)
        case str() | PurePath():
            return quoted(str(value))
        case frozenset():
            return toml_value(sorted(value, key=toml_value))
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case Mapping():
            pairs = (f"{bare_or_quoted(k)} = {toml_value(v)}" for k, v in value.items() if v is not None)
            return "{" + ", ".join(pairs) + "}"
        case _ if attrs.has(type(value)):
            return toml_value(_as_table(value))
        case _:
            return str(value)


def _as_table(instance: Any) -> dict[str, Any]:
    fields = [attribute for attribute in attrs.fields(type(instance)) if attribute.init]
    table = {field.alias or field.name: getattr(instance, field.name) for field in fields}
    hidden = {field.alias or field.name: MASK for field in fields if rule_of(field).secret}
    return {key: value if value is None else hidden.get(key, value) for key, value in table.items()}


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar known word, if its similarity is at least ``cutoff``, 0 to 1."""
    by_folded = {folded(name): name for name in known}
    close = get_close_matches(folded(word), by_folded, n=1, cutoff=cutoff)
    return by_folded[close[0]] if close else None


def folded(name: str) -> str:
    """Return the form in which names are compared, without case and dashes."""
    return name.casefold().replace("-", "_")


def did_you_mean(word: str, known: Iterable[str], quote: str = "'") -> str:
    """Return the end of a message about an unknown word; empty if no known one is similar."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {quote}{near}{quote}?"
