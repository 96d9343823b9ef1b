"""Single calls: how they are timed, counted and limited, what blocks the event loop, and what guards hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from core_harness.desk import Desk, answers, later, outcome, raises
from kinmqtt.hooks.awaitables import TimeLimitExceeded
from kinmqtt.hooks.manager import Implementation
from kinmqtt_spi.markers import HookTraits, Kind


@pytest.fixture
def desk() -> Desk:
    """A fresh desk."""
    return Desk()


@pytest.fixture
def lines() -> Any:
    """The lines of the log, as they are written."""
    found: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") == "kinmqtt.hooks":
            found.append(str(event["log_format"]).format(**event))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


def test_a_call_is_counted_under_its_plugins_name(desk: Desk) -> None:
    """Each call counts, whether it answers or raises."""
    well, badly = desk.calls(answers(1), raises)

    well()
    with pytest.raises(ValueError, match="broken"):
        badly()

    assert (desk.count("plugin.calls", "p0"), desk.count("plugin.calls", "p1")) == (1, 1)


@pytest.mark.parametrize("answer", [lambda *_: succeed(1), lambda *_: later(1), lambda *_: Deferred()])
def test_a_synchronous_hook_must_answer_at_once(desk: Desk, answer: Callable[..., Any]) -> None:
    """Something to wait for is a mistake, even where it has its value already."""
    [call] = desk.calls(answer, synchronous=True)

    with pytest.raises(TypeError, match="hook must be synchronous"):
        call()


def test_a_late_answer_is_cut_off(desk: Desk) -> None:
    """What has not answered within the hook's limit fails, and its Deferred is cancelled."""
    cancelled: list[Any] = []
    [call] = desk.calls(answers(Deferred(cancelled.append)), limit_s=10)

    answer = call()
    desk.clock.advance(9.9)
    assert not answer.called
    desk.clock.advance(0.1)

    assert len(cancelled) == 1
    assert "no answer within 10 s" in str(outcome(answer).value)


def test_an_answer_in_time_stops_the_clock(desk: Desk) -> None:
    """An answer just in time counts, and the limit that passes later changes nothing."""
    pending: Deferred[int] = Deferred()
    [call] = desk.calls(answers(pending), limit_s=10)

    answer = call()
    desk.clock.advance(9)
    pending.callback(1)
    desk.clock.advance(9)

    assert outcome(answer) == 1


async def hang() -> None:
    """Never ends."""
    await Deferred()


@inlineCallbacks
def hang_in_generator() -> Any:
    """Never ends."""
    yield Deferred()


@pytest.mark.parametrize(
    "hanging",
    [
        lambda *_: Deferred(),
        lambda *_: succeed(None).addCallback(lambda _: Deferred()),
        lambda *_: hang(),
        lambda *_: hang_in_generator(),
    ],
    ids=["Deferred", "fired Deferred that waits for another", "coroutine", "inlineCallbacks"],
)
def test_every_answer_that_is_waited_for_has_the_time_limit(desk: Desk, hanging: Callable[..., Any]) -> None:
    """Also that of a Deferred which has fired and waits for another one in a callback of its own."""
    [call] = desk.calls(hanging, limit_s=10)

    answer = call()
    desk.clock.advance(10)

    assert isinstance(outcome(answer).value, TimeLimitExceeded)


# What blocks the event loop


def test_a_call_that_blocks_the_event_loop_is_named(desk: Desk, lines: list[str]) -> None:
    """With plugin, hook and milliseconds; up to a tenth of a second nothing is said."""
    run = desk.stopwatch.run
    quick, slow = desk.calls(lambda: run(0.1), lambda: run(0.25))

    quick()
    slow()

    assert [desk.count("plugin.blocked", plugin) for plugin in ("p0", "p1")] == [0, 1]
    assert [line.partition(",")[0] for line in lines] == ["plugin p1: hook blocked the event loop for 250 ms"]


