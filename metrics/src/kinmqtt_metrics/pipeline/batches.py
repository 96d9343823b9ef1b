"""What a batch does: stage, check, aggregate, and then count all at once."""

from __future__ import annotations

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import Factory, define, evolve, field

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.missing_records import Life
from kinmqtt_metrics.pipeline import aggregate, window_tables
from kinmqtt_metrics.pipeline.backlog import Backlog
from kinmqtt_metrics.pipeline.commits import Commit, Commits, commit_name, idle_commit_name, place, placed
from kinmqtt_metrics.pipeline.exchange import CLOSED, Exchange, exchange_of
from kinmqtt_metrics.pipeline.sources import LandingSource, Source
from kinmqtt_metrics.pipeline.staging import MADE, READ, Made, Staging
from kinmqtt_metrics.pipeline.state import SCHEMAS, STATE_SCHEMA
from kinmqtt_metrics.pipeline.watermarks import Node, Watermarks

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from kinmqtt_metrics.pipeline.settings import PipelineSettings

Tell: TypeAlias = Callable[[str], None]

_NO_EARLIER_US: Final = 1_767_225_600_000_000
"""The beginning of 2026: a clock that says less was never set."""

_MANY: Final = 100_000
"""Rows from which on a shuffle is worth more than one partition."""


@define(slots=True)
class _Checked:
    """What was found in the rows of a batch."""

    records: int = 0
    rejected: int = 0
    seen: dict[Life, Intervals] = field(factory=dict)
    first: dict[str, int] = field(factory=dict)
    """The earliest event time of each node; microseconds."""
    newest: dict[str, int] = field(factory=dict)
    late: Counter[tuple[str, str, str]] = field(factory=Counter)
    """By node, boot and kind."""
    twice: bool = False
    """Whether a record is there more than once."""
    rows: Counter[str] = field(factory=Counter)
    """Of each kind that tasks made."""

    def has_errors(self, latest: int) -> bool:
        """Tells whether some lines are invalid, or records repeat or have impossible times; ``latest`` in us."""
        return bool(
            self.rejected
            or self.twice
            or any(newest > latest for newest in self.newest.values())
            or any(first < 0 for first in self.first.values())
        )


