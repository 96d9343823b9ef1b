"""Reads the settings of a Mosquitto, with those of its ``include_dir``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import field, frozen

from kinmqtt_spi.settings import read_file

MAX_BYTES: Final = 16 << 20


@frozen(slots=True)
class Directive:
    """One line: ``name value``. Its value may be a password, and is not shown."""

    file: str
    number: int
    name: str
    value: str = field(repr=False)

    @property
    def place(self) -> str:
        """The file and the line."""
        return f"{self.file}:{self.number}"


def directives(file: Path, text: str) -> Iterator[Directive]:
    """Yield the directives of a file's text."""
    # Not splitlines(): Mosquitto's lines end with a line feed only.
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#") or not line.strip():
            continue
        name, _, value = line.strip().partition(" ")
        yield Directive(str(file), number, name, value.strip())


def read(file: Path) -> list[Directive]:
    """Return the directives of a file, and of the files that it includes; raises ``OSError`` and ``ValueError``."""
    found: list[Directive] = []
    for each in directives(file, _text(file)):
        found.append(each)
        if each.name == "include_dir":
            folder = Path(each.value)
            if not folder.is_dir():
                raise ValueError(f"{each.place}: include_dir: there is no folder {each.value!r}")
            for included in sorted(folder.glob("*.conf")):
                found += directives(included, _text(included))
    return found


def _text(file: Path) -> str:
    try:
        return read_file(file, max_bytes=MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: it is not UTF-8") from None
