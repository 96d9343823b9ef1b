"""A parsed TOML file with the position of each key."""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_right
from typing import Any, Final

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings._files import read_file
from kinmqtt_spi.settings._keys import KeyPath, KeyScanner

_AT_LINE: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")
_BARE_TEXT: Final = r"(?:[A-Za-z_/~.$:*+]|\d+ *[A-Za-z/])[^\"'\[\]{}#=]*?"
"""What begins as no value of TOML but true, false, inf and nan does, or is a number with a unit."""

_BARE_VALUE: Final = re.compile(rf"\s*(?P<key>[\w.-]+)\s*=\s*(?P<value>{_BARE_TEXT})\s*(?:#.*)?")
_BARE_LIST: Final = re.compile(r"\s*(?P<key>[\w.-]+)\s*=\s*\[(?P<items>[^\[\]{}#=]*)\]\s*(?:#.*)?")
_BARE_ITEM: Final = re.compile(_BARE_TEXT)
_WORDS_FOR: Final = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}

_AT_END: Final = re.compile(r" \(at end of document\)$")


class Document:
    """A TOML document: its contents (``data``, plain dicts and lists) and the positions of keys and values.

    Every message about the document begins with ``name``. The representation shows none of the content, which may
    have secrets.
    """

    def __init__(self, data: dict[str, Any], name: str, text: str, scanner: KeyScanner) -> None:
        self.data = data
        self.name = name
        self._starts = _line_starts(text)
        self._keys = scanner.keys
        self._values = scanner.values

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Document:
        """Read a document from a file, UTF-8 with or without a byte order mark.

        Raises ``SettingsError`` with one problem if it is not a regular file, can't be read, is not UTF-8 or not
        TOML.
        """
        name = os.fspath(path)
        content = read_file(path)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SettingsError([_not_utf8(name, error.object, error.start)]) from None
        return cls.parse(text, name)

    @classmethod
    def parse(cls, text: str, name: str = "<settings>") -> Document:
        """Parse a document from a string; raises ``SettingsError`` with one problem if it is not TOML."""
        text = text.replace("\r\n", "\n")  # as tomllib does, so that offsets mean the same to both
        try:
            return cls(tomllib.loads(text), name, text, KeyScanner(text))
        except tomllib.TOMLDecodeError as error:
            problem = _located(name, text, str(error))
        except RecursionError:
            problem = f"{name}: arrays or inline tables are nested too deeply"
        except ValueError as error:  # such as int() refusing thousands of digits
            problem = f"{name}: {_lower_first(str(error))}"
        raise SettingsError([problem])

    @classmethod
    def empty(cls) -> Document:
        """Return an empty document: all settings have their defaults."""
        return cls.parse("")

    def line(self, path: KeyPath) -> tuple[int, int] | None:
        """Return line and column of a key or of an array's element; ``None`` if there is no such path.

        Both count from 1, the column in characters. The position of a table is that of its header, or of the first
        mention of its name if it has no header; that of an element of an array of tables is its header.
        """
        return self._position(self._keys.get(path))

    def value_line(self, path: KeyPath) -> tuple[int, int] | None:
        """Return line and column of a value; those of the key if the value is a table with a header."""
        return self._position(self._values.get(path, self._keys.get(path)))

    def _position(self, offset: int | None) -> tuple[int, int] | None:
        return None if offset is None else _position(self._starts, offset)

    def __repr__(self) -> str:
        return f"<Document {self.name!r}>"


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _position(starts: list[int], offset: int) -> tuple[int, int]:
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1


def _located(name: str, text: str, message: str) -> str:
    """Return tomllib's message with the position in front; older versions have it only in the message."""
    if match := _AT_LINE.search(message):
        line, column = int(match[1]), int(match[2])
    else:
        line, column = _position(_line_starts(text), len(text))
    message = _AT_END.sub("", _AT_LINE.sub("", message))
    return f"{name}:{line}:{column}: {_lower_first(message)}{_quotes_missing(text.splitlines()[line - 1 : line])}"


def _quotes_missing(lines: list[str]) -> str:
    """Return the end of a message about a line with strings that lack quotes."""
    line = lines[0] if lines else ""
    if match := _BARE_VALUE.fullmatch(line):
        meant = _quoted(match["value"])
    elif match := _BARE_LIST.fullmatch(line):
        items = [item.strip() for item in match["items"].split(",")]
        meant = f"[{', '.join(_quoted(item) if _BARE_ITEM.fullmatch(item) else item for item in items)}]"
    else:
        return ""
    return f"; did you mean {match['key']} = {meant}?"


def _quoted(value: str) -> str:
    return _WORDS_FOR.get(value.lower(), f'"{value}"')


def _not_utf8(name: str, content: bytes, offset: int) -> str:
    before = content[:offset].decode()
    line, column = _position(_line_starts(before), len(before))
    return f"{name}:{line}:{column}: not UTF-8: byte 0x{content[offset]:02x}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
