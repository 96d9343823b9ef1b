"""A piece of the log on disk: what comes back from it, and what is said of one that is damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core_harness.open_files import open_files
from kinmqtt.builtins.embedded import segment
from kinmqtt.builtins.embedded.segment import (
    WAYS_ON,
    DataDirectoryError,
    Segment,
    finish,
    look_at,
    name_of,
    number_of,
    read,
)

PLAIN = b"\1\1"
"""In the header of a database that needs no write-ahead log beside it."""

PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES
"""Of SQLite's write-ahead log."""

GROUPS = [b"one", b"", b"three" * 1000, b"four"]


def written(folder: Path, groups: list[bytes] | None = None, number: int = 1) -> Path:
    """A sealed segment with these groups."""
    made = Segment(folder, number)
    for data in GROUPS if groups is None else groups:
        made.append(data)
    made.seal()
    return made.path


def killed(made: Segment) -> Path:
    """A segment as a process leaves it that is killed at this moment."""
    copy = made.path.parent.with_name("killed")
    shutil.copytree(made.path.parent, copy)
    made.abandon()
    return copy / made.path.name


def change(path: Path, *statements: str) -> None:
    """Change a sealed segment behind kinmqtt's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def flip(path: Path, row: int) -> None:
    """Damage one byte of a group."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        [[data]] = connection.execute("SELECT data FROM log WHERE id = ?", (row,))
        connection.execute("UPDATE log SET data = ? WHERE id = ?", (bytes([data[0] ^ 1]) + data[1:], row))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(call: Callable[[], object], left_over: list[Any] | None = None) -> str:
    """What a call is refused with; ``left_over`` takes what could not be cleaned up afterwards."""
    # An error of a generator that is collected would be put down to whatever test runs by then.
    hook, sys.unraisablehook = sys.unraisablehook, ([] if left_over is None else left_over).append
    try:
        try:
            call()
        except DataDirectoryError as error:
            return str(error)
    finally:
        sys.unraisablehook = hook
    raise AssertionError("it was not refused")


def test_a_segment_is_whole_when_it_is_made(tmp_path: Path) -> None:
    """From the beginning it is a database of ours with nothing in it, even if its process ends there and then."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 7)

    path = killed(made)

    assert path.name == "journal-0000000007.sqlite3"
    look = look_at(path)
    assert (look.first, look.begun, look.lost) == (None, True, None)
    assert list(read(path)) == []


def sealed(made: Segment) -> Path:
    made.seal()
    return made.path


def abandoned(made: Segment) -> Path:
    made.abandon()
    return made.path


@pytest.mark.parametrize("end", [sealed, abandoned, killed])
def test_groups_come_back_in_order(tmp_path: Path, end: Callable[[Segment], Path]) -> None:
    """What was appended is read again, after an orderly end and after a process that was killed."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    for data in GROUPS:
        made.append(data)
    size_bytes = made.size_bytes

    path = end(made)

    assert list(read(path)) == GROUPS
    assert size_bytes == sum(map(len, GROUPS))


