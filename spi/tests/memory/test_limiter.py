"""Token buckets."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.limiter import Rule, TokenBuckets
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import (
    WITHIN_LIMITS,
    LimitDecision,
    LimiterNeeds,
    LimitVerdict,
    Resource,
    ResourceKind,
)

PUBLISH, CONNECT = ResourceKind.PUBLISH, ResourceKind.CONNECT


def publish(client_id: str | None = "c", topic: str | None = None, username: str | None = None) -> Resource:
    return Resource(PUBLISH, "tcp", "::1", client_id, username, topic)


def test_a_burst_passes_and_the_rate_follows() -> None:
    """What is in the bucket may be used at once; after that tokens come back at the rule's rate."""
    clock = TurnableClock()
    rule = Rule("r", PUBLISH, rate_per_s=2, burst=3, verdict=LimitVerdict.REJECT)
    limiter = TokenBuckets([rule], clock.monotonic)

    verdicts = [limiter.acquire(publish(), 1).verdict for _ in range(4)]
    clock.advance(0.5)
    verdicts += [limiter.acquire(publish(), 1).verdict for _ in range(2)]

    allow, reject = LimitVerdict.ALLOW, LimitVerdict.REJECT
    assert verdicts == [allow, allow, allow, reject, allow, reject]


def test_a_delay_lasts_until_the_credit_is_paid_back() -> None:
    """A delayed excess is carried out, and its wait in seconds brings the rate back to the rule's."""
    clock = TurnableClock()
    limiter = TokenBuckets([Rule("r", PUBLISH, rate_per_s=10, burst=5)], clock.monotonic)

    first = limiter.acquire(publish(), 25)
    clock.advance(first.delay_s)
    second = limiter.acquire(publish(), 1)

    assert first == LimitDecision(LimitVerdict.DELAY, "r", 2.0)
    assert second.delay_s == pytest.approx(0.1)


def test_an_amount_above_the_burst_is_not_refused_for_ever() -> None:
    """A read that holds more packets than the burst passes, and is paid for afterwards."""
    clock = TurnableClock()
    rule = Rule("r", PUBLISH, rate_per_s=1, burst=2, verdict=LimitVerdict.DROP)
    limiter = TokenBuckets([rule], clock.monotonic)

    verdicts = [limiter.acquire(publish(), 5).verdict]
    clock.advance(3.0)
    verdicts.append(limiter.acquire(publish(), 1).verdict)
    clock.advance(1.0)
    verdicts.append(limiter.acquire(publish(), 1).verdict)

    assert verdicts == [LimitVerdict.ALLOW, LimitVerdict.DROP, LimitVerdict.ALLOW]


def test_a_read_passes_while_there_is_a_token_for_its_first_packet() -> None:
    """The excess is owed, and nothing passes until it is paid back: in the long run no more than the rate."""
    clock = TurnableClock()
    rule = Rule("r", PUBLISH, rate_per_s=10, burst=10, verdict=LimitVerdict.REJECT)
    limiter = TokenBuckets([rule], clock.monotonic)

    passed = []
    for _ in range(100):
        passed.append(limiter.acquire(publish(), 40).verdict is LimitVerdict.ALLOW)
        clock.advance(1.0)

    assert passed[:5] == [True, False, False, False, True]
    assert 10 * 100 <= 40 * sum(passed) <= 10 * 100 + 10 + 40


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_bucket_need_not_be_full(tokens: int) -> None:
    """However few tokens are left, one is enough."""
    rule = Rule("r", PUBLISH, rate_per_s=1, burst=5, verdict=LimitVerdict.REJECT)
    limiter = TokenBuckets([rule], lambda: 0.0)
    for _ in range(5 - tokens):
        limiter.acquire(publish(), 1)

    verdicts = [limiter.acquire(publish(), 40).verdict, limiter.acquire(publish(), 1).verdict]

    assert verdicts == [LimitVerdict.ALLOW, LimitVerdict.REJECT]


def test_what_one_rule_refuses_costs_no_other_rule() -> None:
    """A refused request takes no tokens anywhere, and names the rule and reason that refused it."""
    clock = TurnableClock()
    rules = [
        Rule("all", PUBLISH, 1, 2, per="all", verdict=LimitVerdict.REJECT),
        Rule("own", PUBLISH, 1, 1, verdict=LimitVerdict.DISCONNECT, reason=ReasonCode.MESSAGE_RATE_TOO_HIGH),
    ]
    limiter = TokenBuckets(rules, clock.monotonic)

    answers = [limiter.acquire(publish("a"), 1) for _ in range(3)] + [limiter.acquire(publish("b"), 1)]

    refused = LimitDecision(LimitVerdict.DISCONNECT, "own", reason=ReasonCode.MESSAGE_RATE_TOO_HIGH)
    assert answers == [WITHIN_LIMITS, refused, refused, WITHIN_LIMITS]


