"""The pipeline beside plain Python over the same records: every table, row by row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from attrs import evolve

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.landing import SegmentName
from kinmqtt_metrics.pipeline.settings import PipelineSettings
from kinmqtt_metrics.record import OTHERS, Record
from metrics_harness import recomputed
from metrics_harness.landing_data import SECOND_US, START_US, Landing, Life, line, pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Drain = Callable[..., list[str]]


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """An empty landing folder."""
    (tmp_path / "landing").mkdir()
    return Landing(tmp_path / "landing")


@pytest.fixture
def settings(landing: Landing, tmp_path: Path) -> PipelineSettings:
    """Everything is read at once, and open windows wait."""
    (tmp_path / "tables").mkdir()
    return PipelineSettings(landing.folder, tmp_path / "tables", once=True, watermark_s=3, top=2, storm_client=2)


@pytest.fixture
def drain(spark: SparkSession, settings: PipelineSettings) -> Drain:
    """Runs the query until all is read; what it told."""
    from kinmqtt_metrics.pipeline.run import Asked, read
    from kinmqtt_metrics.spark import SETTINGS

    # What can be set while it runs, in a session that other tests share.
    for key, value in SETTINGS.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)

    def run(**others: Any) -> list[str]:
        told: list[str] = []
        read(evolve(settings, **others), spark, Asked(), told.append)
        return told

    return run


def folder(settings: PipelineSettings) -> Path:
    """Where the tables are."""
    assert settings.local is not None
    return settings.local


def check(settings: PipelineSettings, batches: list[list[Record]], final: bool) -> None:
    """Every table is what the records come to."""
    closed, late, _ = recomputed.windows(batches, settings.window_s, settings.watermark_s, final)
    expected = recomputed.tables(
        closed, settings.window_s, settings.top, settings.storm_connects, settings.storm_client
    )
    seen: dict[tuple[Any, ...], Record] = {}
    for batch in batches:
        for record in batch:
            seen.setdefault((record["node"], record["boot"], record["seq"]), record)
    expected["raw"] = recomputed.raw(seen.values())
    counts: dict[tuple[str, ...], int] = {}
    for record in late:
        key = record["node"], record["boot"], record["kind"]
        counts[key] = counts.get(key, 0) + 1
    expected["late"] = [{"node": n, "boot": b, "kind": k, "records": number} for (n, b, k), number in counts.items()]
    for table in t.TABLES:
        if table is not t.REJECTED and table is not t.LATE:
            assert recomputed.comparable(recomputed.read(folder(settings), table)) == recomputed.comparable(
                expected.get(table.name, [])
            ), table.name
    told: dict[tuple[str, ...], int] = {}
    for row in recomputed.read(folder(settings), t.LATE):
        key = row["node"], row["boot"], row["kind"]
        told[key] = told.get(key, 0) + row["records"]
    assert told == counts


def test_tables_are_what_the_records_come_to(
    landing: Landing, settings: PipelineSettings, drain: Drain, spark: SparkSession
) -> None:
    """Several brokers and lives, late segments, repeated ones: each table is exact, for Arrow as for Spark."""
    random = Random(20261121)
    lives = [Life(node, f"{boot:016x}", random) for boot, node in enumerate(("a", "b-1", "größe/%", "a"), 1)]
    lives[3].t += 40 * SECOND_US
    batches: list[list[Record]] = []
    held: list[list[Record]] = []
    for _ in range(3):
        batch: list[Record] = []
        for life in lives:
            said = list(pieces(life.ticks(12), random))
            keep = random.randrange(len(said))
            for number, piece in enumerate(said):
                if number == keep:
                    held.append(list(piece))
                else:
                    landing.publish(piece)
                    batch += piece
        if len(batches) == 2:
            # Held back: some are late by now. And twice what was read before, under another number.
            for piece in [*held, batches[0][:40]]:
                by_life = [r for r in piece if (r["node"], r["boot"]) == (piece[0]["node"], piece[0]["boot"])]
                landing.publish(by_life)
                landing.publish(by_life)
                batch += by_life
        batches.append(batch)
        drain(final=len(batches) == 3)

    check(settings, batches, final=True)
    assert recomputed.read(folder(settings), t.LATE), "the test shall have late records"
    for table in (t.RATES, t.GAUGES, t.RAW):
        rows = [
            row.asDict(recursive=True)
            for row in spark.read.parquet(*map(str, table.files(folder(settings)))).collect()
        ]
        assert recomputed.comparable(rows) == recomputed.comparable(recomputed.read(folder(settings), table))
    for table in t.TABLES:
        # To Spark files with one schema are the same, and it takes a job to read one.
        files = table.files(folder(settings))
        for path in {pq.read_schema(path).serialize().to_pybytes(): path for path in files}.values():
            kinds = {f.name: f.dataType.simpleString() for f in spark.read.parquet(str(path)).schema}
            assert kinds == table.columns, path


def test_windows_that_are_open_wait_for_the_next_run(
    landing: Landing, settings: PipelineSettings, drain: Drain
) -> None:
    """--once writes whole windows only, says up to where, and the next run goes on with the rest."""
    life = Life("a", f"{1:016x}", Random(2))
    first, second = life.ticks(25), life.ticks(25)
    landing.publish(first)
    told = drain()
    check(settings, [first], final=False)
    landing.publish(second)
    drain()

    check(settings, [first, second], final=False)
    assert told[-1].startswith("windows that are open wait for the next run: a from 2026-")


def test_a_silent_node_is_closed_while_nothing_is_read(
    landing: Landing, settings: PipelineSettings, drain: Drain
) -> None:
    """Its windows are told, once; those of the others stay open and go on, and what is not read yet is no silence."""
    from kinmqtt_metrics.pipeline.batches import Batches
    from kinmqtt_metrics.pipeline.commits import Commits

    silent, other = Life("a", f"{1:016x}", Random(2)), Life("b", f"{1:016x}", Random(3))
    batches = [silent.ticks(25)]
    landing.publish(batches[0])
    drain()
    for _ in range(2):
        batches.append(other.ticks(25))
        landing.publish(batches[-1])
        drain()
    steps = Commits(folder(settings))
    name, before = steps.last()
    between_s = (before.nodes["a"].heard_s + before.nodes["b"].heard_s) / 2
    told: list[str] = []
    idle = Batches(settings, steps, told.append, lambda: between_s + settings.idle_s)
    batches.append(other.ticks(25))
    landing.publish(batches[-1])
    idle.close_idle()
    unread = steps.last()[0]
    drain()
    idle.close_idle()
    idle.close_idle()
    closed, after = steps.last()
    batches.append(other.ticks(25))
    landing.publish(batches[-1])
    drain(final=True)

    assert unread == name
    assert closed == "0000000003-closed-0001"
    assert len(told) == 1 and told[0].startswith("of silent nodes: ")
    assert after.open and after.nodes["a"].bound > before.nodes["a"].newest
    check(settings, batches, final=True)


def test_a_run_that_ends_by_itself_closes_who_has_been_silent(
    landing: Landing, settings: PipelineSettings, drain: Drain
) -> None:
    """With --once from a timer, the last windows of a broker that was shut down are told though nothing new comes."""
    said = Life("a", f"{1:016x}", Random(2)).ticks(25)
    landing.publish(said)
    waiting = drain()
    told = drain(idle_s=0)

    assert waiting[-1].startswith("windows that are open wait")
    assert [text.partition(":")[0] for text in told] == ["of silent nodes"]
    check(settings, [said], final=True)


def test_a_clock_that_is_set_makes_nobody_silent(landing: Landing, settings: PipelineSettings, drain: Drain) -> None:
    """Silence is measured by a clock that nobody sets: records that come afterwards would be late."""
    from kinmqtt_metrics.pipeline.batches import Batches
    from kinmqtt_metrics.pipeline.commits import Commits

    landing.publish(Life("a", f"{1:016x}", Random(2)).ticks(25))
    drain()
    steps = Commits(folder(settings))
    now_s = steps.last()[1].nodes["a"].heard_s
    passed_s = 0.0
    told: list[str] = []
    running = Batches(evolve(settings, once=False), steps, told.append, lambda: now_s, lambda: passed_s)

    now_s += 100 * settings.idle_s
    running.close_idle()
    assert told == []
    passed_s += settings.idle_s
    running.close_idle()
    assert len(told) == 1


def test_who_waits_to_be_read_is_not_silent(landing: Landing, settings: PipelineSettings, drain: Drain) -> None:
    """A batch of one broker closes no windows of another, of which segments are there that the batch has not."""
    a, b = Life("a", f"{1:016x}", Random(2)), Life("b", f"{1:016x}", Random(3))
    batches = [[*a.ticks(25)], [*b.ticks(25)], [*a.ticks(5)]]
    landing.publish(batches[0])
    drain()
    for batch in batches[1:]:
        landing.publish(batch)
    drain(idle_s=1e-6, segments=1)

    assert recomputed.read(folder(settings), t.LATE) == []


@pytest.mark.parametrize("name", [" ü %41 [1] {a,b} * \\", "at 10:30"])
def test_folders_may_be_called_anything(
    name: str, drain: Drain, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Hadoop would take for a pattern, an escape or a scheme is a name: each record counts once."""
    from kinmqtt_metrics.learning import Options, learn

    monkeypatch.chdir(tmp_path)
    landing = Landing(Path(name, "landing"))
    landing.folder.mkdir(parents=True)
    life = Life("a", f"{1:016x}", Random(5))
    settings = PipelineSettings(landing.folder, Path(name, "tables"), once=True, watermark_s=3)
    batches = [life.ticks(20), life.ticks(20), life.ticks(20)]
    batches[2] += batches[1][:9]
    for number, batch in enumerate(batches):
        landing.publish(batch, [b"torn\n"] * (number == 1))
        drain(
            landing=landing.folder, tables=folder(settings), watermark_s=3, top=20, storm_client=5, final=number == 2
        )

    check(settings, batches, final=True)
    assert [row["line"] for row in recomputed.read(folder(settings), t.REJECTED)] == [len(batches[1]) + 1]
    found = learn(spark, folder(settings), Options(over_s=10, min_windows=1), None, None)
    assert found.seen["client"] == len(
        {row["client"] for row in recomputed.read(folder(settings), t.USUAL)} - {OTHERS}
    )
    assert found.summed.of == sum(row["messages"] for row in recomputed.read(folder(settings), t.USUAL))
    # Spark wrote nowhere else.
    assert {path.name for path in tmp_path.iterdir()} <= {name, "landing", "tables"}
    assert {path.name for path in Path(name).iterdir()} == {"landing", "tables"}


