"""What lies in the landing folder: each segment once, wherever a copy of it lies."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final, NamedTuple
from urllib.parse import quote

from kinmqtt_metrics.landing import SUFFIX, SegmentName
from kinmqtt_metrics.source.offsets import Key

_SETTLED_NS: Final = 60_000_000_000
"""A folder that had not changed for so long when it was listed is not listed again before it does: its time of
change tells. Of a fresh one it may not, as file systems count in steps of up to two seconds, and clocks of servers
differ."""

_OPENING_BYTES: Final = 64 * 1024
"""What opening one more file costs, in bytes that could be read in that time."""

_LARGEST: Final = (1 << 63) - 1
"""Of Spark's ``bigint``."""

_LEAST_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Partitions are of about that size: a task costs some milliseconds, and rows of one are in memory at once."""


class File(NamedTuple):
    """A file of the landing folder."""

    key: Key
    path: str
    """Below the landing folder; empty where it is gone."""
    size_bytes: int = 0
    mtime_ns: int = 0


class _Day(NamedTuple):
    changed_ns: int
    listed_ns: int
    """When listing it began."""
    files: dict[str, Key]


class Folder:
    """The landing folder as one query sees it: from a date on, of some nodes or all."""

    def __init__(self, root: str, start: str = "", nodes: frozenset[str] = frozenset(), foreign: bool = True) -> None:
        self.root = root
        self._start = start
        self._nodes = nodes
        self._with_foreign = foreign
        self._days: dict[str, _Day] = {}

    def paths(self) -> dict[Key, str]:
        """Each segment that is published and its path; of copies the one below the oldest date.

        Raises ``OSError`` where a folder can't be listed, which says so and names it.
        """
        try:
            with os.scandir(self.root) as entries:
                names = sorted(entry.name for entry in entries if entry.name.startswith("date="))
        except OSError as error:
            raise _unlisted(error, self.root) from error
        found: dict[Key, str] = {}
        days: dict[str, _Day] = {}
        for name in names:
            if self._start and name.removeprefix("date=") < self._start:
                continue
            try:
                name.encode()
            except UnicodeEncodeError:
                # Offsets, and rows that name segments, are text.
                key = "", quote(os.fsencode(name)), 0
                if self._wanted(key):
                    found[key] = ""
                continue
            day = self._day(name)
            if day is None:
                continue
            days[name] = day
            for file, key in day.files.items():
                found.setdefault(key, f"{name}/{file}")
        self._days = days
        return found

    def _day(self, name: str) -> _Day | None:
        folder = os.path.join(self.root, name)
        before = self._days.get(name)
        try:
            changed_ns = os.stat(folder).st_mtime_ns
            if before is not None and before.changed_ns == changed_ns < before.listed_ns - _SETTLED_NS:
                return before
            listed_ns = time.time_ns()
            known = before.files if before is not None else {}
            files: dict[str, Key] = {}
            for file in os.listdir(folder):
                if file.endswith(SUFFIX) and not file.startswith("."):
                    key = known.get(file) or self._key(name, file)
                    if self._wanted(key):
                        files[file] = key
        except (FileNotFoundError, NotADirectoryError):
            # Cleared away just now, or a file of that name.
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                # A link to itself is no folder, either.
                return None
            # Passed over, its segments would be missing in the tables, and nobody would know.
            raise _unlisted(error, folder) from error
        return _Day(changed_ns, listed_ns, files)

    def _wanted(self, key: Key) -> bool:
        if not key[0]:
            return self._with_foreign and not self._nodes
        return not self._nodes or key[0] in self._nodes

    @staticmethod
    def _key(day: str, file: str) -> Key:
        try:
            name = SegmentName.parse(file)
            # Two spellings of one name would be taken for one segment, and one of them lost.
            if str(name) == file and 1 <= name.number <= _LARGEST:
                return name.node, name.boot, name.number
        except ValueError:
            pass
        # Quoted, because the name of a file is bytes, and an offset is text.
        return "", f"{day}/{quote(os.fsencode(file))}", 0

    def look_at(self, paths: Iterable[tuple[Key, str]]) -> list[File]:
        """The files with their sizes and times; one that is gone, or that nobody may look at, has none."""
        files = []
        for key, path in paths:
            try:
                status = os.stat(os.path.join(self.root, path))
            except OSError:
                files.append(File(key, path))
                continue
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            files.append(File(key, path, size, status.st_mtime_ns))
        return files


def _unlisted(error: OSError, folder: str) -> OSError:
    why = (
        f"{error.strerror or error}: this folder can't be listed; no record in it is lost: make it readable and "
        "searchable for the user that reads, and begin again"
    )
    return OSError(error.errno, why, folder)


def oldest_first(files: Iterable[File]) -> list[File]:
    """In the order in which they were written, over all nodes, so that limits let no node run ahead of another."""
    return sorted(files, key=lambda file: (file.path.partition("/")[0], file.mtime_ns, file.key))


def packed(files: Sequence[File], slots: int) -> list[list[File]]:
    """Partitions by node and number, of about the same size, as many as keep ``slots`` tasks busy."""
    files = sorted(files, key=lambda file: file.key)
    total = sum(file.size_bytes + _OPENING_BYTES for file in files)
    count = 1
    if total >= 2 * _LEAST_BYTES:
        count = min(slots, total // _LEAST_BYTES)
        if total > count * _MOST_BYTES:
            count = slots * -(-total // (slots * _MOST_BYTES))
    partitions: list[list[File]] = [[] for _ in range(count)]
    before = 0
    for file in files:
        size = file.size_bytes + _OPENING_BYTES
        partitions[min(count - 1, (before + size // 2) * count // total)].append(file)
        before += size
    return [partition for partition in partitions if partition]


def start_date(text: str) -> str:
    """A date as folders have it. Raises ``ValueError``."""
    return date.fromisoformat(text).isoformat()