def test_groups_outlive_a_killed_process(tmp_path: Path) -> None:
    """What a process has appended is there when it was ended without a chance to say good-bye."""
    program = (
        "import os, pathlib, signal, sys\n"
        "from kinmqtt.builtins.embedded.segment import Segment\n"
        "made = Segment(pathlib.Path(sys.argv[1]), 1)\n"
        "made.append(b'one')\n"
        "made.append(b'two')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)

    groups = list(read(tmp_path / name_of(1)))

    assert ended.returncode == -9
    assert groups == [b"one", b"two"]


def test_a_sealed_segment_is_one_plain_file(tmp_path: Path) -> None:
    """Who copies a sealed segment needs its one file only; one in use has a write-ahead log beside it."""
    made = Segment(tmp_path, 1)
    made.append(b"one")
    during = names(tmp_path)

    made.seal()

    assert during == [name_of(1), name_of(1) + "-wal"]
    assert names(tmp_path) == [name_of(1)]
    assert made.path.read_bytes()[18:20] == PLAIN


def test_a_segment_that_was_not_sealed_is_finished_later(tmp_path: Path) -> None:
    """The next process makes a plain file of what a killed one has left; a sealed one is left as it is."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    made.append(b"one")
    path = killed(made)
    before = names(path.parent)

    finish(path)
    finish(path)

    assert before == [name_of(1), name_of(1) + "-wal"]
    assert names(path.parent) == [name_of(1)]
    assert path.read_bytes()[18:20] == PLAIN
    assert list(read(path)) == [b"one"]


def test_to_sync_asks_the_disk_for_what_was_appended(tmp_path: Path) -> None:
    """A segment in use, and one that nothing was appended to, can be synced; the data is as before."""
    made = Segment(tmp_path, 1)
    made.sync()
    made.append(b"one")
    made.sync()
    made.seal()

    assert list(read(made.path)) == [b"one"]


def test_leftovers_of_the_same_number_are_replaced(tmp_path: Path) -> None:
    """A segment that could not be made is made anew, with nothing of the attempt in it."""
    attempt = Segment(tmp_path, 1)
    attempt.append(b"old")
    attempt.abandon()

    written(tmp_path, [b"new"])

    assert list(read(tmp_path / name_of(1))) == [b"new"]


def test_a_segment_that_can_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    """Where there is no folder, or something else has the name, an error says so."""
    with pytest.raises((sqlite3.Error, OSError)):
        Segment(tmp_path / "none", 1)

    assert names(tmp_path) == []


@pytest.mark.parametrize("part", ["_LAYOUT", "_SET_UP"])
def test_a_segment_that_is_half_made_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """An error on the way leaves no file that a start would trip over."""
    monkeypatch.setattr(segment, part, (*getattr(segment, part), "INSERT INTO nowhere VALUES (1)"))

    with pytest.raises(sqlite3.Error, match="nowhere"):
        Segment(tmp_path, 1)

    assert names(tmp_path) == []


def test_a_segment_that_the_disk_does_not_take_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it keep a file open: a disk that fails is tried again and again."""

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)

    with pytest.raises(OSError, match="Input/output error"):
        Segment(tmp_path, 1)

    assert names(tmp_path) == []
    assert open_files(tmp_path) == []


def test_a_group_that_finds_no_room_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises; groups before and after it stand side by side, and none is missing in between."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    made = Segment(tmp_path, 1)
    made.append(b"one")

    with pytest.raises(sqlite3.OperationalError, match="full"):
        made.append(b"x" * 100_000)
    made.append(b"two")
    made.seal()

    assert made.size_bytes == 6
    assert list(read(made.path)) == [b"one", b"two"]


