"""A segment of the log: an SQLite database in WAL mode, to which packed groups are only appended.

So a commit is one write to the operating system's cache, which survives a crash of the process. Blocking operations
can run in a thread: :meth:`Segment.sync` while the segment is in use, which makes it survive a loss of power, and
:meth:`Segment.seal` after another has replaced it. A log of several databases needs no deletions, which cost SQLite
as much as insertions, and no checkpoint during writes.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from zlib import crc32

from attrs import frozen

from kinmqtt.builtins.embedded.records import FORMAT
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.files import sync_folder

APPLICATION_ID: Final = 0x6B696E6D
"""Marks a database as one of ours: "kinm"."""

PATTERN: Final = "journal-*.sqlite3"

_NO_FILE: Final = -1
"""Instead of a file descriptor."""


class DataDirectoryError(SpiError):
    """A data directory can't be used; the text names the file, the problem and a remedy."""


class UnknownStore(DataDirectoryError):
    """A file is of a newer version or of another program. It is not damaged, so skipping damage does not help."""


def name_of(number: int) -> str:
    """Return the file name of a segment; names sort in the order of numbers."""
    return f"journal-{number:010}.sqlite3"


def number_of(path: Path) -> int:
    """Return the number of the segment with that name."""
    try:
        return int(path.name.removeprefix("journal-").removesuffix(".sqlite3"))
    except ValueError:
        raise DataDirectoryError(f"{path} is not a file of a kinmqtt store: its name has no number") from None


class Segment:
    """The segment that is written to."""

    def __init__(self, folder: Path, number: int) -> None:
        """Create a segment and sync it. Blocks on the disk, so call it in a thread."""
        self.number = number
        self.path = folder / name_of(number)
        self.size_bytes = 0
        """The size of its groups."""
        self.marked = False
        """Whether it marks older segments as obsolete."""
        _unlink(self.path)
        _make(self.path)
        self._wal = _NO_FILE
        self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._cursor = self._connection.cursor()
        self._insert = self._cursor.execute
        try:
            for statement in _SET_UP:
                self._connection.execute(statement)
            self._wal = os.open(f"{self.path}-wal", os.O_RDONLY)
            self.sync()
            sync_folder(folder)
        except BaseException:
            self.abandon()
            _unlink(self.path)
            raise

    def append(self, data: bytes) -> None:
        """Append a group, so that it survives a crash of the process. Raises ``sqlite3.Error`` on failure."""
        self._insert("INSERT INTO log (crc, data) VALUES (?, ?)", (crc32(data), data))
        self.size_bytes += len(data)

    def begin_with(self, number: int) -> None:
        """Mark all segments before that number as obsolete."""
        self._connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('first', ?)", (number,))
        self.marked = True

    def sync(self) -> None:
        """Sync, so that all groups appended before this call survive a loss of power. For a thread."""
        os.fdatasync(self._wal)

    def seal(self) -> None:
        """Sync and convert to one plain file; nothing can be appended afterwards. For a thread."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files without sealing."""
        # Finalize the statement: after a failure it would keep the connection open.
        self._cursor.close()
        self._connection.close()
        if self._wal != _NO_FILE:
            os.close(self._wal)


_LAYOUT: Final = (
    "BEGIN",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
    "CREATE TABLE log (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "COMMIT",
)

_SET_UP: Final = (
    # No other process uses the directory, so commits need no locks and no shared memory.
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA wal_autocheckpoint = 0",
    # Create the write-ahead log with a first write. This row is stored only there, so a segment without it has lost
    # the log or was never written to.
    "INSERT INTO meta (key, value) VALUES ('begun', 1)",
)

_MAKING: Final = "journal-new"
"""The name of a segment during its creation. No segment has it, so the remains of a killed process are ignored."""


