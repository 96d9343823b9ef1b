"""What a run looks at before Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinmqtt_metrics.command import main


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """The command, with a landing folder."""
    (tmp_path / "landing").mkdir()
    return ["pipeline", "run", "--landing", str(tmp_path / "landing"), "--tables", str(tmp_path / "tables"), "--once"]


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
