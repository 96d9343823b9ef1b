"""The landing folder: where segments lie, what they are called, and which of them a reader may read.

.. code-block:: text

    landing/
      date=2026-11-21/
        broker-1-00000000c0ffee01-00000007.jsonl      published: it does not change any more
      .open-broker-1-00000000c0ffee01-00000008.jsonl  being written: no reader looks at it
      .lock-broker-1                                  held while a broker of that name writes here

A segment holds whole lines of one life of one broker, in the order of ``seq``. It is published by one rename, once it
is on the disk. The date is that of the moment, UTC, at which it was begun.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from attrs import frozen

SUFFIX: Final = ".jsonl"
OPEN: Final = ".open-"
GLOB: Final = "date=*/*" + SUFFIX
"""What readers take, below the landing folder."""

NODE_BYTES: Final = 200
"""How long a broker's name may be, quoted: names of files have at most 255 bytes, with what stands around it."""

_NAME: Final = re.compile(r"(?P<node>[^/]+)-(?P<boot>[0-9a-f]{16})-(?P<number>[0-9]{8,})\.jsonl")


def quoted(node: str) -> str:
    """A broker's name as names of files have it."""
    name = quote(node, safe="").replace("~", "%7E")
    # Readers pass over files whose names begin with a dot.
    return "%2E" + name[1:] if name.startswith(".") else name


@frozen(slots=True, order=True)
class SegmentName:
    """Whose segment it is, and its place among those of that life."""

    node: str
    boot: str
    """16 hexadecimal digits."""
    number: int
    """From 1."""

    def __str__(self) -> str:
        return f"{quoted(self.node)}-{self.boot}-{self.number:08d}{SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> SegmentName:
        """Raises ``ValueError`` for a file that is no segment."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not the name of a segment, NODE-BOOT-NUMBER{SUFFIX}")
        return cls(unquote(match["node"]), match["boot"], int(match["number"]))


def open_path(landing: Path, name: SegmentName) -> Path:
    """Where a segment lies while it is written."""
    return landing / f"{OPEN}{name}"


def published_path(landing: Path, name: SegmentName, date: str) -> Path:
    """Where a segment lies when it is whole; ``date`` as ``2026-11-21``."""
    return landing / f"date={date}" / str(name)


def published(landing: Path) -> list[Path]:
    """All published segments, the oldest date first; files with other names among them."""
    return sorted(landing.glob(GLOB))
