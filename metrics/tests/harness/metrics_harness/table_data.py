"""Tables as the pipeline would leave them, made up from a seed: hours of brokers, and what goes wrong at times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen
from datasketches import kll_doubles_sketch

from kinmqtt_metrics import tables as t

START: Final = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)

_TYPES: Final = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<double>": pa.list_(pa.float64()),
    "array<bigint>": pa.list_(pa.int64()),
}

Row = Mapping[str, Any]


def schema(table: t.Table) -> pa.Schema:
    """A table's columns in Arrow's words."""
    return pa.schema([(name, _TYPES[spark]) for name, spark in table.columns.items()])


def write(tables: Path, table: t.Table, rows: Sequence[Row], batch: int = 0) -> Path:
    """A file of a table; columns that a row does not name are null."""
    path = table.folder(tables) / f"batch-{batch:010d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    full = [{name: row.get(name) for name in table.columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=schema(table)), path)
    return path


def usual_rows(
    rates: Mapping[str, Sequence[float]], *, window_s: int = 10, node: str = "n1", topic: str = "t/{client}"
) -> list[Row]:
    """Rows of ``usual``: by client its messages a second in each window; 0 for a window in which it was silent."""
    return [
        {
            "window_start": START + timedelta(seconds=number * window_s),
            "window_s": window_s,
            "node": node,
            "client": client,
            "topic": topic.format(client=client),
            "messages": round(rate * window_s),
            "bytes": round(rate * window_s) * 100,
        }
        for client, of in rates.items()
        for number, rate in enumerate(of)
        if rate
    ]


def sketched(values: Iterable[float]) -> bytes:
    """A KLL sketch of these values, as Spark's are."""
    sketch = kll_doubles_sketch(200)
    for value in values:
        sketch.update(float(value))
    return bytes(sketch.serialize())


