"""Reads small files from untrusted places: without blocking, and up to a maximum size."""

from __future__ import annotations

import os
import stat
from typing import Final

from kinmqtt_spi.errors import SettingsError

MAX_FILE_BYTES: Final = 64 << 20
"""More than any sound file of settings, rules, rights or passwords has."""

_PIECE_BYTES: Final = 1 << 20

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_SORTS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def read_file(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_FILE_BYTES, missing: str = "there is no such file"
) -> bytes:
    """Return the content of a regular file; raises ``SettingsError`` with one problem if it can't be read.

    It never blocks, unlike opening a FIFO without a writer: a file that is not regular is refused, and so is one of
    more than ``max_bytes``. ``missing`` is the text for a missing file.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            check_regular(descriptor, name)
            return _content(descriptor, name, max_bytes)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise SettingsError([f"{name}: {missing}"]) from None
    except OSError as error:
        raise SettingsError([f"{name}: can't be read: {error.strerror or error}"]) from None


def check_regular(descriptor: int, name: str) -> None:
    """Raise ``SettingsError`` if the open file is not a regular one."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise SettingsError([f"{name}: can't be read: Is a directory"])
    if not stat.S_ISREG(mode):
        what = _SORTS.get(stat.S_IFMT(mode), "something else")
        raise SettingsError([f"{name}: can't be read: it is {what}, not a regular file"])


def _content(descriptor: int, name: str, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    left = max_bytes + 1
    # A file may grow meanwhile, and those of /proc say that they have 0 bytes.
    while left and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise SettingsError([f"{name}: can't be read: it has more than {max_bytes} bytes"])
    return b"".join(pieces)
