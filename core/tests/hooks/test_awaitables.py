"""Values, Deferreds, and coroutines of Twisted and of asyncio, made one thing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.python.failure import Failure

from core_harness.house import House
from kinmqtt.hooks.awaitables import TimeLimitExceeded, as_deferred, is_pending, limited, resolve, run
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import ALLOW, SPI_VERSION, Decision, ReasonCode, hookimpl
from kinmqtt_spi.errors import CallAbandoned
from kinmqtt_spi.memory.plugin import Completed, TurnableClock
from kinmqtt_spi.services.plugin import Requirements

OnLoop = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def on_loop() -> Iterator[OnLoop]:
    """Runs a coroutine on an asyncio loop of the test's own, and cleans up after it."""
    with asyncio.Runner() as runner:
        yield runner.run


def outcome(deferred: Deferred[Any]) -> list[Any]:
    """What a Deferred has fired with: nothing, a result or an error."""
    found: list[Any] = []
    deferred.addBoth(lambda result: found.append(result.value if isinstance(result, Failure) else result))
    return found


async def twisted_coroutine(value: Any) -> Any:
    """A coroutine as one writes it for Twisted."""
    return await succeed(value)


async def asyncio_coroutine(value: Any) -> Any:
    """A coroutine that works in an asyncio task only."""
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_soon(later.set_result, value)
    return await later


class Custom(Awaitable[str]):
    """An awaitable of another library's."""

    def __await__(self) -> Generator[Any, None, str]:
        return twisted_coroutine("custom").__await__()


# is_pending


def test_awaitables_are_pending() -> None:
    """Deferreds, fired or not, coroutines and other awaitables are to be waited for; values are not."""
    coroutine = twisted_coroutine(1)

    assert all(map(is_pending, (Deferred(), succeed(1), Custom(), Completed(lambda: 1), coroutine)))
    assert not any(map(is_pending, (None, 0, "text", ALLOW, twisted_coroutine, (succeed(1),))))
    coroutine.close()


# as_deferred, without asyncio


def test_a_deferred_stays_what_it_is() -> None:
    """Nothing is wrapped that needs no wrapping."""
    deferred: Deferred[int] = Deferred()

    assert as_deferred(deferred) is deferred


@pytest.mark.parametrize(
    ("make", "result"),
    [
        (lambda: twisted_coroutine("coroutine"), "coroutine"),
        (Custom, "custom"),
        (lambda: Completed(lambda: "completed"), "completed"),
    ],
)
def test_other_awaitables_become_deferreds(make: Callable[[], Awaitable[str]], result: str) -> None:
    """What need not wait has fired at once."""
    assert outcome(as_deferred(make())) == [result]


def test_a_coroutine_waits_for_its_deferred() -> None:
    """The Deferred fires when what the coroutine awaits does."""
    awaited: Deferred[int] = Deferred()

    async def double() -> int:
        return 2 * await awaited

    found = outcome(as_deferred(double()))
    assert found == []
    awaited.callback(4)

    assert found == [8]


def test_errors_come_through() -> None:
    """What a coroutine raises is what the Deferred fails with."""
    error = ValueError("broken")

    async def fail() -> None:
        raise error

    assert outcome(as_deferred(fail())) == [error]


# as_deferred, on asyncio


def test_an_asyncio_coroutine_runs_as_a_task(on_loop: OnLoop) -> None:
    """A plugin that lives on asyncio may use what works in tasks only."""

    async def scenario() -> Any:
        return await as_deferred(asyncio_coroutine("result"), on_asyncio=True).asFuture(asyncio.get_running_loop())

    assert on_loop(scenario()) == "result"


def test_an_asyncio_coroutine_needs_to_be_known_as_one(on_loop: OnLoop) -> None:
    """Run as a coroutine of Twisted it fails, rather than to hang: the sort must be told."""

    async def scenario() -> list[Any]:
        return outcome(as_deferred(asyncio_coroutine("result")))

    [error] = on_loop(scenario())

    assert isinstance(error, TypeError | RuntimeError)


