"""What a person is told where Spark can't be started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kinmqtt_metrics import spark
from kinmqtt_metrics.command import main
from kinmqtt_metrics.errors import SparkError
from kinmqtt_metrics.spark import check_path, java_version


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


@pytest.mark.parametrize(
    ("text", "trace", "said"),
    [
        ("An error occurred while calling None.x.\n: java.lang.A: bad value\n\tat x", None, "java.lang.A: bad value"),
        ("Error while instantiating 'B':", "B: x\n\tat y\nCaused by: C: 'x' is no int\n\tat z", "C: 'x' is no int"),
        ("[JAVA_GATEWAY_EXITED] gone", None, "[JAVA_GATEWAY_EXITED] gone"),
        ("", None, "CapturedError"),
    ],
)
def test_what_spark_refuses_is_told_with_its_cause(text: str, trace: str | None, said: str) -> None:
    """The first line is that something failed; the last cause says which setting, and why. ``--conf`` is named."""

    class CapturedError(Exception):
        _stackTrace = trace

    assert spark.innermost(CapturedError(text)) == said
    assert "is what --conf says of spark.x right?" in spark._why(CapturedError(text), "local", {"spark.x": "y"})


@pytest.mark.parametrize(
    ("name", "locale", "said"),
    [
        ("a:b [1]", "C.UTF-8", r"the path has both ':' and '\['"),
        ("ü", "C", "the path has 'ü', .* set LC_ALL=C.UTF-8"),
        (os.fsdecode(b"\xff"), "C.UTF-8", "the path has bytes that are not UTF-8"),
    ],
)
def test_a_path_that_spark_can_not_take_is_refused_before_it_starts(
    name: str,
    locale: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the sign that it is about, instead of an error of Java's about files."""
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    (tmp_path / "landing").mkdir()
    tables = str(tmp_path / name)

    with pytest.raises(SparkError, match=said):
        check_path(Path(tables))
    assert main(["pipeline", "run", "--landing", str(tmp_path / "landing"), "--tables", tables, "--once"]) == 1
    assert main(["rules", "--tables", tables, "--out", str(tmp_path / "limits.toml")]) == 1
    assert [line for line in capsys.readouterr().err.splitlines() if "the path has" not in line] == []


@pytest.mark.parametrize("name", ["a:b", " ü%41 [1]{a,b}*?\\"])
def test_other_odd_paths_are_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever works is not refused."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    check_path(tmp_path / name)
