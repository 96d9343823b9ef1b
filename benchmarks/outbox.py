#!/usr/bin/env python3
"""Measures an outbox with a sink that does nothing, and prints a table in Markdown.

    python benchmarks/outbox.py [--rounds N] [--seconds S] [--rate N] [--json FILE]

QoS 1 to the sink ÷ QoS 1 to one subscriber with a persistent session: in messages a second that publishers get
acknowledged, and in CPU time of the broker for a message.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "core" / "tests" / "harness"))

from brokers import Broker, Failed, found, start  # noqa: E402
from load import Load  # noqa: E402
from to_sink import add_options, compare, show  # noqa: E402

from core_harness.plugin_on_path import plugin_on_path  # noqa: E402

SETTINGS = '[plugins]\nonly = ["embedded", "null_sink"]\n'


def main() -> int:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outbox-") as folder:
        path = plugin_on_path(Path(folder), "null_sink", "null_sink", Path(__file__).parent)

        def sink_broker(stack: ExitStack, keeps: str) -> Broker:
            return start(found()[0], stack, keeps=keeps, settings=SETTINGS, path=path)

        try:
            print(f"{os.cpu_count()} processors, kinmqtt {found()[0].version}\n")
            rows, figures = compare(Load(), options, sink_broker)
        except Failed as error:
            print(f"outbox.py: {error}", file=sys.stderr)
            return 1
    show(rows, "The goal is a ratio of 1.2 or more.")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
