"""Files of lines, read in blocks of whole lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np

from kinmqtt_metrics.intervals import Numbers

TEXT_LIMIT: Final = 500
"""So many characters of what was rejected are kept."""

BLOCK_BYTES: Final = 64 * 1024 * 1024
"""So much is in memory at once; a line that is longer is rejected."""

_NEWLINE, _OPENS, _CLOSES = b"\n{}"
_PIECE_BYTES: Final = 256 * 1024
"""So much is compared at a time: what it makes fits into a cache."""


def of_file(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Whole lines in blocks, and the beginning of a line that is too long, marked."""
    rest = b""
    # Memory for a block that the file does not fill would be given back, and asked for again, each time.
    left = os.fstat(file.fileno()).st_size
    while True:
        read = file.read(min(BLOCK_BYTES - len(rest), max(left, 0) + 1))
        left -= len(read)
        block = rest + read if rest else read
        if not read:
            if block:
                yield block, False
            return
        end = block.rfind(b"\n") + 1
        if end:
            yield (block if end == len(block) else block[:end]), False
            rest = block[end:]
        elif len(block) < BLOCK_BYTES:
            rest = block
        else:
            yield block[: TEXT_LIMIT * 4], True
            rest = b""
            _to_next_line(file)


def line_ends(block: bytes) -> Numbers:
    """Where the lines of a block end."""
    text = np.frombuffer(block, np.uint8)
    starts = range(0, len(text), _PIECE_BYTES)
    return np.concatenate([np.flatnonzero(text[at : at + _PIECE_BYTES] == _NEWLINE) + at for at in starts])


def are_objects(block: bytes, ends: Numbers) -> bool:
    """Whether each line begins with ``{`` and ends with ``}``.

    With as many objects as lines each line is one object; Arrow's reader takes any white space between them, or none.
    """
    text = np.frombuffer(block, np.uint8)
    if not len(ends) or ends[-1] != len(text) - 1 or text[0] != _OPENS:
        return False
    return bool((text[ends - 1] == _CLOSES).all() and (text[ends[:-1] + 1] == _OPENS).all())


def _to_next_line(file: BinaryIO) -> None:
    while read := file.read(1024 * 1024):
        end = read.find(b"\n") + 1
        if end:
            file.seek(end - len(read), os.SEEK_CUR)
            return
