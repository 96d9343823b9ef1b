"""Notices by themselves: their order, what waits in a mailbox, and what does not come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from core_harness.desk import Desk, answers, raises, raises_later
from kinmqtt.hooks import notify as notices
from kinmqtt.hooks.manager import Implementation
from kinmqtt.hooks.notify import Notify


@pytest.fixture
def desk() -> Desk:
    """A fresh desk."""
    return Desk()


@contextmanager
def logged() -> Iterator[list[str]]:
    """The lines of the log, as they are written."""
    found: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") == "kinmqtt.hooks":
            found.append(str(event["log_format"]).format(**event))

    globalLogPublisher.addObserver(observe)
    try:
        yield found
    finally:
        globalLogPublisher.removeObserver(observe)


def test_notices_come_in_a_later_turn(desk: Desk) -> None:
    """Telling returns before anybody is told."""
    told: list[int] = []
    notify = desk.notify(Implementation("p", told.append))

    notify(1)
    notify(2)
    assert told == []
    desk.clock.advance()

    assert told == [1, 2]


def test_notices_of_one_plugin_keep_their_order_over_all_hooks(desk: Desk) -> None:
    """A plugin hears of things in the order in which they happened, whichever hook tells it."""
    told: list[str] = []
    created = desk.notify(Implementation("p", lambda n: told.append(f"created {n}")), hook="created")
    ended = desk.notify(Implementation("p", lambda n: told.append(f"ended {n}")), hook="ended")

    created(1)
    ended(1)
    created(2)
    desk.clock.advance()

    assert told == ["created 1", "ended 1", "created 2"]


def test_a_slow_plugin_holds_up_its_own_notices_only(desk: Desk) -> None:
    """The next notice of a plugin waits for its answer; another plugin's does not."""
    pending: list[Deferred[None]] = []
    told: list[int] = []

    def slow(_: int) -> Deferred[None]:
        pending.append(Deferred())
        return pending[-1]

    notify = desk.notify(Implementation("slow", slow), Implementation("quick", told.append))

    for number in range(3):
        notify(number)
    desk.clock.advance()
    assert (len(pending), told) == (1, [0, 1, 2])
    pending[0].callback(None)
    desk.clock.advance()

    assert len(pending) == 2


@pytest.mark.parametrize("broken", [raises, raises_later, lambda *_: fail(ValueError("broken"))])
def test_a_failing_notice_is_counted_and_the_next_is_told(desk: Desk, broken: Callable[..., Any]) -> None:
    """A failure, at once or later, costs that one notice."""
    told: list[int] = []

    def tell(number: int) -> Any:
        told.append(number)
        return broken()

    notify = desk.notify(Implementation("p", tell), Implementation("q", told.append))

    notify(1)
    notify(2)
    desk.clock.advance()

    assert sorted(told) == [1, 1, 2, 2]
    assert (desk.count("plugin.failures", "p", "notice"), desk.count("plugin.failures", "q", "notice")) == (2, 0)


def test_notices_told_while_telling_wait_for_the_next_turn(desk: Desk) -> None:
    """A notice that leads to another gives the reactor its turn in between."""
    turns: list[Any] = []
    told: list[int] = []
    clock: Any = desk.clock
    clock.later = lambda delay_s, call: turns.append(call)

    def tell(number: int) -> None:
        told.append(number)
        notify(number + 1)

    notify: Notify[Any] = desk.notify(Implementation("p", tell))

    notify(1)
    turns.pop(0)()
    assert told == [1]
    turns.pop(0)()

    assert told == [1, 2]


def test_mailboxes_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plugin can't take is dropped and counted by hook; those before it come in order, later ones again."""
    monkeypatch.setattr(notices, "MAILBOX_LIMIT", 3)
    told: list[int] = []
    notify = desk.notify(Implementation("p", told.append))
    other = desk.notify(Implementation("p", lambda n: told.append(-n)), hook="other")

    for number in range(1, 6):
        notify(number)
    other(9)
    desk.clock.advance()
    notify(6)
    desk.clock.advance()

    assert told == [1, 2, 3, -9, 6]
    assert desk.count("plugin.notices_dropped", "p", "notice") == 2
    assert desk.count("plugin.notices_dropped", "p", "other") == 0


