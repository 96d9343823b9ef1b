#!/usr/bin/env python3
"""Measures bridge_http with a server on this machine, and prints a table in Markdown.

    python benchmarks/webhooks.py [--rounds N] [--seconds S] [--rate N] [--json FILE]

QoS 1 to a sink that sends batches of JSON lines ÷ QoS 1 to one subscriber with a persistent session: in messages a
second that publishers get acknowledged, and in CPU time of the broker for a message. The sink's outbox is small and
pauses, so it can't take more than the server does, which is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from brokers import Broker, Failed, found, start
from load import Load
from to_sink import add_options, compare, show

SETTINGS = """[plugins]
only = ["embedded", "bridge_http"]
[plugins.bridge_http.sinks.out]
filters = ["bench/#"]
url = "http://127.0.0.1:{port}/"
format = "ndjson"
outbox = {{ max_messages = 10_000 }}
"""
ARRIVES_S = 60.0
"""How long everything may take to come."""


class Receivers:
    """A server for each broker."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}

    def start(self, stack: ExitStack, keeps: str) -> int:
        """Start one that ends with the stack; returns its port."""
        command = [sys.executable, str(Path(__file__).with_name("webhook_receiver.py"))]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        self._ports[keeps] = int(process.stdout.readline())
        return self._ports[keeps]

    def settle(self, keeps: str, sent: int) -> None:
        """Wait until so many messages have come; raises :class:`Failed` if they do not."""
        until = time.monotonic() + ARRIVES_S
        while (came := self._came(keeps)) < sent:
            if time.monotonic() > until:
                raise Failed(f"{came} of {sent} acknowledged messages have come")
            time.sleep(0.05)

    def _came(self, keeps: str) -> int:
        with urlopen(f"http://127.0.0.1:{self._ports[keeps]}/", timeout=ARRIVES_S) as answer:
            return int(answer.read())


def main() -> int:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    receivers = Receivers()

    def sink_broker(stack: ExitStack, keeps: str) -> Broker:
        settings = SETTINGS.format(port=receivers.start(stack, keeps))
        return start(found()[0], stack, keeps=keeps, settings=settings)

    try:
        print(f"{os.cpu_count()} processors, kinmqtt {found()[0].version}, the server beside it\n")
        rows, figures = compare(Load(), options, sink_broker, receivers.settle)
    except Failed as error:
        print(f"webhooks.py: {error}", file=sys.stderr)
        return 1
    show(rows, "The goal is a ratio of 0.5 or more.")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
