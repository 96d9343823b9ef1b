"""What a task makes of some segments: their records for ``raw``, and what these add up to, window by window.

Arrow has records in columns once it has read them, and adds them up as they are: a record takes less than half of the
computing time that it takes when all of it goes through Java (benchmarks/README.md). What is handed to Spark are
sums: it puts together those of all tasks and of the batches before, and makes sketches of the values. This module
runs in Spark's Python workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define, field, frozen

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.intervals import Intervals, Numbers, Pair
from kinmqtt_metrics.pipeline.state import (
    BUCKETS,
    CONNECTION,
    COUNTER,
    EVENT,
    GAUGE,
    HISTOGRAM,
    SCHEMAS,
    SUMS,
    TRAFFIC,
    VALUES,
)
from kinmqtt_metrics.pipeline.window_tables import TYPES, codes_of, different, schema, whole
from kinmqtt_metrics.record import FIELDS
from kinmqtt_metrics.source.lines import REJECTED, LineReader
from kinmqtt_metrics.source.values import Value, ValueReader

READ: Final = "read"
MADE: Final = (READ, SUMS, VALUES, BUCKETS)
"""Folders, of which a task puts at most one file into each."""

_ROWS: Final = 262_144
"""So many rows are in memory at once, and the next block."""


_RAW: Final = schema(t.RAW)
_SCHEMAS: Final = {READ: _RAW} | {
    kind: pa.schema([(name, TYPES[of]) for name, of in columns.items()]) for kind, columns in SCHEMAS.items()
}


@define(slots=True)
class Staged:
    """What a task has found and made."""

    name: str
    """Of its files."""
    rows: dict[str, int] = field(factory=lambda: dict.fromkeys(MADE, 0))
    """In each of them."""
    rejected: int = 0
    lives: list[tuple[str, str, int, int, int, list[Pair]]] = field(factory=list)
    """Node, boot, how many records, the earliest and the latest event time, ranges of ``seq``; a life may be there
    several times."""
    late: list[tuple[str, str, str, int]] = field(factory=list)
    """Node, boot, kind, how many; likewise."""

    def text(self) -> str:
        """In JSON."""
        return json.dumps([self.name, self.rows, self.rejected, self.lives, self.late])

    @classmethod
    def of(cls, text: str) -> Staged:
        """Of what a task said."""
        return cls(*json.loads(text))


Made: TypeAlias = tuple[str, dict[str, bytes]]
"""What a task answers with: a :class:`Staged`, as text, and by kind the files that it wrote into no folder."""


@frozen(slots=True)
class Staging:
    """Stages what it is given in one file of each kind, and answers with what it :data:`Made`, or with nothing.

    For ``RDD.mapPartitions``: ``DataFrame.mapInArrow`` wants pandas to be installed, and hands over the same.
    """

    landing: str
    folder: str
    """Where files go, in a folder for each kind that is there already, under a name that begins with a dot: what a
    task left that failed is none that the driver was told of. Empty where files go with the answer."""
    window: int
    """Microseconds."""
    bounds: Mapping[str, int]
    """Of each node that is known: windows that end here or before are closed."""

    def segments(self, rows: Iterable[tuple[str, str, int, str]]) -> Iterator[Made]:
        """Of segments, as the source names them with ``rows=segments``."""
        lines = LineReader(self.landing, list(FIELDS), rejected=True)
        return self._stage(
            table for node, boot, number, path in rows for table in lines.read((node, boot, number), path)
        )

    def values(self, rows: Iterable[tuple[str, int, int, bytes | None]]) -> Iterator[Made]:
        """Of records of Kafka: topic, partition, offset and value."""
        values = (Value(f"{topic}-{partition}", offset, value) for topic, partition, offset, value in rows)
        return self._stage(ValueReader(list(FIELDS)).values(values))

    def records(self, files: Iterable[str | bytes]) -> Iterator[Made]:
        """Of records that Spark staged, in files of Parquet: their paths, or what is in them."""
        return self._stage(
            pa.Table.from_batches([batch])
            for file in files
            for batch in pq.ParquetFile(file if isinstance(file, str) else pa.BufferReader(file)).iter_batches(
                _ROWS, columns=list(FIELDS)
            )
        )

    def _stage(self, tables: Iterable[pa.Table]) -> Iterator[Made]:
        with ExitStack() as writing:
            task = _Task(self, writing)
            waiting: list[pa.Table] = []
            rows = 0
            for table in tables:
                waiting.append(table)
                rows += table.num_rows
                if rows >= _ROWS:
                    task.take(pa.concat_tables(waiting))
                    waiting, rows = [], 0
            if rows:
                task.take(pa.concat_tables(waiting))
        if task.staged.rows[READ]:
            yield task.staged.text(), {kind: sink.getvalue().to_pybytes() for kind, sink in task.sinks.items()}


def staged_file(folder: Path, kind: str, name: str) -> Path:
    """Where a task's file lies."""
    return folder / kind / f".{name}.parquet"


