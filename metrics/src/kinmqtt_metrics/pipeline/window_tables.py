"""The tables of windows that are closed, from their rows of the state: with Arrow, in the driver.

Spark has added up by then. What is left is small, and eleven jobs of Spark's for it took seconds of computing time
where this takes milliseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.intervals import Numbers
from kinmqtt_metrics.pipeline.state import CONNECTION, COUNTER, EVENT, GAUGE, HISTOGRAM, TRAFFIC
from kinmqtt_metrics.record import OTHERS

if TYPE_CHECKING:
    from kinmqtt_metrics.pipeline.settings import PipelineSettings

DROPPED: Final = "messages.dropped"
"""The broker's counter, by reason."""

_REFUSALS: Final = ("authentication_refused", "authorization_refused", "limited")

_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<double>": pa.list_(pa.float64()),
    "array<bigint>": pa.list_(pa.int64()),
}

_KEY: Final = ("start", "node")


def schema(table: t.Table) -> pa.Schema:
    """A table's columns in Arrow's words."""
    return pa.schema([(name, TYPES[kind]) for name, kind in table.columns.items()])


def write(table: t.Table, rows: pa.Table, path: Path) -> None:
    """A file that any reader of Parquet reads as it is meant."""
    pq.write_table(rows.select(list(table.columns)).cast(schema(table)), path, compression="zstd", store_schema=False)


def tables(closed: pa.Table, settings: PipelineSettings) -> list[tuple[t.Table, pa.Table]]:
    """Tables with rows, of the state's rows of closed windows."""
    counters = _family(closed, COUNTER)
    gauges = _family(closed, GAUGE)
    connections = _family(closed, CONNECTION)
    events = _family(closed, EVENT)
    traffic = _family(closed, TRAFFIC)
    by_client = _sums(traffic, "k1", a="messages", b="bytes")
    by_topic = _sums(traffic, "k2", a="messages", b="bytes")
    made = [
        (t.RATES, _named(counters, k1="name", k2="unit", a="delta", n="samples")),
        (t.DROPS, _drops(counters.filter(pc.equal(counters["k1"], DROPPED)))),
        (
            t.GAUGES,
            _named(gauges, k1="name", k2="unit", n="samples", low="min", high="max").append_column(
                "mean", pc.divide(gauges["total"], pc.cast(gauges["n"], pa.float64()))
            ),
        ),
        (t.HISTOGRAMS, _histograms(_family(closed, HISTOGRAM))),
        (t.EVENTS, _named(_events(events), k1="name", k2="reason", a="events")),
        (
            t.CONNECTIONS,
            _named(
                connections,
                k1="reason",
                n="connections",
                total="sum_s",
                high="max_s",
                **{q: f"{q}_s" for q in _QUANTILES},
            ),
        ),
        (t.RECONNECTS, _reconnects(events.filter(pc.equal(events["k1"], "connected")), settings)),
        (t.TOP_CLIENTS, _named(_top(by_client, "k1", settings.top), k1="client")),
        (t.TOP_TOPICS, _named(_top(by_topic, "k2", settings.top), k2="topic")),
        (
            t.REFUSALS,
            _named(
                _sums(events.filter(_refused(events)), "k1", "k4", "k2", a="refusals"),
                k1="name",
                k4="by",
                k2="reason",
            ),
        ),
        (t.USUAL, _named(traffic, k1="client", k2="topic", a="messages", b="bytes")),
    ]
    return [(table, _windowed(rows, settings.window_s)) for table, rows in made if rows.num_rows]


def late(records: Mapping[tuple[str, str, str], int], batch: int) -> pa.Table:
    """The table ``late``, of how many records there were by node, boot and kind."""
    rows = [(batch, *of, number) for of, number in records.items()]
    return _rows(list(t.LATE.columns), rows, t.LATE)


def _maps(texts: pa.ChunkedArray) -> pa.Array:
    """Labels of their texts, of which few are different."""
    encoded = whole(texts).dictionary_encode()
    said = [list(json.loads(text).items()) for text in encoded.dictionary.to_pylist()]
    return pa.array(said, TYPES["map<string,string>"]).take(encoded.indices)


def _family(rows: pa.Table, family: int) -> pa.Table:
    return rows.filter(pc.equal(rows["family"], family))


