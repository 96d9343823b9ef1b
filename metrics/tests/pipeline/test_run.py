"""What a run looks at before Spark starts, and how it ends when it is asked to or the disk fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.command import main
from kinmqtt_metrics.errors import PipelineError, UnpublishedError
from kinmqtt_metrics.pipeline import run
from kinmqtt_metrics.pipeline.commits import Commit, Commits, commit_name, placed
from kinmqtt_metrics.pipeline.settings import PipelineSettings
from kinmqtt_metrics.pipeline.sources import LandingSource
from metrics_harness.spark_environment import spark_environment


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """The command, with a landing folder."""
    (tmp_path / "landing").mkdir()
    return ["pipeline", "run", "--landing", str(tmp_path / "landing"), "--tables", str(tmp_path / "tables"), "--once"]


def test_a_landing_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder is no empty one."""
    there = str(tmp_path / "nowhere")

    assert main(["pipeline", "run", "--landing", there, "--tables", str(tmp_path / "tables")]) == 1
    assert f"{there} is not a folder" in capsys.readouterr().err


def test_tables_below_the_landing_folder_are_refused(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables would be taken for segments."""
    folders[5] = str(tmp_path / "landing" / "tables")

    assert main(folders) == 1
    assert "can't be in the landing folder" in capsys.readouterr().err


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


@pytest.mark.parametrize("there", ["tables", "tables/.pipeline", "tables/.pipeline/lock/x"])
def test_a_file_or_folder_in_the_way_is_named(
    there: str, folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the pipeline has a folder or a file of its own something else may stand; it is one line, and no more."""
    path = tmp_path / there
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

    assert main(folders) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"kinmqtt-metrics: {tmp_path / 'tables'}")
    assert "--tables" in said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk of {} is full: make room"),
        (errno.EDQUOT, "the disk of {} is full: make room"),
        (errno.EACCES, "{}: Permission denied: this user must be able to"),
        (errno.EROFS, "{}: Read-only file system: this user must be able to"),
        (errno.EIO, "{}: Input/output error"),
    ],
)
@pytest.mark.parametrize("failing", ["mkdir", "open", "rename"])
def test_a_disk_that_fails_before_the_first_batch_is_told(
    failing: str,
    number: int,
    said: str,
    folders: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While folders are made, the lock is taken and settings are written: what to do is said in one line."""
    (tmp_path / "tables").mkdir()

    def fail(path: Path, *_more: Any, **_named: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    def prepared(settings: PipelineSettings, *_more: Any) -> None:
        Commits(tmp_path / "tables").prepare({"window_s": settings.window_s})

    monkeypatch.setattr(run, "_run", prepared)
    with monkeypatch.context() as failing_disk:
        failing_disk.setattr(Path, failing, fail)
        status = main(folders)

    assert status == 1
    [line] = capsys.readouterr().err.splitlines()
    beginning, end = said.split("{}")
    assert line.startswith(f"kinmqtt-metrics: {beginning}{tmp_path / 'tables'}")
    assert end in line


@pytest.mark.parametrize(
    ("sent", "status", "says"), [("SIGINT", 130, "kinmqtt-metrics: ended by ^C\n"), ("SIGTERM", 0, "")]
)
def test_a_signal_while_spark_starts_ends_it_at_once(sent: str, status: int, says: str) -> None:
    """With a line at the most, and the status that whoever sent it expects."""
    program = (
        "import os, signal; from kinmqtt_metrics.pipeline.run import Asked\n"
        f"with Asked().heard(): os.kill(os.getpid(), signal.{sent})\n"
        "print('went on')"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (status, "", says)


@pytest.mark.parametrize("asked", [True, False])
def test_java_may_hear_of_the_end_first(asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where driver and Java are signalled together the batch may fail before it is known why: this is no error."""
    signalled = run.Asked(by="SIGTERM")
    told: list[str] = []

    def gone(*_: Any) -> None:
        if asked:
            threading.Timer(0.05, signalled.ending.set).start()
        raise ConnectionRefusedError("Answer from Java side is empty")

    monkeypatch.setattr(LandingSource, "stream", gone)
    settings = PipelineSettings(tmp_path, tmp_path / "tables")
    spark: Any = None
    if asked:
        run.read(settings, spark, signalled, told.append)
        assert told == ["ended by SIGTERM; the same command goes on from here"]
    else:
        with pytest.raises(PipelineError, match="Java process has ended"):
            run.read(settings, spark, signalled, told.append)


def test_a_full_disk_is_that_of_this_machine(tmp_path: Path) -> None:
    """Of tables elsewhere steps are made in the temporary folder: a store has no disk that somebody could clear."""
    elsewhere = PipelineSettings(tmp_path, "s3a://bucket/tables")
    full = OSError(errno.ENOSPC, "No space left on device")

    for said in (run._why(full, elsewhere), run._of_files(full, elsewhere)):
        assert said.startswith(f"the disk of {tempfile.gettempdir()} ")
    denied = run._of_files(OSError(errno.EACCES, "Permission denied"), elsewhere)
    assert f"write to {tempfile.gettempdir()}" in denied
    assert "--tables" not in denied
    here = PipelineSettings(tmp_path, tmp_path / "tables")
    assert run._why(full, here).startswith(f"the disk of {tmp_path / 'tables'} ")


def test_a_batch_that_counts_is_not_told_as_one_that_left_nothing(tmp_path: Path) -> None:
    """After its commit the files are moved; what fails there is told as what it is."""
    steps = Commits(tmp_path)
    steps.prepare({"window_s": 10})
    with steps.making(commit_name(0)) as making:
        placed(making, t.RATES, commit_name(0)).write_text("rows")
        Commit().write(making)
    (tmp_path / t.RATES.name).write_text("in the way")

    with pytest.raises(UnpublishedError) as failed:
        steps.publish(steps.folder / commit_name(0))

    said = run._why(failed.value, PipelineSettings(tmp_path, tmp_path))
    assert "batch counts" in said
    assert "No table shows anything" not in said


def test_a_mistake_in_another_packages_source_does_not_hide_ours(folders: list[str], tmp_path: Path) -> None:
    """Spark imports each package ``pyspark_*`` to find formats, and finds none where one of them fails."""
    (tmp_path / "pyspark_of_others.py").write_text("raise RuntimeError('not finished')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    ended = subprocess.run(
        [sys.executable, "-m", "kinmqtt_metrics.command", *folders],
        env={**os.environ, **spark_environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr


def test_a_url_is_told_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path would take one of its slashes."""
    asked: list[PipelineSettings] = []
    monkeypatch.setattr(run, "run", lambda settings, tell: asked.append(settings))

    main(["pipeline", "run", "--from", "kafka", "--servers", "k:9092", "--tables", "s3a://bucket/tables"])

    assert asked[0].tables == "s3a://bucket/tables"
    assert asked[0].local is None


def test_spark_is_told_of_a_failed_batch_in_a_few_words(tmp_path: Path) -> None:
    """However much Java said: of a long text Spark's search for an interrupt overflows Java's stack."""
    said = RuntimeError("at org.apache.spark.Somewhere\n" * 5000)

    class Failing:
        def batch(self, *_: Any) -> None:
            raise said

    failing: Any = Failing()
    query = run._Query(failing, threading.Event())
    rows: Any = None

    with pytest.raises(Exception, match="RuntimeError") as raised:
        query._batch(rows, 0)

    assert len("".join(traceback.format_exception(raised.value))) < 1000
    assert query.failed == [said]


def test_no_batch_begins_after_a_signal() -> None:
    """What would only be given up is not begun."""
    ending = threading.Event()
    nobody: Any = None
    query = run._Query(nobody, ending)
    ending.set()

    with pytest.raises(Exception, match="GivenUp"):
        query._batch(nobody, 0)


@pytest.mark.parametrize("command", [["report", "--tables", "t", "--out", "r.html"], ["rules", "--enable", "l.toml"]])
def test_an_interrupt_is_told_in_a_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """^C in any command: no traceback, and the status that shells know."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kinmqtt_metrics.report.make", interrupted)
    monkeypatch.setattr("kinmqtt_metrics.learning.command.read", interrupted)

    assert main(command) == 130
    assert capsys.readouterr().err == "kinmqtt-metrics: ended by ^C\n"


def test_what_is_no_file_is_none_that_can_not_be_read(tmp_path: Path) -> None:
    """A link to nowhere with the name of a segment keeps no pipeline from starting: it is set aside later."""
    day = tmp_path / "date=2026-11-21"
    day.mkdir()
    os.symlink("nowhere", day / "n-00000000c0ffee01-00000001.jsonl")

    run._check_readable(tmp_path)
