#!/usr/bin/env python3
"""Measures kinmqtt beside the brokers that are installed on this machine, and prints tables in Markdown.

    python benchmarks/run.py                         everything, about a quarter of an hour
    python benchmarks/run.py table                   one part, or several
    python benchmarks/run.py table --only one_q0,pairs_q1 --rounds 5

Every part visits each broker once a round, so that a machine that drifts drifts for all; a figure is the median of
the rounds, and a ratio compares kinmqtt with the broker of that column. A broker that lost or reordered a message is
marked with "!". What is not installed is left out. Only loopback is used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from brokers import Broker, Failed, Kind, found, has_redis, running, start
from load import Load

SCENARIOS = {
    "one_q0": "-P 1 -S 1 -q 0 -w 1000",
    "one_q1": "-P 1 -S 1 -q 1 -w 1000",
    "one_q2": "-P 1 -S 1 -q 2 -w 1000",
    "pairs_q0": "-P 10 -S 10 -T 10 -q 0 -w 200",
    "pairs_q1": "-P 10 -S 10 -T 10 -q 1 -w 100",
    "pairs_q2": "-P 10 -S 10 -T 10 -q 2 -w 100",
    "pairs_q1_v5": "-P 10 -S 10 -T 10 -q 1 -w 100 -v 5",
    "pairs_q0_4k": "-P 10 -S 10 -T 10 -q 0 -w 100 -s 4096",
    "lockstep_q1": "-P 100 -S 100 -T 100 -q 1 -w 1",
    "fanout_q0": "-P 1 -S 200 -T 1 -q 0 -w 50",
    "fanout_q1": "-P 1 -S 200 -T 1 -q 1 -w 50",
    "fanin_q0": "-P 100 -S 1 -T 100 -n -q 0 -w 50",
    "many_filters": "-P 10 -S 100 -T 10 -k 100 -q 0 -w 20",
    "shared_q1": "-P 10 -S 10 -T 1 -g -q 1 -w 50",
    "latency_p99": "-P 10 -S 10 -T 10 -q 1 -r 2000",
}
"""What mqload is asked for: P publishers, S subscribers, T topics, q QoS, w messages under way for each publisher."""

KEPT = "-P 10 -S 10 -T 10 -q 1 -w 100 -c"
SLOW = {"amqtt"}
"""Brokers for which all scenarios would take too long: they run one."""

PLUGIN = """
from kinmqtt_spi import hookimpl

class Watches:
    @hookimpl
    def publish_received(self, message):
        return None

{names}
"""


class Bench:
    """What every part works with."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.kinds = found()
        self.load = Load()
        self.rounds: int = options.rounds
        self.seconds: float = options.seconds
        self.only: list[str] = options.only.split(",") if options.only else []
        self.connections: int = options.connections
        self.figures: dict[str, Any] = {}

    @property
    def ours(self) -> Kind:
        """kinmqtt."""
        return self.kinds[0]

    @property
    def peers(self) -> list[Kind]:
        """The brokers that are fast enough to be measured in every round."""
        return [kind for kind in self.kinds if kind.name not in SLOW]

    def compare(
        self,
        part: str,
        brokers: Sequence[Broker],
        scenarios: dict[str, str],
        figure: str = "recv_per_s",
        door: str = "tcp",
    ) -> list[tuple[str, list[float | None], list[bool]]]:
        """The medians of a figure by scenario, in the order of the brokers, and whether one was flawed."""
        lines = []
        for name, arguments in scenarios.items():
            rows: dict[str, list[dict[str, Any]]] = {broker.name: [] for broker in brokers}
            key = "p99_us" if name.startswith("latency") else figure
            for _ in range(self.rounds):
                for broker in brokers:
                    try:
                        rows[broker.name].append(self.load.run(broker, arguments, self.seconds, door))
                    except Failed as error:
                        tell(str(error))
                        rows[broker.name].append({"lost": 1})
            self.figures.setdefault(part, {})[name] = rows
            medians, flaws = [], []
            for broker in brokers:
                values = [row[key] for row in rows[broker.name] if key in row]
                medians.append(statistics.median(values) if values else None)
                flaws.append(any(row.get("lost") or row.get("reordered") for row in rows[broker.name]))
            lines.append((name, medians, flaws))
            tell(f"{part}: {name}")
        return lines