def _named(rows: pa.Table, **names: str) -> pa.Table:
    return rows.rename_columns([names.get(name, name) for name in rows.column_names])


def _windowed(rows: pa.Table, window_s: int) -> pa.Table:
    length = pa.array(np.full(rows.num_rows, window_s, np.int32))
    start = pc.cast(pc.cast(rows["start"], pa.timestamp("us")), TYPES["timestamp"])
    if "labels" in rows.column_names:
        rows = rows.set_column(rows.column_names.index("labels"), "labels", _maps(rows["labels"]))
    return rows.append_column("window_start", start).append_column("window_s", length)


def _sums(rows: pa.Table, *keys: str, **sums: str) -> pa.Table:
    """Sums by window, node and these keys, under other names."""
    grouped = rows.group_by([*_KEY, *keys]).aggregate([(column, "sum") for column in sums])
    return _named(grouped, **{f"{column}_sum": name for column, name in sums.items()})


def _events(events: pa.Table) -> pa.Table:
    # Clients are counted once, whatever else tells their rows apart.
    by_client = events.group_by([*_KEY, "k1", "k2", "k3"]).aggregate([("a", "sum")])
    grouped = by_client.group_by([*_KEY, "k1", "k2"]).aggregate([("a_sum", "sum"), ("k3", "count")])
    return _named(grouped, a_sum_sum="a", k3_count="clients")


def _refused(events: pa.Table) -> pa.ChunkedArray:
    # What was delayed went through.
    delayed = pc.and_(pc.equal(events["k1"], "limited"), pc.fill_null(pc.equal(events["k2"], "delay"), False))
    return pc.and_not(pc.is_in(events["k1"], pa.array(_REFUSALS)), delayed)


def _rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], like: t.Table) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    kinds = {"start": pa.int64(), "labels": pa.string()}
    arrays = [
        pa.array(of, kinds[name] if name in kinds else TYPES[like.columns[name]])
        for name, of in zip(columns, values, strict=True)
    ]
    return pa.table(arrays, names=list(columns))


def _drops(dropped: pa.Table) -> pa.Table:
    found: dict[tuple[int, str, str | None], int] = defaultdict(int)
    columns = (dropped[name].to_pylist() for name in ("start", "node", "labels", "a"))
    for start, node, labels, number in zip(*columns, strict=True):
        found[start, node, json.loads(labels or "{}").get("reason")] += number
    rows = [(*key, number) for key, number in found.items() if number]
    return _rows(("start", "node", "reason", "messages"), rows, t.DROPS)


# ---- histograms ---------------------------------------------------------------------------------------------------


_MOST: Final = 2**63 - 1
"""What a column holds: a line may say anything, and must not end the pipeline for good."""


