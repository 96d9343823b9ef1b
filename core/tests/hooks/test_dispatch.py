"""The dispatchers by themselves: how answers combine, and what a failure becomes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from core_harness.desk import Desk, answers, later, outcome, raises, raises_later
from kinmqtt.hooks import dispatch
from kinmqtt.hooks.dispatch import Collect, Decide, FailedClosed, HookVerdict, Intercept, Poll
from kinmqtt.hooks.manager import Implementation
from kinmqtt_spi import ABSTAIN, ALLOW, Disconnect, Drop, ReasonCode, Reject, deny
from kinmqtt_spi.markers import HookTraits, Kind, OnFailure

NOBODY = deny(text="nobody answered")
REFUSED = Reject(ReasonCode.UNSPECIFIED_ERROR, "a plugin failed")


@pytest.fixture
def desk() -> Desk:
    """A fresh desk."""
    return Desk()


# Decide


@pytest.mark.parametrize("abstention", [None, ABSTAIN])
def test_decide_goes_on_until_somebody_answers(desk: Desk, abstention: Any) -> None:
    """The first answer that does not abstain counts, under its plugin's name; the rest are not asked."""
    decide: Decide[Any] = Decide(desk.calls(answers(abstention), answers(ALLOW), raises), NOBODY, ReasonCode.BANNED)

    ruling = decide("question")

    assert ruling == HookVerdict(ALLOW, "p1")
    assert desk.count("plugin.calls", "p2") == 0


def test_decide_has_a_default(desk: Desk) -> None:
    """Where everybody abstains the default counts, and nobody is named."""
    decide: Decide[Any] = Decide(desk.calls(answers(None), answers(ABSTAIN)), NOBODY, ReasonCode.BANNED)

    assert decide() == HookVerdict(NOBODY, "")


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

    assert outcome(decide()) == HookVerdict(ALLOW, "p2")


def test_decide_asks_the_next_only_after_the_one_before(desk: Desk) -> None:
    """While an answer is awaited nobody further is asked."""
    pending: Deferred[Any] = Deferred()
    decide: Decide[Any] = Decide(desk.calls(answers(pending), answers(ALLOW)), NOBODY, ReasonCode.BANNED)

    ruling = decide()
    assert desk.count("plugin.calls", "p1") == 0
    pending.callback(None)

    assert outcome(ruling) == HookVerdict(ALLOW, "p1")


def test_decide_has_its_default_after_awaited_abstentions(desk: Desk) -> None:
    """Where all abstain later the default counts."""
    decide: Decide[Any] = Decide(desk.calls(lambda *_: later(None)), NOBODY, ReasonCode.BANNED)

    assert outcome(decide()) == HookVerdict(NOBODY, "")


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
    factory = desk.factory
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
    factory = desk.factory
    some = Implementation("some", add("s"), ("a/#",))
    intercept: Intercept[Any, str] = Intercept(factory.bind("hook", HookTraits(Kind.INTERCEPT), [some]), 1, None)

    found = [intercept.for_topic(topic) is intercept for topic in ("a/1", "b/1", "a/2", "b/2", "a/1")]

    assert found == [True, False, True, False, True]
    assert len(intercept._bound) <= 2


def test_long_topics_are_not_remembered(desk: Desk) -> None:
    """Thousands of the longest would hold hundreds of megabytes; what concerns them is found all the same."""
    told: list[str] = []
    some = Implementation("some", add("s"), ("a/#",))
    calls = desk.factory.bind("hook", HookTraits(Kind.INTERCEPT), [some])
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


@pytest.mark.parametrize("broken", [raises, raises_later])
def test_intercept_that_fails_closed_stops(desk: Desk, broken: Callable[..., Any]) -> None:
    """An implementation that asks for it refuses by its failure, whatever the hook's policy; others let it pass."""
    openly, closed = desk.calls(broken), desk.calls(broken, closed=True)
    through: Intercept[Any, str] = Intercept([*openly, *desk.calls(add("b"))], 1, None)
    stopped: Intercept[Any, str] = Intercept([*closed, *desk.calls(add("b"))], 1, None)

    found = [fold("context", "a") for fold in (through, stopped)]

    assert [outcome(each) if isinstance(each, Deferred) else each for each in found] == ["ab", dispatch.CLOSED]
    assert desk.count("plugin.failures", "p0") == 2


def test_what_is_abandoned_is_cancelled_and_is_no_failure(desk: Desk) -> None:
    """Where nobody waits for a decision any more its plugin is told, asked about nothing else, and not blamed."""
    cancelled: list[Any] = []
    decide: Decide[Any] = Decide(
        desk.calls(answers(Deferred(cancelled.append)), answers(ALLOW)), NOBODY, ReasonCode.BANNED
    )

    asked: Any = decide()
    asked.cancel()

    assert len(cancelled) == 1
    assert not outcome(asked).decision.allowed
    assert desk.metrics.sum("plugin.failures") == 0
    assert desk.count("plugin.calls", "p1") == 0
    assert desk.clock.pending() == 0


def test_collect_that_fails_closed_says_so(desk: Desk) -> None:
    """The answers of all others would be as if nothing were missing."""
    collect: Collect[Any, int] = Collect([*desk.calls(answers(1)), *desk.calls(raises, closed=True)])

    failure = outcome(Deferred.fromCoroutine(collect()))

    assert isinstance(failure.value, FailedClosed)
    assert str(failure.value) == "plugin p0 failed"


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