@pytest.mark.parametrize("on_asyncio", [True, False])
def test_an_asyncio_future_is_known_by_itself(on_loop: OnLoop, on_asyncio: bool) -> None:
    """A future or task needs no telling."""

    async def scenario() -> list[Any]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(asyncio_coroutine("task"))
        found = [outcome(as_deferred(one, on_asyncio=on_asyncio)) for one in (future, task)]
        future.set_result("future")
        await task
        await asyncio.sleep(0)
        return found

    assert on_loop(scenario()) == [["future"], ["task"]]


def test_errors_of_asyncio_come_through(on_loop: OnLoop) -> None:
    """What a task raises is what the Deferred fails with."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def scenario() -> list[Any]:
        found = outcome(as_deferred(fail(), on_asyncio=True))
        for _ in range(3):
            await asyncio.sleep(0)
        return found

    [error] = on_loop(scenario())

    assert str(error) == "broken"


def test_a_late_task_is_cancelled(on_loop: OnLoop) -> None:
    """A time limit ends the task, which may clean up."""
    clock = TurnableClock()
    cleaned = []

    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append(True)

    async def scenario() -> list[Any]:
        found = outcome(limited(as_deferred(hang(), on_asyncio=True), clock, 5))
        await asyncio.sleep(0)
        clock.advance(5)
        for _ in range(3):
            await asyncio.sleep(0)
        return found

    [error] = on_loop(scenario())

    assert isinstance(error, TimeLimitExceeded)
    assert cleaned == [True]


class AsyncioGuard:
    """An authenticator that lives on asyncio."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

    @hookimpl
    def requirements(self) -> Requirements:
        return Requirements(SPI_VERSION, reactor="asyncio")

    @hookimpl
    async def authenticate(self) -> Decision:
        async with asyncio.timeout(60):
            return await self.answer


def test_a_plugin_that_requires_asyncio_may_use_it(on_loop: OnLoop) -> None:
    """Its coroutines run as tasks, and the broker waits for them as for any others."""

    async def scenario() -> Any:
        guard = AsyncioGuard()
        house = House(plugins={"guard": guard})
        peer = house.connect("c", V5)
        for _ in range(3):
            await asyncio.sleep(0)
        assert peer.packets == []
        guard.answer.set_result(ALLOW)
        for _ in range(3):
            await asyncio.sleep(0)
        house.settle()
        return peer.connack.reason

    assert on_loop(scenario()) is ReasonCode.SUCCESS


def test_a_plugin_on_asyncio_has_the_hooks_time_limit(on_loop: OnLoop) -> None:
    """The broker's clock cuts it off, whatever limit of its own it has."""

    async def scenario() -> Any:
        house = House(plugins={"guard": AsyncioGuard()}, connect_time_limit_s=60)
        peer = house.connect("c", V5)
        await asyncio.sleep(0)
        house.advance(11)
        await asyncio.sleep(0)
        return peer.connack.reason

    assert on_loop(scenario()) is ReasonCode.SERVER_UNAVAILABLE


# settle, run


def test_settle_makes_values_of_answers() -> None:
    """A value is itself; an awaitable is waited for."""

    async def both() -> list[Any]:
        return [
            await resolve("value"),
            await resolve(succeed("deferred")),
            await resolve(twisted_coroutine("coroutine")),
        ]

    assert outcome(run(both())) == [["value", "deferred", "coroutine"]]


def test_run_begins_at_once() -> None:
    """A coroutine of the broker's own runs until its first wait before ``run`` returns."""
    awaited: Deferred[None] = Deferred()
    steps = []

    async def walk() -> None:
        steps.append("first")
        await awaited
        steps.append("second")

    done = run(walk())
    assert (steps, done.called) == (["first"], False)
    awaited.callback(None)

    assert (steps, done.called) == (["first", "second"], True)


# limited


