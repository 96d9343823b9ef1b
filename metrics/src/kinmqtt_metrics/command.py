"""The command ``kinmqtt-metrics``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kinmqtt_metrics import learning, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(prog="kinmqtt-metrics", description="The data pipeline of kinmqtt.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    report.add_parser(subparsers)
    learning.add_parser(subparsers)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
