"""A data directory: who may use it, which segments count, and what is said when it can't be used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinmqtt.builtins.embedded.directory import DataDirectory, DirectoryInUse, files, open_to_others
from kinmqtt.builtins.embedded.records import CommitGroup, pack
from kinmqtt.builtins.embedded.segment import WAYS_ON, DataDirectoryError, Segment, name_of
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message


def group(number: int) -> bytes:
    """A group that retains a message."""
    return pack(CommitGroup(retain=[RetainWrite(Message(f"t/{number}", b"x"), RetainVersion(1.0, 1, number))]))


def segments(folder: Path, *numbers: int) -> list[Path]:
    """Sealed segments with these numbers, and a group each that tells which it is in."""
    folder.mkdir(exist_ok=True)
    made = [Segment(folder, number) for number in numbers]
    for each in made:
        each.append(group(each.number))
        each.seal()
    return [each.path for each in made]


def killed(folder: Path) -> DataDirectory:
    """What a process leaves that is killed with a segment in use and one prepared."""
    data = folder / "data"
    data.mkdir()
    current, prepared = Segment(data, 1), Segment(data, 2)
    current.append(group(1))
    shutil.copytree(data, folder / "killed")
    current.abandon()
    prepared.abandon()
    return DataDirectory(folder / "killed")


def change(path: Path, statement: str, *values: object) -> None:
    """Change a sealed segment behind kinmqtt's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)


