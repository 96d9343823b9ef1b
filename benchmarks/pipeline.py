"""How fast the pipeline is: samples a second over a backlog, and how soon an event is in a table.

.. code-block:: text

    python benchmarks/pipeline.py backlog [--records 3000000] [--work FOLDER] [--conf KEY=VALUE]
    python benchmarks/pipeline.py latency [--seconds 120]

``backlog``: five brokers of 60 series each (40 counters, 14 gauges, 2 histograms of 12 buckets, 4 pairs of client and
topic), a sample of each every second, in segments of 8 MB, in windows of 10 s. The whole pipeline in a process of its
own: source, checks, windows, all tables. Told are the time of the batches, which is what a running pipeline needs,
that of the process with its start, and the computing time of all its processes: a busy machine changes it less.
Smaller batches (``--segments``) tell apart the first one, in which Java compiles, from those that follow.

``latency``: a broker's records each 0.1 s, published each second; windows of 5 s, no watermark (a node's records are
in order), a batch each 2 s. Measured of each record is the time from its event time, when it was made, to the moment
at which its window's row can be read in ``rates``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.landing import SegmentName, open_path, published_path

NODES = [f"broker-{number}" for number in range(5)]
START_US = 1_790_000_000_000_000
DATE = "2026-09-21"
SEGMENT_BYTES = 8 << 20


def series() -> list[str]:
    """What follows time, node, boot and seq in a line, with a place for a number."""
    lines = []
    for number in range(40):
        labels = f',"labels":{{"plugin":"plugin-{number % 4}","hook":"hook-{number}"}}' if number >= 16 else ""
        lines.append(
            f'"kind":"counter","name":"packets.of_kind_{number}","unit":"packets"{labels},"value":9%d,"delta":%d}}'
        )
    for number in range(14):
        lines.append(f'"kind":"gauge","name":"clients.state_{number}","unit":"clients","number":%d.%d}}')
    bounds = [2.0**power for power in range(11)]
    counts = ",".join(["%d", "1"] + ["0"] * 10)
    for number in range(2):
        lines.append(
            f'"kind":"histogram","name":"turn.part_{number}","unit":"seconds","bounds":{json.dumps(bounds)},'
            f'"counts":[{counts}],"sum":%d.5}}'
        )
    for number in range(4):
        lines.append(
            f'"kind":"traffic","delta":1%d,"client":"client-{number}","topic":"site/{number}/state","bytes":2%d}}'
        )
    return lines


def write_backlog(landing: Path, records: int) -> int:
    """Segments of all nodes, in turn. How many records there are."""
    said = series()
    seqs = dict.fromkeys(NODES, 0)
    numbers = dict.fromkeys(NODES, 0)
    waiting: dict[str, list[str]] = {node: [] for node in NODES}
    written = second = 0
    (landing / f"date={DATE}").mkdir(parents=True)
    while written < records:
        for at, node in enumerate(NODES):
            seq = seqs[node]
            head = f'{{"v":1,"t":{START_US + second * 1_000_000},"node":"{node}","boot":"{at:016x}","seq":'
            value = (second * 7919 + at) % 1000
            lines = waiting[node]
            for number, rest in enumerate(said, 1):
                lines.append(f"{head}{seq + number},{rest % ((value, value) if rest.count('%d') == 2 else value)}")
            seqs[node] = seq + len(said)
            written += len(said)
            if len(lines) * 190 > SEGMENT_BYTES:
                numbers[node] += 1
                publish(landing, SegmentName(node, f"{at:016x}", numbers[node]), lines)
                waiting[node] = []
        second += 1
    for at, node in enumerate(NODES):
        if waiting[node]:
            publish(landing, SegmentName(node, f"{at:016x}", numbers[node] + 1), waiting[node])
    return written


def publish(landing: Path, name: SegmentName, lines: list[str]) -> None:
    """A segment, as the sink does it."""
    making = open_path(landing, name)
    making.write_text("\n".join(lines) + "\n", "utf-8")
    making.rename(published_path(landing, name, DATE))


def command(work: Path, *more: str) -> list[str]:
    """The pipeline's."""
    program = [sys.executable, "-m", "kinmqtt_metrics.command", "pipeline", "run"]
    return [*program, "--landing", str(work / "landing"), "--tables", str(work / "tables"), *more]