def tell(text: str) -> None:
    """Show progress, beside the tables."""
    print(text, file=sys.stderr, flush=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def compared(names: Sequence[str], lines: Sequence[tuple[str, list[float | None], list[bool]]]) -> None:
    """Print figures, and ratios to those of the first."""
    heads = ["scenario", *names, *(f"{names[0]} ÷ {name}" for name in names[1:])]
    rows = []
    for scenario, medians, flaws in lines:
        cells = [
            ("failed" if value is None else f"{value:,.0f}") + (" !" if flaw else "")
            for value, flaw in zip(medians, flaws, strict=True)
        ]
        ours = medians[0]
        ratios = [
            f"{ours / value:.2f}" if ours and value and not flaw else "–"
            for value, flaw in zip(medians[1:], flaws[1:], strict=True)
        ]
        rows.append([scenario, *cells, *ratios])
    table(heads, rows)


# The parts


def part_table(bench: Bench) -> None:
    """Messages received per second over TCP; nothing is kept over a restart."""
    wanted = {name: arguments for name, arguments in SCENARIOS.items() if not bench.only or name in bench.only}
    with running(bench.peers) as brokers:
        compared([broker.name for broker in brokers], bench.compare("table", brokers, wanted))
    slow = [kind for kind in bench.kinds if kind.name in SLOW]
    if slow and (not bench.only or "one_q0" in bench.only):
        print("A broker in Python, one_q0:\n")
        with running([bench.ours, *slow]) as brokers:
            lines = bench.compare("slow", brokers, {"one_q0": "-P 1 -S 1 -q 0 -w 100"})
            compared([broker.name for broker in brokers], lines)


def part_kept(bench: Bench) -> None:
    """Sessions that are kept, QoS 1: kinmqtt's stores, the embedded one by durability; Mosquitto's are in memory.

    Each round has new brokers: what earlier clients left would be measured too.
    """
    heads = ["store", *(kind.name for kind in bench.peers)]
    heads += [f"kinmqtt ÷ {kind.name}" for kind in bench.peers[1:]]
    rows = []
    for keeps in ("memory", "commit", "fsync", *(("redis",) if has_redis() else ())):
        rates: dict[str, list[float]] = {kind.name: [] for kind in bench.peers}
        for _ in range(bench.rounds):
            with running(bench.peers, keeps=keeps) as brokers:
                for broker in brokers:
                    row = bench.load.run(broker, KEPT, bench.seconds)
                    if row["lost"] or row["reordered"]:
                        raise Failed(f"kept, {keeps}: {broker.name} lost or reordered messages")
                    rates[broker.name].append(row["recv_per_s"])
        tell(f"kept: {keeps}")
        medians = [statistics.median(rates[kind.name]) for kind in bench.peers]
        bench.figures.setdefault("kept", {})[keeps] = rates
        rows.append([keeps, *(f"{m:,.0f}" for m in medians), *(f"{medians[0] / m:.2f}" for m in medians[1:])])
    table(heads, rows)


def part_doors(bench: Bench) -> None:
    """Messages received per second through TLS 1.3 and through WebSocket."""
    wanted = {name: SCENARIOS[name] for name in ("one_q0", "pairs_q0", "pairs_q1", "pairs_q0_4k", "lockstep_q1")}
    for door in ("tls", "websocket"):
        if door == "tls" and not bench.load.has_tls:
            print("TLS is left out: the load generator was built without OpenSSL's headers (Debian: libssl-dev).\n")
            continue
        print(f"{door}:\n")
        # Mosquitto 2.0.11 does not start with WebSocket alone.
        with running(bench.peers, ("tcp", door)) as brokers:
            lines = bench.compare(door, brokers, wanted, door=door)
            compared([broker.name for broker in brokers], lines)


def part_connections(bench: Bench) -> None:
    """A storm of connections, and what an idle one takes: with nothing but its session, and with a subscription."""
    rows = []
    for subscribe in (False, True):
        for kind in bench.peers:
            rates, sizes, costs = [], [], []
            for _ in range(bench.rounds):
                with ExitStack() as stack:
                    broker = start(kind, stack)
                    before, cpu_s = broker.resident_bytes, broker.cpu_s
                    idle = bench.load.idle(broker, bench.connections, 4, subscribe)
                    line = idle.stdout.readline() if idle.stdout is not None else ""
                    if not line:
                        raise Failed(f"{kind.name} let fewer than {bench.connections} clients in")
                    costs.append((broker.cpu_s - cpu_s) / bench.connections * 1e6)
                    peak = broker.resident_bytes
                    while idle.poll() is None:
                        peak = max(peak, broker.resident_bytes)
                        time.sleep(0.2)
                    rates.append(json.loads(line)["connects_per_s"])
                    sizes.append((peak - before) / bench.connections)
            tell(f"connections: {kind.name}")
            what = "with a subscription" if subscribe else "connected"
            figures = (statistics.median(rates), statistics.median(sizes), statistics.median(costs))
            bench.figures.setdefault("connections", {})[f"{kind.name} {what}"] = figures
            rows.append([kind.name, what, f"{figures[0]:,.0f}", f"{figures[1]:,.0f}", f"{figures[2]:,.0f}"])
    print(f"{bench.connections:,} clients:\n")
    table(["broker", "each", "clients let in per second", "resident bytes a client", "CPU µs a client"], rows)


def part_plugins(bench: Bench) -> None:
    """What plugins that look at every published message cost: pairs of QoS 0 and 1, plugins ÷ none."""
    rows = []
    scenarios = {name: SCENARIOS[name] for name in ("pairs_q0", "pairs_q1")}
    with ExitStack() as stack:
        brokers = []
        for number in (0, 1, 5):
            path = _plugins(Path(stack.enter_context(tempfile.TemporaryDirectory())), number)
            broker = start(bench.ours, stack, path=path)
            broker.name = f"{number} plugins"
            brokers.append(broker)
        for name, medians, _ in bench.compare("plugins", brokers, scenarios, "cpu_us"):
            if None in medians:
                raise Failed(f"plugins: {name} could not be measured")
            first = medians[0] or 1.0
            rows.append(
                [name, *(f"{m or 0:.2f}" for m in medians), *(f"{(m or 0) / first:.2f}" for m in medians[1:])]
            )
    table(["CPU µs a message", *(broker.name for broker in brokers), "1 ÷ none", "5 ÷ none"], rows)


FEW = 'name = "{}"\nkind = "publish"\nper = "client"\n'

LIMITS: dict[str, str] = {
    "none": "",
    "rate_limits": "[[plugins.rate_limits.rules]]\n" + FEW.format("r") + 'rate_per_s = 1e9\nverdict = "reject"\n',
    "sentinel_limiter": "[[plugins.sentinel_limiter.flow]]\n" + FEW.format("r") + "count = 1e9\n",
    "ten rules": "".join(
        "[[plugins.sentinel_limiter.flow]]\n" + FEW.format(f"r{number}") + "count = 1e9\n" for number in range(10)
    ),
    "auth_file": '[plugins.auth_file]\nacl_file = "{acl}"\n',
}
"""Settings under which every message is looked at, and none is stopped."""


def part_limits(bench: Bench) -> None:
    """What limiters and an access control list cost where they stop nothing: received per second, none ÷ with."""
    scenarios = {name: SCENARIOS[name] for name in ("pairs_q0", "pairs_q1")}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "acl").write_text("topic readwrite #\n")
        brokers = []
        for name, settings in LIMITS.items():
            broker = start(bench.ours, stack, settings=settings.replace("{acl}", str(folder / "acl")))
            broker.name = name
            brokers.append(broker)
        compared([broker.name for broker in brokers], bench.compare("limits", brokers, scenarios))


