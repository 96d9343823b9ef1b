#!/usr/bin/env python3
"""Measures bridge_mqtt beside Mosquitto's own bridge, and prints a table in Markdown.

    python benchmarks/mqtt_bridge.py [--rounds N] [--seconds S] [--rate N] [--json FILE]

Publishers send QoS 1 messages of 100 bytes to a broker whose bridge sends them to a far Mosquitto. Measured are the
messages a second that come to a subscriber of the far broker, and the CPU time of the broker with the bridge for
each: as fast as it goes, and with the same load for both. kinmqtt and Mosquitto take turns. A message that is lost
fails the measurement. The far broker and the clients share the processors with both: compare the CPU time under the
same load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[1]
for folder in ("spi/tests/harness", "core/tests/harness", "plugins/bridge_mqtt/tests/harness"):
    sys.path.append(str(ROOT / folder))

from brokers import Failed  # noqa: E402
from load import Load  # noqa: E402

from bridge_mqtt_harness.mosquitto import PLAIN, Mosquitto  # noqa: E402
from core_harness.brokers import running_broker  # noqa: E402

OURS = """[plugins]
only = ["bridge_mqtt"]
[plugins.bridge_mqtt.connections.far]
servers = ["{address}"]
topics = ["bench/# out 1"]
version = "{version}"
"""
THEIRS = """{plain}max_inflight_messages 1000
connection far
address {address}
topic bench/# out 1
bridge_protocol_version {version}
notifications false
"""
Rows: TypeAlias = list[tuple[float, float]]
"""Messages a second and CPU µs of a message, for each round."""

LOADS = {
    "as fast as it goes": "-P 2 -S 1 -T 2 -n -q 1 -s 100 -w 50",
    "paced": "-P 2 -S 1 -T 2 -n -q 1 -s 100 -r {rate}",
}


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(load: Load, port: int, far: int, pid: int, arguments: str, seconds: float) -> tuple[float, float]:
    """Return the messages a second that come to the far broker's subscriber, and the broker's CPU µs for each."""
    watched = load.watch([port], [far], arguments, seconds, lambda at_s: (cpu_s(pid),))
    return watched.row["recv_per_s"], watched.cpu_us()


def run(load: Load, load_name: str, options: argparse.Namespace, version: str, folder: Path) -> dict[str, Rows]:
    """Measure both in turns."""
    found: dict[str, Rows] = {"kinmqtt": [], "Mosquitto": []}
    with ExitStack() as stack:
        far = Mosquitto(folder / "far", f"{PLAIN}max_inflight_messages 1000\n")
        stack.callback(far.end)
        theirs_version = "mqttv50" if version == "5" else "mqttv311"
        theirs = Mosquitto(folder / "theirs", THEIRS.format(plain=PLAIN, address=far.address, version=theirs_version))
        stack.callback(theirs.end)
        settings = folder / "kinmqtt.toml"
        settings.write_text(OURS.format(address=far.address, version=version))
        ours = stack.enter_context(running_broker("-c", str(settings), cwd=folder))
        for number in range(options.rounds + 1):
            for name, port, pid in (
                ("kinmqtt", ours.port, ours.pid),
                ("Mosquitto", theirs.port, theirs.pid),
            ):
                arguments = LOADS[load_name].format(rate=options.rate)
                row = measure(load, port, far.port, pid, arguments, options.seconds)
                if number:  # The first round warms up.
                    found[name].append(row)
    return found


def row_of(version: str, name: str, ours: Rows, theirs: Rows) -> str:
    """Return a row of the table: medians, and the medians of the ratios of each round."""
    pairs = list(zip(ours, theirs, strict=True))
    rate = statistics.median(one[0] / other[0] for one, other in pairs)
    cpu = statistics.median(other[1] / one[1] for one, other in pairs)
    medians = [statistics.median(row[at] for row in rows) for at in (0, 1) for rows in (ours, theirs)]
    return (
        f"| {version} | {name} | {medians[0]:,.0f} | {medians[1]:,.0f} | {rate:.2f} "
        f"| {medians[2]:.1f} | {medians[3]:.1f} | {cpu:.2f} |"
    )


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="that a measurement lasts")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second where both have the same load")
    parser.add_argument("--versions", default="3.1.1,5", help="of MQTT between the brokers")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    figures: dict[str, dict[str, Rows]] = {}
    print("| MQTT | load | kinmqtt, messages/s | Mosquitto | ratio | kinmqtt, CPU µs | Mosquitto | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    try:
        load = Load()
        for version in options.versions.split(","):
            for name in LOADS:
                with tempfile.TemporaryDirectory(prefix="bridge-", ignore_cleanup_errors=True) as folder:
                    found = figures[f"{version}, {name}"] = run(load, name, options, version, Path(folder))
                print(row_of(version, name, found["kinmqtt"], found["Mosquitto"]), flush=True)
    except Failed as error:
        print(f"mqtt_bridge.py: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
