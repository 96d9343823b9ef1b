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
    """The file attributes that detect a change without reading the file."""

    modified_ns: int
    size_bytes: int
    inode: int
    changed_ns: int
    """The change time of the inode, which a writer can't set back, unlike the modification time."""


Looks: TypeAlias = tuple[Look | None, ...]
"""One for each file; ``None`` if it can't be examined."""


class FileWatch(Generic[T]):
    """Reads some files together, and again after they have changed and the change has settled.

    A change has settled if two looks in a row see the same state: a file that is written in place may be incomplete
    at any look, and still be valid. The methods block, so call them in a thread, one at a time. The caller chooses
    the interval between looks.
    """

    def __init__(self, paths: Iterable[Path], read: Callable[[], T]) -> None:
        """``read`` reads the files, and raises an exception if they are invalid."""
        self._paths = tuple(paths)
        self._read = read
        self._taken: Looks = ()
        self._last: Looks = ()

    def read_now(self) -> T:
        """Read the files now, settled or not: at a start or on request."""
        looks = self._look()
        found = self._read()
        # The looks may be older than the contents. Then the next look differs, and the files are read again.
        self._taken = self._last = looks
        return found

    def look(self) -> T | None:
        """Read the files if they have changed and the change has settled; otherwise return ``None``.

        An error is raised once, and again only after the files change.
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
        """Tell whether the files are unchanged after they were read, and if so remember their state."""
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
