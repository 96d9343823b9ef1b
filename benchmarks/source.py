#!/usr/bin/env python3
"""Measures format("kinmqtt") beside Spark's own JSON source, over the same rows, and prints a table in Markdown.

    python benchmarks/source.py                    a million rows, seven rounds, about two minutes on an idle machine
    python benchmarks/source.py --rows 4000000 --rounds 7       what starting a query costs weighs less

It needs `pip install ./metrics[pipeline]` and Java 17. Each round reads everything once with either source, one after
the other, in one session with Spark's own settings, in a batch and as a stream with Trigger.AvailableNow; the first
rounds, in which Java still compiles, warm up and do not count. Rows a second are medians; a ratio is the median of
the rounds' ratios, whose two runs had about the same of a shared machine. Every row is brought to the sink `noop`,
which takes all columns and does nothing. Spark's source is given the explicit schema, `pathGlobFilter`, and as large
a file limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kinmqtt_metrics.landing import SegmentName, published_path
from kinmqtt_metrics.record import FIELDS

BOOT = "00000000c0ffee01"
DDL = ", ".join(f"`{name}` {kind}" for name, kind in FIELDS.items())


def record(seq: int, node: str, chance: random.Random) -> dict[str, object]:
    """One of what a broker says, in about the shares of a busy one."""
    said: dict[str, object] = {
        "v": 1,
        "t": 1_760_000_000_000_000 + seq * 1000,
        "node": node,
        "boot": BOOT,
        "seq": seq,
    }
    client = f"client-{chance.randrange(2000)}"
    kind = chance.random()
    if kind < 0.3:
        qos = str(chance.randrange(3))
        value = chance.randrange(10**9)
        said |= {"kind": "counter", "name": "messages.received", "unit": "messages", "labels": {"qos": qos}}
        return said | {"value": value, "delta": chance.randrange(10**5)}
    if kind < 0.4:
        return said | {
            "kind": "gauge",
            "name": "connections",
            "unit": "connections",
            "number": chance.random() * 1000,
        }
    if kind < 0.45:
        bounds = [0.001, 0.01, 0.1, 1.0, 10.0]
        counts = [chance.randrange(1000) for _ in range(6)]
        said |= {"kind": "histogram", "name": "turn", "unit": "seconds", "bounds": bounds, "counts": counts}
        return said | {"sum": chance.random()}
    if kind < 0.75:
        said |= {"kind": "traffic", "client": client, "topic": f"sensors/{client}/temperature"}
        return said | {"delta": chance.randrange(100), "bytes": chance.randrange(10**5)}
    labels = {"protocol": "5.0", "keep_alive": chance.choice(["30", "60", "300"]), "peer": f"10.0.{seq % 256}.1"}
    if kind < 0.9:
        return said | {"kind": "event", "name": "connected", "client": client, "labels": labels}
    why = chance.choice(["normal", "keep_alive_timeout", "session_taken_over"])
    return said | {
        "kind": "event",
        "name": "disconnected",
        "client": client,
        "reason": why,
        "number": chance.random(),
    }


def write(landing: Path, rows: int, rows_per_file: int) -> int:
    """Segments of three nodes; their bytes."""
    chance = random.Random(20261121)
    size = 0
    written = number = 0
    while written < rows:
        number += 1
        for node in ("broker-1", "broker-2", "broker-3"):
            count = min(rows_per_file, rows - written)
            if not count:
                break
            first = (number - 1) * rows_per_file + 1
            lines = [
                json.dumps(record(seq, node, chance), separators=(",", ":")) for seq in range(first, first + count)
            ]
            path = published_path(landing, SegmentName(node, BOOT, number), "2026-11-21")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
            size += path.stat().st_size
            written += count
    return size


def main() -> None:
    """Write the rows, read them, print."""
    parser = argparse.ArgumentParser(description="format('kinmqtt') beside Spark's JSON source")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-file", type=int, default=20_000, help="about 4 MB, as a busy broker rolls them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before those that count")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import DataFrame, SparkSession

    with tempfile.TemporaryDirectory() as folder:
        landing = Path(folder) / "landing"
        size = write(landing, arguments.rows, arguments.rows_per_file)
        spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        runs = 0

        def batch(read: Callable[[], DataFrame]) -> float:
            begin = time.perf_counter()
            read().write.format("noop").mode("overwrite").save()
            return time.perf_counter() - begin

        def stream(read: Callable[[], DataFrame]) -> float:
            nonlocal runs
            runs += 1
            begin = time.perf_counter()
            query = (
                read()
                .writeStream.format("noop")
                .option("checkpointLocation", f"{folder}/checkpoint-{runs}")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            seconds = time.perf_counter() - begin
            read_rows = sum(progress.numInputRows for progress in query.recentProgress)
            assert read_rows == arguments.rows, f"{read_rows} rows of {arguments.rows} were read"
            return seconds

        spark_json = {"pathGlobFilter": "*.jsonl", "recursiveFileLookup": "true"}
        ways: dict[str, Callable[[], float]] = {
            "batch, kinmqtt": lambda: batch(lambda: spark.read.format("kinmqtt").load(str(landing))),
            "batch, json": lambda: batch(lambda: spark.read.schema(DDL).options(**spark_json).json(str(landing))),
            "stream, kinmqtt": lambda: stream(lambda: spark.readStream.format("kinmqtt").load(str(landing))),
            "stream, json": lambda: stream(
                lambda: spark.readStream.schema(DDL).options(**spark_json).json(str(landing))
            ),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for round_ in range(-arguments.warm_up, arguments.rounds):
            for way, run in ways.items():
                took = run()
                print(f"round {round_}: {way}: {took:.2f} s", file=sys.stderr)
                if round_ >= 0:
                    seconds[way].append(took)
        spark.stop()
    medians = {way: statistics.median(took) for way, took in seconds.items()}
    print(f"{arguments.rows:,} rows, {size / 1e6:.0f} MB, segments of {arguments.rows_per_file:,} rows,", end=" ")
    print(f"{os.cpu_count()} processors, {arguments.rounds} rounds\n")
    print("| | kinmqtt, rows/s | json, rows/s | ratio |\n|---|---|---|---|")
    for how in ("batch", "stream"):
        ours, theirs = medians[f"{how}, kinmqtt"], medians[f"{how}, json"]
        pairs = zip(seconds[f"{how}, kinmqtt"], seconds[f"{how}, json"], strict=True)
        ratio = statistics.median(their_s / our_s for our_s, their_s in pairs)
        print(f"| {how} | {arguments.rows / ours:,.0f} | {arguments.rows / theirs:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