def topics(directory: DataDirectory, skip_damaged: list[str] | None = None) -> list[str]:
    """What is retained, by what the log says."""
    return sorted(write.message.topic for write in directory.load(skip_damaged).retained.iterate().writes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(call: Callable[[], object]) -> str:
    """What a call is refused with."""
    left_over: list[Any] = []
    # An error of a generator that is collected would be put down to whatever test runs by then.
    hook, sys.unraisablehook = sys.unraisablehook, left_over.append
    try:
        try:
            call()
        except DataDirectoryError as error:
            return str(error)
    finally:
        sys.unraisablehook = hook
    raise AssertionError("it was not refused")


def test_a_new_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """A data directory holds what clients have said: nobody else may look into it."""
    directory = DataDirectory(tmp_path / "some" / "data")

    directory.open()

    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert (directory.path / "lock").read_text() == f"{os.getpid()}\n"
    assert (topics(directory), directory.segments(), directory.next_number()) == ([], [], 1)
    directory.close()


def test_a_log_is_read_segment_by_segment(tmp_path: Path) -> None:
    """All segments count, in the order of their numbers; the next one goes on from there."""
    segments(tmp_path, 9, 10, 11)
    change(tmp_path / name_of(11), "INSERT OR REPLACE INTO meta VALUES ('first', 9)")
    directory = DataDirectory(tmp_path)

    directory.open()

    assert topics(directory) == ["t/10", "t/11", "t/9"]
    assert directory.load().groups == 3
    assert directory.next_number() == 12
    directory.close()


def test_segments_of_a_killed_process_are_read_and_tidied(tmp_path: Path) -> None:
    """One in use comes back as it is, and is a plain file after the next start; one that was prepared is removed."""
    directory = killed(tmp_path)
    before = names(directory.path)
    directory.open()

    found = topics(directory)
    directory.tidy()

    assert before == [name for number in (1, 2) for name in (name_of(number), name_of(number) + "-wal")]
    assert found == ["t/1"]
    assert names(directory.path) == [name_of(1), "lock"]
    assert (topics(directory), directory.next_number()) == (["t/1"], 2)
    directory.close()


def test_segments_of_a_killed_process_need_no_write_ahead_log_any_more(tmp_path: Path) -> None:
    """Once tidied they can be copied and read like those that were sealed."""
    directory = killed(tmp_path)

    directory.load()
    directory.tidy()

    assert [path.read_bytes()[18:20] for path in directory.segments()] == [b"\1\1"]


def test_segments_before_the_beginning_count_no_more(tmp_path: Path) -> None:
    """Once everything was told anew, what was told before is neither read nor missed, and is removed at leisure."""
    segments(tmp_path, 1, 3)
    newest = Segment(tmp_path, 5)
    newest.begin_with(4)
    newest.append(group(5))
    newest.abandon()
    segments(tmp_path, 4)
    directory = DataDirectory(tmp_path)

    found = topics(directory)
    directory.tidy()

    assert found == ["t/4", "t/5"]
    assert names(tmp_path) == [name_of(4), name_of(5)]
    assert directory.next_number() == 6


def test_what_counts_no_more_need_not_be_whole(tmp_path: Path) -> None:
    """A gap among the segments before the beginning is what an interrupted removal leaves."""
    segments(tmp_path, 1, 2, 3, 6)
    change(tmp_path / name_of(6), "INSERT INTO meta VALUES ('first', 6)")

    assert topics(DataDirectory(tmp_path)) == ["t/6"]


@contextmanager
def user(folder: Path) -> Iterator[int]:
    """Another process that uses the directory."""
    program = (
        "import pathlib, sys\n"
        "from kinmqtt.builtins.embedded.directory import DataDirectory\n"
        "DataDirectory(pathlib.Path(sys.argv[1])).open()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    """A second process is refused, told who has it and what to do; when the first has ended, it is free."""
    directory = DataDirectory(tmp_path / "data")

    with user(directory.path) as pid:
        with pytest.raises(DataDirectoryError) as caught:
            directory.open()
    directory.open()

    assert f"{directory.path} is in use by process {pid}" in str(caught.value)
    assert "--data DIRECTORY" in str(caught.value)
    assert (directory.path / "lock").read_text() == f"{os.getpid()}\n"
    directory.close()


def test_a_process_that_has_not_written_its_number_yet_is_another_process(tmp_path: Path) -> None:
    """It has the lock already."""
    directory = DataDirectory(tmp_path / "data")
    with user(directory.path):
        (directory.path / "lock").write_text("")
        with pytest.raises(DirectoryInUse) as caught:
            directory.open()

    assert f"{directory.path} is in use by another process: stop it" in str(caught.value)
    assert caught.value.holder == "another process"


def test_a_closed_directory_may_be_opened_again(tmp_path: Path) -> None:
    """To close gives the directory to others, and may be done twice."""
    first, second = DataDirectory(tmp_path), DataDirectory(tmp_path)
    first.open()
    with pytest.raises(DataDirectoryError, match="is in use"):
        second.open()

    first.close()
    first.close()

    second.open()
    second.close()


def test_a_directory_with_strangers_is_refused(tmp_path: Path) -> None:
    """A directory that is in use for something else is named with what is in it, and nothing is put there."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "zoo.txt").touch()

    with pytest.raises(DataDirectoryError, match=f"{tmp_path} holds 'photos', which is not kinmqtt's: name an empty"):
        DataDirectory(tmp_path).open()

    assert names(tmp_path) == ["photos", "zoo.txt"]


def test_strangers_that_came_later_are_tolerated(tmp_path: Path) -> None:
    """What somebody puts beside a store in use, and what plugins keep there, does not keep it from starting."""
    (tmp_path / "plugins").mkdir()
    directory = DataDirectory(tmp_path)
    directory.open()
    directory.close()
    (tmp_path / "README").touch()

    directory.open()

    assert topics(directory) == []
    directory.close()


def test_a_directory_can_be_asked_for_that_exists(tmp_path: Path) -> None:
    """A tool that reads a store does not make one where the name is mistyped."""
    with pytest.raises(DataDirectoryError, match="none is not a directory"):
        DataDirectory(tmp_path / "none").open(create=False)

    assert names(tmp_path) == []


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """Where a file has the name, the error names it and says why."""
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(DataDirectoryError, match=f"{path} can't be used as data directory: File exists"):
        DataDirectory(path).open()


@contextmanager
def nobody() -> Iterator[None]:
    """Whoever runs the tests, without a superuser's power to write anywhere."""
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if uid == 0:
            os.seteuid(0)


def test_a_directory_that_can_not_be_written_to_is_refused() -> None:
    """Missing rights are told of at the start, with the directory, and not at the first message."""
    # Not in tmp_path: the folders above it are their owner's alone.
    with tempfile.TemporaryDirectory(prefix="kinmqtt-") as name:
        os.chmod(name, 0o555)
        with nobody(), pytest.raises(DataDirectoryError) as there:
            DataDirectory(Path(name)).open()
        with nobody(), pytest.raises(DataDirectoryError) as new:
            DataDirectory(Path(name) / "new").open()
        os.chmod(name, 0o700)

    assert f"{name}: not writable for user " in str(there.value)
    assert str(new.value) == f"{name}/new can't be used as data directory: Permission denied"


@pytest.mark.parametrize("kind", ["journal-0000000001.sqlite3", "journal-0000000001.sqlite3-wal", "lock"])
@pytest.mark.parametrize(("mode", "right"), [(0o000, "readable"), (0o444, "writable")])
def test_what_can_not_be_read_for_want_of_rights_is_no_damage(kind: str, mode: int, right: str) -> None:
    """The file is named with its owner and what can be done, and nobody is told to leave it out."""
    # Not in tmp_path: the folders above it are their owner's alone.
    with tempfile.TemporaryDirectory(prefix="kinmqtt-") as name:
        os.chmod(name, 0o777)
        for each in ("journal-0000000001.sqlite3", "journal-0000000001.sqlite3-wal", "lock"):
            (Path(name) / each).touch(mode=0o666)
            os.chmod(Path(name) / each, 0o666)
        os.chmod(Path(name) / kind, mode)
        owner = os.stat(name).st_uid

        with nobody():
            user = os.geteuid()
            text = refused(lambda: DataDirectory(Path(name)).open())

    way_on = "`chmod u+rw` it" if owner == user else "run as that user, or chown it"
    assert text == (
        f"{name}/{kind}: not {right} for user {user} (it belongs to user {owner}, mode {mode:04o}): {way_on}"
    )


def test_files_that_others_can_read_are_known(tmp_path: Path) -> None:
    """A copy that was made with other modes lets others read what clients have said."""
    paths = segments(tmp_path, 1, 2)
    os.chmod(paths[1], 0o640)

    assert open_to_others(tmp_path) == [paths[1]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")
def test_the_lock_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """A superuser who looks at a store does not lock out the broker, which runs as somebody else."""
    os.chown(tmp_path, 4321, 1234)
    directory = DataDirectory(tmp_path)

    directory.open()
    directory.close()

    status = (tmp_path / "lock").stat()
    assert (status.st_uid, status.st_gid) == (4321, 1234)


@pytest.mark.parametrize("gone", [2, 3])
def test_a_missing_segment_is_told_of(tmp_path: Path, gone: int) -> None:
    """A gap in the log is named by the file that should be there, with the way on."""
    segments(tmp_path, 1, 2, 3, 4)
    (tmp_path / name_of(gone)).unlink()

    text = refused(lambda: DataDirectory(tmp_path).load())

    assert f"{tmp_path / name_of(gone)} is missing" in text
    assert WAYS_ON in text


def test_a_missing_beginning_is_told_of(tmp_path: Path) -> None:
    """The segment with which the log begins, by the word of a later one, must be there."""
    segments(tmp_path, 4, 5)
    change(tmp_path / name_of(5), "INSERT INTO meta VALUES ('first', 3)")

    with pytest.raises(DataDirectoryError, match=f"{tmp_path / name_of(3)} is missing"):
        DataDirectory(tmp_path).load()


def test_the_very_first_segment_is_missed(tmp_path: Path) -> None:
    """A log that was never told anew begins with segment 1; without it the rest is not taken for the whole."""
    segments(tmp_path, 1, 2, 3)
    (tmp_path / name_of(1)).unlink()

    with pytest.raises(DataDirectoryError, match=f"{tmp_path / name_of(1)} is missing"):
        DataDirectory(tmp_path).load()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_empty_segment_is_damage(tmp_path: Path, number: int) -> None:
    """Also the last one: a segment has its name only once it is a whole database."""
    paths = segments(tmp_path, 1, 2, 3)
    paths[number - 1].write_bytes(b"")
    skipped: list[str] = []

    text = refused(lambda: DataDirectory(tmp_path).load())
    found = topics(DataDirectory(tmp_path), skipped)

    assert text == f"{paths[number - 1]} is empty: its data is lost; {WAYS_ON}"
    assert skipped == [text]
    assert len(found) == 2
    assert names(tmp_path) == [path.name for path in paths]


def test_a_process_may_end_as_it_makes_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all of it is there it has another name, and is neither read nor in the way of the next."""
    segments(tmp_path, 1)
    left = []

    def stop(making: Path, path: Path) -> None:
        left.extend([making.name, path.name])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stop)
        patched.setattr("kinmqtt.builtins.embedded.segment._unlink", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            Segment(tmp_path, 2)
    directory = DataDirectory(tmp_path)

    before = names(tmp_path)
    found = topics(directory)
    made = Segment(tmp_path, directory.next_number())
    made.abandon()

    assert left == ["journal-new", name_of(2)]
    assert before == [name_of(1), "journal-new"]
    assert found == ["t/1"]
    assert names(tmp_path) == [name_of(1), name_of(2)]


@pytest.mark.parametrize("gone", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["removed", "emptied"])
def test_a_lost_write_ahead_log_is_told_of(tmp_path: Path, gone: Callable[[Path], object]) -> None:
    """The segment that was in use says itself that there was one; what was only prepared has nothing to lose."""
    directory = killed(tmp_path)
    used, prepared = directory.path / f"{name_of(1)}-wal", directory.path / f"{name_of(2)}-wal"
    gone(prepared)
    before = topics(directory)
    gone(used)
    skipped: list[str] = []

    text = refused(directory.load)
    found = topics(directory, skipped)

    assert before == ["t/1"]
    assert text == f"{used} is missing or empty; its writes to {name_of(1)} are lost; {WAYS_ON}"
    assert (found, skipped) == ([], [text])


def test_a_write_ahead_log_without_its_segment_is_told_of(tmp_path: Path) -> None:
    """Also where the segment was the last one; of one file only one thing is said."""
    directory = killed(tmp_path)
    (directory.path / name_of(2)).unlink()
    skipped: list[str] = []

    found = topics(directory, skipped)

    assert found == ["t/1"]
    assert skipped == [
        f"{directory.path / name_of(2)} is missing, and {name_of(2)}-wal can't be read without it; {WAYS_ON}"
    ]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_is_damaged_is_not_called_missing(tmp_path: Path, number: int) -> None:
    """One line for one file, whichever it is."""
    paths = segments(tmp_path, 1, 2, 3)
    paths[number - 1].write_bytes(b"no database" * 100)
    skipped: list[str] = []

    topics(DataDirectory(tmp_path), skipped)

    assert skipped == [f"{paths[number - 1]} can't be read: file is not a database; {WAYS_ON}"]


@pytest.mark.parametrize("damage", [lambda path: change(path, "PRAGMA user_version = 9"), lambda path: foreign(path)])
def test_what_is_not_ours_is_never_left_out(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """To go on without it would save nothing, for nothing is damaged: one message, and no advice to do so."""
    paths = segments(tmp_path, 1, 2, 3)
    damage(paths[0])
    skipped: list[str] = []

    text = refused(lambda: DataDirectory(tmp_path).load(skipped))

    assert text.startswith(str(paths[0]))
    assert WAYS_ON not in text
    assert skipped == []


def test_to_load_changes_nothing(tmp_path: Path) -> None:
    """A directory that is damaged, or only looked at, can be looked at again."""
    directory = killed(tmp_path)
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}

    topics(directory)

    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before


def foreign(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE t (a)")


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (foreign, "was not written by kinmqtt: it is another program's database"),
        (lambda path: path.write_bytes(b"no database" * 100), f"can't be read: file is not a database; {WAYS_ON}"),
        (cut, f"can't be read: database disk image is malformed; {WAYS_ON}"),
        (
            lambda path: change(path, "PRAGMA user_version = 9"),
            "has format 9, but this kinmqtt knows formats up to 3",
        ),
        (
            lambda path: change(path, "UPDATE log SET data = x'00'"),
            f"row 1 is damaged: its checksum is wrong; {WAYS_ON}",
        ),
        (
            lambda path: change(path, "UPDATE log SET crc = 3523407757, data = x'00'"),
            "group 1 can't be decoded",
        ),
    ],
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_segment_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], problem: str, number: int
) -> None:
    """Whichever segment it is: the error names the file and what can be done, and no file is changed or removed."""
    paths = segments(tmp_path, 1, 2, 3)
    damage(paths[number - 1])
    before = {path: path.read_bytes() for path in paths}

    text = refused(lambda: DataDirectory(tmp_path).load())

    assert text.startswith(str(paths[number - 1]))
    assert problem in text
    assert {path: path.read_bytes() for path in paths} == before


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE log SET data = x'00'", "row 1 is damaged"),
        # The checksum is right: whoever wrote this was no kinmqtt, or a mistaken one.
        ("UPDATE log SET crc = 3523407757, data = x'00'", "group 1 can't be decoded"),
    ],
)
def test_damage_can_be_skipped(tmp_path: Path, statement: str, problem: str) -> None:
    """Who asks for what is left gets it, with a list of what is not."""
    paths = segments(tmp_path, 1, 2, 3)
    change(paths[1], statement)
    skipped: list[str] = []

    found = topics(DataDirectory(tmp_path), skipped)

    assert found == ["t/1", "t/3"]
    [line] = skipped
    assert str(paths[1]) in line
    assert problem in line


@pytest.mark.parametrize("damage", [Path.unlink, cut, lambda path: path.write_bytes(b"no database" * 100)])
def test_lost_segments_can_be_skipped(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """The way on that an error names leads on: a missing or unreadable file is listed, and the others are read."""
    paths = segments(tmp_path, 1, 2, 3)
    damage(paths[1])
    skipped: list[str] = []

    found = topics(DataDirectory(tmp_path), skipped)

    assert found == ["t/1", "t/3"]
    assert str(paths[1]) in skipped[0]


def test_a_file_with_a_strange_name_is_told_of(tmp_path: Path) -> None:
    """A copy that somebody left beside the segments is not taken for one of them."""
    segments(tmp_path, 1)
    (tmp_path / "journal-copy.sqlite3").touch()

    with pytest.raises(DataDirectoryError, match=r"journal-copy\.sqlite3 is not a file of a kinmqtt store"):
        DataDirectory(tmp_path).load()


def test_the_files_of_a_store_are_known(tmp_path: Path) -> None:
    """What belongs to the store is told from what lies beside it."""
    segments(tmp_path, 1)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "README").touch()
    (tmp_path / "lock").touch()

    assert sorted(path.name for path in files(tmp_path)) == [name_of(1), "lock"]


@pytest.mark.parametrize("damaged", [False, True])
def test_commits_that_sqlite_passes_over_are_told_of(tmp_path: Path, damaged: bool) -> None:
    """A write-ahead log that breaks off in the middle is read as far as it goes, and somebody is told."""
    live, copied = tmp_path / "live", tmp_path / "copied"
    live.mkdir()
    current = Segment(live, 1)
    for number in range(8):
        current.append(pack(CommitGroup(floor=number + 1)))
    shutil.copytree(live, copied)  # what a process that is killed leaves behind
    current.abandon()
    wal = copied / f"{name_of(1)}-wal"
    content = bytearray(wal.read_bytes())
    if damaged:
        content[len(content) // 2] ^= 1
        wal.write_bytes(content)
    directory = DataDirectory(copied)
    directory.open()

    image = directory.load()
    again = directory.load()
    directory.close()

    assert bool(directory.losses) is damaged
    assert again.groups == image.groups
    assert (image.groups < 8) is damaged
