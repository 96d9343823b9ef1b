"""Runs seeds, and shortens the plan of one that breaks a promise."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from kinmqtt.testing.world.plan import Plan, make_plan
from kinmqtt.testing.world.promises import check
from kinmqtt.testing.world.world import World

Run = Callable[[Plan], World]


@frozen
class Failure:
    """A plan that breaks promises."""

    plan: Plan
    violations: tuple[str, ...]

    def __str__(self) -> str:
        steps = "".join(f"\n    {step}" for step in self.plan.steps)
        found = "".join(f"\n  {each}" for each in self.violations[:10])
        return f"seed {self.plan.seed}, {self.plan.nodes} nodes:{found}\n  with these steps:{steps or ' none'}"


def run_plan(plan: Plan) -> World:
    """Run a plan to its end, and check all promises."""
    world = World(plan)
    world.run()
    check(world)
    return world


def run_seed(
    seed: int, run: Run = run_plan, *, shorten: bool = True, planned: Callable[[int], Plan] = make_plan
) -> Failure | None:
    """Run a seed; returns what it breaks, with as few steps as still break something, or ``None``."""
    plan = planned(seed)
    violations = run(plan).violations
    if not violations:
        return None
    failure = Failure(plan, tuple(violations))
    return shortened(failure, run) if shorten else failure


def shortened(failure: Failure, run: Run = run_plan) -> Failure:
    """Return a failure whose plan lacks each step without which its first promise is still broken."""
    promise = _promise(failure.violations[0])
    for step in reversed(failure.plan.steps):
        plan = failure.plan.only([each for each in failure.plan.steps if each is not step])
        violations = [each for each in run(plan).violations if _promise(each) == promise]
        if violations:
            failure = Failure(plan, tuple(violations))
    return failure


def _promise(violation: str) -> str:
    return violation.partition(":")[0]
