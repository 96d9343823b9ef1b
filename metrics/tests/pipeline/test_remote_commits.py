"""Commits of tables elsewhere: each batch counts once, wherever a driver was killed."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kinmqtt_metrics import durable
from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import PipelineError, UnpublishedError
from kinmqtt_metrics.pipeline import commits
from kinmqtt_metrics.pipeline.commits import STEP, Commit, commit_name, placed
from kinmqtt_metrics.pipeline.remote_commits import RemoteCommits
from metrics_harness.memory_folder import Killed, MemoryFolder

_works = count()


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders of this machine are lost with each driver: nothing there must be on the disk."""
    for module in (commits, durable):
        monkeypatch.setattr(module, "sync", lambda path: None)


def driver(folder: Path, remote: MemoryFolder) -> RemoteCommits:
    """A driver on a machine of its own, with an empty folder to work in, that has begun."""
    work = folder / f"work-{next(_works)}"
    work.mkdir()
    steps = RemoteCommits(work, remote=remote)
    steps.prepare({"window_s": 10})
    return steps


def batch(steps: RemoteCommits, number: int) -> None:
    """Carry out a batch with a file for each of two tables, and a window that stays open."""
    name = commit_name(number)
    (steps.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (steps.checkpoint / "metadata").write_text("{}")
    (steps.checkpoint / "offsets" / str(number)).write_text(f"offsets of {number}")
    with steps.making(name) as making:
        for table in (t.RATES, t.RAW):
            placed(making, table, name).write_text(f"rows of {number}")
        (making / "state" / "closed=false").mkdir(parents=True)
        (making / "state" / "closed=false" / "part-0.parquet").write_text(f"open after {number}")
        Commit(digest=f"digest of {number}").write(making)
    steps.publish(steps.folder / name)
    steps.forget()


def following(steps: RemoteCommits) -> int:
    """The batch that Spark's checkpoint goes on with."""
    last, _ = steps.last()
    return 0 if last is None else int(last[:10]) + 1


def rows(remote: MemoryFolder) -> dict[str, str]:
    """What readers see."""
    return {name: data.decode() for name, data in remote.files.items() if not name.startswith(t.OWN)}


def expected(batches: int) -> dict[str, str]:
    return {
        f"{table.name}/batch-{commit_name(number)}.parquet": f"rows of {number}"
        for table in (t.RATES, t.RAW)
        for number in range(batches)
    }


def test_each_row_is_there_once_wherever_a_driver_was_killed(tmp_path: Path) -> None:
    """In each moment of three batches; another driver goes on on another machine, and is killed there as well."""
    for kill_at in count():
        files: dict[str, bytes] = {}
        was_killed = False
        try:
            steps = driver(tmp_path, MemoryFolder(files, kill_at))
            for number in range(3):
                batch(steps, number)
        except Killed:
            was_killed = True
        try:
            driver(tmp_path, MemoryFolder(files, 2))
        except Killed:
            pass
        remote = MemoryFolder(files)
        steps = driver(tmp_path, remote)
        for number in range(following(steps), 3):
            batch(steps, number)

        assert rows(remote) == expected(3), kill_at
        _, last = driver(tmp_path, remote).last()
        assert [path.read_text() for path in last.open] == ["open after 2"], kill_at
        if not was_killed:
            break
    assert kill_at > 40


def test_files_that_were_merged_or_deleted_keep_no_run_from_starting(tmp_path: Path) -> None:
    """What is moved is not moved again, though its target is gone: maintenance while the pipeline is stopped."""
    remote = MemoryFolder({})
    batch(driver(tmp_path, remote), 0)
    for name in rows(remote):
        del remote.files[name]
    remote.files["rates/merged.parquet"] = b"all"

    steps = driver(tmp_path, remote)
    batch(steps, 1)

    assert set(rows(remote)) == {"rates/merged.parquet", *expected(2)} - {*expected(1)}


def test_of_two_drivers_one_counts(tmp_path: Path) -> None:
    """The slower one is told, by the name of the tables; nothing of its batch is shown."""
    remote = MemoryFolder({})
    slow, fast = driver(tmp_path, remote), driver(tmp_path, remote)
    batch(fast, 0)

    with pytest.raises(PipelineError, match="another pipeline writes to memory://tables"):
        batch(slow, 0)

    assert rows(remote) == expected(1)


def test_a_batch_that_counts_and_is_not_all_shown_is_told_so(tmp_path: Path) -> None:
    """The error says what to do, and the next run moves what is left."""
    files: dict[str, bytes] = {}

    with pytest.raises(UnpublishedError, match=r"batch counts, but .* in memory://tables yet .*AccessDenied.*Start"):
        batch(driver(tmp_path, MemoryFolder(files, refuses="raw/")), 0)

    remote = MemoryFolder(files)
    assert set(rows(remote)) == {"rates/batch-0000000000.parquet"}
    assert following(driver(tmp_path, remote)) == 1
    assert rows(remote) == expected(1)


def test_what_can_not_be_read_is_named_by_its_url(tmp_path: Path) -> None:
    """Not by the folder of this machine, which ends with the run."""
    remote = MemoryFolder({})
    steps = driver(tmp_path, remote)
    batch(steps, 0)
    (steps.folder / commit_name(0) / STEP).write_text("{}")
    with pytest.raises(PipelineError, match=r"^memory://tables: .*restore \.pipeline/v1"):
        steps.last()

    remote.files[f"{t.STATE}/log/000000/0000000001.json"] = b"{"
    with pytest.raises(PipelineError, match=r"^memory://tables/.*0000000001\.json can't be read"):
        driver(tmp_path, remote)


def test_tables_without_their_log_are_left_alone(tmp_path: Path) -> None:
    """From the beginning again, each record would be there twice."""
    remote = MemoryFolder({"raw/batch-0000000003.parquet": b""})

    for _ in range(2):
        with pytest.raises(PipelineError, match=r"memory://tables has tables \(raw\)"):
            driver(tmp_path, remote)


def test_a_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    """Two drivers could commit the same number there."""

    class Overwriting(MemoryFolder):
        def create(self, name: str, content: bytes) -> bool:
            self.files[name] = content
            return True

    with pytest.raises(PipelineError, match="memory://tables: this store overwrites"):
        driver(tmp_path, Overwriting({}))
