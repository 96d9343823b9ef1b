#!/usr/bin/env python3
"""Measures clusters: brokers of ``akka_like_cluster`` over one Redis, all of them processes of this machine.

    python benchmarks/cluster.py                            everything, about a quarter of an hour
    python benchmarks/cluster.py --only efficiency,fanout   some of the parts
    python benchmarks/cluster.py --rounds 9 --json FILE     more rounds, and every single figure

What is compared runs in turns, once a round, so that a machine that drifts drifts for both; a ratio is the median of
the rounds' ratios. The CPU time is that of all brokers, from /proc. Only loopback is used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from brokers import Failed, found, has_redis
from cluster_loads import Bench, Outcome, part_efficiency, part_fanout, part_latency, part_redis, part_stall
from cluster_moves import part_join, part_takeover
from run import machine, table, tell

PARTS: Final[dict[str, Callable[[Bench], Outcome]]] = {
    "efficiency": part_efficiency,
    "fanout": part_fanout,
    "latency": part_latency,
    "stall": part_stall,
    "takeover": part_takeover,
    "join": part_join,
    "redis": part_redis,
}


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, by comma: of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="that each measurement lasts")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--quick", action="store_true", help="only show whether it runs: the figures say nothing")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = set(options.only) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.quick:
        options.rounds, options.seconds = 1, 0.3
    return options


def main() -> int:
    """Run the parts that are asked for."""
    options = parsed()
    bench: Bench | None = None
    try:
        if not has_redis():
            raise Failed("a cluster needs redis-server (Debian: redis-server) and kinmqtt-redis-session")
        ours = found()[0]
        if "compiled" not in ours.version:
            tell("kinmqtt is not compiled: figures of plain Python say little (python3 dev.py compile)")
        bench = Bench(options)
        print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, {ours.name} {ours.version}", end="\n\n")
        for name in options.only:
            print(f"## {name}\n\n{(PARTS[name].__doc__ or '').strip()}\n", flush=True)
            table(*PARTS[name](bench))
    except Failed as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json is not None and bench is not None:
            options.json.write_text(json.dumps(bench.figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