SINK = """[plugins.metrics]
landing = "{landing}"
capture = ["archive/#"]
"""
"""Settings under which everything is told that is told by itself, and messages are archived, but none of these."""


def part_sink(bench: Bench) -> None:
    """What the sink of metrics and events costs on the way of a message: received per second and CPU, none ÷ with."""
    scenarios = {name: SCENARIOS[name] for name in ("pairs_q0", "one_q1", "pairs_q1")}
    with ExitStack() as stack:
        landing = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        brokers = []
        for name, settings in {"none": "", "metrics": SINK.format(landing=landing)}.items():
            broker = start(bench.ours, stack, settings=settings)
            broker.name = name
            brokers.append(broker)
        compared([broker.name for broker in brokers], bench.compare("sink", brokers, scenarios))
    rows = []
    for name, by_broker in bench.figures["sink"].items():
        rounds = zip(*(by_broker[broker.name] for broker in brokers), strict=True)
        # Of a round: its two halves had about the same of a machine that is not ours alone.
        pairs = [tuple(row["cpu_us"] for row in both) for both in rounds if all("cpu_us" in row for row in both)]
        none, metrics = zip(*pairs, strict=True)
        ratio = statistics.median(before / after for before, after in pairs)
        rows.append([name, f"{statistics.median(none):.2f}", f"{statistics.median(metrics):.2f}", f"{ratio:.2f}"])
    table(["CPU µs a message", *(broker.name for broker in brokers), "none ÷ metrics"], rows)