def test_a_call_that_blocks_and_raises_is_named_too(desk: Desk, lines: list[str]) -> None:
    """How it ends changes nothing."""

    def blocks() -> None:
        desk.stopwatch.run(1)
        raises()

    [call] = desk.calls(blocks)

    with pytest.raises(ValueError, match="broken"):
        call()

    assert desk.count("plugin.blocked", "p0") == 1
    assert "1000 ms" in lines[0]


@pytest.mark.parametrize("part", ["before the first wait", "behind a wait", "in cleaning up"])
def test_each_step_of_a_coroutine_may_block(desk: Desk, lines: list[str], part: str) -> None:
    """What runs between two waits is timed; the waits are not."""
    awaited: Deferred[None] = Deferred()
    run = desk.stopwatch.run

    async def work() -> str:
        run(0.25 if part == "before the first wait" else 0.0625)
        try:
            await awaited
        finally:
            run(0.25 if part != "before the first wait" else 0.0625)
        return "done"

    [call] = desk.calls(work, limit_s=100)
    answer = call()
    run(50)  # Others have the event loop meanwhile.
    if part == "in cleaning up":
        awaited.errback(ValueError("broken"))
    else:
        awaited.callback(None)

    assert outcome(answer) == "done" or part == "in cleaning up"
    assert desk.count("plugin.blocked", "p0") == 1
    assert desk.count("plugin.busy", "p0") == 312_500
    assert "250 ms" in lines[0]


def test_a_step_of_an_asyncio_task_may_block(desk: Desk) -> None:
    """It runs as a task of its own, and each of its steps is timed."""

    async def work() -> str:
        desk.stopwatch.run(0.25)
        await asyncio.sleep(0)
        desk.stopwatch.run(0.25)
        return "done"

    async def scenario() -> Any:
        [call] = desk.factory.bind("hook", HookTraits(Kind.DECIDE), [Implementation("p0", work, asyncio=True)])
        answer = call()
        for _ in range(4):
            await asyncio.sleep(0)
        return outcome(answer)

    with asyncio.Runner() as runner:
        assert runner.run(scenario()) == "done"

    assert desk.count("plugin.blocked", "p0") == 2
    assert desk.count("plugin.busy", "p0") == 500_000


def test_a_task_that_is_cancelled_before_its_first_step_leaves_no_warning(desk: Desk) -> None:
    """A coroutine that never began is closed, and not forgotten; pytest takes the warning for an error."""
    began: list[bool] = []

    async def work() -> None:
        began.append(True)

    async def scenario() -> Any:
        traits = HookTraits(Kind.DECIDE, time_limit_s=10)
        [call] = desk.factory.bind("hook", traits, [Implementation("p0", work, asyncio=True)])
        answer = call()
        desk.clock.advance(10)
        for _ in range(4):
            await asyncio.sleep(0)
        return outcome(answer)

    with asyncio.Runner() as runner:
        failure = runner.run(scenario())

    assert isinstance(failure.value, TimeLimitExceeded)
    assert began == []


def test_lines_about_what_blocks_are_written_now_and_then(desk: Desk, lines: list[str]) -> None:
    """One a minute for each plugin and hook, with how often it happened; all are counted."""
    blocking = [lambda: desk.stopwatch.run(0.2)]
    [one], [other] = desk.calls(*blocking), desk.calls(*blocking, hook="connected")

    for _ in range(5):
        one()
    other()
    desk.clock.advance(60)
    one()

    assert desk.count("plugin.blocked", "p0") == 6
    assert [line.split(": ")[1].split()[0] for line in lines] == ["hook", "connected", "hook"]
    assert "(4 more times since the last such line)" in lines[2]


def test_what_blocks_while_there_are_no_clients_is_counted_alone(desk: Desk, lines: list[str]) -> None:
    """A start may take its time: nobody is served yet."""
    [call] = desk.calls(lambda: desk.stopwatch.run(3), hook="start")

    call()

    assert desk.count("plugin.blocked", "p0", "start") == 1
    assert lines == []
