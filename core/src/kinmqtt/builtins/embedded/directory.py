"""A data directory: its lock, and the valid segments of its log."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kinmqtt.builtins.embedded import segment
from kinmqtt.builtins.embedded.image import Image
from kinmqtt.builtins.embedded.segment import (
    PATTERN,
    WAYS_ON,
    DataDirectoryError,
    Look,
    UnknownStore,
    name_of,
    number_of,
)

_LOCK: Final = "lock"


class DirectoryInUse(DataDirectoryError):
    """Another process uses the directory."""

    def __init__(self, path: Path, process: str) -> None:
        """``process`` is its id, or empty if it has not written it yet."""
        self.holder = f"process {process}" if process else "another process"
        super().__init__(
            f"{path} is in use by {self.holder}: stop it, or name another directory (`--data DIRECTORY`, "
            "or `--data memory` for no persistence)"
        )


class DataDirectory:
    """A directory locked by this process, from :meth:`open` to :meth:`close`. All methods block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses: list[str] = []
        """The losses that :meth:`load` found at the ends of write-ahead logs, as after a loss of power."""
        self.groups = 0
        """The number of groups that :meth:`load` has read."""
        self._lock: int | None = None

    def open(self, create: bool = True) -> None:
        """Lock the directory for this process.

        Raises :class:`DataDirectoryError` if it can't be created or written to, if another process uses it, or if it
        contains files of others; without ``create`` also if it does not exist.
        """
        path = self.path
        try:
            if not create and not path.is_dir():
                raise DataDirectoryError(f"{path} is not a directory")
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            refuse_without_rights(path)
            strangers = sorted(entry.name for entry in path.iterdir() if not _is_ours(entry))
            if strangers and not (path / _LOCK).exists():
                name = "name an empty directory, or a new one" if create else "no broker has used this directory"
                raise DataDirectoryError(f"{path} holds {strangers[0]!r}, which is not kinmqtt's: {name}")
            is_new = not (path / _LOCK).exists()
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if is_new:
                segment.give_to_owner_of(path, self._lock)
            self._take_lock(self._lock)
        except OSError as error:
            raise DataDirectoryError(f"{path} can't be used as data directory: {error.strerror or error}") from error

    def _take_lock(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            self._lock = None
            raise DirectoryInUse(self.path, owner) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def segments(self, skip_damaged: list[str] | None = None) -> list[Path]:
        """Return the valid segments, in order.

        Raises :class:`DataDirectoryError` if one is missing or damaged; with a list for ``skip_damaged`` it is
        skipped and the problem added. Raises :class:`~segment.UnknownStore` in any case for another format.
        """
        return list(self._looked_at(skip_damaged))

    def _looked_at(self, skip_damaged: list[str] | None) -> dict[Path, Look]:
        def tell(problem: str) -> None:
            if skip_damaged is None:
                raise DataDirectoryError(problem)
            skip_damaged.append(problem)

        paths = sorted(self.path.glob(PATTERN), key=number_of)
        named = set(paths)  # Not reported as missing again.
        for wal in sorted(self.path.glob(f"{PATTERN}-wal")):
            path = wal.with_name(wal.name.removesuffix("-wal"))
            if path not in named:
                named.add(path)
                tell(f"{path} is missing, and {wal.name} can't be read without it; {WAYS_ON}")
        first = 1
        looks: dict[Path, Look] = {}
        for path in paths:
            try:
                looks[path] = segment.look_at(path)
                first = max(first, looks[path].first or 1)
            except UnknownStore:
                raise
            except DataDirectoryError as error:
                tell(str(error))
        found = {path: look for path, look in looks.items() if number_of(path) >= first}
        for path, look in found.items():
            # A missing write-ahead log is only normal in the last segment, which may have been incomplete.
            if not look.begun and path != paths[-1]:
                tell(f"{path}-wal is missing or empty; its writes to {path.name} are lost; {WAYS_ON}")
        expected = first
        for path in sorted(named, key=number_of):
            if number_of(path) > expected:
                tell(f"{self.path / name_of(expected)} is missing; {WAYS_ON}")
            expected = max(expected, number_of(path) + 1)
        return found

    def load(self, skip_damaged: list[str] | None = None) -> Image:
        """Load the contents of the log without changing it; ``skip_damaged`` as in :func:`segment.read`."""
        image = Image()
        found = self._looked_at(skip_damaged)
        self.losses = [look.lost for look in found.values() if look.lost is not None]
        for path in found:
            for row, data in enumerate(segment.read(path, skip_damaged), 1):
                try:
                    image.take(data)
                except Exception as error:
                    problem = f"{path}: group {row} can't be decoded: {type(error).__name__}: {error}"
                    if skip_damaged is None:
                        raise DataDirectoryError(f"{problem}; {WAYS_ON}") from error
                    skip_damaged.append(problem)
        self.groups = image.groups
        return image

    def tidy(self) -> None:
        """Remove obsolete segments, and convert those that their process could not seal to plain files.

        Call it after :meth:`load`: it drops the ends of write-ahead logs that are not readable.
        """
        for path in self.path.glob(PATTERN):
            segment.finish(path)
        found = self.segments()
        while found and segment.holds_nothing(found[-1]):
            segment.remove(found.pop())  # Left by a start that failed.
        counting = set(found)
        for path in self.path.glob(PATTERN):
            if path not in counting:
                segment.remove(path)

    def next_number(self) -> int:
        """Return the number of the next segment."""
        return max((number_of(path) for path in self.path.glob(PATTERN)), default=0) + 1


def _is_ours(entry: Path) -> bool:
    return entry.name in (_LOCK, "plugins", "lost+found") or entry.name.startswith("journal-")


def files(path: Path) -> Iterator[Path]:
    """Yield the store's files in a directory."""
    return (entry for entry in path.iterdir() if _is_ours(entry) and entry.is_file())


def refuse_without_rights(path: Path) -> None:
    """Check that this user has the rights that a store needs for a directory and its files.

    Otherwise files that are not readable would be taken for damaged ones. Raises :class:`DataDirectoryError`, or
    ``OSError`` if the rights can't be determined.
    """
    _refuse_without(path, os.R_OK | os.W_OK | os.X_OK)
    for file in sorted(files(path)):
        _refuse_without(file, os.R_OK | os.W_OK)


def _refuse_without(path: Path, rights: int) -> None:
    if _may(path, rights):
        return
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise DataDirectoryError(
            f"{path} can't be written to: its file system is read-only; mount it for writing, or copy the directory"
        )
    status, user = path.stat(), os.geteuid()
    if status.st_uid != user:
        way_on = "run as that user, or chown it"
    else:
        way_on = f"`chmod {'u+rwx' if rights & os.X_OK else 'u+rw'}` it"
    raise DataDirectoryError(
        f"{path}: not {'writable' if _may(path, os.R_OK) else 'readable'} for user {user} (it belongs to user "
        f"{status.st_uid}, mode {status.st_mode & 0o7777:04o}): {way_on}"
    )


def _may(path: Path, rights: int) -> bool:
    return os.access(path, rights, effective_ids=os.access in os.supports_effective_ids)


def open_to_others(path: Path) -> list[Path]:
    """Return the store's files in a directory that others than the owner can read or write, by their modes."""
    return sorted(file for file in files(path) if file.name != _LOCK and file.stat().st_mode & 0o077)
