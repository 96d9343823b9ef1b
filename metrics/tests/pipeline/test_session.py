"""What a person is told where Spark can't be started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kinmqtt_metrics.command import main
from kinmqtt_metrics.pipeline import run
from kinmqtt_metrics.pipeline.session import java_version


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """The command, with a landing folder."""
    (tmp_path / "landing").mkdir()
    return ["pipeline", "run", "--landing", str(tmp_path / "landing"), "--tables", str(tmp_path / "tables"), "--once"]


def java(folder: Path, says: str) -> str:
    """A JAVA_HOME with something that says its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return str(folder)


def test_without_spark_it_is_told_what_to_install(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package alone has no Spark: the extra is named."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)

    assert main(folders) == 1
    assert "pip install 'kinmqtt-metrics[pipeline]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.10" 2024-01-16', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("nothing", None),
    ],
)
def test_the_version_of_java_is_read(
    says: str, version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old Java is told from none."""
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, says))

    assert java_version() == version


def test_a_java_home_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without Java is no Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert java_version() is None


def test_a_landing_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder is no empty one."""
    there = str(tmp_path / "nowhere")

    assert main(["pipeline", "run", "--landing", there, "--tables", str(tmp_path / "tables")]) == 1
    assert f"{there} is no folder" in capsys.readouterr().err


def test_tables_below_the_landing_folder_are_refused(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables would be taken for segments."""
    folders[5] = str(tmp_path / "landing" / "tables")

    assert main(folders) == 1
    assert "can't lie in the landing folder" in capsys.readouterr().err


def test_what_can_not_be_read_is_told_before_spark_starts(
    folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers write for their own user and group: whoever runs as another one is told whose file it is about."""
    segment = tmp_path / "landing" / "date=2026-11-21" / "n-00000000c0ffee01-00000001.jsonl"
    segment.parent.mkdir()
    segment.write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: path != segment)

    assert main(folders) == 1
    assert f"{segment} can't be read by this user" in capsys.readouterr().err


def test_what_is_no_file_is_none_that_can_not_be_read(tmp_path: Path) -> None:
    """A link to nowhere with the name of a segment keeps no pipeline from starting: it is set aside later."""
    day = tmp_path / "date=2026-11-21"
    day.mkdir()
    os.symlink("nowhere", day / "n-00000000c0ffee01-00000001.jsonl")

    run._check_readable(tmp_path)
