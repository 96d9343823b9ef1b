#!/usr/bin/env python3
"""Measures bridge_mqtt beside Mosquitto's own bridge, and prints a table in Markdown.

    python benchmarks/mqtt_bridge.py [--rounds N] [--messages N] [--window N] [--json FILE]

A publisher sends QoS 1 messages of 100 bytes to a broker whose bridge sends them to a far Mosquitto, MQTT 3.1.1 between
them, since Mosquitto's bridge begins with that. Measured are the messages a second from the first PUBLISH until the
last one is at a subscriber of the far broker, and the CPU time of the broker with the bridge for each. kinmqtt and
Mosquitto take turns. Each message reaches the far broker, or the measurement fails. The far broker and the clients
share the processors with both: compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

ROOT = Path(__file__).resolve().parents[1]
for folder in ("spi/tests/harness", "core/tests/harness", "plugins/bridge_mqtt/tests/harness"):
    sys.path.append(str(ROOT / folder))

from bridge_mqtt_harness.mosquitto import PLAIN, Mosquitto  # noqa: E402
from core_harness.brokers import running_broker  # noqa: E402
from spi_harness.processes import wait_until  # noqa: E402

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
LIMIT_S = 120.0


class Failed(Exception):
    """A message is missing."""


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Counting:
    """A subscriber of the far broker that counts."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._client = Client(CallbackAPIVersion.VERSION2, "counts")
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("bench/#", 0)
        self._client.loop_start()

    def _on_message(self, *_: Any) -> None:
        self.count += 1

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def measure(port: int, pid: int, counting: Counting, messages: int, window: int) -> tuple[float, float]:
    """Publish so many; returns messages a second, and CPU µs of the broker for each."""
    publisher = Client(CallbackAPIVersion.VERSION2, "publishes")
    publisher.max_inflight_messages_set(window)
    publisher.connect("127.0.0.1", port)
    publisher.loop_start()
    wait_until(publisher.is_connected, "the publisher is connected")
    before, cpu, began = counting.count, cpu_s(pid), time.monotonic()
    for _ in range(messages):
        publisher.publish("bench/a", b"x" * 100, 1)
    try:
        wait_until(lambda: counting.count >= before + messages, "all have come", LIMIT_S)
    except AssertionError:
        raise Failed(f"{counting.count - before} of {messages} messages have come") from None
    took_s = time.monotonic() - began
    publisher.disconnect()
    publisher.loop_stop()
    return messages / took_s, (cpu_s(pid) - cpu) * 1e6 / messages


def run(options: argparse.Namespace, version: str, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Measure both in turns."""
    found: dict[str, list[tuple[float, float]]] = {"kinmqtt": [], "Mosquitto": []}
    with ExitStack() as stack:
        far = Mosquitto(folder / "far", f"{PLAIN}max_inflight_messages 1000\n")
        stack.callback(far.end)
        theirs_version = "mqttv50" if version == "5" else "mqttv311"
        theirs = Mosquitto(folder / "theirs", THEIRS.format(plain=PLAIN, address=far.address, version=theirs_version))
        stack.callback(theirs.end)
        settings = folder / "kinmqtt.toml"
        settings.write_text(OURS.format(address=far.address, version=version))
        ours = stack.enter_context(running_broker("-c", str(settings), cwd=folder))
        counting = Counting(far.port)
        stack.callback(counting.close)
        for number in range(options.rounds + 1):
            for name, port, pid in (
                ("kinmqtt", ours.port, ours.pid),
                ("Mosquitto", theirs.port, theirs.pid),
            ):
                row = measure(port, pid, counting, options.messages, options.window)
                if number:  # The first round warms up.
                    found[name].append(row)
    return found


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=200, help="messages of the publisher under way")
    parser.add_argument("--versions", default="3.1.1,5", help="of MQTT between the brokers")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    figures = {}
    print("| MQTT | kinmqtt, messages/s | Mosquitto | ratio | kinmqtt, CPU µs | Mosquitto | Mosquitto ÷ kinmqtt |")
    print("|---|---|---|---|---|---|---|")
    for version in options.versions.split(","):
        with tempfile.TemporaryDirectory(prefix="bridge-", ignore_cleanup_errors=True) as folder:
            try:
                found = figures[version] = run(options, version, Path(folder))
            except Failed as error:
                print(f"mqtt_bridge.py: {error}", file=sys.stderr)
                return 1
        ours, theirs = found["kinmqtt"], found["Mosquitto"]
        pairs = list(zip(ours, theirs, strict=True))
        rate = statistics.median(one[0] / other[0] for one, other in pairs)
        cpu = statistics.median(other[1] / one[1] for one, other in pairs)
        medians = [statistics.median(row[at] for row in rows) for at in (0, 1) for rows in (ours, theirs)]
        print(
            f"| {version} | {medians[0]:,.0f} | {medians[1]:,.0f} | {rate:.2f} | {medians[2]:.1f} | {medians[3]:.1f} "
            f"| {cpu:.2f} |",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
