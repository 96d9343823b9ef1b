"""The simulator: a seed decides a run, promises are checked, and plans that break one are shortened."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt.testing.world.__main__ import main
from kinmqtt.testing.world.device import Got
from kinmqtt.testing.world.plan import CRASH, FREEZE, LOSE, Plan, Step, make_plan
from kinmqtt.testing.world.promises import check
from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt.testing.world.search import run_plan, run_seed
from kinmqtt.testing.world.world import World

CALM = make_plan(1).only(())


@pytest.fixture(scope="module")
def calm() -> World:
    """A world in which nothing goes wrong, at its end."""
    return run_plan(CALM)


def test_a_seed_decides_everything_that_happens() -> None:
    """The trace of a run with faults is the same each time."""
    plan = make_plan(3)

    assert plan.steps
    assert run_plan(plan).digest == run_plan(make_plan(3)).digest
    assert run_plan(make_plan(4)).digest != run_plan(plan).digest


def test_nothing_is_broken_where_nothing_goes_wrong(calm: World) -> None:
    """And there is something to check: messages on all ways."""
    assert calm.violations == []
    assert len(calm.devices["s0"].got) > 50
    assert len(calm.quick) > 5
    assert any(payload.startswith(b"d-") for payload in calm.devices["d"].acknowledged)


def test_a_message_that_is_missing_is_found(calm: World) -> None:
    """C3, C9, C11, C12."""
    world = run_plan(CALM)
    s0 = world.devices["s0"]
    lost = [
        next(each for each in s0.got if each.qos and each.payload.startswith(start)) for start in (b"p", b"d-", b"w")
    ]
    s0.got = [each for each in s0.got if each not in lost]
    for member in ("g0", "g1", "g2"):
        world.devices[member].got.clear()
    check(world)

    found = {violation.partition(":")[0] for violation in world.violations}
    assert found == {"C3", "C9", "C11", "C12"}


def test_a_message_that_comes_twice_or_late_is_found() -> None:
    """C1, C5, C6, C9."""
    world = run_plan(CALM)
    s0 = world.devices["s0"]
    for qos in (0, 2):
        s0.got.append(next(each for each in s0.got if each.qos == qos and each.payload.startswith(b"p")))
    s1 = world.devices["s1"].got
    ordered = [each for each in s1 if each.payload.startswith(b"p0") and world.published[each.payload][2] == 1]
    s1.remove(ordered[0])
    s1.append(ordered[0])
    world.devices["g0"].got += world.devices["g1"].got
    check(world)

    assert {violation.partition(":")[0] for violation in world.violations} == {"C1", "C5", "C6", "C9"}


def test_a_retained_value_that_differs_is_found() -> None:
    """C10."""
    world = run_plan(CALM)
    probe = world.devices["probe0"]
    first = probe.got[0]
    old = next(payload for payload, sent in world.published.items() if sent[1] == first.topic)
    probe.got[0] = Got(first.topic, old, 1, first.time_s, True)
    check(world)

    assert {violation.partition(":")[0] for violation in world.violations} == {"C10"}


def test_a_message_that_is_held_up_on_its_own_node_is_found() -> None:
    """C16."""
    world = run_plan(CALM)
    payload = next(iter(world.quick))
    client_id = payload.decode().partition("-")[0]
    world.devices[client_id].acknowledged[payload] += 10
    check(world)

    assert [violation.partition(":")[0] for violation in world.violations] == ["C16"]


def test_a_plan_is_shortened_to_what_breaks_a_promise() -> None:
    """Each step without which the promise is still broken is left out."""

    def run(plan: Plan) -> World:
        world = World(plan)
        world.violations += ["C3: planted"] * any(step.kind == CRASH for step in plan.steps)
        return world

    seed = next(seed for seed in range(100) if sum(step.kind == CRASH for step in make_plan(seed).steps) == 1)
    failure = run_seed(seed, run)

    assert failure is not None
    assert [step.kind for step in failure.plan.steps] == [CRASH]
    assert f"seed {seed}, " in str(failure)


def test_a_dead_node_does_nothing() -> None:
    """Its timers are not called, and its stores are out of reach."""
    schedule = Schedule()
    clock = NodeClock(schedule)
    calls: list[float] = []
    for delay_s in (1.0, 2.0, 3.0):
        clock.later(delay_s, lambda: calls.append(schedule.time_s))
    schedule.later(2.5, lambda: setattr(clock, "is_dead", True))
    schedule.later(1.5, lambda: None).cancel()
    schedule.run_until(5.0, lambda: None)

    assert (calls, schedule.time_s) == ([1.0, 2.0], 5.0)


def test_a_plan_with_steps_says_what_they_are() -> None:
    """A failure prints them."""
    assert str(Step(1.0, CRASH, 2, 0, 3.5)) == "1.000 crash 2 0 3.500"


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says what is wrong with its options."""
    trace = tmp_path / "trace"
    main(["--seeds", "1", "--trace", str(trace)])

    assert "s0 online" in trace.read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["--seeds", "x"])
    assert "two numbers are wanted" in capsys.readouterr().err


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_faults_break_no_promise(first: int) -> None:
    """C1 to C13, C16: 25 seeds each; ``python -m kinmqtt.testing.world --seeds`` runs others."""
    failures = [run_seed(seed) for seed in range(first, first + 25)]

    assert not [str(failure) for failure in failures if failure is not None]


def test_a_process_that_stands_still_and_loss_break_no_promise() -> None:
    """Faults that only other links plan, where the world tells who is a member."""
    world = run_plan(CALM.only((Step(10.0, FREEZE, 0, 1, 4.0), Step(12.0, LOSE, 1, 0, 6.0))))

    assert world.violations == []
    assert any("step 10.000 freeze" in line for line in world.trace)
