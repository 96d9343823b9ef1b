"""Whole brokers whose membership is the plugin's: a seed decides a run, and no promise of a cluster is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt.testing.world import plan as kinds
from kinmqtt.testing.world.plan import Plan, Step
from kinmqtt.testing.world.search import run_seed
from kinmqtt.testing.world.world import World
from root_harness.simulated_akka.__main__ import main
from root_harness.simulated_akka.runs import plan_of, run_plan

# A process that is killed leaves its coroutines where they stand; the garbage collector says so of each.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine .* was never awaited:RuntimeWarning"
)


def a_plan(*steps: Step) -> Plan:
    """Return a plan of three nodes in which only this goes wrong."""
    return Plan(1, 3, 0.0005, 0.0002, steps)


def line_about(world: World, *words: str) -> float | None:
    """Return when the first line with all these words was noted."""
    found = (line for line in world.trace if all(word in line for word in words))
    return next((float(line.split(" ", 1)[0]) for line in found), None)


def test_a_seed_decides_everything_that_happens() -> None:
    """Gossip, handshakes and loss follow from it, too."""
    assert run_plan(plan_of(3)).digest == run_plan(plan_of(3)).digest
    assert run_plan(plan_of(4)).digest != run_plan(plan_of(3)).digest


def test_nodes_find_each_other_and_keep_their_promises() -> None:
    """Nothing goes wrong: no node is expelled, and there is something to check."""
    world = run_plan(a_plan())

    assert world.violations == []
    assert not world.expelled
    assert len(world.devices["s0"].got) > 50


def test_a_node_that_stands_still_for_long_is_given_up_and_comes_back() -> None:
    """It wakes, finds itself DOWN, and starts again as a new process."""
    world = run_plan(a_plan(Step(10.0, kinds.FREEZE, 2, 0, 25.0)))

    expelled_s = line_about(world, "n2 is expelled")
    started_s = line_about(world, "n2 starts", str(world.nodes[2].identity.uid))
    assert world.violations == []
    assert world.expelled == {2}
    assert expelled_s is not None and started_s is not None
    assert 35.0 <= expelled_s <= started_s


@pytest.mark.parametrize("kind", [kinds.ISOLATE, kinds.STALL, kinds.WRONGLY_DOWN])
def test_one_side_of_a_split_goes_on(kind: str) -> None:
    """The nodes that are not with the arbiter's term end, and there is one cluster again afterwards."""
    world = run_plan(a_plan(Step(10.0, kind, 1, 0, 30.0)))

    assert world.violations == []
    assert len(world.expelled) in (1, 2)


def test_a_node_that_is_cut_off_for_a_moment_stays() -> None:
    """Nobody is marked DOWN, and no session moves."""
    world = run_plan(a_plan(Step(10.0, kinds.ISOLATE, 1, 0, 3.0)))

    assert world.violations == []
    assert not world.expelled


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_faults_break_no_promise(first: int) -> None:
    """C1 to C13, C16: 25 seeds each; ``python -m root_harness.simulated_akka --seeds`` runs others."""
    failures = [run_seed(seed, run_plan, planned=plan_of) for seed in range(first, first + 25)]

    assert not [str(failure) for failure in failures if failure is not None]


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    """Its options are those of the simulator of the core."""
    trace = tmp_path / "trace"
    main(["--seeds", "1", "--trace", str(trace)])

    assert "s0 online" in trace.read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--mutations"])