def test_a_plugin_that_never_answers_is_bounded_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices behind one that is not done are kept up to the limit; that the rest are dropped the log says once."""
    monkeypatch.setattr(notices, "MAILBOX_LIMIT", 3)
    notify = desk.notify(Implementation("p", answers(Deferred())))

    with logged() as lines:
        notify(0)
        desk.clock.advance()
        for number in range(6):
            notify(number)

    assert desk.count("plugin.calls", "p", "notice") == 1
    assert desk.count("plugin.notices_dropped", "p", "notice") == 3
    assert lines == ["plugin p is too slow for notice: 3 notices are queued, others are dropped"]


def test_notices_about_a_topic_go_to_those_it_concerns(desk: Desk) -> None:
    """Filters given with on_topics are looked at; whoever has none hears of everything."""
    told: list[tuple[str, int]] = []
    some = Implementation("some", lambda n: told.append(("some", n)), ("a/+",))
    every = Implementation("every", lambda n: told.append(("every", n)))
    notify = desk.notify(some, every)

    notify.about("a/b", 1)
    notify.about("a/b/c", 2)
    desk.clock.advance()

    assert told == [("some", 1), ("every", 1), ("every", 2)]


# What does not come to its end


@pytest.mark.parametrize(
    "hanging",
    [lambda *_: Deferred(), lambda *_: succeed(None).addCallback(lambda _: Deferred())],
    ids=["Deferred", "fired Deferred that waits for another"],
)
def test_a_notice_that_never_ends_is_cancelled_and_the_next_is_told(desk: Desk, hanging: Callable[..., Any]) -> None:
    """The log names plugin and hook, and a counter counts it."""
    told: list[int] = []

    def tell(number: int) -> Any:
        told.append(number)
        return hanging() if number == 1 else None

    notify = desk.notify(Implementation("p", tell))

    with logged() as lines:
        notify(1)
        notify(2)
        desk.clock.advance()
        desk.clock.advance(29.9)
        before = list(told)
        desk.clock.advance(0.1)

    assert (before, told) == ([1], [1, 2])
    assert desk.count("plugin.notices_timed_out", "p", "notice") == 1
    assert desk.count("plugin.failures", "p", "notice") == 1
    assert lines == ["plugin p: notice has not ended within 30 s and is cancelled; notices that waited for it: 1"]


def test_a_plugin_hangs_until_it_comes_to_an_end_with_something(desk: Desk) -> None:
    """One that hangs again goes on hanging; a notice that ends later, but in time, is an end."""
    replies: list[Deferred[None]] = [Deferred(), Deferred(), Deferred()]
    notify = desk.notify(Implementation("p", lambda n: replies[n]))
    seen = []

    for number in range(3):
        notify(number)
    for _ in range(2):
        desk.clock.advance(30)
        desk.clock.advance()
        seen.append(desk.boxes["p"].overdue is not None)
    replies[2].callback(None)
    seen.append(desk.boxes["p"].overdue is not None)

    assert seen == [True, True, False]


def test_the_limit_may_be_changed(desk: Desk) -> None:
    """It holds for what is told from then on."""
    notify = desk.notify(Implementation("p", lambda _: Deferred()))
    desk.limit.limit_s = 5.0

    notify(1)
    desk.clock.advance()
    desk.clock.advance(5)

    assert desk.count("plugin.notices_timed_out", "p", "notice") == 1


def test_what_is_cancelled_may_clean_up_before_the_next_is_told(desk: Desk) -> None:
    """A plugin's notices stay one after the other."""
    diary: list[str] = []
    cleaned: Deferred[None] = Deferred()

    async def take(number: int) -> None:
        diary.append(f"began {number}")
        if number == 1:
            try:
                await Deferred()
            except CancelledError:
                await cleaned
        diary.append(f"ended {number}")

    notify = desk.notify(Implementation("p", take))
    notify(1)
    notify(2)
    desk.clock.advance()
    desk.clock.advance(30)
    desk.clock.advance(0.5)
    cleaned.callback(None)
    desk.clock.advance()

    assert diary == ["began 1", "ended 1", "began 2", "ended 2"]


