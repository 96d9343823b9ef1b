"""The files from outside: when a change is taken, and what is told of files that can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt_auth_file.files import Files, Look, Settling
from kinmqtt_auth_file.hashes import OWASP
from kinmqtt_spi.errors import SettingsError

OLD, HALF, NEW = ((Look(time, 1, 1),) for time in range(3))


def test_a_change_is_due_once_it_has_looked_the_same_twice() -> None:
    """A file that is still being written is not read."""
    settling = Settling(OLD)

    due = [settling.is_due(looks) for looks in (OLD, HALF, NEW, NEW)]

    assert due == [False, False, False, True]


def test_what_was_read_is_not_due_again() -> None:
    """Neither what was taken nor what was wrong, until it changes; also back to what it was."""
    settling = Settling(OLD)
    settling.is_due(NEW)
    settling.is_due(NEW)
    settling.wrong()

    assert [settling.is_due(looks) for looks in (NEW, NEW, OLD, OLD)] == [False, False, False, True]
    settling.taken(OLD)
    assert not settling.is_due(OLD)


def test_a_file_that_is_gone_looks_different(tmp_path: Path) -> None:
    """And so does one that was replaced by another of the same size."""
    path = tmp_path / "acl"
    files = Files(None, path)
    path.write_text("topic a\n")
    first = files.look()
    (tmp_path / "other").write_text("topic b\n")
    (tmp_path / "other").replace(path)
    second = files.look()
    path.unlink()

    assert len({first, second, files.look()}) == 3
    assert files.look() == (None,)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Of both files."""
    (tmp_path / "acl").write_text("x\n")

    with pytest.raises(SettingsError) as told:
        Files(tmp_path / "passwords", tmp_path / "acl").read(OWASP)

    assert len(told.value.problems) == 2
    assert told.value.problems[0] == f"{tmp_path}/passwords: there is no such file"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """What the system says of it is told."""
    with pytest.raises(SettingsError, match=r"can't be read: Is a directory"):
        Files(tmp_path, None).read(OWASP)


def test_how_much_there_is_in_words(tmp_path: Path) -> None:
    """Of what there is only."""
    (tmp_path / "passwords").write_text("")
    (tmp_path / "acl").write_text("topic a\npattern %u\n")

    assert Files(tmp_path / "passwords", tmp_path / "acl").read(OWASP).words() == "0 users and 2 rules"
    assert Files(None, tmp_path / "acl").read(OWASP).words() == "2 rules"