def _histograms(buckets: pa.Table) -> pa.Table:
    bounds, codes = different(buckets["bounds"])
    wholes: dict[tuple[Any, ...], list[tuple[int, int, int, float]]] = defaultdict(list)
    # Lists and maps are told once for each that is different: they are what makes rows slow.
    keys = zip(
        *(buckets[name].to_pylist() for name in ("start", "node", "k1", "k2", "labels")), codes.tolist(), strict=True
    )
    told = zip(*(buckets[name].to_pylist() for name in ("bucket", "a", "n", "total")), strict=True)
    for key, row in zip(keys, told, strict=True):
        wholes[key].append(row)
    each = bounds.to_pylist()
    rows = []
    for (*names_of, code), of in wholes.items():
        of.sort()
        counts = [number for bucket, number, _, _ in of if bucket >= 0]
        samples, total = sum(row[2] for row in of), sum(row[3] for row in of)
        percentiles = (quantile(each[code], counts, share) for share in _QUANTILES.values())
        rows.append((*names_of, each[code], counts, samples, total, min(sum(counts), _MOST), *percentiles))
    names = (
        "start",
        "node",
        "name",
        "unit",
        "labels",
        "bounds",
        "counts",
        "samples",
        "sum",
        "observations",
        *_QUANTILES,
    )
    return _rows(names, rows, t.HISTOGRAMS)


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which that share of the observations lies, interpolated within its bucket.

    The first bucket begins at 0, or at its bound where that is negative. What lies above the last bound is said to
    lie on it. Nothing without observations, or bounds.
    """
    up_to = list(accumulate(counts))
    if counts and min(counts) < 0:
        return None  # A sum that was beyond 64 bits.
    if not up_to or up_to[-1] <= 0 or not bounds:
        return None
    place = share * up_to[-1]
    for number, (bound, end) in enumerate(zip(bounds, up_to, strict=False)):
        if end >= place:
            lower = bounds[number - 1] if number else min(0.0, bound)
            return lower + (bound - lower) * ((place - (end - counts[number])) / counts[number])
    return bounds[-1]


# ---- ranks --------------------------------------------------------------------------------------------------------


def _reconnects(connected: pa.Table, settings: PipelineSettings) -> pa.Table:
    by_client = _sums(connected, "k3", a="a")
    windows = by_client.group_by([*_KEY]).aggregate([("a", "sum"), ("k3", "count")])
    named = by_client.filter(pc.and_(pc.is_valid(by_client["k3"]), pc.not_equal(by_client["k3"], OTHERS)))
    # Of several with as many, the first by name.
    first = _ordered(named, ("a", "descending"), ("k3", "ascending"))
    first = first.filter(pa.array(_places(first) == 0))
    most = {(row["start"], row["node"]): (row["k3"], row["a"]) for row in first.to_pylist()}
    rows = []
    for row in windows.to_pylist():
        client, number = most.get((row["start"], row["node"]), (None, None))
        connects = row["a_sum"]
        storm = connects >= settings.storm_connects or (number or 0) >= settings.storm_client
        rows.append((row["start"], row["node"], connects, row["k3_count"], client, number, storm))
    return _rows(("start", "node", "connects", "clients", "client", "most", "storm"), rows, t.RECONNECTS)


def _top(sums: pa.Table, key: str, number: int) -> pa.Table:
    named = pc.fill_null(pc.not_equal(sums[key], OTHERS), False)
    ordered = _ordered(sums.filter(named), ("bytes", "descending"), ("messages", "descending"), (key, "ascending"))
    places = _places(ordered) + 1
    within = pa.array(places <= number)
    told = ordered.append_column("rank", pa.array(places.astype(np.int32))).filter(within)
    rest = pa.concat_tables([ordered.filter(pc.invert(within)), sums.filter(pc.invert(named))])
    rest = _named(
        rest.group_by([*_KEY]).aggregate([("messages", "sum"), ("bytes", "sum")]),
        messages_sum="messages",
        bytes_sum="bytes",
    )
    rest = rest.append_column(key, pa.array([OTHERS] * rest.num_rows, pa.string()))
    rest = rest.append_column("rank", pa.array(np.zeros(rest.num_rows, np.int32)))
    return pa.concat_tables([told, rest.select(told.column_names)])


def _ordered(rows: pa.Table, *by: tuple[str, str]) -> pa.Table:
    return rows.sort_by([*((name, "ascending") for name in _KEY), *by])


def _places(ordered: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each row its place among those of its window and node, from 0; rows are in order."""
    size = ordered.num_rows
    if not size:
        return np.zeros(0, np.int64)
    starts = ordered["start"].to_numpy()
    nodes = pc.cast(ordered["node"].combine_chunks().dictionary_encode().indices, pa.int64()).to_numpy()
    begins = np.concatenate([[True], (starts[1:] != starts[:-1]) | (nodes[1:] != nodes[:-1])])
    places = np.arange(size)
    return places - np.maximum.accumulate(np.where(begins, places, 0))


# ---- columns ------------------------------------------------------------------------------------------------------


def whole(column: pa.ChunkedArray) -> pa.Array:
    """As one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def different(lists: pa.ChunkedArray) -> tuple[pa.Array, Numbers]:
    """Of a column of lists of numbers those that differ, and which of them each row has; nothing is an empty one."""
    rows = pc.fill_null(whole(lists), pa.scalar([], lists.type))
    numbers = pc.cast(rows.values, pa.string())
    codes, first = codes_of(pc.binary_join(pa.ListArray.from_arrays(rows.offsets, numbers), " "))
    return rows.take(pa.array(first)), codes


def codes_of(values: pa.Array) -> tuple[Numbers, Numbers]:
    """A number for each different value, and of each of these a row that has it."""
    encoded = values.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    first = np.zeros(len(encoded.dictionary), np.int64)
    first[codes] = np.arange(len(codes))
    return codes, first