@define(slots=True)
class _Task:
    of: Staging
    writing: ExitStack
    staged: Staged = field(factory=lambda: Staged(uuid4().hex))
    sinks: dict[str, pa.BufferOutputStream] = field(factory=dict)
    """Files that go with the answer."""
    _writers: dict[str, pq.ParquetWriter] = field(factory=dict)

    def take(self, rows: pa.Table) -> None:
        """Stage rows."""
        rows = rows.append_column("at", rows["t"].cast(pa.timestamp("us", "UTC"))).cast(_RAW).combine_chunks()
        self._write(READ, rows)
        rejected = pc.sum(pc.equal(rows["kind"], REJECTED)).as_py()
        if rejected:
            self.staged.rejected += rejected
            rows = rows.filter(pc.not_equal(rows["kind"], REJECTED))
            if not rows.num_rows:
                return
        self.staged.lives += _lives(rows)
        t_us = rows["t"].to_numpy()
        start = t_us - np.mod(t_us, self.of.window)
        rows = rows.append_column("start", pa.array(start))
        late = start + self.of.window <= _bounds(rows["node"], self.of.bounds)
        if late.any():
            counts = (
                rows.filter(pa.array(late))
                .group_by(["node", "boot", "kind"], use_threads=False)
                .aggregate([([], "count_all")])
            )
            self.staged.late += [tuple(row.values()) for row in counts.to_pylist()]
            rows = rows.filter(pa.array(~late))
        by_kind = _by_kind(rows)
        for kind, add in (("counter", self._counters), ("event", self._events), ("traffic", self._traffic)):
            if kind in by_kind:
                add(by_kind[kind])
        if "gauge" in by_kind:
            self._gauges(by_kind["gauge"])
        if "histogram" in by_kind:
            self._histograms(by_kind["histogram"])

    def _write(self, kind: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if kind not in self._writers:
            # Rows that stay are read often; the others once, at once.
            compression = "zstd" if kind == READ else "lz4"
            self._writers[kind] = self.writing.enter_context(
                pq.ParquetWriter(self._sink(kind), _SCHEMAS[kind], compression=compression, store_schema=False)
            )
        self._writers[kind].write_table(rows)
        self.staged.rows[kind] += rows.num_rows

    def _sink(self, kind: str) -> Path | pa.BufferOutputStream:
        if self.of.folder:
            return staged_file(Path(self.of.folder), kind, self.staged.name)
        return self.sinks.setdefault(kind, pa.BufferOutputStream())

    def _put(self, kind: str, size: int, **columns: Any) -> None:
        """Write rows of these columns: of constants, and of nothing where there is none."""
        arrays = []
        for known in _SCHEMAS[kind]:
            value = columns.get(known.name)
            if value is None or isinstance(value, int | float):
                value = pa.nulls(size, known.type) if value is None else pa.repeat(pa.scalar(value, known.type), size)
            arrays.append(value)
        self._write(kind, pa.table(arrays, schema=_SCHEMAS[kind]))

    def _sum(self, family: int, a: Any, b: Any = None, **keys: Any) -> None:
        rows = pa.table(keys | {"a": a} | ({} if b is None else {"b": b}))
        sums = [("a", "sum"), ([], "count_all")] + ([] if b is None else [("b", "sum")])
        made = rows.group_by(list(keys), use_threads=False).aggregate(sums)
        said = {key: made[key] for key in keys} | {"n": made["count_all"], "a": made["a_sum"]}
        self._put(SUMS, made.num_rows, family=family, b=0 if b is None else made["b_sum"], **said)

    def _counters(self, rows: pa.Table) -> None:
        self._sum(
            COUNTER,
            a=pc.fill_null(rows["delta"], 0),
            start=rows["start"],
            node=rows["node"],
            k1=rows["name"],
            k2=rows["unit"],
            labels=texts(rows["labels"]),
        )

    def _events(self, rows: pa.Table) -> None:
        self._sum(
            EVENT,
            a=pc.fill_null(rows["delta"], 1),
            start=rows["start"],
            node=rows["node"],
            k1=rows["name"],
            k2=rows["reason"],
            k3=rows["client"],
            k4=pc.map_lookup(rows["labels"], pa.scalar("by"), "first"),
        )
        ended = pc.and_(pc.fill_null(pc.equal(rows["name"], "disconnected"), False), pc.is_valid(rows["number"]))
        rows = rows.filter(ended)
        said = {"start": rows["start"], "node": rows["node"], "k1": rows["reason"], "number": rows["number"]}
        self._put(VALUES, rows.num_rows, family=CONNECTION, **said)

    def _traffic(self, rows: pa.Table) -> None:
        self._sum(
            TRAFFIC,
            a=pc.fill_null(rows["delta"], 0),
            b=pc.fill_null(rows["bytes"], 0),
            start=rows["start"],
            node=rows["node"],
            k1=rows["client"],
            k2=rows["topic"],
        )

    def _gauges(self, rows: pa.Table) -> None:
        rows = rows.filter(pc.is_valid(rows["number"]))
        said = {"start": rows["start"], "node": rows["node"], "k1": rows["name"], "k2": rows["unit"]}
        self._put(VALUES, rows.num_rows, family=GAUGE, labels=texts(rows["labels"]), number=rows["number"], **said)

    def _histograms(self, rows: pa.Table) -> None:
        bounds, of = different(rows["bounds"])
        keys = {"start": rows["start"], "node": rows["node"], "k1": rows["name"], "k2": rows["unit"]}
        keys |= {"labels": texts(rows["labels"]), "of": pa.array(of)}
        names = list(keys)
        table = pa.table(keys | {"total": pc.fill_null(rows["sum"], 0.0)})
        samples = table.group_by(names, use_threads=False).aggregate([("total", "sum"), ([], "count_all")])
        said = {name: samples[name] for name in names if name != "of"}
        said |= {"bounds": bounds.take(samples["of"].combine_chunks()), "n": samples["count_all"]}
        self._put(BUCKETS, samples.num_rows, family=HISTOGRAM, bucket=-1, a=0, total=samples["total_sum"], **said)

        counts = whole(rows["counts"])
        lengths = pc.fill_null(pc.list_value_length(counts), 0).to_numpy(zero_copy_only=False)
        parents = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(parents)) - (np.cumsum(lengths) - lengths)[parents]
        each = table.select(names).take(pa.array(parents))
        each = each.append_column("bucket", pa.array(places.astype(np.int32)))
        each = each.append_column("a", pc.fill_null(pc.list_flatten(counts), 0))
        made = each.group_by([*names, "bucket"], use_threads=False).aggregate([("a", "sum")])
        said = {name: made[name] for name in (*names, "bucket") if name != "of"}
        said |= {"bounds": bounds.take(made["of"].combine_chunks()), "a": made["a_sum"]}
        self._put(BUCKETS, made.num_rows, family=HISTOGRAM, n=0, total=0.0, **said)


