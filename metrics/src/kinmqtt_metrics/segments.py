"""Segments as they are written: opened, filled, put on the disk and published; and what earlier lives left behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from kinmqtt_metrics.durable import sync
from kinmqtt_metrics.landing import OPEN, SegmentName, open_path, published_path, quoted
from kinmqtt_metrics.record import FORMAT

LOCK: Final = ".lock-"
ANEW: Final = ".anew"
"""Behind the name of an open segment that is written a second time."""
MODE: Final = 0o640
"""Of segments: they tell of clients."""


class Disk:
    """What is asked of the operating system, so that tests can let it fail."""

    def open(self, path: Path) -> int:
        """A file that is empty, made where it is missing; :func:`recover` sees that it is being written."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, MODE)
        try:
            # Before it is cut: as long as somebody else holds it, it is what that one writes.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write at the end; answers how much was."""
        return os.write(fd, data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cut a file."""
        os.ftruncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        """Put a file on the disk."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        os.rename(source, target)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""
        folder.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Put a folder's names on the disk."""
        sync(folder)

    def free_bytes(self, folder: Path) -> int:
        """How much may still be written there, by us."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize


def date_of(at: float) -> str:
    """The date, UTC, of a moment in seconds since the epoch, as ``2026-11-21``."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):  # A clock that says nonsense must not stop the writing.
        return "1970-01-01"


class Segment:
    """The one that is being written. Its lines stay in memory until it is published, for a disk that lost them.

    After an error of :meth:`append` nothing of that data is in it; after one of :meth:`publish` it can be called
    again. Both raise ``OSError``.
    """

    def __init__(self, disk: Disk, landing: Path, name: SegmentName, date: str, began: float) -> None:
        """``began``: on a clock that does not go back, in seconds."""
        self._disk = disk
        self._landing = landing
        self.name = name
        self._path = open_path(landing, name)
        self.target = published_path(landing, name, date)
        self.began = began
        self.size_bytes = 0
        self._lines: list[bytes] = []
        self._fd: int | None = None
        self._is_torn = False
        """Whether there may be something behind the last whole line."""
        self._is_lost = False
        """Whether the disk may have lost some of it, or somebody has removed it."""
        self._is_synced = False
        self._is_renamed = False
        self._open(self._path)

    def _open(self, path: Path) -> None:
        try:
            self._fd = self._disk.open(path)
        except FileNotFoundError:
            self._disk.make_folder(self._landing)
            self._fd = self._disk.open(path)

    def append(self, data: bytes) -> None:
        """Write whole lines, all of them or none."""
        self._write(data)
        self._lines.append(data)
        self.size_bytes += len(data)
        self._is_synced = False

    def _write(self, data: bytes) -> None:
        fd = self._mended()
        self._is_torn = True
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._disk.write(fd, rest) :]
        except OSError:
            self._mend_if_possible()
            raise
        self._is_torn = False

    def _mended(self) -> int:
        if self._fd is None or self._is_lost:
            self._renew()
        assert self._fd is not None
        if self._is_torn:
            self._disk.truncate(self._fd, self.size_bytes)
            self._is_torn = False
        return self._fd

    def _mend_if_possible(self) -> None:
        try:
            self._mended()
        except OSError:
            pass  # The next one who writes must.

    def publish(self) -> None:
        """Put it on the disk, and give it the name by which readers know it."""
        if not self._is_renamed:
            self._sync()
            self._disk.make_folder(self.target.parent)
            try:
                self._disk.rename(self._path, self.target)
            except FileNotFoundError:
                # Somebody has removed what was being written.
                self._forget_file()
                self._sync()
                self._disk.make_folder(self.target.parent)
                self._disk.rename(self._path, self.target)
            self._is_renamed = True
        try:
            self._disk.sync_folder(self.target.parent)
            self._disk.sync_folder(self._landing)
        except FileNotFoundError:
            pass  # Whoever removed the folder has taken the segment, too.
        self.close()

    def discard(self) -> None:
        """Remove it, where there is nothing in it."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _sync(self) -> None:
        if self._is_synced:
            return
        fd = self._mended()
        try:
            self._disk.sync(fd)
        except OSError:
            # A second call would say that all is well and mean what was not written before: write it all anew.
            self._forget_file()
            raise
        self._is_synced = True

    def _forget_file(self) -> None:
        # It stays open until there is another: as long nobody takes it for left behind.
        self._is_synced = False
        self._is_lost = True

    def _renew(self) -> None:
        """Write everything again, beside what there is: that may be whole, and is all where the broker dies now."""
        beside = self._path.with_name(self._path.name + ANEW)
        size_bytes, self.size_bytes = self.size_bytes, 0
        before, self._fd = self._fd, None
        self._is_torn = self._is_lost = False
        try:
            self._open(beside)
            self._write(b"".join(self._lines))
            self._disk.rename(beside, self._path)
        except OSError:
            self.close()
            self._fd, self._is_lost = before, True
            beside.unlink(missing_ok=True)
            raise
        finally:
            self.size_bytes = size_bytes
        self._close(before)

    def close(self) -> None:
        """Let go of the file, which stays where it is."""
        fd, self._fd = self._fd, None
        self._close(fd)

    def _close(self, fd: int | None) -> None:
        if fd is not None:
            try:
                self._disk.close(fd)
            except OSError:
                pass  # What it could tell of is on the disk already, or will be written again.


# A folder that others write to, too


class InUse(Exception):
    """Another broker of this name writes here."""


class Lock:
    """Keeps a second broker of the same name out, for as long as this process lives or until it is released."""

    def __init__(self, landing: Path, node: str) -> None:
        """Raises :class:`InUse`, or ``OSError`` where the folder can't be written to."""
        self.path = landing / f"{LOCK}{quoted(node)}"
        self._fd: int | None = _locked(self.path)

    def keep(self) -> None:
        """Take it again where somebody has removed its file, with which everybody else looks.

        Raises as when it was made, and then holds what it held.
        """
        if self._fd is None or _is_at(self._fd, self.path):
            return
        fd, self._fd = self._fd, _locked(self.path)
        os.close(fd)

    def release(self) -> None:
        """Let another one write; harmless a second time."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return fd
        except BlockingIOError as error:
            os.close(fd)
            raise InUse(str(path)) from error
        except BaseException:
            os.close(fd)
            raise
        # Removed between the two: nobody else would find it held.
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


@frozen(slots=True)
class Recovered:
    """What became of a segment that an earlier life left open."""

    name: SegmentName
    records: int
    cut_bytes: int
    """What was no whole line, at its end."""
    published: Path | None
    """``None`` where there was nothing in it, or it was published before."""


def recover(
    disk: Disk, landing: Path, node: str, now: Callable[[], float], failed: Callable[[Path, OSError], object]
) -> list[Recovered]:
    """Publish what earlier lives of this node have left open, cut to its last whole line.

    Segments of others are left alone. ``failed`` is told of one that can't be published, which stays for the next
    start. Only while the node's :class:`Lock` is held. Raises :class:`InUse`, and has changed nothing, where one is
    being written all the same: somebody has removed the lock of a broker that runs.
    """
    found: list[tuple[SegmentName, bool, Path]] = []
    for path in landing.glob(f"{OPEN}*"):
        is_anew = path.name.endswith(ANEW)
        try:
            name = SegmentName.parse(path.name.removeprefix(OPEN).removesuffix(ANEW))
        except ValueError:
            continue
        if name.node == node:
            found.append((name, is_anew, path))
    for _, _, path in found:
        with suppress(OSError), _left_behind(path):
            pass
    recovered = []
    first_ones = {name for name, is_anew, _ in found if not is_anew}
    for name, is_anew, path in sorted(found):
        try:
            with _left_behind(path) as fd:
                if is_anew and name in first_ones:
                    # What it was to stand for is, or was just now, beside it.
                    path.unlink()
                    continue
                # One that is written anew may be all there is: somebody had removed the first one.
                recovered.append(_recover(disk, landing, path, fd, name, now))
        except OSError as error:
            failed(path, error)
    return recovered


@contextmanager
def _left_behind(path: Path) -> Iterator[int]:
    """Open a segment that nobody writes. Raises ``OSError``, and :class:`InUse` where somebody does."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(str(path)) from error
        yield fd
    finally:
        os.close(fd)