def test_a_clock_that_was_never_set_rejects_nothing(
    landing: Landing, settings: PipelineSettings, spark: SparkSession, tmp_path: Path
) -> None:
    """By a clock at 1970 every record is from the future: rejected ones would never be read again."""
    from kinmqtt_metrics.pipeline.batches import Batches
    from kinmqtt_metrics.pipeline.commits import Commit, Commits
    from kinmqtt_metrics.source.reader import SEGMENTS

    path = landing.publish(Life("a", f"{1:016x}", Random(2)).ticks(2))
    schema = ", ".join(f"{name} {kind}" for name, kind in SEGMENTS.items())
    said = ("a", f"{1:016x}", 1, str(path.relative_to(landing.folder)))
    rows = spark.createDataFrame([said], schema)
    batches = Batches(settings, Commits(folder(settings)), print, clock=lambda: 60.0)

    with pytest.raises(PipelineError, match=r"clock says 1970-01-01T00:01:00\+00:00: .* set the clock"):
        batches._make(rows, 0, Commit(), tmp_path / "making")


def test_what_comes_after_a_final_close_is_late(landing: Landing, settings: PipelineSettings, drain: Drain) -> None:
    """--final closes every window for good; rows of a window are written once."""
    life = Life("a", f"{1:016x}", Random(3))
    said = life.ticks(4, step_us=1_000_000)
    landing.publish(said)
    drain(final=True)
    rates = recomputed.read(folder(settings), t.RATES)
    life.t = said[-1]["t"]
    landing.publish(life.tick(step_us=1))
    drain(final=True)
    drain(final=True)

    assert rates
    assert recomputed.read(folder(settings), t.RATES) == rates
    assert sum(row["records"] for row in recomputed.read(folder(settings), t.LATE)) == len(
        recomputed.read(folder(settings), t.RAW)
    ) - len(said)


