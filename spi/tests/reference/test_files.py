"""Files that are watched: when a change of theirs is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinmqtt_spi.reference.files import FileWatch


def watch(*paths: Path) -> FileWatch[list[str]]:
    """A watch over files of numbers that has read them."""

    def read() -> list[str]:
        texts = [path.read_text() for path in paths]
        if "bad" in "".join(texts):
            raise ValueError("bad")
        return texts

    files = FileWatch(paths, read)
    files.read_now()
    return files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with something in it."""
    path = tmp_path / "one"
    path.write_text("old")
    return path


def test_what_did_not_change_is_not_read(path: Path) -> None:
    """However often it is looked at."""
    files = watch(path)

    assert [files.look() for _ in range(3)] == [None] * 3


def test_a_change_is_taken_once_it_has_looked_the_same_twice(path: Path) -> None:
    """A file that is still being written is not read, sound as its beginning may be."""
    files = watch(path)

    found = []
    for text in ("new", "new and", "new and more"):
        path.write_text(text)
        found.append(files.look())
    found += [files.look() for _ in range(3)]

    assert found == [None, None, None, ["new and more"], None, None]


def test_a_file_of_the_same_size_and_time_is_another(path: Path) -> None:
    """As it has another inode."""
    files = watch(path)
    times = os.stat(path)
    other = path.with_name("other")
    other.write_text("new")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(path)

    assert [files.look(), files.look()] == [None, ["new"]]


def test_a_file_that_is_written_into_is_another(path: Path) -> None:
    """Though size, time and inode are as before, as `rsync --inplace --times` leaves them."""
    files = watch(path)
    times = os.stat(path)
    while os.stat(path).st_ctime_ns == times.st_ctime_ns:  # the clock of a file system may be a coarse one
        path.write_text("new")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert [files.look(), files.look()] == [None, ["new"]]


def test_files_are_taken_together(tmp_path: Path, path: Path) -> None:
    """A change of any of them has all read, once none has changed since the look before."""
    other = tmp_path / "two"
    other.write_text("2")
    files = watch(path, other)

    path.write_text("new")
    found = [files.look()]
    other.write_text("newer")
    found += [files.look(), files.look()]

    assert found == [None, None, ["new", "newer"]]


def test_what_is_wrong_is_raised_once(path: Path) -> None:
    """Until the file changes, also back to what it was."""
    files = watch(path)
    before = os.stat(path)
    path.write_text("bad")
    assert files.look() is None

    with pytest.raises(ValueError, match="bad"):
        files.look()

    assert files.look() is None
    path.write_text("old")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [files.look(), files.look()] == [None, ["old"]]


def test_a_file_that_is_gone_is_wrong_once(path: Path) -> None:
    """Not where it is gone for one look only; when it is back it is read."""
    files = watch(path)
    path.unlink()
    assert files.look() is None

    with pytest.raises(FileNotFoundError):
        files.look()

    path.write_text("back")
    assert [files.look(), files.look()] == [None, ["back"]]


@pytest.mark.parametrize("text", ["half", "bad"])
def test_what_changes_while_it_is_read_is_not_taken(path: Path, text: str) -> None:
    """Sound or not: it is read again when it has settled."""
    goes_on = ""

    def read() -> str:
        found = path.read_text()
        if goes_on:
            path.write_text(goes_on)
        if found == "bad":
            raise ValueError(found)
        return found

    files = FileWatch([path], read)
    files.read_now()
    path.write_text(text)
    goes_on = "and the other half"

    found = [files.look(), files.look()]
    goes_on = ""
    found += [files.look(), files.look(), files.look()]

    assert found == [None, None, None, "and the other half", None]


def test_a_reading_at_once_does_not_wait(path: Path) -> None:
    """And what it has read is not read again; one that fails leaves what was taken."""
    files = watch(path)
    path.write_text("new")

    assert files.read_now() == ["new"]
    assert [files.look(), files.look()] == [None, None]
    path.write_text("bad")
    with pytest.raises(ValueError, match="bad"):
        files.read_now()
    path.write_text("mended")
    assert [files.look(), files.look()] == [None, ["mended"]]