@pytest.mark.parametrize("end", [sealed, abandoned])
def test_a_full_segment_is_closed_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Segment], Path]
) -> None:
    """Where the last group found no room, too, the file is free for others, and alone, once it was closed."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    made = Segment(tmp_path, 1)
    made.append(b"one")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        made.append(b"x" * 100_000)

    path = end(made)

    assert names(tmp_path) == [name_of(1)]
    with closing(sqlite3.connect(path, timeout=0)) as other:
        assert other.execute("SELECT count(*) FROM log").fetchall() == [(1,)]


def test_a_segment_says_where_the_log_begins(tmp_path: Path) -> None:
    """The newest word of where the log begins counts, and outlives its process."""
    made = Segment(tmp_path, 9)
    made.begin_with(4)
    made.begin_with(8)
    made.abandon()

    assert look_at(made.path).first == 8


@pytest.mark.parametrize("number", [1, 9_999_999_999, 10_000_000_000])
def test_names_and_numbers_belong_together(number: int) -> None:
    """The number is read from the name again, also where it outgrows its ten digits."""
    assert number_of(Path("folder") / name_of(number)) == number


def test_a_name_without_a_number_is_refused() -> None:
    """A file that only looks like ours is told of by its name."""
    with pytest.raises(DataDirectoryError, match=r"journal-old\.sqlite3 is not a file of a kinmqtt store"):
        number_of(Path("journal-old.sqlite3"))


@pytest.mark.parametrize(
    ("damage", "problem", "left"),
    [
        (lambda path: flip(path, 3), "row 3 is damaged", [GROUPS[0], GROUPS[1], GROUPS[3]]),
        (lambda path: change(path, "UPDATE log SET crc = 0 WHERE id = 1"), "row 1 is damaged", GROUPS[1:]),
        (lambda path: change(path, "UPDATE log SET data = 'text' WHERE id = 1"), "row 1 is damaged", GROUPS[1:]),
        (lambda path: change(path, "DELETE FROM log WHERE id = 2"), "row 2 is missing", [GROUPS[0], *GROUPS[2:]]),
        (lambda path: change(path, "DELETE FROM log WHERE id = 1"), "row 1 is missing", GROUPS[1:]),
        (lambda path: change(path, "DROP TABLE log"), "no such table", []),
    ],
)
def test_a_damaged_group_is_refused_or_left_out(
    tmp_path: Path, damage: Callable[[Path], None], problem: str, left: list[bytes]
) -> None:
    """Damage names the file, the row and the way on; who asks to skip it gets the rest, and a list of the gone."""
    path = written(tmp_path)
    damage(path)
    skipped: list[str] = []

    text = refused(lambda: list(read(path)))
    found = list(read(path, skipped))

    assert text.startswith(f"{path}")
    assert problem in text
    assert WAYS_ON in text
    assert found == left
    [line] = skipped
    assert str(path) in line
    assert problem in line


def test_a_refusal_is_all_that_is_said(tmp_path: Path) -> None:
    """Damage is told of by its error, without a second one from what is cleaned up behind it."""
    path = written(tmp_path)
    flip(path, 1)
    left_over: list[Any] = []

    refused(lambda: list(read(path)), left_over)

    assert left_over == []


def test_each_damaged_group_is_listed(tmp_path: Path) -> None:
    """A list of what is gone has a line for each place, in order."""
    path = written(tmp_path)
    flip(path, 1)
    change(path, "DELETE FROM log WHERE id = 2")
    flip(path, 4)
    skipped: list[str] = []

    found = list(read(path, skipped))

    assert found == [GROUPS[2]]
    assert ["row 1 is damaged" in skipped[0], "row 2 is missing" in skipped[1], "row 4 is damaged" in skipped[2]] == [
        True
    ] * 3


def cut(path: Path) -> None:
    """Take the second half of a file away."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def scribble(path: Path) -> None:
    """Overwrite pages in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 8192)


@pytest.mark.parametrize(
    "damage", [cut, scribble, lambda path: path.write_bytes(b"no database, but of some length" * 100)]
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """A file that SQLite can't read is refused with its name and the way on, and not taken for a shorter log."""
    path = written(tmp_path, [b"x" * 5000] * 20)
    damage(path)

    text = refused(lambda: (look_at(path), list(read(path))))

    assert str(path) in text
    assert WAYS_ON in text