def test_what_does_not_end_when_it_is_cancelled_is_left_alone(desk: Desk) -> None:
    """A second later the next is told, and the log says that one runs beside it, and when it has ended after all."""
    told: list[int] = []
    stubborn: Deferred[None] = Deferred()

    async def take(number: int) -> None:
        told.append(number)
        try:
            await Deferred()
        except CancelledError:
            await stubborn
            raise

    notify = desk.notify(Implementation("p", lambda n: take(n) if n == 1 else told.append(n)))
    with logged() as lines:
        notify(1)
        notify(2)
        for seconds in (0, 30, 0.9):
            desk.clock.advance(seconds)
        before = list(told)
        desk.clock.advance(0.1)
        desk.clock.advance()
        stubborn.callback(None)

    assert (before, told) == ([1], [1, 2])
    assert [line.partition(";")[0] for line in lines[1:]] == [
        "plugin p: notice still runs 1 s after it was cancelled",
        "plugin p: notice ended late",
    ]
    assert desk.count("plugin.failures", "p", "notice") == 1
    assert desk.clock.pending() == 0


def test_a_task_of_asyncio_has_ended_before_the_next_is_told(desk: Desk) -> None:
    """It is cancelled in a later turn of the event loop, and the next notice waits for that."""
    diary: list[str] = []

    async def take(number: int) -> None:
        diary.append(f"began {number}")
        try:
            await asyncio.sleep(3600 if number == 1 else 0)
        finally:
            diary.append(f"ended {number}")

    async def scenario() -> None:
        notify = desk.notify(Implementation("p", take, asyncio=True))
        notify(1)
        notify(2)
        for seconds in (0, 30, 0, 0, 0, 0):
            desk.clock.advance(seconds)
            for _ in range(5):
                await asyncio.sleep(0)

    with asyncio.Runner() as runner:
        runner.run(scenario())

    assert diary == ["began 1", "ended 1", "began 2", "ended 2"]


def test_a_stop_gives_up_what_hangs(desk: Desk) -> None:
    """What is awaited is cancelled, what waits behind it is lost, and the log names both."""
    cancelled: list[Any] = []
    notify = desk.notify(Implementation("p", lambda n: Deferred(cancelled.append)))
    quick = desk.notify(Implementation("quick", lambda n: None))

    with logged() as lines:
        for number in range(3):
            notify(number)
            quick(number)
        desk.clock.advance()
        drained = desk.boxes["p"].drained()
        for box in desk.boxes.values():
            box.give_up()
        desk.clock.advance()

    assert len(cancelled) == 1
    assert drained.called
    assert lines == ["plugin p: the broker stops before notice has ended; it is cancelled; notices lost behind it: 2"]
    assert desk.clock.pending() == 0


ENDS = st.sampled_from(["at once", "raises", "later", "fails later", "never", "stubborn"])


@given(st.lists(ENDS, max_size=12))
def test_every_notice_is_told_once_and_in_order(ends: list[str]) -> None:
    """Whatever each of them does: none is skipped, none overtakes, and in the end nothing is left waiting."""
    desk = Desk()
    told: list[int] = []
    running: set[int] = set()
    together: list[int] = []

    async def hang(number: int, stubborn: bool) -> None:
        running.add(number)
        try:
            await Deferred()
        except CancelledError:
            if stubborn:
                running.discard(number)
                await Deferred()
        running.discard(number)

    def take(number: int) -> Any:
        told.append(number)
        together.append(len(running))
        match ends[number]:
            case "raises":
                raise ValueError("broken")
            case "later" | "fails later":
                reply: Deferred[None] = Deferred()
                fires: Callable[[Any], None] = reply.callback if ends[number] == "later" else reply.errback
                desk.clock.later(5, lambda: fires(None if ends[number] == "later" else ValueError("broken")))
                return reply
            case "never" | "stubborn":
                return hang(number, ends[number] == "stubborn")
        return None

    notify = desk.notify(Implementation("p", take))
    for number in range(len(ends)):
        notify(number)
    drained = desk.boxes["p"].drained() if ends else succeed(None)
    for _ in range(len(ends) * 40):
        desk.clock.advance(1)

    assert told == list(range(len(ends)))
    assert set(together) <= {0}
    assert drained.called
    assert desk.count("plugin.notices_timed_out", "p", "notice") == sum(e in ("never", "stubborn") for e in ends)
