#!/usr/bin/env python3
"""Measures bridge_rabbitmq with a real RabbitMQ on this machine, and prints a table in Markdown.

    python benchmarks/rabbitmq.py [--rounds N] [--seconds S] [--stored memory,commit] [--rate N] [--json FILE]

QoS 1 to a sink in RabbitMQ ÷ QoS 1 to one subscriber with a persistent session: in messages a second that publishers
get acknowledged, and in CPU time of the broker for a message until RabbitMQ has confirmed it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for harness in ("tests/harness", "core/tests/harness", "spi/tests/harness"):
    sys.path.append(str(ROOT / harness))

from brokers import Broker, Failed, found, start  # noqa: E402
from load import Load  # noqa: E402
from to_sink import add_options, compare, show  # noqa: E402

from root_harness.rabbitmq import RabbitMQ  # noqa: E402

SETTINGS = """[plugins]
only = ["embedded", "bridge_rabbitmq"]
[plugins.bridge_rabbitmq.connections.main]
servers = ["{address}"]
[plugins.bridge_rabbitmq.sinks.out]
connection = "main"
filters = ["bench/#"]
routing_key = "{queue}"
outbox = {{ max_messages = 10_000 }}
"""
ARRIVES_S = 120.0
"""How long everything may take to come after a measurement."""


def main() -> int:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.set_defaults(rate=5_000)
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rabbitmq-", ignore_cleanup_errors=True) as folder:
        rabbitmq = RabbitMQ(Path(folder))
        came: dict[str, int] = {}

        def sink_broker(stack: ExitStack, keeps: str) -> Broker:
            queue = rabbitmq.declare(f"rate-{keeps}")
            settings = SETTINGS.format(address=rabbitmq.address, queue=queue)
            return start(found()[0], stack, keeps=keeps, settings=settings)

        def settle(keeps: str, sent: int) -> None:
            queue, until = f"rate-{keeps}", time.monotonic() + ARRIVES_S
            while came.get(queue, 0) + rabbitmq.left(queue) < sent:
                if time.monotonic() > until:
                    raise Failed(f"{came.get(queue, 0) + rabbitmq.left(queue)} of {sent} messages have come")
                time.sleep(0.02)
            came[queue] = came.get(queue, 0) + rabbitmq.purge(queue)

        try:
            load = Load()
            rabbitmq.start()
            print(f"{os.cpu_count()} processors, kinmqtt {found()[0].version}, RabbitMQ beside it\n")
            rows, figures = compare(load, options, sink_broker, settle)
        except Failed as error:
            print(f"rabbitmq.py: {error}", file=sys.stderr)
            return 1
        finally:
            rabbitmq.end()
    show(rows, "The goal is a ratio of 0.25 or more.")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
