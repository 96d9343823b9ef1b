"""Commits: whole or not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kinmqtt_metrics import durable
from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.pipeline.commits import Commit, Commits, commit_name, locked, placed
from kinmqtt_metrics.pipeline.watermarks import Node
from kinmqtt_metrics.tables import STATE


@pytest.fixture
def steps(tmp_path: Path) -> Commits:
    """Of an empty folder."""
    steps = Commits(tmp_path)
    steps.prepare({"window_s": 10})
    return steps


def make(steps: Commits, batch: int, content: str = "rows") -> None:
    """A step with one file for a table."""
    with steps.making(commit_name(batch)) as making:
        placed(making, t.RATES, commit_name(batch)).write_text(content)
        Commit().write(making)


def test_a_step_that_fails_leaves_nothing(steps: Commits) -> None:
    """A batch that ends in the middle is made anew, from nothing."""
    with pytest.raises(OSError, match="full"), steps.making(commit_name(0)) as making:
        placed(making, t.RATES, commit_name(0)).write_text("half")
        raise OSError("full")

    assert not steps.done(0)
    assert list(steps.folder.iterdir()) == []


def test_what_a_killed_run_left_is_published_or_removed(steps: Commits) -> None:
    """A step that counts is published by the next run; one that was still made is removed."""
    make(steps, 0)
    left = steps.folder / ".making-0000000001-ab"
    left.mkdir()

    Commits(steps.tables).prepare({"window_s": 10})

    assert [path.read_text() for path in t.RATES.files(steps.tables)] == ["rows"]
    assert not left.exists()


def test_publishing_again_changes_nothing(steps: Commits) -> None:
    """A batch that Spark repeats adds no row a second time."""
    make(steps, 0)
    steps.publish(steps.folder / commit_name(0))

    steps.publish(steps.folder / commit_name(0))

    assert len(t.RATES.files(steps.tables)) == 1


def test_what_others_still_write_to_keeps_no_run_from_starting(
    steps: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a driver that was killed may make files where the next one is removing them."""
    left = steps.folder / ".making-0000000001-ab"
    left.mkdir()

    def busy(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(39, "Directory not empty", str(path))

    monkeypatch.setattr(shutil, "rmtree", busy)

    Commits(steps.tables).prepare({"window_s": 10})


def test_a_step_says_again_what_it_was_told(steps: Commits) -> None:
    """The next run goes on with the nodes and lives of the one before."""
    step = Commit(
        {"a\u00e4": Node(5, 3, 1.5)}, {("a", "b"): Intervals([(1, 7), (9, 9)])}, (), {"records": 8}, "digest"
    )
    with steps.making(commit_name(3)) as making:
        step.write(making)

    assert steps.last() == (commit_name(3), step)


def test_the_close_at_the_end_follows_its_batch(steps: Commits) -> None:
    """--final ends the batch it came after, and the next batch follows it."""
    make(steps, 9)
    with steps.making(commit_name(9, final=True)) as making:
        Commit(counts={"windows": 1}).write(making)

    assert steps.last()[0] == "0000000009-final"
    make(steps, 10)
    assert steps.last()[0] == "0000000010"


def test_another_window_is_refused(steps: Commits) -> None:
    """Windows of two lengths in one table would count twice."""
    with pytest.raises(PipelineError, match=r"made with window_s = 10, but this run has 5.*Use 10 again"):
        Commits(steps.tables).prepare({"window_s": 5})


def test_a_broken_step_is_told(steps: Commits) -> None:
    """Bookkeeping that a bad disk returned is named, with what to do."""
    make(steps, 0)
    (steps.folder / commit_name(0) / "step.json").write_text("{}")

    with pytest.raises(PipelineError, match=rf"{steps.tables}: .*step\.json\) can't be read .* restore"):
        steps.last()


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    """Two pipelines never write into one folder; the error tells which process has it."""
    import os

    with locked(tmp_path):
        with pytest.raises(PipelineError, match=f"process {os.getpid()} already writes to"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("kind", ["commits", "offsets"])
def test_what_a_power_failure_emptied_of_the_checkpoint_is_removed(steps: Commits, kind: str) -> None:
    """Spark brings neither to the disk, and would not start; the batch is begun again, and its step says the same."""
    folder = steps.checkpoint / kind
    folder.mkdir(parents=True)
    for name, text in (("8", "v1"), ("9", ""), (".9.crc", "crc"), ("10", ""), ("11", "")):
        (folder / name).write_text(text)

    Commits(steps.tables).prepare({"window_s": 10})

    assert [path.name for path in folder.iterdir()] == ["8"]


def test_an_empty_offset_of_a_batch_that_was_made_is_told(steps: Commits) -> None:
    """Nobody would know any more which segments it had."""
    make(steps, 0)
    folder = steps.checkpoint / "offsets"
    folder.mkdir(parents=True)
    (folder / "0").write_text("")

    with pytest.raises(PipelineError, match="offsets/0 is empty"):
        Commits(steps.tables).prepare({"window_s": 10})


def test_folders_that_are_made_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is synced in a folder whose name is not would be gone after a power failure."""
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync", synced.append)
    Commits(tmp_path / "tables").prepare({"window_s": 10})

    state = tmp_path / "tables" / STATE
    assert {tmp_path, tmp_path / "tables", state.parent, state} <= set(synced)


def test_tables_without_their_steps_are_left_alone(tmp_path: Path) -> None:
    """What was counted is in the tables; from the beginning again it would be there twice."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "batch-0000000003.parquet").write_bytes(b"")

    with pytest.raises(PipelineError, match=r"has tables \(raw/batch-0000000003\.parquet\)"):
        Commits(tmp_path).prepare({"window_s": 10})