def _lives(rows: pa.Table) -> list[tuple[str, str, int, int, int, list[Pair]]]:
    grouped = (
        rows.select(["node", "boot", "t", "seq"])
        .group_by(["node", "boot"], use_threads=False)
        .aggregate([("t", "min"), ("t", "max"), ("seq", "list")])
    )
    found = []
    for place, row in enumerate(grouped.select(["node", "boot", "t_min", "t_max"]).to_pylist()):
        numbers = grouped["seq_list"][place].values.to_numpy()
        found.append((*row.values(), len(numbers), list(Intervals.of(numbers))))
    return [(node, boot, n, first, newest, ranges) for node, boot, first, newest, n, ranges in found]


def _bounds(nodes: pa.ChunkedArray, bounds: Mapping[str, int]) -> Numbers:
    """Of each row up to where its node is closed."""
    encoded = whole(nodes).dictionary_encode()
    each = np.array([bounds.get(node, 0) for node in encoded.dictionary.to_pylist()], np.int64)
    found: Numbers = each[encoded.indices.to_numpy()]
    return found


def _by_kind(rows: pa.Table) -> dict[str, pa.Table]:
    encoded = whole(rows["kind"]).dictionary_encode()
    kinds = encoded.indices.to_numpy()
    return {
        kind: rows.take(pa.array(np.flatnonzero(kinds == place)))
        for place, kind in enumerate(encoded.dictionary.to_pylist())
    }


def texts(labels: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Labels as JSON in which they are in order, so that the same labels are the same text."""
    if isinstance(labels, pa.ChunkedArray):
        labels = whole(labels)
    if labels.null_count == len(labels):
        return pa.nulls(len(labels), pa.string())
    each = pc.binary_join_element_wise(labels.keys, labels.items, "\x00")
    plain = pc.and_(pc.equal(pc.count_substring(each, "\x00"), 1), pc.invert(pc.match_substring(each, "\x01")))
    if not pc.all(plain).as_py():
        # A separator within a label: what is joined would not tell where it ends.
        return pa.array([None if of is None else _text(of) for of in labels.to_pylist()], pa.string())
    offsets = labels.offsets
    codes, first = codes_of(pc.binary_join(pa.ListArray.from_arrays(offsets, each), "\x01"))
    told = pa.array([_text(of or ()) for of in labels.take(pa.array(first)).to_pylist()], pa.string())
    indices = pa.array(codes, mask=labels.is_null().to_numpy(zero_copy_only=False))
    return told.take(indices)


def _text(labels: Iterable[tuple[str, str]]) -> str:
    return json.dumps(dict(sorted(labels)), ensure_ascii=False, separators=(",", ":"))