def _make(path: Path) -> None:
    """Create an empty segment atomically: a crash leaves a complete database or none."""
    making = path.with_name(_MAKING)
    _unlink(making)
    # Only the owner can read it, also in copies of the directory.
    descriptor = os.open(making, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        give_to_owner_of(path.parent, descriptor)
    finally:
        os.close(descriptor)
    try:
        with closing(sqlite3.connect(making, isolation_level=None)) as connection:
            for statement in _LAYOUT:
                connection.execute(statement)
        making.rename(path)
    except BaseException:
        _unlink(making)
        raise


def give_to_owner_of(folder: Path, file: int | Path) -> None:
    """Give a file that the superuser creates to the directory's owner, so that the owner's broker can read it."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


@frozen(slots=True)
class Look:
    """The state of a segment, as its file says."""

    first: int | None
    """The number of the first valid segment, if this one names it."""
    begun: bool
    """Whether it was complete; if not, it is empty or its write-ahead log is lost."""
    lost: str | None
    """The damage at the end of its write-ahead log, which SQLite ignores silently."""


def look_at(path: Path) -> Look:
    """Read the state of a segment without changing it.

    Raises :class:`DataDirectoryError` for a damaged file, and :class:`UnknownStore` for a file of another program or
    an unknown format.
    """
    with _reading(path) as connection, _speaking_of(path):
        [[application_id]] = connection.execute("PRAGMA application_id")
        [[version]] = connection.execute("PRAGMA user_version")
        if application_id != APPLICATION_ID:
            raise UnknownStore(f"{path} was not written by kinmqtt: it is another program's database")
        if version > FORMAT:
            raise UnknownStore(
                f"{path} has format {version}, but this kinmqtt knows formats up to {FORMAT}: use the "
                "newer version that wrote it"
            )
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        lost = _lost_end(path)
    return Look(int(meta["first"]) if "first" in meta else None, "begun" in meta, lost)


_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_WAL_MAGIC: Final = (0x377F0682, 0x377F0683)
_WAL_VERSION: Final = 3007000
_MEMORY_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def _lost_end(path: Path) -> str | None:
    """Describe commits in an open segment's write-ahead log behind the end that SQLite reads.

    A killed process leaves at most a part of one write; a loss of power may leave more, and so may damage.
    """
    wal, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if not has_wal(path):
        return None
    with index.open("rb") as file:
        # The number of valid frames, in this machine's byte order (WAL-mode file format, section 2.1).
        file.seek(16)
        frames = int.from_bytes(file.read(4), sys.byteorder)
    with wal.open("rb") as file:
        head = file.read(_WAL_HEADER_BYTES)
        frame_bytes = _FRAME_HEADER_BYTES + int.from_bytes(head[8:12], "big")
        size = os.fstat(file.fileno()).st_size
        whole, rest = divmod(size - _WAL_HEADER_BYTES, frame_bytes)
        commits = 0
        for number in range(frames, whole):
            file.seek(_WAL_HEADER_BYTES + number * frame_bytes)
            header = file.read(_FRAME_HEADER_BYTES)
            commits += header[8:16] == head[16:24] and header[4:8] != bytes(4)
    if commits:
        return (
            f"{path}: {commits} commits at its end can't be read; a loss of power may lose data that was not "
            "synced, anything else is damage"
        )
    # A frame is written as its header and its page. A process may be killed between two writes, or between two pages
    # of memory within one.
    if rest not in (0, _FRAME_HEADER_BYTES) and size % _MEMORY_PAGE_BYTES:
        return f"{wal} was cut short: it ends within a commit; later data is lost"
    return None


def _refuse_damage(path: Path) -> None:
    """Check the first bytes of a segment and its write-ahead log (SQLite file format, sections 1.3 and 4.1).

    SQLite ignores such damage: it takes an empty file for a database and removes the write-ahead log beside it, or
    ignores a log with a wrong header.
    """
    problem = None
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head:
        problem = f"{path} is empty: its data is lost"
    elif head != _MAGIC:
        problem = f"{path} can't be read: file is not a database"
    elif has_wal(path):
        with Path(f"{path}-wal").open("rb") as file:
            head = file.read(_WAL_HEADER_BYTES)
        if not _is_wal_header(head):
            problem = f"{path}-wal can't be read: its header is damaged: the last writes to {path.name} are lost"
    if problem is not None:
        raise DataDirectoryError(f"{problem}; {WAYS_ON}")


_MAGIC: Final = b"SQLite format 3\0"


def _is_wal_header(head: bytes) -> bool:
    if len(head) != _WAL_HEADER_BYTES:
        return False
    magic, version, page_bytes, *_, sum_1, sum_2 = struct.unpack(">8I", head)
    words = struct.unpack(">6I" if magic & 1 else "<6I", head[:24])
    first = second = 0
    for word, after in zip(words[::2], words[1::2], strict=True):
        first = (first + word + second) & 0xFFFF_FFFF
        second = (second + after + first) & 0xFFFF_FFFF
    sound = magic in _WAL_MAGIC and version == _WAL_VERSION and (first, second) == (sum_1, sum_2)
    return sound and 512 <= page_bytes <= 65536 and not page_bytes & page_bytes - 1


def has_wal(path: Path) -> bool:
    """Tell whether a segment has a write-ahead log that is not empty."""
    wal = Path(f"{path}-wal")
    return wal.exists() and wal.stat().st_size > 0


def read(path: Path, skip_damaged: list[str] | None = None) -> Iterator[bytes]:
    """Yield the groups of a segment, in order.

    Raises :class:`DataDirectoryError` if one is damaged or missing; with a list for ``skip_damaged`` it is skipped
    and the problem added to the list.
    """
    try:
        connection = _open_to_read(path)
    except DataDirectoryError as error:
        if skip_damaged is None:
            raise
        skip_damaged.append(str(error))
        return
    with _closing(path, connection):
        expected = 1
        rows = iter(_rows(path, connection, skip_damaged))
        for row, crc, data in rows:
            problem = None
            if row != expected:
                problem = f"{path}: row {expected} is missing"
            elif not isinstance(data, bytes) or crc32(data) != crc:
                problem = f"{path}: row {row} is damaged: its checksum is wrong"
            expected = row + 1
            if problem is not None:
                if skip_damaged is None:
                    raise DataDirectoryError(f"{problem}; {WAYS_ON}")
                skip_damaged.append(problem)
            if isinstance(data, bytes) and crc32(data) == crc:
                yield data


WAYS_ON: Final = (
    "restore the directory from a backup, or save the readable data: "
    "`kinmqtt store export --skip-damaged DIRECTORY > FILE`, then `kinmqtt store import NEW_DIRECTORY < FILE`"
)


def _rows(
    path: Path, connection: sqlite3.Connection, skip_damaged: list[str] | None
) -> Iterator[tuple[int, int, object]]:
    try:
        # No ``yield from``: if the caller stops early, the cursor must not be closed after the connection.
        for row in connection.execute("SELECT id, crc, data FROM log ORDER BY id"):  # noqa: UP028
            yield row
    except sqlite3.Error as error:
        problem = f"{path} can't be read further: {error}"
        if skip_damaged is None:
            raise DataDirectoryError(f"{problem}; {WAYS_ON}") from error
        skip_damaged.append(problem)


def finish(path: Path) -> None:
    """Convert a segment that its process could not seal to one plain file."""
    with path.open("rb") as file:
        head = file.read(20)
    if head[18:20] == _WAL_VERSIONS or Path(f"{path}-wal").exists():
        with closing(_open_to_write(path)) as connection, _speaking_of(path):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")


_WAL_VERSIONS: Final = b"\x02\x02"
"""The version bytes in the header of a database with a write-ahead log (SQLite file format, section 1.3.3)."""


def holds_nothing(path: Path) -> bool:
    """Tell whether a segment has neither a group nor a mark of the first valid segment."""
    with _reading(path) as connection, _speaking_of(path):
        [[groups]] = connection.execute("SELECT count(*) FROM (SELECT 1 FROM log LIMIT 1)")
        [[marks]] = connection.execute("SELECT count(*) FROM meta WHERE key = 'first'")
    return not groups and not marks


def remove(path: Path) -> None:
    """Remove an obsolete segment."""
    _unlink(path)


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Open a segment without changing it or its write-ahead log; :func:`_closing` ends the connection."""
    with _speaking_of(path):
        _refuse_damage(path)
        # Without a write-ahead log, prevent SQLite from creating one.
        connection = _connect(path, "mode=ro" if has_wal(path) else "mode=ro&immutable=1")
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            _close(path, connection)
            raise
    return connection


def _open_to_write(path: Path) -> sqlite3.Connection:
    with _speaking_of(path):
        _refuse_damage(path)
        connection = _connect(path, "mode=rw")
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
    return connection


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)


@contextmanager
def _closing(path: Path, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield connection
    finally:
        _close(path, connection)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with _closing(path, _open_to_read(path)) as connection:
        yield connection


def _close(path: Path, connection: sqlite3.Connection) -> None:
    connection.close()
    # Remove the index that SQLite creates to read a write-ahead log. No other process has the segment open.
    Path(f"{path}-shm").unlink(missing_ok=True)


class _speaking_of:
    """Converts errors of SQLite and the system to errors that name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            if "full" in str(error):
                raise DataDirectoryError(
                    f"{self._path} can't be written to: {error}; free space and start again"
                ) from error
            raise DataDirectoryError(f"{self._path} can't be read: {error}; {WAYS_ON}") from error
        if isinstance(error, OSError):
            path = self._path if error.filename is None else error.filename
            # Skipping such a file would lose data that only this user can't read, or that was there a moment ago.
            way_on = "" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else f"; {WAYS_ON}"
            raise DataDirectoryError(f"{path} can't be read: {error.strerror}{way_on}") from error


def _unlink(path: Path) -> None:
    for name in (f"{path}-wal", f"{path}-shm", f"{path}-journal", path):
        Path(name).unlink(missing_ok=True)