def test_the_longest_delay_counts() -> None:
    """Of several rules that delay, the client waits for the slowest."""
    rules = [Rule("fast", PUBLISH, 10, 1), Rule("slow", PUBLISH, 1, 1), Rule("mid", PUBLISH, 5, 1)]
    limiter = TokenBuckets(rules, lambda: 0.0)

    decision = limiter.acquire(publish(), 3)

    assert (decision.rule, decision.delay_s) == ("slow", 2.0)


@pytest.mark.parametrize("per", ["client", "address", "username", "listener", "all"])
def test_each_has_a_bucket_of_its_own(per: str) -> None:
    """Two that differ in what a rule is for do not use up each other's tokens; ``all`` share one."""
    rule = Rule("r", PUBLISH, 1, 1, per=per, verdict=LimitVerdict.DROP)  # type: ignore[arg-type]
    limiter = TokenBuckets([rule], lambda: 0.0)
    one, two = Resource(PUBLISH, "l1", "a1", "c1", "u1"), Resource(PUBLISH, "l2", "a2", "c2", "u2")

    verdicts = [limiter.acquire(each, 1).verdict for each in (one, two, one)]

    second = LimitVerdict.DROP if per == "all" else LimitVerdict.ALLOW
    assert verdicts == [LimitVerdict.ALLOW, second, LimitVerdict.DROP]


def test_a_rule_is_silent_on_what_it_does_not_fit() -> None:
    """Other kinds, topics and clients without what the rule asks for pass untouched."""
    rule = Rule("r", PUBLISH, 1, 1, per="username", topics=("a/#",), verdict=LimitVerdict.DROP)
    limiter = TokenBuckets([rule], lambda: 0.0)

    answers = [
        limiter.acquire(Resource(CONNECT, "tcp", "::1", "c", "u", "a"), 9),
        limiter.acquire(publish(topic="b", username="u"), 9),
        limiter.acquire(publish(topic=None, username="u"), 9),
        limiter.acquire(publish(topic="a"), 9),
    ]

    assert answers == [WITHIN_LIMITS] * 4
    assert len(limiter) == 0


def test_needs_follow_from_the_rules() -> None:
    """The broker is asked for no more than the rules look at."""
    plain = [Rule("r", PUBLISH, 1, 1), Rule("s", CONNECT, 1, 1, per="address")]
    by_topic = [Rule("r", PUBLISH, 1, 1, topics=("a",))]

    needs = [TokenBuckets(rules, lambda: 0.0).limiter_needs() for rules in (plain, by_topic)]

    assert needs == [
        LimiterNeeds(frozenset({PUBLISH, CONNECT})),
        LimiterNeeds(frozenset({PUBLISH}), topics=True),
    ]


def test_idle_buckets_are_dropped() -> None:
    """Clients that went quiet leave nothing behind once others come."""
    clock = TurnableClock()
    limiter = TokenBuckets([Rule("r", PUBLISH, 1, 1)], clock.monotonic)
    for number in range(100):
        limiter.acquire(publish(f"old{number}"), 1)
    clock.advance(1.0)

    for number in range(100):
        limiter.acquire(publish(f"new{number}"), 1)

    assert len(limiter) == 100


def test_the_number_of_buckets_is_bounded() -> None:
    """A flood of client ids costs the oldest their place, never more memory."""
    rule = Rule("r", PUBLISH, 1, 1, verdict=LimitVerdict.DROP)
    limiter = TokenBuckets([rule], lambda: 0.0, buckets=10)
    for number in range(100):
        limiter.acquire(publish(f"c{number}"), 1)

    verdicts = [limiter.acquire(publish(name), 1).verdict for name in ("c99", "c0")]

    assert len(limiter) == 10
    assert verdicts == [LimitVerdict.DROP, LimitVerdict.ALLOW]


@pytest.mark.parametrize("values", [{"rate_per_s": 0}, {"burst": 0.5}, {"per": "planet"}])
def test_a_rule_that_can_not_work_is_refused(values: dict[str, object]) -> None:
    """A rate of nothing, a bucket too small for one token and an unknown owner are mistakes."""
    with pytest.raises(ValueError):
        Rule(**{"name": "r", "kind": PUBLISH, "rate_per_s": 1, "burst": 1, **values})  # type: ignore[arg-type]
