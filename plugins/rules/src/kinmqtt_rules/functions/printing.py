"""Formats of sprintf, and values as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kinmqtt_rules.functions._registry import MAX_TEXT
from kinmqtt_rules.json_values import encoded

_DIRECTIVE: Final = re.compile(r"~(?:(?:\.([0-9]{1,2}))?([sbBfpwn~]))?")


def as_text(value: Any) -> str:
    """Return a value as texts show it: maps and arrays in JSON. Raises ``ValueError`` for bytes that are no text."""
    if type(value) is str:
        return value
    if type(value) is bytes:
        return value.decode()
    return encoded(value)


def _whole(value: Any, digits: str) -> str:
    if type(value) is not int:
        raise ValueError("it is no whole number")
    return str(value)


def _number(value: Any, digits: str) -> str:
    if type(value) not in (int, float):
        raise ValueError("it is no number")
    return f"{value:.{int(digits or 6)}f}"


_MAKERS: Final[Mapping[str, Callable[[Any, str], str]]] = {
    "s": lambda value, digits: as_text(value),
    "b": _whole,
    "B": _whole,
    "f": _number,
    "p": lambda value, digits: encoded(value),
    "w": lambda value, digits: encoded(value),
}


class Format:
    """A format, read once. Raises ``ValueError`` for one that makes no sense."""

    def __init__(self, text: object) -> None:
        if not isinstance(text, str):
            raise ValueError("a format is a text")
        self._parts: list[str | tuple[Callable[[Any, str], str], str]] = []
        end = 0
        for found in _DIRECTIVE.finditer(text):
            self._parts.append(text[end : found.start()])
            end = found.end()
            if found[2] is None:
                raise ValueError(
                    f"{text[found.start() : found.start() + 2]!r} is unknown: use ~s ~b ~f ~.2f ~p ~n ~~"
                )
            if found[2] in "n~":
                self._parts.append("\n" if found[2] == "n" else "~")
            else:
                self._parts.append((_MAKERS[found[2]], found[1] or ""))
        self._parts.append(text[end:])
        self.count = sum(not isinstance(part, str) for part in self._parts)

    def fill_in(self, values: Sequence[Any]) -> str:
        """Return the text; raises ``ValueError`` if the values do not fit."""
        if len(values) != self.count:
            raise ValueError("there are more or fewer values than the format asks for")
        left = iter(values)
        texts = [part if isinstance(part, str) else part[0](next(left), part[1]) for part in self._parts]
        if sum(map(len, texts)) > MAX_TEXT:
            raise ValueError("the text is too long")
        return "".join(texts)