@frozen(slots=True)
class World:
    """What is made up."""

    seed: int = 1
    nodes: tuple[str, ...] = ("broker-1", "broker-2", "broker-3")
    windows: int = 360
    window_s: int = 60
    clients: int = 40
    batches: int = 6

    def write(self, tables: Path) -> None:
        """All tables."""
        chance = random.Random(self.seed)
        rows: dict[str, list[Row]] = {table.name: [] for table in t.TABLES}
        for number in range(self.windows):
            for index, node in enumerate(self.nodes):
                if index == 1 and 0.62 < number / self.windows < 0.65:
                    continue  # it was down
                for name, row in self._window(chance, number, index, node):
                    rows[name].append(row)
        rows["late"].append(
            {"batch": 3, "node": self.nodes[-1], "boot": "00000000c0ffee03", "kind": "counter", "records": 412}
        )
        rows["rejected"].append(
            {
                "batch": 4,
                "file": "landing/date=2026-11-20/broker-1-00000000c0ffee01-00000007.jsonl",
                "line": 118,
                "why": "not JSON: Expecting ',' delimiter",
                "text": '{"v":1,"t":17635…\x00<script>alert(1)</script>',
            }
        )
        for table in t.TABLES:
            if table is t.RAW:
                continue
            step = max(1, math.ceil(len(rows[table.name]) / self.batches))
            for batch, begin in enumerate(range(0, len(rows[table.name]), step)):
                write(tables, table, rows[table.name][begin : begin + step], batch)

    def _window(self, chance: random.Random, number: int, index: int, node: str) -> Iterator[tuple[str, Row]]:
        at = number / self.windows
        window = {
            "window_start": START + timedelta(seconds=number * self.window_s),
            "window_s": self.window_s,
            "node": node,
        }
        wave = 1 + 0.45 * math.sin(2 * math.pi * (at * 1.4 - 0.2 + index * 0.04)) + chance.gauss(0, 0.035)
        wave += 1.3 * math.exp(-(((at - 0.78) / 0.012) ** 2))
        down = index != 1 and 0.62 < at < 0.65
        storm = index == 1 and 0.65 <= at < 0.658
        load = max(0.05, wave * (1.4 if down else 1.0)) * (1.0, 0.72, 0.45)[index % 3]
        messages = int(2300 * load * self.window_s)
        sent = int(messages * (2.6 + 0.1 * index))
        counters = {
            ("messages.received", "messages"): messages,
            ("messages.sent", "messages"): sent,
            ("bytes.received", "bytes"): messages * 148,
            ("bytes.sent", "bytes"): sent * 151,
            ("packets.received", "packets"): int(messages * 1.12),
            ("packets.sent", "packets"): int(sent * 1.1),
            ("connections.accepted", "connections"): chance.randint(3, 9) + (900 if storm else 0),
        }
        for (name, unit), delta in counters.items():
            yield "rates", {**window, "name": name, "unit": unit, "labels": {}, "delta": delta, "samples": 6}
        shadow = int(max(0.0, load - 1.6) * 900)
        for rule, count in (("learned client line-7/plc", shadow), ("learned other clients", shadow // 9)):
            labels = {"plugin": "sentinel_limiter", "rule": rule}
            yield (
                "rates",
                {
                    **window,
                    "name": "limiter.shadow_blocked",
                    "unit": "requests",
                    "labels": labels,
                    "delta": count,
                    "samples": 6,
                },
            )
        queued = max(0.0, (load - 1.5) * 2600) + abs(chance.gauss(35, 12))
        connected = 5200 * (1.45 if down else 1.0) * (1.0, 0.72, 0.45)[index % 3] + chance.gauss(0, 12)
        gauges = {
            ("queued.count", "messages"): queued,
            ("inflight.count", "messages"): queued * 0.2 + 60,
            ("clients.connected", "clients"): connected,
            ("clients.total", "clients"): connected * 1.12,
            ("sessions.stored", "sessions"): connected * 0.9,
            ("subscriptions.count", "subscriptions"): connected * 3.1,
            ("retained.count", "messages"): 12000 + 8 * number,
        }
        for (name, unit), value in gauges.items():
            yield (
                "gauges",
                {
                    **window,
                    "name": name,
                    "unit": unit,
                    "labels": {},
                    "samples": 6,
                    "min": round(value * 0.9),
                    "max": round(value * 1.25),
                    "mean": value,
                    "p50": value,
                    "p95": value * 1.15,
                    "p99": value * 1.22,
                    "sketch": sketched([value * 0.9, *[value] * 4, value * 1.25]),
                },
            )
        bounds = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0]
        median = 0.0011 * (1 + max(0.0, load - 1.2) * 4) * math.exp(chance.gauss(0, 0.06))
        counts, before = [], 0
        for bound in [*bounds, math.inf]:
            share = (
                1.0 if bound == math.inf else 0.5 * (1 + math.erf(math.log(bound / median) / (0.75 * math.sqrt(2))))
            )
            upto = int(share * 60 * self.window_s)
            counts.append(upto - before)
            before = upto
        yield (
            "histograms",
            {
                **window,
                "name": "stores.commit",
                "unit": "seconds",
                "labels": {},
                "samples": 6,
                "bounds": bounds,
                "counts": counts,
                "sum": sum(counts) * median * 1.3,
                "observations": sum(counts),
                "p50": median,
                "p95": median * 3,
                "p99": median * 6,
            },
        )
        connects = counters[("connections.accepted", "connections")]
        for name, reason, events in (
            ("connected", None, connects),
            ("disconnected", "normal_disconnection", connects // 2),
            ("disconnected", "keep_alive_timeout", connects // 4),
            ("subscribed", None, connects * 3),
        ):
            yield (
                "events",
                {**window, "name": name, "reason": reason, "events": events, "clients": max(1, events // 2)},
            )
        for reason, length_s in (("normal_disconnection", 5400.0), ("keep_alive_timeout", 900.0)):
            length_s *= math.exp(chance.gauss(0, 0.3)) * (0.01 if storm else 1.0)
            ended = max(1, connects // 3)
            yield (
                "connections",
                {
                    **window,
                    "reason": reason,
                    "connections": ended,
                    "sum_s": ended * length_s * 1.2,
                    "max_s": length_s * 9,
                    "p50_s": length_s,
                    "p95_s": length_s * 4,
                    "p99_s": length_s * 7,
                    # Spread as lengths are: most short, some very long.
                    "sketch": sketched(length_s * 9 ** (2 * (n + 0.5) / ended - 1) for n in range(ended)),
                },
            )
        yield (
            "reconnects",
            {
                **window,
                "connects": connects,
                "clients": max(1, connects - 2 - (450 if storm else 0)),
                "client": "scanner-0042",
                "most": 31 if storm else 2,
                "storm": storm,
            },
        )
        yield from self._traffic(chance, window, messages)
        full = int(max(0.0, load - 1.75) * 5000)
        for reason, count in (
            ("queue_full", full),
            ("offline", chance.randint(0, 40) if chance.random() < 0.3 else 0),
            ("outbound_buffer_full", full // 6),
            ("expired", chance.randint(0, 9)),
        ):
            if count:
                yield "drops", {**window, "reason": reason, "messages": count}
        for name, by, reason, count in (
            ("authentication_refused", "auth_file", "bad_user_name_or_password", chance.randint(0, 3)),
            ("authorization_refused", "acl", "not_authorized", chance.randint(0, 12)),
            ("limited", "publish-per-client", "quota_exceeded", int(max(0.0, load - 1.4) * 700)),
        ):
            if count:
                yield "refusals", {**window, "name": name, "by": by, "reason": reason, "refusals": count}

    def _traffic(self, chance: random.Random, window: Row, messages: int) -> Iterator[tuple[str, Row]]:
        names = [f"line-{number}/plc" for number in range(1, self.clients - 3)]
        names += ["meter-π-0815", "bridge\x07\x1b[31mred", "x" * 300, "<b>bold</b>&co"]
        weights = [1 / (1 + number) ** 1.2 for number in range(len(names))]
        whole = sum(weights)
        told = 0
        rows = []
        for name, weight in zip(names, weights, strict=True):
            if chance.random() < 0.15:
                continue
            count = int(messages * weight / whole * 0.9 * math.exp(chance.gauss(0, 0.1)))
            told += count
            rows.append((name, count))
        yield from (
            (
                "usual",
                {**window, "client": name, "topic": f"plant/{name}/state", "messages": n, "bytes": n * 148},
            )
            for name, n in rows
            if n
        )
        rows.sort(key=lambda row: -row[1])
        rest = sum(n for _, n in rows[10:]) + max(0, messages - told)
        for rank, (name, n) in enumerate(rows[:10], 1):
            common = {**window, "rank": rank, "messages": n, "bytes": n * 148}
            yield "top_clients", {**common, "client": name}
            yield "top_topics", {**common, "topic": f"plant/{name}/state"}
        for table, column in (("top_clients", "client"), ("top_topics", "topic")):
            yield table, {**window, "rank": 0, column: "(others)", "messages": rest, "bytes": rest * 148}


def main(arguments: Iterable[str]) -> None:
    """Write a world into a folder, to look at."""
    (folder,) = arguments
    World().write(Path(folder))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
