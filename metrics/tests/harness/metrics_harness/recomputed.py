"""The tables once more, by plain Python from the records: what the pipeline must come to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.record import FIELDS, OTHERS, Record

Row = dict[str, Any]
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def windows(
    batches: Sequence[Sequence[Record]], window_s: int, watermark_s: float, final: bool
) -> tuple[list[Record], list[Record], list[Record]]:
    """The records of windows that are closed at the end, those that were late, and those of windows still open."""
    width = window_s * 1_000_000
    end: Callable[[Record], int] = lambda record: record["t"] // width * width + width  # noqa: E731
    bounds: dict[str, float] = {}
    counted: list[Record] = []
    late: list[Record] = []
    seen = set()
    for batch in batches:
        newest: dict[str, int] = {}
        for record in batch:
            known = record["node"], record["boot"], record["seq"]
            if known in seen:
                continue
            seen.add(known)
            newest[record["node"]] = max(record["t"], newest.get(record["node"], 0))
            (late if end(record) <= bounds.get(record["node"], 0) else counted).append(record)
        for node, latest in newest.items():
            bounds[node] = max(bounds.get(node, 0), latest - watermark_s * 1e6)
    if final:
        bounds = dict.fromkeys(bounds, inf)
    closed = [record for record in counted if end(record) <= bounds[record["node"]]]
    return closed, late, [record for record in counted if end(record) > bounds[record["node"]]]


def tables(
    closed: Iterable[Record], window_s: int, top: int = 20, storm_connects: int = 100, storm_client: int = 5
) -> dict[str, list[Row]]:
    """The tables of these records' windows."""
    groups: dict[tuple[datetime, str], list[Record]] = defaultdict(list)
    for record in closed:
        groups[_time(record["t"] // (window_s * 1_000_000) * window_s * 1_000_000), record["node"]].append(record)
    made: dict[str, list[Row]] = defaultdict(list)
    for (start, node), records in groups.items():
        head = {"window_start": start, "window_s": window_s, "node": node}
        for name, rows in _window(records, top, storm_connects, storm_client):
            made[name] += [head | row for row in rows]
    return made


def _window(
    records: list[Record], top: int, storm_connects: int, storm_client: int
) -> Iterable[tuple[str, list[Row]]]:
    def by(kind: str, *keys: str) -> Mapping[tuple[Any, ...], list[Record]]:
        found = defaultdict(list)
        for record in records:
            if record["kind"] == kind:
                found[tuple(_key(record.get(key)) for key in keys)].append(record)
        return found

    metric = ("name", "unit", "labels")
    yield (
        "rates",
        [
            dict(zip(metric, key, strict=True)) | {"delta": sum(r["delta"] for r in of), "samples": len(of)}
            for key, of in by("counter", *metric).items()
        ],
    )
    drops: dict[str | None, int] = defaultdict(int)
    for record in records:
        if record["kind"] == "counter" and record["name"] == "messages.dropped":
            drops[record["labels"].get("reason")] += record["delta"]
    yield "drops", [{"reason": reason, "messages": number} for reason, number in drops.items() if number]
    gauges = []
    for key, of in by("gauge", *metric).items():
        values = sorted(r["number"] for r in of)
        row = {"samples": len(values), "min": values[0], "max": values[-1], "mean": sum(values) / len(values)}
        gauges.append(dict(zip(metric, key, strict=True)) | row | _quantiles(values))
    yield "gauges", gauges
    yield "histograms", [_histogram(key, of) for key, of in by("histogram", *metric, "bounds").items()]

    events = by("event", "name", "reason")
    yield (
        "events",
        [
            {
                "name": name,
                "reason": reason,
                "events": sum(r.get("delta", 1) for r in of),
                "clients": len({r["client"] for r in of if "client" in r}),
            }
            for (name, reason), of in events.items()
        ],
    )
    ended = []
    for (name, reason), of in events.items():
        if name == "disconnected":
            values = sorted(r["number"] for r in of)
            row = {"reason": reason, "connections": len(values), "sum_s": sum(values), "max_s": values[-1]}
            ended.append(row | {f"{name}_s": value for name, value in _quantiles(values).items()})
    yield "connections", ended
    refused: dict[tuple[Any, ...], int] = defaultdict(int)
    for (name, reason), of in events.items():
        if name in ("limited", "authentication_refused", "authorization_refused"):
            for r in of:
                if r.get("labels", {}).get("verdict") == "delay":
                    continue
                refused[name, r.get("labels", {}).get("by"), reason] += r.get("delta", 1)
    yield "refusals", [{"name": n, "by": b, "reason": w, "refusals": k} for (n, b, w), k in refused.items()]
    connects: dict[str, int] = defaultdict(int)
    for r in records:
        if r["kind"] == "event" and r["name"] == "connected":
            connects[r["client"]] += 1
    if connects:
        most = max(connects.values())
        row = {"connects": sum(connects.values()), "clients": len(connects), "most": most}
        row["client"] = min(client for client, number in connects.items() if number == most)
        yield "reconnects", [row | {"storm": row["connects"] >= storm_connects or most >= storm_client}]

    yield (
        "usual",
        [
            {"client": c, "topic": p, "messages": sum(r["delta"] for r in of), "bytes": sum(r["bytes"] for r in of)}
            for (c, p), of in by("traffic", "client", "topic").items()
        ],
    )
    for table, name in (("top_clients", "client"), ("top_topics", "topic")):
        sums = [
            (key, sum(r["delta"] for r in of), sum(r["bytes"] for r in of))
            for (key,), of in by("traffic", name).items()
        ]
        named = sorted((each for each in sums if each[0] != OTHERS), key=lambda each: (-each[2], -each[1], each[0]))
        rows = [{"rank": k, name: e[0], "messages": e[1], "bytes": e[2]} for k, e in enumerate(named[:top], 1)]
        others = named[top:] + [each for each in sums if each[0] == OTHERS]
        if others:
            sum_of = {"messages": sum(e[1] for e in others), "bytes": sum(e[2] for e in others)}
            rows.append({"rank": 0, name: OTHERS} | sum_of)
        yield table, rows


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list | tuple) else value


def _quantiles(values: list[float]) -> Row:
    return {name: values[ceil(q * len(values)) - 1] for name, q in QUANTILES.items()}


def _histogram(key: tuple[Any, ...], records: list[Record]) -> Row:
    name, unit, labels, bounds = key
    counts = [sum(column) for column in zip(*(r["counts"] for r in records), strict=True)]
    total = sum(counts)
    row: Row = {"name": name, "unit": unit, "labels": labels, "bounds": bounds, "counts": tuple(counts)}
    row |= {"samples": len(records), "sum": sum(r["sum"] for r in records), "observations": total}
    for label, q in QUANTILES.items():
        row[label] = None if not total else _interpolated(bounds, counts, q * total)
    return row


def _interpolated(bounds: Sequence[float], counts: list[int], place: float) -> float:
    up_to = 0
    lower = min(0.0, bounds[0])
    for bound, number in zip(bounds, counts, strict=False):
        if up_to + number >= place:
            return lower + (bound - lower) * ((place - up_to) / number)
        up_to += number
        lower = bound
    return bounds[-1]


def raw(records: Iterable[Record]) -> list[Row]:
    """The table ``raw``."""
    return [{name: _key(r.get(name)) for name in FIELDS} | {"at": _time(r["t"])} for r in records]


def _time(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


# ---- what is there ------------------------------------------------------------------------------------------------


def read(tables: Path, table: t.Table) -> list[Row]:
    """A table as a reader without Spark sees it."""
    files = table.files(tables)
    return pa.concat_tables([pq.ParquetFile(path).read() for path in files]).to_pylist() if files else []


def comparable(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows in an order, without their sketches; percentiles as far as arithmetic in another order agrees."""
    return sorted(
        (
            tuple((key, _plain(key, value)) for key, value in sorted(row.items()) if key not in ("sketch", "batch"))
            for row in rows
        ),
        key=repr,
    )


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items())) or None
    if isinstance(value, list | tuple):
        # Labels come as pairs.
        return tuple(sorted(map(tuple, value))) or None if key == "labels" else tuple(value)
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
