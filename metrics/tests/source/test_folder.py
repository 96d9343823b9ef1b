"""The landing folder as it is listed."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from kinmqtt_metrics.source.folder import Folder
from metrics_harness.segments import BOOT, publish


def test_a_segment_of_the_same_moment_as_the_last_listing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long nobody has looked since: file systems count time in steps, and both were in one of these."""
    now_ns = [1_700_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now_ns[0])
    folder = Folder(str(tmp_path))
    found = []
    for number in (1, 2):
        publish(tmp_path, number)
        [day] = tmp_path.glob("date=*")
        os.utime(day, ns=(1_700_000_000_000_000_000,) * 2)
        found.append(sorted(key[2] for key in folder.paths()))
        now_ns[0] += 3_600_000_000_000

    assert found == [[1], [1, 2]]


def test_a_folder_that_had_settled_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Years of days cost one look each."""
    publish(tmp_path, 1)
    [day] = tmp_path.glob("date=*")
    os.utime(day, ns=(1_000_000_000_000_000_000,) * 2)
    folder = Folder(str(tmp_path))
    first = folder.paths()
    monkeypatch.setattr(os, "listdir", None)

    assert folder.paths() == first


@pytest.mark.parametrize("call", ["listdir", "scandir", "stat"])
def test_a_folder_that_can_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """With what to do: passed over, its records would be missing, and nobody would know. The next look has them."""
    publish(tmp_path, 1)
    [day] = tmp_path.glob("date=*")
    folder = Folder(str(tmp_path))
    works = getattr(os, call)
    which = tmp_path if call == "scandir" else day

    def refused(path: str, *more: object) -> object:
        if path == str(which):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return works(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refused)
        with pytest.raises(PermissionError, match="no record in it is lost: make it readable") as raised:
            folder.paths()
    found = folder.paths()

    assert raised.value.filename == str(which)
    assert list(found) == [("broker-1", BOOT, 1)]


def test_what_only_looks_like_a_day_is_passed_over(tmp_path: Path) -> None:
    """A link to itself, a dangling one, a file, a FIFO: the others are read."""
    publish(tmp_path, 1)
    os.symlink("date=a", tmp_path / "date=a")
    os.symlink("nowhere", tmp_path / "date=b")
    (tmp_path / "date=c").write_text("")
    os.mkfifo(tmp_path / "date=d")

    assert list(Folder(str(tmp_path)).paths()) == [("broker-1", BOOT, 1)]


def test_names_that_rows_and_offsets_have_not_are_foreign(tmp_path: Path) -> None:
    """A number that is too large, and a day that is no text: a row tells of each, and none where they are dropped."""
    publish(tmp_path, 1)
    [day] = tmp_path.glob("date=*")
    large = f"broker-1-{BOOT}-{1 << 63}.jsonl"
    (day / large).write_text("")
    os.mkdir(os.fsencode(tmp_path) + b"/date=\xff")

    found = Folder(str(tmp_path)).paths()
    dropping = Folder(str(tmp_path), foreign=False).paths()

    assert set(found) == {("broker-1", BOOT, 1), ("", f"{day.name}/{large}", 0), ("", "date%3D%FF", 0)}
    assert list(dropping) == [("broker-1", BOOT, 1)]
