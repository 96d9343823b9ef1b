"""The dispatchers by themselves: how answers combine, what a failure becomes, what waits in a mailbox."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from kinmqtt.broker import dispatch
from kinmqtt.broker.dispatch import Call, CallFactory, Collect, Decide, Intercept, Mailbox, Notify, Poll, Ruling
from kinmqtt.plugins.manager import Implementation
from kinmqtt_spi import ABSTAIN, ALLOW, Disconnect, Drop, ReasonCode, Reject, deny
from kinmqtt_spi.markers import HookTraits, Kind, OnFailure
from kinmqtt_spi.reference.metric import MetricRegistry
from kinmqtt_spi.reference.plugin import TurnableClock

NOBODY = deny(text="nobody answered")
REFUSED = Reject(ReasonCode.UNSPECIFIED_ERROR, "a plugin failed")


class Desk:
    """Makes calls of plain functions, and tells what was counted under their plugins' names."""

    def __init__(self) -> None:
        self.clock = TurnableClock()
        self.metrics = MetricRegistry()
        self._factory = CallFactory(self.clock, self.metrics)
        self._boxes: dict[str, Mailbox] = {}

    def calls(
        self, *functions: Callable[..., Any], synchronous: bool = False, limit_s: float | None = 10.0
    ) -> tuple[Call, ...]:
        """One call for each function; their plugins are named p0, p1 and so on."""
        traits = HookTraits(Kind.DECIDE, synchronous, limit_s)
        return self._factory.bind("hook", traits, [Implementation(f"p{n}", f) for n, f in enumerate(functions)])

    def notify(self, *implementations: Implementation, hook: str = "hook") -> Notify[Any]:
        """A notice with mailboxes by plugin."""
        calls = self._factory.bind(hook, HookTraits(Kind.NOTIFY), implementations)
        return Notify(calls, lambda name: self._boxes.setdefault(name, Mailbox(self.clock)), self.metrics)

    def count(self, metric: str, plugin: str, hook: str = "hook") -> int:
        """A counter of one plugin and hook."""
        return self.metrics.counter(metric, _unit(metric), {"plugin": plugin, "hook": hook}).value


def _unit(metric: str) -> str:
    return "notices" if metric == "plugin.notices_dropped" else "calls"


@pytest.fixture
def desk() -> Desk:
    """A fresh desk."""
    return Desk()


def answers(value: Any) -> Callable[..., Any]:
    """A function with one answer."""
    return lambda *_: value


