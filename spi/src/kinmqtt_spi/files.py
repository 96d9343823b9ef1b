"""Helpers for files: replace a file atomically, sync a folder, and read files again after they change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
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


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new content, also after a loss of power.

    The content is written to a temporary file in the same folder, synced and renamed. An existing file keeps its
    owner and its mode; a new file gets mode 0o666 minus the umask. A symbolic link is followed, so that it stays a
    link. On failure the old file is unchanged and ``OSError`` is raised.
    """
    path = Path(os.path.realpath(path))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        status = None
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            if status is None:
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            else:
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), status.st_mode & 0o7777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that created and renamed files survive a loss of power.

    Raises ``OSError``.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    # The only way to read the mask is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
