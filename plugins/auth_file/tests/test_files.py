"""The files from outside: what they say, and what is told of files that can't be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinmqtt_auth_file.files import Files
from kinmqtt_auth_file.hashes import OWASP
from kinmqtt_spi.errors import SettingsError


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

    assert Files(tmp_path / "passwords", tmp_path / "acl").read(OWASP).summary() == "0 users and 2 rules"
    assert Files(None, tmp_path / "acl").read(OWASP).summary() == "2 rules"


@pytest.mark.parametrize("which", ["passwords", "acl"])
def test_a_fifo_is_no_file(tmp_path: Path, which: str) -> None:
    """Nobody waits for somebody who writes to it."""
    os.mkfifo(tmp_path / which)
    files = Files(tmp_path / which, None) if which == "passwords" else Files(None, tmp_path / which)

    with pytest.raises(SettingsError, match=r"can't be read: it is a FIFO, not a regular file"):
        files.read(OWASP)
