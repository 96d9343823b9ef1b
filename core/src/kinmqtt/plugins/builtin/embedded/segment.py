"""A piece of the log: one SQLite database in WAL mode, to which packed groups are appended and nothing else is done.

A commit is then a write to the operating system's cache and no more: it outlives the process. What makes it outlive
the machine, and everything else that waits for a disk, can be done in a thread: :meth:`Segment.sync` while the
segment is in use, :meth:`Segment.seal` when another has taken its place. A log of many databases needs no deletions,
which cost SQLite as much as insertions, and no checkpoint under way while it is written.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from zlib import crc32

from kinmqtt.plugins.builtin.embedded.records import FORMAT
from kinmqtt_spi.errors import SpiError

APPLICATION_ID: Final = 0x6B696E6D
"""Marks a database as one of ours: "kinm"."""

PATTERN: Final = "journal-*.sqlite3"


class DataDirectoryError(SpiError):
    """A data directory can't be used; the text names the file, what is wrong with it, and what can be done."""


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
        # For nobody else to read, also where a copy of it lies elsewhere.
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            for statement in _SET_UP:
                self._connection.execute(statement)
            self._wal = os.open(f"{self.path}-wal", os.O_RDONLY)
        except BaseException:
            self._connection.close()
            _unlink(self.path)
            raise
        self._cursor = self._connection.cursor()
        self._insert = self._cursor.execute
        self.sync()
        _sync_folder(folder)

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
        os.close(self._wal)


_SET_UP: Final = (
    # Nobody else uses the directory, and so no lock has to be taken and no memory shared for each commit.
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA synchronous = NORMAL",
    # All or nothing: a process that ends here leaves a database that is whole or empty.
    "BEGIN",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
    "CREATE TABLE log (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "COMMIT",
    "PRAGMA journal_mode = WAL",
    "PRAGMA wal_autocheckpoint = 0",
    # The file of the write-ahead log comes with the first write.
    "INSERT INTO meta (key, value) VALUES ('begun', 1)",
)


def is_empty(path: Path) -> bool:
    """Whether a process ended as it was about to make this segment."""
    if path.stat().st_size == 0:
        return True
    with closing(_open(path)) as connection, _speaking_of(path):
        [[tables]] = connection.execute("SELECT count(*) FROM sqlite_master")
        [[application_id]] = connection.execute("PRAGMA application_id")
    return not tables and not application_id


def lost_commits(path: Path) -> int:
    """How many commits stand in a segment's write-ahead log behind what SQLite can read of it.

    A process that is killed leaves none, a loss of power may, and so does damage. SQLite passes over them in silence,
    and forgets them when the segment is closed: this must be asked before anything else opens it.
    """
    wal = Path(f"{path}-wal")
    if not wal.exists() or wal.stat().st_size < _WAL_HEADER_BYTES:
        return 0
    with closing(_open(path)) as connection, _speaking_of(path):
        [[page_bytes]] = connection.execute("PRAGMA page_size")
        [[_, frames, _]] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return _commits_behind(wal, max(0, frames), _FRAME_HEADER_BYTES + page_bytes)


_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24


def _commits_behind(wal: Path, frames: int, frame_bytes: int) -> int:
    """Frames of this write-ahead log that end a transaction, from a place on (SQLite file format, section 4)."""
    found = 0
    with wal.open("rb") as file:
        salts = file.read(_WAL_HEADER_BYTES)[16:24]
        file.seek(_WAL_HEADER_BYTES + frames * frame_bytes)
        while len(header := file.read(_FRAME_HEADER_BYTES)) == _FRAME_HEADER_BYTES:
            found += header[8:16] == salts and header[4:8] != bytes(4)
            file.seek(frame_bytes - _FRAME_HEADER_BYTES, os.SEEK_CUR)
    return found


def look_at(path: Path) -> int | None:
    """The number of the first segment that still counts, where this one says so.

    Raises :class:`DataDirectoryError` for a file that is not ours, or of a format this version does not know.
    """
    with closing(_open(path)) as connection, _speaking_of(path):
        [[application_id]] = connection.execute("PRAGMA application_id")
        [[version]] = connection.execute("PRAGMA user_version")
        if application_id != APPLICATION_ID:
            raise DataDirectoryError(f"{path} was not written by kinmqtt: it is another program's database")
        if version > FORMAT:
            raise DataDirectoryError(
                f"{path} has format {version}, this kinmqtt knows formats up to {FORMAT}: it was written by a newer "
                "version; use that"
            )
        found = connection.execute("SELECT value FROM meta WHERE key = 'first'").fetchone()
    return None if found is None else int(found[0])


def read(path: Path, skip_damaged: list[str] | None = None) -> Iterator[bytes]:
    """The groups of a segment, in order.

    Raises :class:`DataDirectoryError` where one is damaged or missing; with a list for ``skip_damaged`` it is left
    out and told of there.
    """
    try:
        connection = _open(path)
    except DataDirectoryError as error:
        if skip_damaged is None:
            raise
        skip_damaged.append(str(error))
        return
    with closing(connection):
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
        with closing(_open(path)) as connection, _speaking_of(path):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")


_WAL_VERSIONS: Final = b"\x02\x02"
"""What a database's header says that has a write-ahead log (SQLite file format, section 1.3.3)."""


def holds_nothing(path: Path) -> bool:
    """Whether a segment has neither a group nor a word on which segments count."""
    with closing(_open(path)) as connection, _speaking_of(path):
        [[groups]] = connection.execute("SELECT count(*) FROM (SELECT 1 FROM log LIMIT 1)")
        [[marks]] = connection.execute("SELECT count(*) FROM meta WHERE key = 'first'")
    return not groups and not marks


def remove(path: Path) -> None:
    """Remove a segment that counts no more."""
    _unlink(path)


def _open(path: Path) -> sqlite3.Connection:
    with _speaking_of(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
    return connection


class _speaking_of:
    """SQLite's errors, told of with the file they are about."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise DataDirectoryError(f"{self._path} can't be read: {error}; {WAYS_ON}") from error


def _unlink(path: Path) -> None:
    for name in (f"{path}-wal", f"{path}-shm", f"{path}-journal", path):
        Path(name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
