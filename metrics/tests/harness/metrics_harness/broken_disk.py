"""A disk that fails when a test says so, and readers of what was written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinmqtt_metrics.landing import OPEN, SegmentName, published
from kinmqtt_metrics.segments import Disk


class BrokenDisk(Disk):
    """Works on real files. Calls fail that ``fails`` answers an error number for."""

    def __init__(self, fails: Callable[[str], int | None] = lambda call: None) -> None:
        self.fails = fails
        self.calls: list[str] = []
        self.room_bytes: int | None = None
        """How much may be written yet; a write that is larger is cut short, as the system does it."""
        self.free: int | None = None

    def _may(self, call: str) -> None:
        self.calls.append(call)
        number = self.fails(call)
        if number is not None:
            raise OSError(number, os.strerror(number))

    def open(self, path: Path) -> int:
        self._may("open")
        return super().open(path)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.room_bytes is not None:
            if not self.room_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = memoryview(data)[: self.room_bytes]
        try:
            self._may("write")
        except OSError:
            # Some of it is in the file all the same.
            super().write(fd, memoryview(data)[: len(data) // 2])
            raise
        written = super().write(fd, data)
        if self.room_bytes is not None:
            self.room_bytes -= written
        return written

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._may("truncate")
        super().truncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        self._may("sync")
        super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._may("rename")
        super().rename(source, target)

    def make_folder(self, folder: Path) -> None:
        self._may("make_folder")
        super().make_folder(folder)

    def sync_folder(self, folder: Path) -> None:
        self._may("sync_folder")
        super().sync_folder(folder)

    def free_bytes(self, folder: Path) -> int:
        self._may("free_bytes")
        return super().free_bytes(folder) if self.free is None else self.free


def records(landing: Path) -> list[dict[str, Any]]:
    """All published records, in the order of the segments' names: every line must be a whole one."""
    found: list[dict[str, Any]] = []
    for path in sorted(published(landing), key=lambda path: SegmentName.parse(path.name)):
        text = path.read_bytes()
        assert text.endswith(b"\n"), f"{path} has a torn tail, or nothing in it"
        found += [json.loads(line) for line in text.splitlines()]
    return found


def left_open(landing: Path) -> list[Path]:
    """Segments that are not published."""
    return sorted(landing.glob(f"{OPEN}*"))
