"""A data directory: who uses it, and which segments of its log count."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from kinmqtt.plugins.builtin.embedded import segment
from kinmqtt.plugins.builtin.embedded.image import Image
from kinmqtt.plugins.builtin.embedded.segment import PATTERN, WAYS_ON, DataDirectoryError, name_of, number_of

_LOCK: Final = "lock"


class DataDirectory:
    """A directory that this process alone uses, from :meth:`open` to :meth:`close`. All of this waits for disks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses: list[str] = []
        """What :meth:`load` has found that is lost, and with a log as this can be."""
        self._lock: int | None = None

    def open(self, create: bool = True) -> None:
        """Take the directory for this process.

        Raises :class:`DataDirectoryError` where it can't be made or written to, another process uses it, or it holds
        what is not ours; and, without ``create``, where there is none.
        """
        path = self.path
        if not create and not path.is_dir():
            raise DataDirectoryError(f"{path} is no directory")
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            strangers = sorted(entry.name for entry in path.iterdir() if not _is_ours(entry))
            if strangers and not (path / _LOCK).exists():
                raise DataDirectoryError(
                    f"{path} holds {strangers[0]!r}, which is not kinmqtt's: name an empty directory, or a new one"
                )
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
            raise DataDirectoryError(
                f"{self.path} is in use by process {owner}: end that, or name another directory (`--data DIRECTORY`, "
                "or `--data memory` to keep nothing)"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)

    def close(self) -> None:
        """Leave the directory to others."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def segments(self, skip_damaged: list[str] | None = None) -> list[Path]:
        """The segments that count, in order.

        Raises :class:`DataDirectoryError` where one is missing or foreign; with a list for ``skip_damaged`` it is
        left out and told of there.
        """

        def tell(problem: str) -> None:
            if skip_damaged is None:
                raise DataDirectoryError(problem)
            skip_damaged.append(problem)

        paths = sorted(self.path.glob(PATTERN), key=number_of)
        if paths and segment.is_empty(paths[-1]):
            segment.remove(paths.pop())
        first = 1
        sound = []
        for path in paths:
            try:
                first = max(first, segment.look_at(path) or 1)
                sound.append(path)
            except DataDirectoryError as error:
                tell(str(error))
        found = [path for path in sound if number_of(path) >= first]
        for path, after in pairwise(found):
            if number_of(after) != number_of(path) + 1:
                tell(f"{self.path / name_of(number_of(path) + 1)} is missing; {WAYS_ON}")
        if found and number_of(found[0]) != first:
            tell(f"{self.path / name_of(first)} is missing; {WAYS_ON}")
        return found

    def load(self, skip_damaged: list[str] | None = None) -> Image:
        """Everything that the log says; ``skip_damaged`` as in :func:`segment.read`."""
        image = Image()
        for path in sorted(self.path.glob(PATTERN)):
            self._look_for_loss(path)
        for path in self.segments(skip_damaged):
            for row, data in enumerate(segment.read(path, skip_damaged), 1):
                try:
                    image.take(data)
                except Exception as error:
                    problem = f"{path}: group {row} can't be understood: {type(error).__name__}: {error}"
                    if skip_damaged is None:
                        raise DataDirectoryError(f"{problem}; {WAYS_ON}") from error
                    skip_damaged.append(problem)
        return image

    def _look_for_loss(self, path: Path) -> None:
        try:
            lost = segment.lost_commits(path)
        except DataDirectoryError:
            return  # Whoever reads it says what is wrong with it.
        if lost:
            self.losses.append(
                f"{path}: {lost} commits at its end can't be read; a loss of power may take what the disk was not "
                "asked for, anything else is damage"
            )

    def tidy(self) -> None:
        """Remove what counts no more, and make plain files of segments that their process could not seal."""
        found = self.segments()
        while found and segment.holds_nothing(found[-1]):
            segment.remove(found.pop())  # A start that nothing came of.
        counting = set(found)
        for path in self.path.glob(PATTERN):
            if path in counting:
                segment.finish(path)
            else:
                segment.remove(path)

    def next_number(self) -> int:
        """The number of the next segment."""
        return max((number_of(path) for path in self.path.glob(PATTERN)), default=0) + 1


def _is_ours(entry: Path) -> bool:
    return entry.name in (_LOCK, "plugins", "lost+found") or entry.name.startswith("journal-")


def files(path: Path) -> Iterator[Path]:
    """The files of the store in a directory."""
    return (entry for entry in path.iterdir() if _is_ours(entry) and entry.is_file())
