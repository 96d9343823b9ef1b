"""A piece of the log: one SQLite database in WAL mode, to which packed groups are appended and nothing else is done.

A commit is then a write to the operating system's cache and no more: it outlives the process. What makes it outlive
the machine, and everything else that waits for a disk, can be done in a thread: :meth:`Segment.sync` while the
segment is in use, :meth:`Segment.seal` when another has taken its place. A log of many databases needs no deletions,
which cost SQLite as much as insertions, and no checkpoint under way while it is written.
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

APPLICATION_ID: Final = 0x6B696E6D
"""Marks a database as one of ours: "kinm"."""

PATTERN: Final = "journal-*.sqlite3"

_NO_FILE: Final = -1
"""In place of a file descriptor."""


class DataDirectoryError(SpiError):
    """A data directory can't be used; the text names the file, what is wrong with it, and what can be done."""


class UnknownStore(DataDirectoryError):
    """A file of the store is a newer version's or another program's: no damage, and nothing to be saved by force."""


def name_of(number: int) -> str:
    """The file name of a segment; names are in the order of numbers."""
    return f"journal-{number:010}.sqlite3"


def number_of(path: Path) -> int:
    """The number of the segment of that name."""
    try:
        return int(path.name.removeprefix("journal-").removesuffix(".sqlite3"))
    except ValueError:
        raise DataDirectoryError(f"{path} is no file of a kinmqtt store: its name has no number") from None


class Segment:
    """The segment that is written to."""

    def __init__(self, folder: Path, number: int) -> None:
        """Create it, on disk with everything that it needs. Waits for the disk: call it in a thread."""
        self.number = number
        self.path = folder / name_of(number)
        self.size_bytes = 0
        """Of the groups in it."""
        self.marked = False
        """Whether it says which segments count no more."""
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
            _sync_folder(folder)
        except BaseException:
            self.abandon()
            _unlink(self.path)
            raise

    def append(self, data: bytes) -> None:
        """Append a group: from now on it outlives the process. Raises ``sqlite3.Error``: then it is not there."""
        self._insert("INSERT INTO log (crc, data) VALUES (?, ?)", (crc32(data), data))
        self.size_bytes += len(data)

    def begin_with(self, number: int) -> None:
        """Note that nothing before that segment counts any more."""
        self._connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('first', ?)", (number,))
        self.marked = True

    def sync(self) -> None:
        """What was appended before this call outlives the machine when it returns. For a thread."""
        os.fdatasync(self._wal)

    def seal(self) -> None:
        """Nothing more is appended: make one plain file of it, that outlives the machine. For a thread."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are."""
        # A statement that has failed would keep the connection.
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
    # Nobody else uses the directory, and so no lock has to be taken and no memory shared for each commit.
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA wal_autocheckpoint = 0",
    # The file of the write-ahead log comes with the first write. As this stands nowhere else, a segment without it
    # has lost that file, or was never written to.
    "INSERT INTO meta (key, value) VALUES ('begun', 1)",
)

_MAKING: Final = "journal-new"
"""Where a segment is made. The name is the store's own, and no segment's: what a killed process leaves counts not."""


