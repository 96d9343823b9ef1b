"""Small files from outside: what is no regular file, or too large, is refused, and nothing waits for it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, check_regular, read_file


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """Up to its bound, also where that takes several steps."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)

    assert read_file(path) == b"x" * 3_000_000
    assert read_file(str(path), max_bytes=3_000_000) == b"x" * 3_000_000


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    """Without being read to its end."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(SettingsError, match=rf"^{path}: can't be read: it has more than 67108864 bytes$"):
        read_file(path)
    with pytest.raises(SettingsError, match=r"it has more than 5 bytes"):
        read_file(path, max_bytes=5)


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    """At once, though nobody writes to it; settings are read in the same way."""
    path = tmp_path / "fifo"
    os.mkfifo(path)

    with pytest.raises(SettingsError, match=rf"^{path}: can't be read: it is a FIFO, not a regular file$"):
        read_file(path)
    with pytest.raises(SettingsError, match="it is a FIFO, not a regular file"):
        Document.read(path)


def test_what_else_is_no_file_is_refused(tmp_path: Path) -> None:
    """Devices, directories and sockets; a link counts as what is behind it."""
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))

    for path in (Path("/dev/zero"), tmp_path / "link"):
        with pytest.raises(SettingsError, match="it is a device, not a regular file"):
            read_file(path)
    with pytest.raises(SettingsError, match="can't be read: Is a directory"):
        read_file(tmp_path)
    with pytest.raises(SettingsError, match=r"can't be read: "):
        read_file(tmp_path / "socket")


def test_a_missing_file_is_told_in_the_callers_words(tmp_path: Path) -> None:
    """Or in our own."""
    with pytest.raises(SettingsError, match=r"none: there is no such file$"):
        read_file(tmp_path / "none")
    with pytest.raises(SettingsError, match=r"none: make one$"):
        read_file(tmp_path / "none", missing="make one")


def test_what_is_open_already_is_checked(tmp_path: Path) -> None:
    """By its descriptor."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(SettingsError, match=r"^it: can't be read: it is a FIFO"):
            check_regular(descriptor, "it")
    finally:
        os.close(descriptor)
