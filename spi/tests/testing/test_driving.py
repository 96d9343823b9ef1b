"""Drivers wait for whatever a service answers, and say when it never comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kinmqtt_spi.memory.plugin import Completed, TurnableClock
from kinmqtt_spi.testing.driving import AsyncioDriver, Driver, NoAnswer, TurningDriver
from spi_harness.turning import Gate


def fail() -> Any:
    raise KeyError("mine")


async def value(result: Any) -> Any:
    return result


async def failing() -> Any:
    return fail()


@pytest.fixture
def on_asyncio() -> Iterator[AsyncioDriver]:
    driver = AsyncioDriver(limit_s=20.0)
    yield driver
    driver.close()


@pytest.fixture(params=["turning", "asyncio"])
def drive(request: pytest.FixtureRequest) -> Driver:
    driver: Driver = TurningDriver() if request.param == "turning" else request.getfixturevalue("on_asyncio")
    return driver


@pytest.mark.parametrize("result", [None, 0, "text", (1, 2)])
def test_values_are_answers(drive: Driver, result: Any) -> None:
    """What a service answers at once is the answer, and what is awaited has its result."""
    assert drive(result) is result
    assert drive(value(result)) is result
    completed: Completed[Any] = Completed(lambda: result)
    assert drive(completed) is result


def test_errors_are_raised(drive: Driver) -> None:
    """What an answer fails with is raised."""
    for answer in (failing(), Completed(fail)):
        with pytest.raises(KeyError, match="mine"):
            drive(answer)


def test_an_error_of_the_services_own_is_no_missing_answer(drive: Driver) -> None:
    """A service may raise a TimeoutError, which is its own."""

    async def late() -> Any:
        raise TimeoutError("the service's")

    with pytest.raises(TimeoutError, match="the service's"):
        drive(late())


def test_answers_go_on_together(drive: Driver) -> None:
    """Coroutines that are waited for together go on by turns; their values come in the order of the answers."""
    said: list[str] = []

    async def speak(name: str, times: int) -> str:
        for _ in range(times):
            said.append(name)
            await asyncio.sleep(0)
        return name

    found = drive.together([speak("a", 3), "at once", speak("b", 2), Completed(lambda: "later")])

    assert found == ["a", "at once", "b", "later"]
    assert said == ["a", "b", "a", "b", "a"]
    assert drive.together([]) == []


def test_one_may_wait_for_another(drive: Driver) -> None:
    """What the first needs the second brings."""
    brought: list[str] = []

    async def first() -> str:
        while not brought:
            await asyncio.sleep(0)
        return brought[0]

    async def second() -> Any:
        brought.append("it")
        return "brought"

    assert drive.together([first(), second()]) == ["it", "brought"]


def test_of_several_errors_the_first_is_raised(drive: Driver) -> None:
    """Whatever fails, all others come to their end, and the first error by the order of the answers is raised."""
    ended: list[str] = []

    async def late() -> None:
        await asyncio.sleep(0)
        ended.append("late")
        raise ValueError("the first")

    async def well() -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append("well")

    with pytest.raises(ValueError, match="the first"):
        drive.together([late(), failing(), well()])

    assert ended == ["late", "well"]


def test_of_several_answers_none_may_stay_away() -> None:
    """One that never comes is told, by either driver."""
    with pytest.raises(NoAnswer, match=r"Gate.* 10000 turns"):
        TurningDriver().together([value(1), Gate()])

    driver = AsyncioDriver(limit_s=0.01)
    with pytest.raises(NoAnswer, match=r"within 0\.01 s"):
        driver.together([value(1), driver.loop.create_future()])
    driver.close()


def test_the_clock_is_turned_while_an_answer_is_waited_for() -> None:
    """What a service has put off to a later turn happens; its clock stands still all the same."""
    clock = TurnableClock()
    gate = Gate()
    clock.later(0.0, lambda: clock.later(0.0, gate.go))

    async def answer() -> Any:
        await gate
        return "there"

    assert TurningDriver(clock)(answer()) == "there"
    assert clock.monotonic() == 0.0


def test_another_turn_may_be_given() -> None:
    """What is to be called between looks can be said."""
    gate: Any = Gate()
    turns: list[None] = []

    def turn() -> None:
        turns.append(None)
        if len(turns) == 3:
            gate.go()

    TurningDriver(turn=turn)(gate)

    assert len(turns) == 3


def test_an_answer_that_never_comes_is_told() -> None:
    """A test fails, and does not hang, where the answer stays away."""
    never: Any = Gate()
    with pytest.raises(NoAnswer, match="10000 turns"):
        TurningDriver()(never)


def test_an_answer_that_never_comes_is_told_by_the_event_loop() -> None:
    """The same on asyncio, after a limit in real time; what is left over is cancelled with the driver."""
    driver = AsyncioDriver(limit_s=0.01)
    left = driver.loop.create_task(value_after(driver.loop.create_future()))

    with pytest.raises(NoAnswer, match=r"within 0\.01 s"):
        driver(driver.loop.create_future())
    driver.close()

    assert left.cancelled() and driver.loop.is_closed()


async def value_after(future: asyncio.Future[Any]) -> Any:
    return await future


def test_futures_and_tasks_are_waited_for(on_asyncio: AsyncioDriver) -> None:
    """The event loop runs until a future or a task of it has its result, and the tasks beside it run, too."""
    future: asyncio.Future[Any] = on_asyncio.loop.create_future()
    on_asyncio.loop.call_soon(lambda: on_asyncio.loop.call_soon(future.set_result, "there"))

    assert on_asyncio(future) == "there"
    assert on_asyncio(on_asyncio.loop.create_task(value_after(future))) == "there"
    assert on_asyncio(value_after(future)) == "there"
    with pytest.raises(KeyError):
        on_asyncio(on_asyncio.loop.create_task(failing()))


class StandIn:
    """As much of a Deferred as a driver needs: it may be awaited again and again, and becomes a future."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._callbacks: list[Callable[[Any], object]] = []

    def callback(self, result: Any) -> None:
        self._results.append(result)
        for each in self._callbacks:
            each(result)

    def asFuture(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        future = loop.create_future()
        self._callbacks.append(future.set_result)
        for result in self._results:
            future.set_result(result)
        return future

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self._results:
            raise StopIteration(self._results[0])
        return self


def twisted() -> Any:
    return pytest.importorskip("twisted.internet.defer", reason="needs Twisted").Deferred()


@pytest.mark.parametrize("deferred", [StandIn, twisted])
def test_deferreds_are_waited_for(deferred: Callable[[], Any]) -> None:
    """A Deferred, or a coroutine that awaits one, is waited for while the clock is turned."""
    clock = TurnableClock()
    drive = TurningDriver(clock)
    first, second, fired = deferred(), deferred(), deferred()
    clock.later(0.0, lambda: first.callback(1))
    clock.later(0.0, lambda: clock.later(0.0, lambda: second.callback(2)))
    fired.callback(3)

    async def waiting() -> Any:
        return await second

    assert [drive(first), drive(waiting()), drive(fired)] == [1, 2, 3]


@pytest.mark.parametrize("deferred", [StandIn, twisted])
def test_deferreds_are_waited_for_on_asyncio(deferred: Callable[[], Any], on_asyncio: AsyncioDriver) -> None:
    """A Deferred becomes a future where an event loop runs."""
    first, fired = deferred(), deferred()
    on_asyncio.loop.call_soon(first.callback, 1)
    fired.callback(2)

    assert [on_asyncio(first), on_asyncio(fired)] == [1, 2]


# Answers that nobody waits for any more


class Never:
    """Goes on for ever."""

    def __await__(self) -> Any:
        while True:
            yield


@pytest.mark.parametrize("kind", ["at once", "coroutine", "deferred"])
def test_what_is_abandoned_may_clean_up(drive: Driver, kind: str) -> None:
    """What is awaited is cancelled, and who awaits it learns of that; an answer at once needs nothing."""
    cleaned: list[str] = []
    awaited: Any = twisted() if kind == "deferred" else None

    async def wait() -> None:
        try:
            if awaited is None:
                await Never()
            await awaited
        finally:
            cleaned.append(kind)

    if kind == "deferred":
        if isinstance(drive, AsyncioDriver):
            drive.abandon(awaited.addErrback(lambda _: cleaned.append(kind)))
        else:
            drive.abandon(wait())
    else:
        drive.abandon("at once" if kind == "at once" else wait())

    assert cleaned == ([] if kind == "at once" else [kind])


def test_what_goes_on_though_it_is_abandoned_is_a_mistake(drive: Driver) -> None:
    """Its place would never be free again."""
    ignored = 1_000_000
    if isinstance(drive, AsyncioDriver):
        drive._limit_s, ignored = 0.05, 1  # The second time is the end of the driver itself.

    async def stubborn() -> None:
        for _ in range(ignored + 1):
            with suppress(asyncio.CancelledError):
                await Never()

    with pytest.raises(NoAnswer, match="goes on"):
        drive.abandon(stubborn())