def test_bad_input_is_told_of_and_nothing_else_is_lost(
    landing: Landing, settings: PipelineSettings, drain: Drain
) -> None:
    """Torn lines, newer ones, foreign files and impossible times are rows of rejected; good records all count."""
    life = Life("a", f"{1:016x}", Random(4))
    good = life.ticks(30)
    bad: list[Record] = [good[-1] | {"seq": 9_000_001, "t": (1 << 62)}, good[-1] | {"seq": 9_000_002, "t": -5}]
    newer = json.dumps({**good[-1], "v": 2, "seq": 9_000_003}).encode() + b"\n"
    landing.publish(good[:50], [newer, line(good[0])[:37], b"\n"])
    landing.publish([*good[50:], *bad])
    landing.write(SegmentName("a", f"{1:016x}", 3), START_US, b"")
    (landing.folder / "date=2026-09-21" / "foreign.jsonl").write_text("{}\n")

    told = drain(final=True)

    check(settings, [good], final=True)
    whys = sorted(row["why"] for row in recomputed.read(folder(settings), t.REJECTED))
    assert len(whys) == 6
    assert sum("s ahead of the clock" in why for why in whys) == 1
    assert sum("before 1970" in why for why in whys) == 1
    assert "6 rejected" in told[0]


def test_a_clock_that_goes_back_makes_records_late(
    landing: Landing, settings: PipelineSettings, drain: Drain
) -> None:
    """Rows that are written stay as they are: what a clock that was set back tells of them is in raw and counted."""
    life = Life("a", f"{1:016x}", Random(5))
    first = life.ticks(40)
    landing.publish(first)
    drain()
    life.t -= 30 * SECOND_US
    second = life.ticks(40)
    landing.publish(second)
    drain(final=True)

    check(settings, [first, second], final=True)
    assert recomputed.read(folder(settings), t.LATE)


