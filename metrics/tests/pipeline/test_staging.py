"""What a task stages, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.landing import SegmentName
from kinmqtt_metrics.pipeline import staging
from kinmqtt_metrics.pipeline.staging import MADE, READ, Made, Staged, Staging, staged_file, texts
from kinmqtt_metrics.pipeline.state import BUCKETS, COUNTER, SUMS, TRAFFIC
from metrics_harness.landing_data import START_US, Landing, Life, pieces

MAP = pa.map_(pa.string(), pa.string())

words = st.text(st.sampled_from('ab\x00\x01"\\ä'), max_size=3)
labels = st.none() | st.dictionaries(words, words, max_size=3)


@given(st.lists(st.tuples(labels, st.booleans()), max_size=12), st.integers(0, 3))
def test_labels_are_the_same_text_when_they_are_the_same(given: list[tuple[Any, bool]], skip: int) -> None:
    """In whatever order they stand, and whatever characters are in them; a part of a column is its own rows."""
    pairs = [
        None if of is None else list(reversed(of.items())) if turned else list(of.items()) for of, turned in given
    ]

    said = texts(pa.array(pairs, MAP).slice(skip)).to_pylist()

    assert [None if text is None else json.loads(text) for text in said] == [of for of, _ in given[skip:]]
    assert len(set(said)) == len({None if of is None else frozenset(of.items()) for of, _ in given[skip:]})


def stage(landing: Landing, folder: Path, bounds: dict[str, int]) -> tuple[Staged, dict[str, pa.Table]]:
    """What a task makes of all segments."""
    for kind in MADE:
        (folder / kind).mkdir(parents=True)
    paths = sorted(landing.folder.glob("date=*/*.jsonl"))
    names = [SegmentName.parse(path.name) for path in paths]
    rows = [
        (name.node, name.boot, name.number, str(path.relative_to(landing.folder)))
        for name, path in zip(names, paths, strict=True)
    ]
    [(text, _)] = Staging(str(landing.folder), str(folder), 10_000_000, bounds).segments(rows)
    staged = Staged.of(text)
    files = {kind: staged_file(folder, kind, staged.name) for kind in MADE}
    return staged, {kind: pq.read_table(path) for kind, path in files.items() if path.exists()}


@pytest.mark.parametrize("at_once", [1, 1 << 18])
def test_what_is_staged_adds_up_to_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Whether rows are taken in one go or in many: sums, observations and the ranges of ``seq`` are those told."""
    monkeypatch.setattr(staging, "_ROWS", at_once)
    landing, random = Landing(tmp_path / "landing"), Random(3)
    life = Life("a", f"{1:016x}", random)
    said = life.ticks(40)
    for piece in pieces(said, random):
        landing.publish(piece)

    staged, made = stage(landing, tmp_path / "made", {})

    assert made[READ].num_rows == staged.rows[READ] == len(said)
    assert sum(n for _, _, n, *_ in staged.lives) == len(said)
    assert {seq for *_, of in staged.lives for a, b in of for seq in range(a, b + 1)} == {r["seq"] for r in said}
    sums = made[SUMS].to_pylist()
    for family, kind in ((COUNTER, "counter"), (TRAFFIC, "traffic")):
        told = sum(r["delta"] for r in said if r["kind"] == kind)
        assert sum(row["a"] for row in sums if row["family"] == family) == told
    observed = [sum(r["counts"]) for r in said if r["kind"] == "histogram"]
    buckets = made[BUCKETS].to_pylist()
    assert sum(row["a"] for row in buckets) == sum(observed)
    assert sum(row["n"] for row in buckets) == len(observed)
    assert staged.late == [] and staged.rejected == 0


def test_late_records_are_in_raw_and_in_no_sum(tmp_path: Path) -> None:
    """Rows of closed windows are written already; another node's bound makes nobody late."""
    landing = Landing(tmp_path / "landing")
    for number, node in enumerate("ab", 1):
        life = Life(node, f"{number:016x}", Random(4))
        landing.publish(life.ticks(10))

    staged, made = stage(landing, tmp_path / "made", {"a": START_US + 10**9})

    assert {node for node, *_ in staged.late} == {"a"}
    assert set(made[SUMS]["node"].to_pylist()) == {"b"}
    assert sum(n for *_, n in staged.late) == made[READ]["node"].to_pylist().count("a")


def test_nothing_is_told_of_nothing(tmp_path: Path) -> None:
    """A partition without segments leaves no file."""
    assert list(Staging(str(tmp_path), str(tmp_path), 10, {}).segments([])) == []


def test_what_a_failed_task_left_is_in_no_table(tmp_path: Path) -> None:
    """Spark tries a task again: rows of the attempt that it gave up would be there twice."""
    from kinmqtt_metrics.pipeline.batches import Batches, _parts
    from kinmqtt_metrics.pipeline.commits import Commits
    from kinmqtt_metrics.pipeline.settings import PipelineSettings

    class Tasks:
        """Of which one was carried out twice."""

        def collect(self) -> list[Made]:
            given_up, [answer] = list(task.segments(rows)), task.segments(rows)
            assert given_up
            return [answer]

    landing = Landing(tmp_path / "landing")
    path = landing.publish(Life("a", f"{1:016x}", Random(5)).ticks(5))
    rows = [("a", f"{1:016x}", 1, str(path.relative_to(landing.folder)))]
    task = Staging(str(landing.folder), str(tmp_path / "work"), 10_000_000, {})
    batches = Batches(PipelineSettings(landing.folder, tmp_path), Commits(tmp_path), print)

    checked = batches._stage(Tasks(), tmp_path / "work")  # type: ignore[arg-type]

    for kind in MADE:
        files = _parts(tmp_path / "work" / kind)
        assert len(list((tmp_path / "work" / kind).iterdir())) == 2 * len(files)
        assert sum(pq.read_metadata(file).num_rows for file in files) == checked.rows[kind]
    assert checked.rows[READ] == checked.records > 0 and not checked.twice
