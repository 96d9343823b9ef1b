"""Files that are looked at from time to time, and read anew once a change of them has settled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Look(NamedTuple):
    """What tells one state of a file from another without reading it."""

    modified_ns: int
    size_bytes: int
    inode: int
    changed_ns: int
    """Of the inode: whoever writes into a file may set the time of its content back, but not this one."""


Looks: TypeAlias = tuple[Look | None, ...]
"""One for each file, ``None`` where it can't be looked at."""


class FileWatch(Generic[T]):
    """Reads some files together, and again when they have changed: once a change has looked the same twice.

    Who writes a file in place may be in the middle of it at any look, and half a file may well be sound. All of it
    blocks, so it is for a thread, one call at a time; who waits for how long between two looks is up to the plugin.
    """

    def __init__(self, paths: Iterable[Path], read: Callable[[], T]) -> None:
        """``read`` reads the files, and raises what is wrong with them."""
        self._paths = tuple(paths)
        self._read = read
        self._taken: Looks = ()
        self._last: Looks = ()

    def read_now(self) -> T:
        """What the files say, settled or not: at a start, or where somebody asks for it."""
        looks = self._look()
        found = self._read()
        # What was looked at may be older than what was read: then the next look differs, and all is read again.
        self._taken = self._last = looks
        return found

    def look(self) -> T | None:
        """What the files say, where they have changed and that has settled; ``None`` where there is nothing new.

        What is wrong with them is raised once, and not again before they change.
        """
        looks = self._look()
        same, self._last = looks == self._last, looks
        if not same or looks == self._taken:
            return None
        try:
            found = self._read()
        except Exception:
            if self._settled(looks):
                raise
            return None
        return found if self._settled(looks) else None

    def _settled(self, looks: Looks) -> bool:
        """Whether the files still look like this, after they were read; then it is taken note of."""
        if self._look() != looks:
            return False
        self._taken = looks
        return True

    def _look(self) -> Looks:
        return tuple(_look(path) for path in self._paths)


def _look(path: Path) -> Look | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Look(status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
