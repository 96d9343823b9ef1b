"""Runs of simulated clusters: their plans, and worlds with the plugin's links."""

from __future__ import annotations

import gc
import sys
from typing import Final

from kinmqtt.testing.world import plan as kinds
from kinmqtt.testing.world.plan import Plan, make_plan
from kinmqtt.testing.world.promises import check
from kinmqtt.testing.world.world import World
from root_harness.simulated_akka.links import AkkaLinks

WEIGHTS: Final = {
    kinds.CUT: 4,
    kinds.BLOCK: 3,
    kinds.ONE_WAY: 3,
    kinds.STALL: 3,
    kinds.ISOLATE: 4,
    kinds.SPLIT: 4,
    kinds.LOSE: 3,
    kinds.CRASH: 5,
    kinds.FREEZE: 5,
    kinds.RESTART: 2,
    kinds.WRONGLY_DOWN: 1,
    kinds.SLOW: 2,
    kinds.AWAY: 2,
    kinds.CLOCK: 1,
    kinds.DROP: 6,
    kinds.MOVE: 6,
}
LONGEST_S: Final = 30.0
"""Faults must last longer than it takes until a node is DOWN, which is 12 to 15 s."""


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    return make_plan(seed, WEIGHTS, LONGEST_S)


def run_plan(plan: Plan) -> World:
    """Run a plan to its end, and check all promises."""
    _collect()
    world = World(plan, AkkaLinks)
    # What is collected of a process that was killed would run on the event loop of another one, at any moment.
    gc.disable()
    try:
        world.run()
    finally:
        gc.enable()
    check(world)
    return world


def _collect() -> None:
    """Forget earlier worlds. Coroutines of processes that were killed can't end as they want to."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