def _plugins(folder: Path, number: int) -> Path:
    """Distributions with so many plugins, as pip would have installed them."""
    names = [f"Watches{n}" for n in range(number)]
    (folder / "bench_plugins.py").write_text(
        PLUGIN.format(names="\n".join(f"class {n}(Watches): pass" for n in names))
    )
    info = folder / "bench_plugins-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-plugins\nVersion: 1\n")
    points = "".join(f"{name.lower()} = bench_plugins:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[kinmqtt.plugins]\n{points}")
    return folder


def part_start(bench: Bench) -> None:
    """From the start of the process to the first CONNACK, with an empty data directory."""
    rows = []
    for kind in bench.peers:
        cpu_s, wall_s = [], []
        for _ in range(bench.rounds):
            with ExitStack() as stack:
                began = time.monotonic()
                broker = start(kind, stack, keeps="commit", wait=False)
                _first_connack(broker.port)
                wall_s.append(time.monotonic() - began)
                cpu_s.append(broker.cpu_s)
        bench.figures.setdefault("start", {})[kind.name] = (cpu_s, wall_s)
        rows.append([kind.name, f"{statistics.median(cpu_s):.2f}", f"{statistics.median(wall_s):.2f}"])
    table(["broker", "CPU s", "s"], rows)


def _first_connack(port: int) -> None:
    connect = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03one"
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(connect)
                if connection.recv(4) == b"\x20\x02\x00\x00":
                    return
        except OSError:
            time.sleep(0.01)
    raise Failed("no CONNACK came")


def part_growth(bench: Bench) -> None:
    """How cost grows with subscriptions, retained messages and subscribers, within the broker: see growth.py."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("growth.py"))], check=True)


PARTS: dict[str, Callable[[Bench], None]] = {
    "table": part_table,
    "kept": part_kept,
    "doors": part_doors,
    "connections": part_connections,
    "plugins": part_plugins,
    "limits": part_limits,
    "sink": part_sink,
    "start": part_start,
    "growth": part_growth,
}


def machine() -> str:
    """What this ran on."""
    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{os.cpu_count()} × {processor}, {platform.system()} {platform.release().split('-')[0]}"


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all where none is named")
    parser.add_argument("--only", default="", help="scenarios of the table, by comma")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="that each measurement lasts")
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    try:
        bench = Bench(options)
        print(
            f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, " + ", ".join(f"{k.name} {k.version}" for k in bench.kinds),
            end="\n\n",
        )
        for name in options.parts or PARTS:
            print(f"## {name}\n\n{(PARTS[name].__doc__ or '').split(chr(10))[0]}\n", flush=True)
            PARTS[name](bench)
    except Failed as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json is not None and "bench" in locals():
            options.json.write_text(json.dumps(bench.figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