def _make(path: Path) -> None:
    """Put a segment with nothing in it there: under its name stands a whole database, or none, whoever dies when."""
    making = path.with_name(_MAKING)
    _unlink(making)
    # For nobody else to read, also where a copy of it lies elsewhere.
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
    """What the superuser makes in somebody's directory is theirs: the broker that uses it must be able to read it."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


@frozen(slots=True)
class Look:
    """What a segment says of itself."""

    first: int | None
    """The number of the first segment that still counts, where this one says so."""
    begun: bool
    """Whether it was ready to be written to; where not, it holds nothing, or its write-ahead log is gone."""
    lost: str | None
    """What is wrong with the end of its write-ahead log, which SQLite passes over in silence."""


def look_at(path: Path) -> Look:
    """What a segment says of itself; it stays as it is.

    Raises :class:`DataDirectoryError` for a file that is damaged as a whole, and :class:`UnknownStore` for one that
    is not ours, or of a format this version does not know.
    """
    with _reading(path) as connection, _speaking_of(path):
        [[application_id]] = connection.execute("PRAGMA application_id")
        [[version]] = connection.execute("PRAGMA user_version")
        if application_id != APPLICATION_ID:
            raise UnknownStore(f"{path} was not written by kinmqtt: it is another program's database")
        if version > FORMAT:
            raise UnknownStore(
                f"{path} has format {version}, this kinmqtt knows formats up to {FORMAT}: it was written by a newer "
                "version; use that"
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
    """What stands in a segment's write-ahead log behind what SQLite reads of it, which is open at present.

    A process that is killed leaves no more than a part of one write; a loss of power may leave more, and so does
    damage.
    """
    wal, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if not has_wal(path):
        return None
    with index.open("rb") as file:
        # How many frames SQLite has found good, in this machine's byte order (WAL-mode file format, section 2.1).
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
            f"{path}: {commits} commits at its end can't be read; a loss of power may take what the disk was not "
            "asked for, anything else is damage"
        )
    # A frame is written as its header and its page, and a process is killed between two writes, or between two pages
    # of memory within one.
    if rest not in (0, _FRAME_HEADER_BYTES) and size % _MEMORY_PAGE_BYTES:
        return f"{wal} was cut short: it ends within a commit, and what came behind is lost"
    return None


def _refuse_damage(path: Path) -> None:
    """Look at the first bytes of a segment and its write-ahead log (SQLite file format, sections 1.3 and 4.1).

    SQLite would say nothing of damage there: an empty file is a database for it, and it removes the write-ahead log
    beside it, or passes over one whose header is not right.
    """
    problem = None
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head:
        problem = f"{path} is empty: what was in it is lost"
    elif head != _MAGIC:
        problem = f"{path} can't be read: file is not a database"
    elif has_wal(path):
        with Path(f"{path}-wal").open("rb") as file:
            head = file.read(_WAL_HEADER_BYTES)
        if not _is_wal_header(head):
            problem = f"{path}-wal can't be read: its header is damaged: what was written last to {path.name} is lost"
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
    """Whether a segment has a write-ahead log with something in it."""
    wal = Path(f"{path}-wal")
    return wal.exists() and wal.stat().st_size > 0


def read(path: Path, skip_damaged: list[str] | None = None) -> Iterator[bytes]:
    """The groups of a segment, in order.

    Raises :class:`DataDirectoryError` where one is damaged or missing; with a list for ``skip_damaged`` it is left
    out and told of there.
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
                problem = f"{path}: row {row} is damaged: its checksum is another"
            expected = row + 1
            if problem is not None:
                if skip_damaged is None:
                    raise DataDirectoryError(f"{problem}; {WAYS_ON}")
                skip_damaged.append(problem)
            if isinstance(data, bytes) and crc32(data) == crc:
                yield data


WAYS_ON: Final = (
    "restore the directory from a copy, or save what can be read: "
    "`kinmqtt store export --skip-damaged DIRECTORY > FILE`, then `kinmqtt store import NEW_DIRECTORY < FILE`"
)


def _rows(
    path: Path, connection: sqlite3.Connection, skip_damaged: list[str] | None
) -> Iterator[tuple[int, int, object]]:
    try:
        # No ``yield from``: who breaks off must not close the cursor when the connection is closed already.
        for row in connection.execute("SELECT id, crc, data FROM log ORDER BY id"):  # noqa: UP028
            yield row
    except sqlite3.Error as error:
        problem = f"{path} can't be read on: {error}"
        if skip_damaged is None:
            raise DataDirectoryError(f"{problem}; {WAYS_ON}") from error
        skip_damaged.append(problem)


def finish(path: Path) -> None:
    """Make one plain file of a segment that its process could not seal."""
    with path.open("rb") as file:
        head = file.read(20)
    if head[18:20] == _WAL_VERSIONS or Path(f"{path}-wal").exists():
        with closing(_open_to_write(path)) as connection, _speaking_of(path):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")


_WAL_VERSIONS: Final = b"\x02\x02"
"""What a database's header says that has a write-ahead log (SQLite file format, section 1.3.3)."""


def holds_nothing(path: Path) -> bool:
    """Whether a segment has neither a group nor a word on which segments count."""
    with _reading(path) as connection, _speaking_of(path):
        [[groups]] = connection.execute("SELECT count(*) FROM (SELECT 1 FROM log LIMIT 1)")
        [[marks]] = connection.execute("SELECT count(*) FROM meta WHERE key = 'first'")
    return not groups and not marks


def remove(path: Path) -> None:
    """Remove a segment that counts no more."""
    _unlink(path)


def _open_to_read(path: Path) -> sqlite3.Connection:
    """A connection by which nothing is changed: the write-ahead log stays what it is. :func:`_closing` ends it."""
    with _speaking_of(path):
        _refuse_damage(path)
        # Without a write-ahead log SQLite need not look for one; it would make it.
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
    # The index of a write-ahead log, which SQLite makes to read one. Nobody else has the segment open.
    Path(f"{path}-shm").unlink(missing_ok=True)


class _speaking_of:
    """Errors of SQLite and of the system, told of with the file they are about."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            if "full" in str(error):
                raise DataDirectoryError(
                    f"{self._path} can't be written to: {error}; free room and start again"
                ) from error
            raise DataDirectoryError(f"{self._path} can't be read: {error}; {WAYS_ON}") from error
        if isinstance(error, OSError):
            path = self._path if error.filename is None else error.filename
            # To leave it out would lose what is only closed to this user, or was there a moment ago.
            way_on = "" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else f"; {WAYS_ON}"
            raise DataDirectoryError(f"{path} can't be read: {error.strerror}{way_on}") from error


def _unlink(path: Path) -> None:
    for name in (f"{path}-wal", f"{path}-shm", f"{path}-journal", path):
        Path(name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