def test_what_can_be_read_of_a_damaged_file_is_read(tmp_path: Path) -> None:
    """Groups before a page that is damaged are saved, and the list says that there was more."""
    groups = [bytes([number]) * 5000 for number in range(20)]
    path = written(tmp_path, groups)
    scribble(path)
    skipped: list[str] = []

    found = list(read(path, skipped))

    assert found
    assert [data for data in groups if data in found] == found
    assert skipped
    assert all(str(path) in line for line in skipped)


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_bytes(b"no database" * 100)])
def test_a_file_that_can_not_be_opened_is_listed(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """Who asks to skip damage is told of a file of which nothing can be read, and goes on to the next."""
    path = written(tmp_path, [b"x" * 5000] * 20)
    damage(path)
    skipped: list[str] = []

    list(read(path, skipped))

    assert skipped
    assert str(path) in skipped[0]


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    """Another program's database is neither read nor changed."""
    path = tmp_path / name_of(1)
    change(path, "CREATE TABLE log (id INTEGER PRIMARY KEY, crc INTEGER, data BLOB)")
    before = path.read_bytes()

    with pytest.raises(DataDirectoryError, match=f"{path} was not written by kinmqtt"):
        look_at(path)

    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A file of a later version is left to that version, with a word on which it is."""
    path = written(tmp_path)
    change(path, "PRAGMA user_version = 4")

    with pytest.raises(DataDirectoryError, match=f"{path} has format 4, .*: use the newer version that wrote it"):
        look_at(path)


@pytest.mark.parametrize("head", [b"", b"no database" * 1000])
def test_a_write_ahead_log_outlives_its_damaged_segment(tmp_path: Path, head: bytes) -> None:
    """SQLite would remove it beside an empty file: it may be all that is left, and is not given to SQLite."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    made.append(b"one")
    path = killed(made)
    path.write_bytes(head)
    wal = Path(f"{path}-wal").read_bytes()

    said = refused(lambda: look_at(path))
    read_on = refused(lambda: list(read(path)))

    assert said == read_on
    assert str(path) in said
    assert WAYS_ON in said
    assert Path(f"{path}-wal").read_bytes() == wal
    assert len(names(path.parent)) == 2


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 20, 31])
def test_a_damaged_head_of_a_write_ahead_log_is_refused(tmp_path: Path, at: int) -> None:
    """SQLite would pass over all of it without a word."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    made.append(b"one")
    path = killed(made)
    wal = Path(f"{path}-wal")
    content = bytearray(wal.read_bytes())
    content[at] ^= 1
    wal.write_bytes(content)

    said = refused(lambda: look_at(path))

    assert said.startswith(f"{wal} can't be read: its header is damaged")
    assert WAYS_ON in said
    assert wal.read_bytes() == content


@pytest.mark.parametrize(
    ("cut_bytes", "lost"),
    [(1, True), (1000, True), (PAGE_BYTES, False), (FRAME_BYTES, False)],
    ids=["within a page", "further within", "before its last page", "before its last frame"],
)
def test_a_write_ahead_log_that_ends_within_a_page_was_cut(tmp_path: Path, cut_bytes: int, lost: bool) -> None:
    """A killed process leaves a frame without its page at most; of a whole commit less nobody can know."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    made.append(b"one")
    made.append(b"x" * 20_000)
    path = killed(made)
    wal = Path(f"{path}-wal")
    os.truncate(wal, wal.stat().st_size - cut_bytes)

    look = look_at(path)

    assert (look.lost is not None) is lost
    assert look.lost is None or look.lost.startswith(f"{wal} was cut short")
    assert list(read(path)) == [b"one"]


def test_to_read_a_segment_changes_nothing(tmp_path: Path) -> None:
    """What a killed process has left in a write-ahead log stays there, and no other file comes about."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    made.append(b"one")
    path = killed(made)
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}

    look_at(path)
    found = list(read(path))

    assert found == [b"one"]
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


def test_a_segment_without_its_write_ahead_log_was_never_begun(tmp_path: Path) -> None:
    """What stood in it can't be seen any more, but that it should be there can; and none is made by looking."""
    (tmp_path / "data").mkdir()
    made = Segment(tmp_path / "data", 1)
    made.append(b"one")
    path = killed(made)
    Path(f"{path}-wal").unlink()

    look = look_at(path)

    assert not look.begun
    assert list(read(path)) == []
    assert names(path.parent) == [path.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")
def test_what_the_superuser_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Else the broker, which runs as somebody else, could not read its own store any more."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 4321, 1234)

    made = Segment(data, 1)

    owners = {name: (status.st_uid, status.st_gid) for name in names(data) for status in [(data / name).stat()]}
    made.abandon()
    assert owners == {name_of(1): (4321, 1234), f"{name_of(1)}-wal": (4321, 1234)}


def test_a_file_is_not_made_by_looking(tmp_path: Path) -> None:
    """To read what is not there is an error, and leaves no empty database behind."""
    with pytest.raises(DataDirectoryError, match="can't be read"):
        look_at(tmp_path / name_of(1))

    assert names(tmp_path) == []


def test_odd_folders_are_no_trouble(tmp_path: Path) -> None:
    """A path with characters that mean something in a URI is taken as it is."""
    folder = tmp_path / "a?b#c%20 ä"
    folder.mkdir()

    path = written(folder)

    assert list(read(path)) == GROUPS
