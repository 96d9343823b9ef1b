"""Templates: texts in which ``${name}`` stands for a value of a row, ``${a.b[1]}`` for a part of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from kinmqtt_rules.functions.printing import as_text
from kinmqtt_spi.settings import did_you_mean

ROW: Final = "row"
"""``${row}`` is the whole row, in JSON; EMQX writes ``${.}``."""

MAX_TOPIC_BYTES: Final = 65_535

_CLOSED: Final = ("$SYS", "$share", "$events")
"""What topics of the broker begin with."""

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_STEP: Final = re.compile(r"\.?([^.\[\]\"]+)|\.?\"([^\"]+)\"|\[(-?[1-9][0-9]{0,5})\]")


class Placeholder:
    """A part of a template that stands for a value."""

    __slots__ = ("path", "text")

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` for what is no path."""
        self.text = text
        self.path = () if text in (ROW, ".") else tuple(_path(text))

    @property
    def name(self) -> str | None:
        """The name of the row's value; ``None`` for the whole row."""
        return self.path[0] if self.path and isinstance(self.path[0], str) else None

    def value(self, row: Any) -> Any:
        """Return the value; ``None`` if there is none."""
        for step in self.path:
            if isinstance(step, str):
                row = row.get(step) if type(row) is dict else None
            elif type(row) is list and -len(row) <= step < len(row):
                row = row[step]
            else:
                return None
        return row


def _path(text: str) -> Iterable[str | int]:
    place = 0
    while place < len(text) or not text:
        found = _STEP.match(text, place)
        if found is None or (place == 0 and (text.startswith(".") or found[3])):
            raise ValueError(f"${{{text}}} is no placeholder; write ${{name}}, ${{a.b[1]}} or ${{row}}")
        if found[3]:
            yield int(found[3]) - (int(found[3]) > 0)
        else:
            yield found[1] or found[2]
        place = found.end()


class Template:
    """A text with placeholders, read once and filled in often."""

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` for a placeholder that is none."""
        self.text = text
        self.parts: list[str | Placeholder] = []
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            self._add(text[end : found.start()])
            self.parts.append(Placeholder(found[1]))
            end = found.end()
        self._add(text[end:])

    def _add(self, literal: str) -> None:
        if "${" in literal:
            raise ValueError(f"{self.text!r}: a placeholder has no closing brace")
        if literal:
            self.parts.append(literal)

    @property
    def whole(self) -> Placeholder | None:
        """The placeholder that is all of the template."""
        [part, *others] = self.parts or [""]
        return None if others or isinstance(part, str) else part

    @property
    def constant(self) -> str | None:
        """The text without placeholders; ``None`` if there are some."""
        return None if any(isinstance(part, Placeholder) for part in self.parts) else "".join(map(str, self.parts))

    def check_names(self, known: Iterable[str]) -> None:
        """Raise ``ValueError`` for a placeholder whose name is not known."""
        names = list(known)
        for part in self.parts:
            if isinstance(part, Placeholder) and part.name is not None and part.name not in names:
                there = ", ".join(dict.fromkeys([*names, ROW]))
                hint = did_you_mean(part.name, names)
                raise ValueError(f"{self.text!r}: the rule selects no {part.name!r}{hint}; there are: {there}")

    def payload(self, row: Any) -> bytes:
        """Return the payload for a row; NULL is ``null``, and maps and arrays are in JSON."""
        whole = self.whole
        if whole is not None:
            value = whole.value(row)
            return value if type(value) is bytes else as_text(value).encode()
        return "".join(part if isinstance(part, str) else as_text(part.value(row)) for part in self.parts).encode()


class TopicTemplate:
    """Makes topics of rows."""

    def __init__(self, text: str, *, with_levels: Iterable[str] = ()) -> None:
        """``with_levels``: the names of values that are topics themselves. Raises ``ValueError``.

        Any other value with a slash makes a topic only if the template is nothing else: who publishes could leave the
        topics that the template names.
        """
        self.template = Template(text)
        self._with_levels = frozenset(with_levels)
        literal = _PLACEHOLDER.sub("", text)
        if not text or any(sign in literal for sign in "+#\0"):
            raise ValueError(f"{text!r} can't be a topic: no +, no #, no U+0000")
        if text.startswith(_CLOSED):
            raise ValueError(f"{text!r} can't be published to by rules")
        if len(literal.encode()) > MAX_TOPIC_BYTES:
            raise ValueError(f"a topic has at most {MAX_TOPIC_BYTES} bytes")

    def fill_in(self, row: Any) -> str:
        """Return a valid topic; raises ``ValueError`` if the row makes none."""
        parts: list[str] = []
        is_whole = self.template.whole is not None
        for part in self.template.parts:
            if isinstance(part, str):
                parts.append(part)
                continue
            value = part.value(row)
            if type(value) in (type(None), list, dict, bytes) or value == "":
                raise ValueError(f"${{{part.text}}} makes no topic: it is NULL, empty, or no text")
            text = as_text(value)
            if any(sign in text for sign in "+#\0") or (not parts and text.startswith("$")):
                raise ValueError(f"${{{part.text}}} makes no topic: it has +, # or U+0000, or $ at the beginning")
            if "/" in text and not is_whole and part.text not in self._with_levels:
                raise ValueError(f"${{{part.text}}} makes no topic: it has more than one level")
            parts.append(text)
        topic = "".join(parts)
        if topic.startswith(_CLOSED):
            raise ValueError("the topic can't be published to by rules")
        if len(topic.encode()) > MAX_TOPIC_BYTES:
            raise ValueError("the topic is too long")
        return topic