@define(slots=True)
class Batches:
    """Carries out batches, each once."""

    settings: PipelineSettings
    steps: Commits
    tell: Tell
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    source: Source = field(default=Factory(lambda self: LandingSource(self.settings), takes_self=True))
    exchange: Exchange = field(init=False)
    closing: Watermarks = field(init=False)
    backlog: Backlog = field(init=False)
    _since_s: float = field(init=False, default=0.0)
    """What ``clock`` said when ``monotonic`` was at 0: a clock that is set during a run makes nobody silent."""
    _began_s: float = field(init=False, default=0.0)
    """From when on nodes are listened to; of a run that ends by itself since ever."""

    def __attrs_post_init__(self) -> None:
        of = self.settings
        self.closing = Watermarks(of.window_s * 1_000_000, round(of.watermark_s * 1_000_000), of.idle_s)
        self.exchange = exchange_of(of.master)
        self.backlog = self.source.backlog(self.steps.checkpoint)
        self._since_s = self.clock() - self.monotonic()
        if not (of.once or of.final):
            self._began_s = self._now_s()

    def _now_s(self) -> float:
        return self._since_s + self.monotonic()

    def batch(self, rows: DataFrame, number: int) -> None:
        """One batch of the query; of one that was made already only what is left to publish."""
        began_s = time.monotonic()
        folder = self.steps.folder / commit_name(number)
        # Which segments the batch has is written down by Spark. It must be on the disk before what came of them is.
        digest = self.steps.offsets(number)
        last, before = self.steps.last()
        follows = 0 if last is None else int(last[:10]) + 1
        done = self.steps.done(number)
        if self.steps.written(number).digest != digest if done else number != follows:
            raise PipelineError(
                f"Spark's checkpoint of {self.steps.where} continues with batch {number}, but the commits beside "
                f"it with {follows}: one of them was removed or restored without the other. Restore the whole of "
                f"{self.steps.where}, or start again in an empty folder"
            )
        if done:
            self.steps.publish(folder)
            return
        with self.steps.making(commit_name(number)) as making:
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
        name = commit_name(int(last[:10]), final=True)
        with self.steps.making(name) as making:
            nodes = {node: self.closing.closed(known) for node, known in before.nodes.items()}
            rows = _state(before.open)
            assert rows is not None
            self._tables(rows, name, making)
            step = Commit(nodes, before.seen, (), {"windows": _windows(rows)})
            step.write(making)
        self.steps.publish(self.steps.folder / name)
        self._tell("at the end", step.counts, time.monotonic() - began_s)

    def close_idle(self) -> None:
        """Close the windows of nodes that are silent. Only while no batch is under way."""
        began_s = time.monotonic()
        last, before = self.steps.last()
        if last is None or not before.open:
            return
        nodes = self.closing.after(before.nodes, {}, self._now_s(), self._began_s)
        if nodes == before.nodes or not self.backlog.is_empty(int(last[:10])):
            return
        rows = _state(before.open)
        assert rows is not None
        ends = pc.add(rows.column("start"), self.closing.window)
        names = rows.column("node").to_pylist()
        closed = pc.less_equal(ends, pa.array([nodes[name].bound for name in names], pa.int64()))
        name = idle_commit_name(last)
        with self.steps.making(name) as making:
            state = making / "state" / "closed=false"
            state.mkdir(parents=True)
            left = rows.filter(pc.invert(closed))
            if left.num_rows:
                pq.write_table(left, state / "part-0.parquet")
            rows = rows.filter(closed)
            if rows.num_rows:
                self._tables(rows, name, making)
            step = Commit(nodes, before.seen, (), {"windows": _windows(rows)})
            step.write(making)
        self.steps.publish(self.steps.folder / name)
        self._tell("of silent nodes", step.counts, time.monotonic() - began_s)

    def _tell(self, what: str, counts: Mapping[str, int], took_s: float) -> None:
        records, windows = counts.get("records", 0), counts.get("windows", 0)
        said = [f"{records:,} record{'s' * (records != 1)}", f"{windows:,} window{'s' * (windows != 1)} closed"]
        said += [f"{counts[key]:,} {key}" for key in ("late", "rejected", "repeated") if counts.get(key)]
        self.tell(f"{what}: {', '.join(said)}, {took_s:.1f} s")

    def _make(self, rows: DataFrame, number: int, before: Commit, making: Path) -> Commit:
        """Make the tables and the state of a batch in the folder ``making``."""
        spark = rows.sparkSession
        name = commit_name(number)
        bounds = {node: known.bound for node, known in before.nodes.items()}
        work = making / "work"
        staging = Staging(self.source.root, self.exchange.task_folder(work), self.closing.window, bounds)
        checked = self._stage(rows.rdd.mapPartitions(self.source.stage(staging)), work)
        seen = before.seen | {life: before.seen.get(life, Intervals()) | of for life, of in checked.seen.items()}
        repeated = {
            life: both for life, of in checked.seen.items() if (both := of & before.seen.get(life, Intervals()))
        }
        now = round(self.clock() * 1_000_000)
        latest = now + round(self.settings.ahead_s * 1_000_000)
        counts = {"records": checked.records}
        if repeated or checked.has_errors(latest):
            if now < _NO_EARLIER_US:
                raise PipelineError(
                    f"this machine's clock says {when(now)}: every record would be from "
                    "the future, and rejected; set the clock"
                )
            right = self._correct(spark, work, number, repeated, latest, checked.records, making, counts)
            work = making / "kept"
            staging = evolve(staging, folder=self.exchange.task_folder(work))
            files = self.exchange.files(spark, _parts(right))
            checked = self._stage(files.mapPartitions(staging.records), work)
            counts["records"] = checked.records
        if checked.late:
            counts["late"] = sum(checked.late.values())
            window_tables.write(t.LATE, window_tables.late(checked.late, number), placed(making, t.LATE, name))
        nodes = self._after(before.nodes, checked.newest, number)
        self._aggregate(spark, work, checked, before, nodes, making)
        closed = _state(_parts(making / "state" / f"{CLOSED}=true"))
        if closed is not None:
            counts["windows"] = _windows(closed)
            self._tables(closed, name, making)
        place(making, t.RAW, name, _parts(work / READ))
        for used in ("work", "right", "kept", "made", f"state/{CLOSED}=true"):
            shutil.rmtree(making / used, ignore_errors=True)
        return Commit(nodes, seen, counts=counts)

    def _correct(
        self,
        spark: SparkSession,
        work: Path,
        number: int,
        repeated: Mapping[Life, Intervals],
        latest: int,
        records: int,
        making: Path,
        counts: dict[str, int],
    ) -> Path:
        """Write ``rejected``. Returns a folder with the other records, each once.

        This is another pass over the records, which batches without errors do not need.
        """
        name = commit_name(number)
        read = self.exchange.read(spark, aggregate.RAW_SCHEMA, _parts(work / READ))
        once = aggregate.once(spark, read, repeated).cache()
        try:
            rejected = aggregate.rejected(read, once, number, latest, self.settings.ahead_s)
            self._put(t.REJECTED, rejected, name, making)
            counts["repeated"] = records - once.count()
            counts["rejected"] = _rows(_parts(making / "tables" / t.REJECTED.name))
            right = making / "right"
            self.exchange.write(once.where(aggregate.in_time(latest)), right)
        finally:
            once.unpersist()
        return right

    def _aggregate(
        self,
        spark: SparkSession,
        work: Path,
        checked: _Checked,
        before: Commit,
        nodes: Mapping[str, Node],
        making: Path,
    ) -> None:
        """Merge what the tasks made with the windows that were open, into ``state`` of the folder ``making``."""
        opened = self.exchange.read(spark, STATE_SCHEMA, before.open) if before.open else None
        made = {
            kind: self.exchange.read(spark, aggregate.schema_of(kind), _parts(work / kind))
            for kind in SCHEMAS
            if checked.rows[kind]
        }
        total = sum(checked.rows[kind] for kind in SCHEMAS)
        cores = spark.sparkContext.defaultParallelism
        spark.conf.set("spark.sql.shuffle.partitions", cores if total > _MANY else 1)
        merged = aggregate.windows(made, opened, nodes, self.closing.window)
        if merged is not None:
            parts = merged.coalesce(1 if total <= _MANY else cores)
            self.exchange.write_state(parts, making / "state")

    def _after(self, before: Mapping[str, Node], newest: Mapping[str, int], number: int) -> dict[str, Node]:
        """What is known of nodes after a batch. Of whom something waits to be read is not silent."""
        now_s = self._now_s()
        nodes = self.closing.after(before, newest, now_s, self._began_s)
        if all(nodes[name] == before[name] for name in before if name not in newest):
            return nodes
        if self.backlog.is_empty(number):
            return nodes
        return self.closing.after(before, newest, now_s, now_s)

    def _stage(self, tasks: RDD[Made], folder: Path) -> _Checked:
        """Have tasks stage rows in a folder; what they found."""
        for kind in MADE:
            (folder / kind).mkdir(parents=True)
        checked = _Checked()
        lives: dict[Life, list[tuple[int, int]]] = defaultdict(list)
        for staged in self.exchange.staged(tasks, folder):
            checked.rejected += staged.rejected
            for node, boot, records, first, newest, ranges in staged.lives:
                checked.records += records
                checked.first[node] = min(first, checked.first.get(node, first))
                checked.newest[node] = max(newest, checked.newest.get(node, newest))
                lives[node, boot] += [(first, last) for first, last in ranges]
            for node, boot, kind, late in staged.late:
                checked.late[node, boot, kind] += late
            checked.rows.update(staged.rows)
        checked.seen = {life: Intervals(pairs) for life, pairs in lives.items()}
        checked.twice = checked.records > sum(of.count for of in checked.seen.values())
        return checked

    def _tables(self, closed: pa.Table, name: str, making: Path) -> None:
        for table, rows in window_tables.tables(closed, self.settings):
            window_tables.write(table, rows, placed(making, table, name))

    def _put(self, table: t.Table, rows: DataFrame, name: str, making: Path) -> None:
        """Stage a table's rows in one file, or none."""
        folder = making / "made" / table.name
        self.exchange.write(rows.coalesce(1), folder)
        parts = _parts(folder)
        if _rows(parts):
            place(making, table, name, parts)


def _parts(folder: Path) -> list[Path]:
    """Files that count; a task that failed may have left others, whose names begin with a dot."""
    return sorted(path for path in folder.glob("*.parquet") if path.name[0] != ".")


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
