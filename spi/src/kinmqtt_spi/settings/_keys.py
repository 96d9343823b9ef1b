"""Finds the position of each key of a TOML document.

tomllib returns the values of a document, not their positions. This scanner finds the positions and checks nothing: it
runs only on documents that tomllib has accepted.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The way from the document's root to a value: keys of tables and indices of arrays."""

_BLANK: Final = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BEFORE_KEY: Final = re.compile(r"[ \t]*")
_BETWEEN_KEYS: Final = re.compile(r"[ \t]*\.[ \t]*")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")
_HEADER_END: Final = re.compile(r"[ \t]*\]\]?")
# Without possessive quantifiers, which match wrongly in Python 3.11.2 (cpython#101955): Debian 12 has it.
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"\\]*(?:\\.[^"\\]*)*"|'[^']*'""")
# A closing """ may have one or two quotes of the text right before it. A date-time may hold one space.
_SCALAR: Final = re.compile(
    r'''
      """[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"{3,5}
    | \'\'\'[^']*(?:'(?!\'\')[^']*)*'{3,5}
    | "[^"\\]*(?:\\.[^"\\]*)*"
    | '[^']*'
    | (?:\d{4}-\d\d-\d\d[ ](?=\d))?[^\s,\]}\#]+
    ''',
    re.VERBOSE | re.DOTALL,
)


class KeyScanner:
    """Scans a valid document once; then ``keys`` and ``values`` map paths to offsets in the text.

    ``keys`` has every path: for a table its header or else its first mention, for an element of an array the element,
    for an element of an array of tables its header. ``values`` has what follows an equals sign or is within an array.
    """

    def __init__(self, text: str) -> None:
        self.keys: dict[KeyPath, int] = {}
        self.values: dict[KeyPath, int] = {}
        self._text = text
        self._position = 0
        self._lengths: dict[KeyPath, int] = {}  # of the arrays of tables
        self._scan()

    def _scan(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._position < len(self._text):
            if self._text.startswith("[[", self._position):
                table = self._header(2)
            elif self._text[self._position] == "[":
                table = self._header(1)
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self, brackets: int) -> KeyPath:
        self._position += brackets
        *parents, (name, offset) = self._key()
        table = self._descend((), parents)
        table += (name,)
        if brackets == 1:
            self.keys[table] = offset
        else:
            self.keys.setdefault(table, offset)
            index = self._lengths.get(table, 0)
            self._lengths[table] = index + 1
            table += (index,)
            self.keys[table] = offset
        self._skip(_HEADER_END)
        return table

    def _descend(self, table: KeyPath, names: list[tuple[str, int]]) -> KeyPath:
        """Return the table that ``names`` leads to; an array of tables on the way stands for its last element."""
        for name, offset in names:
            table += (name,)
            self.keys.setdefault(table, offset)
            if table in self._lengths:
                table += (self._lengths[table] - 1,)
        return table

    def _pair(self, table: KeyPath) -> None:
        *parents, (name, offset) = self._key()
        path = (*self._descend(table, parents), name)
        self.keys[path] = offset
        self._skip(_EQUALS)
        self._value(path)

    def _key(self) -> list[tuple[str, int]]:
        """Return the parts of a dotted key, each with its offset."""
        parts = []
        self._skip(_BEFORE_KEY)
        while True:
            start = self._position
            parts.append((_plain(self._skip(_KEY)), start))
            if not self._skip(_BETWEEN_KEYS):
                return parts

    def _value(self, path: KeyPath) -> None:
        self.values[path] = self._position
        opening = self._text[self._position]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._next()
        index = 0
        while self._text[self._position] != "]":
            self.keys[*path, index] = self._position
            self._value((*path, index))
            self._comma()
            index += 1
        self._position += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._next()
        while self._text[self._position] != "}":
            self._pair(path)
            self._comma()
        self._position += 1

    def _comma(self) -> None:
        self._skip(_BLANK)
        if self._text[self._position] == ",":
            self._next()

    def _next(self) -> None:
        """Skip one character and the blanks after it."""
        self._position += 1
        self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Skip what the pattern matches here, if it does, and return it."""
        match = pattern.match(self._text, self._position)
        if match is None:
            return ""
        self._position = match.end()
        return match.group()


def _plain(written: str) -> str:
    """Return the key of a bare or quoted key; tomllib itself decodes the escapes, so that both agree."""
    if written[0] not in "\"'":
        return written
    key: str = tomllib.loads(f"key = {written}")["key"]
    return key