def test_a_full_disk_ends_it_with_nothing_half_written(
    landing: Landing, settings: PipelineSettings, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails as a whole, the error says what to do, and the same command goes on from there."""
    from kinmqtt_metrics.pipeline import window_tables

    life = Life("a", f"{1:016x}", Random(6))
    said = life.ticks(40)
    landing.publish(said)
    written: list[Path] = []

    def full(table: t.Table, rows: Any, path: Path) -> None:
        if written:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written.append(path)
        write_table(table, rows, path)

    write_table = window_tables.write
    monkeypatch.setattr(window_tables, "write", full)
    with pytest.raises(PipelineError, match=r"is full: make room.*goes on from there"):
        drain()
    assert [path for table in t.TABLES for path in table.files(folder(settings))] == []
    monkeypatch.undo()
    drain(final=True)

    check(settings, [said], final=True)


def test_a_checkpoint_without_its_steps_is_refused(
    landing: Landing, settings: PipelineSettings, drain: Drain
) -> None:
    """Where half of the bookkeeping was removed, tables would miss rows or have them twice."""
    import shutil

    landing.publish(Life("a", f"{1:016x}", Random(7)).ticks(3))
    drain()
    shutil.rmtree(folder(settings) / t.STATE / "spark")

    with pytest.raises(PipelineError, match="continues with batch 0, but the commits beside it with 1"):
        drain()
