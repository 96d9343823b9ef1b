"""The command ``python -m kinmqtt.testing.world``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kinmqtt import TWIN
from kinmqtt.testing.world.mutations import MUTATIONS, find
from kinmqtt.testing.world.plan import Plan, make_plan
from kinmqtt.testing.world.search import Run, run_plan, run_seed


def main(
    arguments: Sequence[str] | None = None,
    name: str = "kinmqtt.testing.world",
    run: Run = run_plan,
    planned: Callable[[int], Plan] = make_plan,
) -> int:
    """Run seeds; returns 1 if one of them breaks a promise.

    Other simulations have the same command under another ``name``, with their own plans and way to run one.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description="Simulate clusters.")
    parser.add_argument("--seeds", default="0:150", help="the first seed and the one after the last (default: 0:150)")
    parser.add_argument("--trace", type=Path, help="write what happens in the first seed to this file, and no more")
    parser.add_argument("--whole", action="store_true", help="do not shorten the plans that break a promise")
    has_mutations = run is run_plan
    if has_mutations:
        parser.add_argument(
            "--mutations", action="store_true", help="put mistakes into the broker, and print which seed finds each"
        )
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    try:
        seeds = range(int(first), int(end or int(first) + 1))
    except ValueError:
        parser.error(f"--seeds {options.seeds}: two numbers are wanted, for example 0:150")
    if has_mutations and options.mutations:
        if TWIN == "compiled":
            parser.error("--mutations needs plain Python: set KINMQTT_PURE=1 in the environment")
        return _find_mutations(seeds)
    if options.trace is not None:
        world = run(planned(seeds[0]))
        options.trace.write_text("".join(f"{line}\n" for line in world.trace), encoding="utf-8")
        return int(bool(world.violations))
    began = time.monotonic()
    broken = 0
    for seed in seeds:
        failure = run_seed(seed, run, shorten=not options.whole, planned=planned)
        if failure is not None:
            broken += 1
            print(failure, flush=True)
    print(f"{len(seeds)} seeds in {time.monotonic() - began:.0f} s, {broken} of them break a promise")
    return int(bool(broken))


def _find_mutations(seeds: range) -> int:
    """Print the first seed that finds each mistake; returns 1 if one is not found."""
    missed = 0
    for name in MUTATIONS:
        failure = find(name, seeds)
        found = "not found" if failure is None else f"seed {failure.plan.seed}: {failure.violations[0]}"
        missed += failure is None
        print(f"{name}: {found}", flush=True)
    return int(bool(missed))


def in_hash_order(name: str) -> None:
    """Become a process in which the order of sets is always the same, unless this is one.

    A seed must mean the same in each process.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", name, *sys.argv[1:]])


if __name__ == "__main__":
    in_hash_order("kinmqtt.testing.world")
    sys.exit(main())
