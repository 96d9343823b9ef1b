"""Files and folders that settings name: whether they are there, and can be used, before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import frozen

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, parse, setting


@frozen
class Inner:
    key: Path = setting(path="file")


@frozen
class Outer:
    users: Path | None = setting(None, path="file")
    landing: Path | None = setting(None, path="folder")
    elsewhere: Path | None = setting(None)
    inner: Inner | None = setting(None)


def problems(text: str) -> tuple[str, ...]:
    """What is wrong with the files that a table names."""
    document = Document.parse(text, "k.toml")
    with pytest.raises(SettingsError) as caught:
        parse(Outer, document, ("t",), check_paths=True)
    return caught.value.problems


def test_a_missing_file_is_told_with_line_and_key(tmp_path: Path) -> None:
    """Every file that is missing is told at once, those of tables within the table too."""
    text = f'[t]\nusers = "{tmp_path}/a"\n\n[t.inner]\nkey = "{tmp_path}/b"\n'

    assert problems(text) == (
        f"k.toml:2:9: t.users: {tmp_path}/a: there is no such file",
        f"k.toml:5:7: t.inner.key: {tmp_path}/b: there is no such file",
    )


def test_a_relative_path_says_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts at the working directory, and not where the settings file is."""
    monkeypatch.chdir(tmp_path)

    [problem] = problems('t.users = "a"')

    assert problem.endswith(f"a: there is no such file; a relative path starts at the working directory, {tmp_path}")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    """A folder and a FIFO are no files to read; nobody waits for a writer."""
    os.mkfifo(tmp_path / "fifo")

    assert problems(f't.users = "{tmp_path}"')[0].endswith(f"{tmp_path}: can't be read: Is a directory")
    assert problems(f't.users = "{tmp_path}/fifo"')[0].endswith("it is a FIFO, not a regular file")


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    """A folder may be made where it is missing, but not in a file, nor where nobody can write."""
    (tmp_path / "file").touch()

    assert problems(f't.landing = "{tmp_path}/file"')[0].endswith("file: is a file, not a folder")
    assert problems('t.landing = "/proc/x/y"')[0].endswith(
        "t.landing: /proc/x/y: can't be made in /proc: No such file or directory"
    )
    assert problems(f't.landing = "{tmp_path}/file/x"')[0].endswith(
        "can't be made in " + f"{tmp_path}/file: Not a directory"
    )


def test_folders_that_can_be_made_are_left_as_they_are(tmp_path: Path) -> None:
    """Looking leaves nothing behind, and other paths are not looked at."""
    document = Document.parse(f't = {{landing = "{tmp_path}/a/b", elsewhere = "{tmp_path}/none"}}')

    parsed = parse(Outer, document, ("t",), check_paths=True)

    assert parsed.landing == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []


def test_without_asking_nothing_is_looked_at() -> None:
    """A command that makes the file parses its settings before it is there."""
    assert parse(Outer, Document.parse('t.users = "/none"'), ("t",)).users == Path("/none")


def test_a_path_from_the_environment_is_told_as_such() -> None:
    """The variable is named where it set the path."""
    with pytest.raises(SettingsError) as caught:
        parse(Outer, Document.empty(), ("t",), environ={"KINMQTT__T__USERS": "/none"}, check_paths=True)

    assert caught.value.problems == ("KINMQTT__T__USERS: t.users: /none: there is no such file",)
