"""Files: when a change of a watched one is read, and how one is replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kinmqtt_spi.files import FileWatch, replace_file, sync_folder


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


def test_a_file_is_replaced_with_its_mode(path: Path) -> None:
    """The new content is there, under the old mode, and nothing else is left in the folder."""
    path.chmod(0o640)

    replace_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    """As if it had been opened for writing."""
    mask = os.umask(0o027)
    try:
        replace_file(tmp_path / "new", b"")
    finally:
        os.umask(mask)

    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_link_stays_a_link(path: Path) -> None:
    """The file behind it is replaced."""
    link = path.with_name("link")
    link.symlink_to(path)

    replace_file(link, b"new")

    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_a_failure_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no temporary file beside it."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")

    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_and_its_folder_are_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it gets its name, the folder afterwards."""
    synced: list[tuple[bool, str]] = []

    def sync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.read_text()))

    monkeypatch.setattr(os, "fsync", sync)
    replace_file(path, b"new")

    assert synced == [(False, "old"), (True, "new")]


def test_a_folder_that_is_missing_can_not_be_synced(tmp_path: Path) -> None:
    """The caller learns of it."""
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")