def _recover(
    disk: Disk, landing: Path, path: Path, fd: int, name: SegmentName, now: Callable[[], float]
) -> Recovered:
    records, whole_bytes, first_t = _whole(fd, name)
    cut_bytes = os.fstat(fd).st_size - whole_bytes
    before = next(iter(landing.glob(f"date=*/{_literally(str(name))}")), None)
    if before is not None or not records:
        # A power failure between two names of one file may have left both.
        path.unlink()
        disk.sync_folder(landing)
        return Recovered(name, records, cut_bytes, None)
    if cut_bytes:
        disk.truncate(fd, whole_bytes)
    disk.sync(fd)
    target = published_path(landing, name, date_of(now() if first_t is None else first_t / 1e6))
    disk.make_folder(target.parent)
    disk.rename(path, target)
    disk.sync_folder(target.parent)
    disk.sync_folder(landing)
    return Recovered(name, records, cut_bytes, target)


def _literally(name: str) -> str:
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def _whole(fd: int, name: SegmentName) -> tuple[int, int, int | None]:
    """How many records stand at the beginning, how long they are, and the time of the first (microseconds)."""
    records = whole_bytes = 0
    first_t: int | None = None
    expected: int | None = None
    with open(fd, "rb", closefd=False) as file:
        for line in file:
            record = _parsed(line)
            if record is None or (record.get("node"), record.get("boot")) != (name.node, name.boot):
                break
            seq = record.get("seq")
            if not isinstance(seq, int) or seq != (seq if expected is None else expected):
                break
            expected = seq + 1
            t = record.get("t")
            if first_t is None and isinstance(t, int) and abs(t) < 1 << 63:
                first_t = t
            records += 1
            whole_bytes += len(line)
    return records, whole_bytes, first_t


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("v") == FORMAT else None
