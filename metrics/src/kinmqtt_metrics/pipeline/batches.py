"""What a batch does: stage, check, aggregate, and then count all at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define, field, frozen

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.pipeline import aggregate, shaping
from kinmqtt_metrics.pipeline.backlog import Backlog
from kinmqtt_metrics.pipeline.closing import Closing, Node
from kinmqtt_metrics.pipeline.errors import PipelineError
from kinmqtt_metrics.pipeline.seen import Life, Ranges, common, ranges_of, union
from kinmqtt_metrics.pipeline.state import STATE_SCHEMA
from kinmqtt_metrics.pipeline.steps import Step, Steps, closing_name, place, placed, step_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kinmqtt_metrics.pipeline.settings import PipelineSettings

Tell: TypeAlias = Callable[[str], None]

_MANY: Final = 100_000
"""Rows from which on a shuffle is worth more than one partition."""


@frozen(slots=True)
class _Checked:
    """What was found in the rows of a batch."""

    records: int
    seen: dict[Life, Ranges]
    first: dict[str, int]
    """The earliest event time of each node; microseconds."""
    newest: dict[str, int]
    twice: bool
    """Whether a record is there more than once."""


@define(slots=True)
class Batches:
    """Carries out batches, each once."""

    settings: PipelineSettings
    steps: Steps
    tell: Tell
    clock: Callable[[], float] = time.time
    closing: Closing = field(init=False)
    backlog: Backlog = field(init=False)
    _began_s: float = field(init=False, default=0.0)
    """From when on nodes are listened to, by ``clock``; of a run that ends by itself since ever."""

    def __attrs_post_init__(self) -> None:
        of = self.settings
        self.closing = Closing(of.window_s * 1_000_000, round(of.watermark_s * 1_000_000), of.idle_s)
        self.backlog = Backlog(self.steps.checkpoint, of.landing.resolve())
        if not (of.once or of.final):
            self._began_s = self.clock()

    def batch(self, rows: DataFrame, number: int) -> None:
        """One batch of the query; of one that was made already only what is left to publish."""
        began_s = time.monotonic()
        folder = self.steps.folder / step_name(number)
        # Which segments the batch has is written down by Spark. It must be on the disk before what came of them is.
        digest = self.steps.offsets(number)
        last, before = self.steps.last()
        follows = 0 if last is None else int(last[:10]) + 1
        done = self.steps.done(number)
        if self.steps.written(number).digest != digest if done else number != follows:
            raise PipelineError(
                f"Spark's checkpoint {self.steps.checkpoint} goes on with batch {number}, and the steps beside it "
                f"with {follows}: one of them was removed or restored without the other. Restore the whole of "
                f"{self.steps.tables}, or begin anew in an empty folder"
            )
        if done:
            self.steps.publish(folder)
            return
        with self.steps.making(step_name(number)) as making:
            step = self._make(rows, number, before, making)
            step.digest = digest
            step.write(making)
        self.steps.publish(folder)
        self.steps.forget()
        self._tell(f"batch {number}", step.counts, time.monotonic() - began_s)

    def final(self) -> None:
        """Close every window that is open, as if no record would come any more."""
        began_s = time.monotonic()
        last, before = self.steps.last()
        if last is None or not before.open:
            return
        name = step_name(int(last[:10]), final=True)
        with self.steps.making(name) as making:
            nodes = {node: self.closing.closed(known) for node, known in before.nodes.items()}
            rows = _state(before.open)
            assert rows is not None
            self._tables(rows, name, making)
            step = Step(nodes, before.seen, (), {"windows": _windows(rows)})
            step.write(making)
        self.steps.publish(self.steps.folder / name)
        self._tell("at the end", step.counts, time.monotonic() - began_s)

    def close_idle(self) -> None:
        """Close the windows of nodes that are silent. Only while no batch is under way."""
        began_s = time.monotonic()
        last, before = self.steps.last()
        if last is None or not before.open:
            return
        nodes = self.closing.after(before.nodes, {}, self.clock(), self._began_s)
        if nodes == before.nodes or not self.backlog.is_empty(int(last[:10])):
            return
        rows = _state(before.open)
        assert rows is not None
        ends = pc.add(rows.column("start"), self.closing.window)
        names = rows.column("node").to_pylist()
        closed = pc.less_equal(ends, pa.array([nodes[name].bound for name in names], pa.int64()))
        name = closing_name(last)
        with self.steps.making(name) as making:
            state = making / "state" / "closed=false"
            state.mkdir(parents=True)
            left = rows.filter(pc.invert(closed))
            if left.num_rows:
                pq.write_table(left, state / "part-0.parquet")
            rows = rows.filter(closed)
            if rows.num_rows:
                self._tables(rows, name, making)
            step = Step(nodes, before.seen, (), {"windows": _windows(rows)})
            step.write(making)
        self.steps.publish(self.steps.folder / name)
        self._tell("of silent nodes", step.counts, time.monotonic() - began_s)

    def _tell(self, what: str, counts: Mapping[str, int], took_s: float) -> None:
        said = [f"{counts.get('records', 0):,} records", f"{counts.get('windows', 0):,} windows closed"]
        said += [f"{counts[key]:,} {key}" for key in ("late", "rejected", "repeated") if counts.get(key)]
        self.tell(f"{what}: {', '.join(said)}, {took_s:.1f} s")

    def _make(self, rows: DataFrame, number: int, before: Step, making: Path) -> Step:
        spark = rows.sparkSession
        now_s = self.clock()
        latest = round((now_s + self.settings.ahead_s) * 1_000_000)
        name = step_name(number)

        read = making / "read"
        aggregate.with_time(rows).write.parquet(str(read))
        total = _rows(_parts(read))
        cores = spark.sparkContext.defaultParallelism
        spark.conf.set("spark.sql.shuffle.partitions", cores if total > _MANY else 1)

        staged = aggregate.read(spark, read)
        checked = self._check(staged, total)
        repeated = {
            life: both for life, of in checked.seen.items() if (both := common(of, before.seen.get(life, [])))
        }
        counts = {"records": checked.records}
        known = checked.records
        seen = before.seen | {life: union(before.seen.get(life, []), of) for life, of in checked.seen.items()}
        if (
            checked.records < total
            or checked.twice
            or repeated
            or any(newest > latest for newest in checked.newest.values())
            or any(first < 0 for first in checked.first.values())
        ):
            # What is wrong with some rows costs another pass, which batches without them need not make.
            once = aggregate.once(spark, staged, repeated).cache()
            try:
                self._put(
                    t.REJECTED, aggregate.rejected(staged, once, number, latest, self.settings.ahead_s), name, making
                )
                read = making / "kept"
                once.where(aggregate.in_time(latest)).write.parquet(str(read))
                distinct = once.count()
            finally:
                once.unpersist()
            total = _rows(_parts(read))
            staged = aggregate.read(spark, read)
            checked = self._check(staged, total)
            counts["records"] = total
            counts["repeated"] = known - distinct
            counts["rejected"] = _rows(_parts(making / "tables" / t.REJECTED.name))

        # A full batch leaves something to the next one: who is not in it may be there.
        is_behind = self.backlog.segments(number) >= self.settings.segments
        nodes = self.closing.after(before.nodes, checked.newest, now_s, now_s if is_behind else self._began_s)
        if any(self.closing.is_late(before.nodes, node, first) for node, first in checked.first.items()):
            is_late = aggregate.is_late(before.nodes, self.closing.window)
            late = staged.where(is_late).cache()
            try:
                counts["late"] = late.count()
                self._put(t.LATE, aggregate.late(late, number), name, making)
            finally:
                late.unpersist()
            in_time = staged.where(~is_late)
        else:
            in_time = staged

        opened = spark.read.schema(STATE_SCHEMA).parquet(*map(str, before.open)) if before.open else None
        state = making / "state"
        merged = aggregate.windows(in_time, opened, nodes, self.closing.window)
        merged.coalesce(1 if total <= _MANY else cores).write.partitionBy("closed").parquet(str(state))
        closed = _state(_parts(state / "closed=true"))
        if closed is not None:
            counts["windows"] = _windows(closed)
            self._tables(closed, name, making)
        place(making, t.RAW, name, _parts(read) if total else [])
        for used in ("read", "kept", "made", "state/closed=true"):
            shutil.rmtree(making / used, ignore_errors=True)
        return Step(nodes, seen, counts=counts)

    def _check(self, staged: DataFrame, total: int) -> _Checked:
        words: pa.Table = aggregate.words(staged).toArrow() if total else aggregate.words(staged.limit(0)).toArrow()
        lives: dict[Life, list[tuple[int, int]]] = {}
        columns = (words.column(name).to_pylist() for name in ("node", "boot", "word", "bits"))
        for node, boot, word, bits in zip(*columns, strict=True):
            lives.setdefault((node, boot), []).append((word, bits))
        by_node = words.group_by("node").aggregate([("first", "min"), ("newest", "max")]).to_pylist()
        return _Checked(
            pc.sum(words.column("n")).as_py() or 0,
            {life: ranges_of(of) for life, of in lives.items()},
            {row["node"]: row["first_min"] for row in by_node},
            {row["node"]: row["newest_max"] for row in by_node},
            bool(pc.any(words.column("twice")).as_py()),
        )

    def _tables(self, closed: pa.Table, name: str, making: Path) -> None:
        for table, rows in shaping.tables(closed, self.settings):
            shaping.write(table, rows, placed(making, table, name))

    def _put(self, table: t.Table, rows: DataFrame, name: str, making: Path) -> None:
        """Stage a table's rows in one file, or none."""
        folder = making / "made" / table.name
        rows.coalesce(1).write.parquet(str(folder))
        parts = _parts(folder)
        if _rows(parts):
            place(making, table, name, parts)


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _rows(parts: list[Path]) -> int:
    return sum(pq.read_metadata(part).num_rows for part in parts)


def _state(parts: Iterable[Path]) -> pa.Table | None:
    """Rows of the state. Read as files: as a dataset a folder's name would be a column."""
    read = [pq.ParquetFile(part).read() for part in parts]
    return pa.concat_tables(read) if read else None


def _windows(rows: pa.Table) -> int:
    """How many windows there are, of all nodes."""
    return int(rows.group_by(["start", "node"]).aggregate([]).num_rows)


def when(micros: int) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="seconds")


def open_nodes(nodes: Mapping[str, Node]) -> str:
    """Up to where each node is closed, for the end of a run."""
    return ", ".join(f"{name} from {when(node.bound)}" for name, node in sorted(nodes.items()))