def test_no_limit_changes_nothing() -> None:
    """Without a limit, and where the answer is there, the Deferred is handed back as it is."""
    clock = TurnableClock()
    open_end: Deferred[int] = Deferred()
    fired = succeed(1)

    assert limited(open_end, clock, None) is open_end
    assert limited(fired, clock, 5) is fired
    assert clock.pending() == 0


def test_a_deferred_that_waits_for_another_has_its_limit() -> None:
    """It has fired, and what one of its callbacks answered has not: there is no result yet."""
    clock = TurnableClock()
    cancelled: list[Any] = []
    inner: Deferred[str] = Deferred(cancelled.append)
    outer = succeed(None).addCallback(lambda _: inner)

    found = outcome(limited(outer, clock, 5))
    clock.advance(5)

    assert [type(error) for error in found] == [TimeLimitExceeded]
    assert cancelled == [inner]


@pytest.mark.parametrize("how", ["too late", "abandoned"])
def test_a_canceller_that_raises_stops_nobody(how: str) -> None:
    """It is a plugin's, and who waits for the answer has its end all the same."""

    def broken(_: Any) -> None:
        raise ValueError("broken")

    clock = TurnableClock()
    waiting: Deferred[Any] = limited(Deferred(broken), clock, 5)
    found = outcome(waiting)

    if how == "abandoned":
        waiting.cancel()
    else:
        clock.advance(5)

    assert [type(error) for error in found] == [CallAbandoned if how == "abandoned" else TimeLimitExceeded]
    assert clock.pending() == 0


def test_whoever_stops_waiting_cancels_what_was_waited_for() -> None:
    """The waiting side learns that it was its own doing, and the timer is given back."""
    clock = TurnableClock()
    cancelled: list[Any] = []
    waiting: Deferred[Any] = limited(Deferred(cancelled.append), clock, 5)
    found = outcome(waiting)

    waiting.cancel()

    assert [type(error) for error in found] == [CallAbandoned]
    assert len(cancelled) == 1
    assert clock.pending() == 0


def test_an_answer_in_time_is_passed_on() -> None:
    """The timer is given back."""
    clock = TurnableClock()
    deferred: Deferred[str] = Deferred()
    found = outcome(limited(deferred, clock, 5))
    clock.advance(4.9)

    deferred.callback("in time")

    assert found == ["in time"]
    assert clock.pending() == 0


def test_an_error_in_time_is_passed_on() -> None:
    """A failure is an answer, too."""
    clock = TurnableClock()
    deferred: Deferred[str] = Deferred()
    found = outcome(limited(deferred, clock, 5))

    deferred.errback(ValueError("broken"))

    assert str(found[0]) == "broken"
    assert clock.pending() == 0


def test_a_late_answer_is_cancelled() -> None:
    """The waiting side fails at once, and the Deferred is told that nobody waits any more."""
    clock = TurnableClock()
    cancelled: list[Deferred[str]] = []
    deferred: Deferred[str] = Deferred(cancelled.append)
    found = outcome(limited(deferred, clock, 2.5))

    clock.advance(2.5)

    assert [type(error) for error in found] == [TimeLimitExceeded]
    assert str(found[0]) == "no answer within 2.5 s"
    assert cancelled == [deferred]


def test_an_answer_after_the_limit_is_ignored() -> None:
    """A late result is neither passed on nor an error of anybody's."""
    clock = TurnableClock()
    deferred: Deferred[str] = Deferred()
    found = outcome(limited(deferred, clock, 5))
    clock.advance(5)

    deferred.callback("too late")

    assert [type(error) for error in found] == [TimeLimitExceeded]


def test_a_late_coroutine_may_clean_up() -> None:
    """It is cancelled where it waits, and what it answers to that is ignored."""
    clock = TurnableClock()
    cleaned = []

    async def stubborn() -> str:
        try:
            return await Deferred[str]()
        except CancelledError:
            cleaned.append(True)
            return "all the same"

    found = outcome(limited(as_deferred(stubborn()), clock, 5))
    clock.advance(5)

    assert [type(error) for error in found] == [TimeLimitExceeded]
    assert cleaned == [True]