def backlog(arguments: argparse.Namespace, work: Path) -> None:
    """Figures of a backlog."""
    landing = work / "landing"
    if not landing.exists():
        written = write_backlog(landing, arguments.records)
    else:
        written = sum(path.read_bytes().count(b"\n") for path in landing.rglob("*.jsonl"))
    size = sum(path.stat().st_size for path in landing.rglob("*.jsonl"))
    print(f"{written:,} records of {size / written:.0f} bytes in {sum(1 for _ in landing.rglob('*.jsonl'))} segments")
    shutil.rmtree(work / "tables", ignore_errors=True)
    began = time.monotonic()
    conf = [word for each in arguments.conf for word in ("--conf", each)]
    program = command(work, "--final", "--segments", str(arguments.segments), *conf)
    used: dict[int, float] = {}
    told: list[str] = []
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        ended = threading.Event()
        watching = threading.Thread(target=watch, args=(process.pid, used, ended))
        watching.start()
        before = 0.0
        for line in process.stderr:
            if re.search(r", [0-9.]+ s$", line):
                told.append(line)
                now = sum(used.values())
                print(f"{line.rstrip()}, computing time {now - before:.1f} s")
                before = now
        ended.set()
        watching.join()
    if process.returncode:
        sys.exit(f"it ended with {process.returncode}")
    took = time.monotonic() - began
    in_batches = sum(float(line.rsplit(", ", 1)[1].split()[0]) for line in told)
    computing = sum(used.values())
    print(f"in batches {in_batches:.1f} s: {written / in_batches:,.0f} records/s")
    print(f"whole process {took:.1f} s: {written / took:,.0f} records/s")
    print(f"computing time {computing:.1f} s: {2 * written / computing:,.0f} records/s on two cores of one's own")
    for table in t.TABLES:
        rows = sum(pq.read_metadata(path).num_rows for path in table.files(work / "tables"))
        print(f"  {table.name}: {rows:,} rows")


def watch(session: int, used: dict[int, float], ended: threading.Event) -> None:
    """The computing time of each process of a session, in seconds, as long as it is there to be asked."""
    ticks = os.sysconf("SC_CLK_TCK")
    while not ended.wait(0.2):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    status = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(status[3]) == session:
                    used[int(entry.name)] = (int(status[11]) + int(status[12])) / ticks


def latency(arguments: argparse.Namespace, work: Path) -> None:
    """Figures of a running pipeline."""
    landing = work / "landing"
    landing.mkdir()
    more = ("--trigger-s", "2", "--window-s", "5", "--watermark-s", "0")
    running = subprocess.Popen(command(work, *more), stderr=subprocess.DEVNULL)
    ended = threading.Event()
    told = threading.Thread(target=talk, args=(landing, ended))
    told.start()
    seen: dict[int, float] = {}
    until = time.monotonic() + arguments.seconds
    known: set[Path] = set()
    # What waited while Spark started is no figure of a running pipeline.
    counted_from = None
    try:
        while time.monotonic() < until:
            time.sleep(0.05)
            for path in set(t.RATES.files(work / "tables")) - known:
                known.add(path)
                now = time.time()
                if counted_from is None:
                    counted_from = now
                    until = time.monotonic() + arguments.seconds
                    continue
                for start in set(pq.read_table(path)["window_start"].cast("int64").to_pylist()):
                    seen[start] = now
    finally:
        ended.set()
        told.join()
        running.terminate()
        running.wait()
    assert counted_from is not None, "no table was written"
    records = [
        now - (start / 1e6 + place / 50)
        for start, now in seen.items()
        if start / 1e6 > counted_from
        for place in range(250)
    ]
    records.sort()
    share = {
        name: records[int(part * (len(records) - 1))] for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    print(f"{len(seen)} windows; from a record to its row: {', '.join(f'{k} {v:.1f} s' for k, v in share.items())}")


def talk(landing: Path, ended: threading.Event) -> None:
    """Be a broker: a sample each 0.1 s, a segment each second."""
    lines: list[str] = []
    number = seq = 0
    published = time.monotonic()
    while not ended.wait(0.1):
        seq += 1
        lines.append(
            f'{{"v":1,"t":{time.time_ns() // 1000},"node":"a","boot":"{1:016x}","seq":{seq},"kind":"counter",'
            f'"name":"bytes.received","unit":"bytes","value":{seq},"delta":1}}'
        )
        if time.monotonic() - published >= 1:
            number += 1
            (landing / f"date={DATE}").mkdir(exist_ok=True)
            publish(landing, SegmentName("a", f"{1:016x}", number), lines)
            lines = []
            published = time.monotonic()


def folders(given: Path | None) -> Iterator[Path]:
    """Where to work."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("backlog", "latency"))
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--conf", action="append", default=[])
    arguments = parser.parse_args()
    os.environ["PYTHONUNBUFFERED"] = "1"
    for work in folders(arguments.work):
        {"backlog": backlog, "latency": latency}[arguments.what](arguments, work)


if __name__ == "__main__":
    main()