def raises(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def later(value: Any) -> Any:
    """A coroutine's answer."""
    return value


async def raises_later(*_: Any) -> Any:
    """What a broken plugin does that answers with a coroutine."""
    raise ValueError("broken")


def outcome(answer: Any) -> Any:
    """What a Deferred has fired with."""
    fired: list[Any] = []
    answer.addBoth(fired.append)
    return fired[0] if fired else None


# Calls


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

    with pytest.raises(TypeError, match="hook must answer at once"):
        call()


def test_a_late_answer_is_cut_off(desk: Desk) -> None:
    """What has not answered within the hook's limit fails, and its Deferred is cancelled."""
    cancelled = []
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


# Decide


@pytest.mark.parametrize("abstention", [None, ABSTAIN])
def test_decide_goes_on_until_somebody_answers(desk: Desk, abstention: Any) -> None:
    """The first answer that does not abstain counts, under its plugin's name; the rest are not asked."""
    decide: Decide[Any] = Decide(desk.calls(answers(abstention), answers(ALLOW), raises), NOBODY, ReasonCode.BANNED)

    ruling = decide("question")

    assert ruling == Ruling(ALLOW, "p1")
    assert desk.count("plugin.calls", "p2") == 0


def test_decide_has_a_default(desk: Desk) -> None:
    """Where everybody abstains the default counts, and nobody is named."""
    decide: Decide[Any] = Decide(desk.calls(answers(None), answers(ABSTAIN)), NOBODY, ReasonCode.BANNED)

    assert decide() == Ruling(NOBODY, "")


def test_decide_without_plugins_is_inactive(desk: Desk) -> None:
    """Callers may skip a hook that nobody implements."""
    assert not Decide(desk.calls(), NOBODY, ReasonCode.BANNED).active
    assert Decide(desk.calls(answers(None)), NOBODY, ReasonCode.BANNED).active


def test_decide_takes_a_failure_as_a_denial(desk: Desk) -> None:
    """Who raises denies, and is counted; the next is not asked."""
    decide: Decide[Any] = Decide(desk.calls(raises, answers(ALLOW)), NOBODY, ReasonCode.BANNED)

    ruling: Any = decide()

    assert (ruling.decision.allowed, ruling.decision.reason, ruling.by) == (False, ReasonCode.BANNED, "p0")
    assert ruling.failed
    assert desk.count("plugin.failures", "p0") == 1


@pytest.mark.parametrize("abstention", [None, ABSTAIN])
def test_decide_goes_on_after_an_awaited_abstention(desk: Desk, abstention: Any) -> None:
    """A coroutine that abstains leaves the question to the next, who may answer later too."""
    chain = desk.calls(lambda *_: later(abstention), answers(None), lambda *_: later(ALLOW), raises)
    decide: Decide[Any] = Decide(chain, NOBODY, ReasonCode.BANNED)

    assert outcome(decide()) == Ruling(ALLOW, "p2")


def test_decide_asks_the_next_only_after_the_one_before(desk: Desk) -> None:
    """While an answer is awaited nobody further is asked."""
    pending: Deferred[Any] = Deferred()
    decide: Decide[Any] = Decide(desk.calls(answers(pending), answers(ALLOW)), NOBODY, ReasonCode.BANNED)

    ruling = decide()
    assert desk.count("plugin.calls", "p1") == 0
    pending.callback(None)

    assert outcome(ruling) == Ruling(ALLOW, "p1")


def test_decide_has_its_default_after_awaited_abstentions(desk: Desk) -> None:
    """Where all abstain later the default counts."""
    decide: Decide[Any] = Decide(desk.calls(lambda *_: later(None)), NOBODY, ReasonCode.BANNED)

    assert outcome(decide()) == Ruling(NOBODY, "")


@pytest.mark.parametrize("first", [raises_later, lambda *_: fail(ValueError("broken")), lambda *_: later(None)])
def test_decide_takes_a_later_failure_as_a_denial(desk: Desk, first: Callable[..., Any]) -> None:
    """An awaited failure denies as a raised one does, be it the first's or that of one further on."""
    decide: Decide[Any] = Decide(desk.calls(first, raises, answers(ALLOW)), NOBODY, ReasonCode.BANNED)

    ruling = outcome(decide())

    assert (ruling.decision.reason, ruling.failed) == (ReasonCode.BANNED, True)
    assert desk.metrics.sum("plugin.failures") == 1
    assert desk.count("plugin.calls", "p2") == 0


def test_decide_takes_lateness_as_a_denial(desk: Desk) -> None:
    """What is too late counts as a failure of its plugin."""
    decide: Decide[Any] = Decide(desk.calls(answers(Deferred()), answers(ALLOW)), NOBODY, ReasonCode.BANNED)

    ruling = decide()
    desk.clock.advance(10)

    assert outcome(ruling).decision.reason is ReasonCode.BANNED
    assert desk.count("plugin.failures", "p0") == 1


# Poll


def test_poll_takes_the_first_answer_that_counts(desk: Desk) -> None:
    """None and what does not count are passed over; what follows is not asked."""
    poll: Poll[Any, int] = Poll(desk.calls(answers(None), answers(0), answers(2), raises), lambda answer: answer > 0)

    assert poll() == 2
    assert desk.count("plugin.calls", "p3") == 0


@pytest.mark.parametrize("broken", [raises, lambda *_: succeed(1)])
def test_poll_takes_a_failure_as_an_abstention(desk: Desk, broken: Callable[..., Any]) -> None:
    """Who raises, or wants to be waited for, is counted and passed over."""
    poll: Poll[Any, int] = Poll(desk.calls(broken, answers(2), synchronous=True))

    assert poll() == 2
    assert desk.count("plugin.failures", "p0") == 1


def test_poll_counts_an_answer_that_cannot_be_judged(desk: Desk) -> None:
    """An answer of another sort, which the judge stumbles over, is its plugin's failure."""
    poll: Poll[Any, Any] = Poll(desk.calls(answers("many"), answers(2)), lambda answer: answer > 0)

    assert poll() == 2
    assert desk.count("plugin.failures", "p0") == 1


def test_poll_may_have_no_answer(desk: Desk) -> None:
    """Where nobody's answer counts there is none."""
    assert Poll(desk.calls(answers(None)))() is None


# Intercept


def add(text: str) -> Callable[..., Any]:
    """An implementation that puts a text behind the value."""
    return lambda context, value: value + text


def add_later(text: str) -> Callable[..., Any]:
    """The same, as a coroutine."""
    return lambda context, value: later(value + text)


@pytest.mark.parametrize("chain", [(add("b"), add("c")), (answers(None), add("bc")), ()])
def test_intercept_folds_in_order(desk: Desk, chain: tuple[Callable[..., Any], ...]) -> None:
    """Each sees what the one before has made; None leaves the value as it is."""
    intercept: Intercept[Any, str] = Intercept(desk.calls(*chain), 1, REFUSED)

    assert intercept("context", "a") == ("abc" if chain else "a")


@pytest.mark.parametrize(
    "chain",
    [
        (add_later("b"), add("c"), add_later("d")),
        (add("b"), add_later("c"), add("d")),
        (add_later("b"), answers(None), lambda *_: later(None), add_later("cd")),
    ],
)
def test_intercept_folds_through_awaited_answers(desk: Desk, chain: tuple[Callable[..., Any], ...]) -> None:
    """Answers that come later are folded in the same order."""
    intercept: Intercept[Any, str] = Intercept(desk.calls(*chain), 1, REFUSED)

    assert outcome(intercept("context", "a")) == "abcd"


def test_intercept_waits_before_it_goes_on(desk: Desk) -> None:
    """The next implementation is asked only when the one before has answered."""
    pending: Deferred[str] = Deferred()
    intercept: Intercept[Any, str] = Intercept(desk.calls(answers(pending), add("c")), 1, REFUSED)

    folded = intercept("context", "a")
    assert desk.count("plugin.calls", "p1") == 0
    pending.callback("ab")

    assert outcome(folded) == "abc"


@pytest.mark.parametrize("stop", [Drop(), Reject(), Disconnect()])
def test_intercept_is_stopped(desk: Desk, stop: Any) -> None:
    """Drop, Reject and Disconnect end the fold; nobody further is asked, whether they came at once or later."""
    at_once: Intercept[Any, str] = Intercept(desk.calls(answers(stop), raises), 1, REFUSED)
    awaited: Intercept[Any, str] = Intercept(desk.calls(lambda *_: later(stop), raises), 1, REFUSED)

    assert at_once("context", "a") == stop
    assert outcome(awaited("context", "a")) == stop
    assert desk.metrics.sum("plugin.failures") == 0


@pytest.mark.parametrize("broken", [raises, raises_later])
def test_intercept_that_fails_refuses(desk: Desk, broken: Callable[..., Any]) -> None:
    """By the policy to reject, a failure stops the fold."""
    intercept: Intercept[Any, str] = Intercept(desk.calls(broken, add("b")), 1, REFUSED)

    answer = intercept("context", "a")

    assert (outcome(answer) if isinstance(answer, Deferred) else answer) == REFUSED
    assert desk.count("plugin.failures", "p0") == 1


@pytest.mark.parametrize("broken", [raises, lambda *_: later("z")])
def test_intercept_that_fails_may_pass(desk: Desk, broken: Callable[..., Any]) -> None:
    """By the policy to pass, a failure leaves the value to the next; a synchronous hook's Deferred is one."""
    intercept: Intercept[Any, str] = Intercept(desk.calls(broken, add("b"), synchronous=True), 1, None)

    assert intercept.at_once("context", "a") == "ab"
    assert desk.count("plugin.failures", "p0") == 1


def test_intercept_goes_on_after_a_failure_that_passes_later(desk: Desk) -> None:
    """The policy to pass holds for awaited failures too."""
    intercept: Intercept[Any, str] = Intercept(desk.calls(raises_later, add("b")), 1, None)

    assert outcome(intercept("context", "a")) == "ab"


def test_intercept_knows_whom_a_topic_concerns(desk: Desk) -> None:
    """A topic's fold has those with fitting filters and those without any; None where there is nobody."""
    factory = CallFactory(desk.clock, desk.metrics)
    some = Implementation("some", add("s"), ("a/#", "b"))
    every = Implementation("every", add("e"))
    traits = HookTraits(Kind.INTERCEPT)
    both: Intercept[Any, str] = Intercept(factory.bind("hook", traits, [some, every]), 1, None)
    limited: Intercept[Any, str] = Intercept(factory.bind("hook", traits, [some]), 1, None)

    folded = [fold("c", "") for topic in ("a/x", "b", "c") if (fold := both.for_topic(topic)) is not None]

    assert folded == ["se", "se", "e"]
    assert limited.for_topic("a") is limited
    assert limited.for_topic("c") is None


def test_intercept_forgets_topics_beyond_its_cache(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of topics is bounded, and what was forgotten is found again."""
    monkeypatch.setattr(dispatch, "CACHED_TOPICS", 2)
    factory = CallFactory(desk.clock, desk.metrics)
    some = Implementation("some", add("s"), ("a/#",))
    intercept: Intercept[Any, str] = Intercept(factory.bind("hook", HookTraits(Kind.INTERCEPT), [some]), 1, None)

    found = [intercept.for_topic(topic) is intercept for topic in ("a/1", "b/1", "a/2", "b/2", "a/1")]

    assert found == [True, False, True, False, True]
    assert len(intercept._bound) <= 2


def test_long_topics_are_not_remembered(desk: Desk) -> None:
    """Thousands of the longest would hold hundreds of megabytes; what concerns them is found all the same."""
    told: list[str] = []
    some = Implementation("some", add("s"), ("a/#",))
    calls = CallFactory(desk.clock, desk.metrics).bind("hook", HookTraits(Kind.INTERCEPT), [some])
    intercept: Intercept[Any, str] = Intercept(calls, 1, None)
    notify = desk.notify(Implementation("some", told.append, ("a/#",)), hook="notice")
    topics = [f"a/{number:060000}" for number in range(200)]

    tracemalloc.start()
    try:
        found = [intercept.for_topic(topic + "/long") is intercept for topic in topics]
        for topic in topics:
            notify.about(topic + "/long", "told")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    desk.clock.advance()

    assert all(found) and len(told) == len(topics)
    assert kept < 1_000_000


@pytest.mark.parametrize(
    ("policy", "expected"), [(OnFailure.PASS, None), (OnFailure.REJECT, Reject(ReasonCode.BANNED, "a plugin failed"))]
)
def test_failures_become_what_the_hook_declares(policy: OnFailure, expected: Any) -> None:
    """A hook's traits say whether a failing intercept refuses."""
    assert dispatch.failure_outcome(HookTraits(Kind.INTERCEPT, on_failure=policy), ReasonCode.BANNED) == expected


# Collect


def test_collect_has_every_answer_by_plugin(desk: Desk) -> None:
    """Answers come in order under their plugins' names; failing parts are left out and counted."""
    collect: Collect[Any, int] = Collect(desk.calls(answers(1), raises, lambda *_: later(2), raises_later))

    collected = outcome(Deferred.fromCoroutine(collect()))

    assert collected == [("p0", 1), ("p2", 2)]
    assert (desk.count("plugin.failures", "p1"), desk.count("plugin.failures", "p3")) == (1, 1)


def test_collect_at_once_leaves_out_what_would_have_to_be_waited_for(desk: Desk) -> None:
    """In a synchronous hook a Deferred is a failure of its plugin alone."""
    collect: Collect[Any, int] = Collect(desk.calls(answers(1), lambda *_: succeed(2), answers(3), synchronous=True))

    assert collect.at_once() == [("p0", 1), ("p2", 3)]
    assert desk.count("plugin.failures", "p1") == 1


def test_collect_does_not_wait_for_ever(desk: Desk) -> None:
    """What is later than the limit is left out, and the others' answers are not."""
    collect: Collect[Any, int] = Collect(desk.calls(answers(Deferred()), answers(2)))

    collected = Deferred.fromCoroutine(collect())
    desk.clock.advance(10)

    assert outcome(collected) == [("p1", 2)]


# Notices


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
    slow = Implementation("slow", lambda n: pending.append(Deferred()) or pending[-1])
    notify = desk.notify(slow, Implementation("quick", told.append))

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
    notify = desk.notify(Implementation("p", lambda n: told.append(n) or broken()), Implementation("q", told.append))

    notify(1)
    notify(2)
    desk.clock.advance()

    assert sorted(told) == [1, 1, 2, 2]
    assert (desk.count("plugin.failures", "p"), desk.count("plugin.failures", "q")) == (2, 0)


def test_notices_told_while_telling_wait_for_the_next_turn(desk: Desk) -> None:
    """A notice that leads to another gives the reactor its turn in between."""
    turns: list[Any] = []
    told: list[int] = []
    desk.clock.later = lambda delay_s, call: turns.append(call)  # type: ignore[method-assign, assignment]
    notify: Notify[Any] = desk.notify(Implementation("p", lambda n: told.append(n) or notify(n + 1)))

    notify(1)
    turns.pop(0)()
    assert told == [1]
    turns.pop(0)()

    assert told == [1, 2]


def test_mailboxes_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plugin can't take is dropped and counted by hook; those before it come in order, later ones again."""
    monkeypatch.setattr(dispatch, "MAILBOX_LIMIT", 3)
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
    assert desk.count("plugin.notices_dropped", "p") == 2
    assert desk.count("plugin.notices_dropped", "p", "other") == 0


def test_a_plugin_that_never_answers_is_bounded_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices behind one that is never done are kept up to the limit, the rest are dropped."""
    monkeypatch.setattr(dispatch, "MAILBOX_LIMIT", 3)
    notify = desk.notify(Implementation("p", answers(Deferred())))

    notify(0)
    desk.clock.advance()
    for number in range(5):
        notify(number)
    desk.clock.advance(3600)

    assert desk.count("plugin.calls", "p") == 1
    assert desk.count("plugin.notices_dropped", "p") == 2


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
