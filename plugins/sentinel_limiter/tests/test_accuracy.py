"""A minute of overload in virtual time: what passes is within 2 % of what the rule says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest

from kinmqtt_sentinel_limiter import SentinelLimiter, SentinelSettings
from kinmqtt_sentinel_limiter._settings import FlowSettings
from kinmqtt_sentinel_limiter._warm_up import WarmUp
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind

SECONDS: Final = 60.0
WITHIN: Final = 0.02

Arrivals: TypeAlias = Iterator[tuple[float, int]]
"""When, and how many packets."""


def _steady(rate: float) -> Arrivals:
    """One packet after the other, three times as fast as allowed."""
    return ((number / (3 * rate), 1) for number in range(int(3 * rate * SECONDS)))


def _uneven(rate: float) -> Arrivals:
    """Three packets in a row at a distance that no second is a multiple of."""
    gap_s = 0.7 / rate
    return ((number // 3 * gap_s, 1) for number in range(int(3 * SECONDS / gap_s)))


def _bursts(rate: float) -> Arrivals:
    """Every 0.3 s as many packets at once as would do for a second."""
    return ((number * 0.3, 1) for number in range(int(SECONDS / 0.3)) for _ in range(int(rate)))


def _reads(rate: float) -> Arrivals:
    """Reads of 7 packets, twice as many packets as allowed."""
    return ((number * 3.5 / rate, 7) for number in range(int(SECONDS * rate / 3.5)))


def _mixed(rate: float) -> Arrivals:
    """Single packets, and between them a read that is larger than a second's worth."""
    for number in range(int(SECONDS * 2 * rate)):
        yield number / (2 * rate), int(1.2 * rate) if number % 500 == 250 else 1


PATTERNS: Final = {"steady": _steady, "uneven": _uneven, "bursts": _bursts, "reads": _reads, "mixed": _mixed}
each_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)


class Harness:
    """A limiter with one rule, and one client for whom to ask."""

    def __init__(self, rule: FlowSettings) -> None:
        self.context = BareContext("sentinel_limiter", SentinelSettings(flow=(rule,)))
        self.clock = self.context.clock
        self.limiter = SentinelLimiter()
        self.limiter.configure(self.context)
        self.limiter.start(self.context)
        self.resource = Resource(ResourceKind.PUBLISH, "main", "192.0.2.1", "c")

    def passed(self, arrivals: Arrivals, until_s: float = SECONDS) -> int:
        """How many pass when they come as they come, whatever they are answered."""
        passed = 0
        for at, amount in arrivals:
            if at >= until_s:
                break
            self.clock.advance(max(at - self.clock.monotonic(), 0.0))
            decision = self.limiter.acquire(self.resource, amount)
            if decision is None or decision.verdict is LimitVerdict.DELAY:
                passed += amount
        return passed

    def passed_by_one_who_waits(self, amounts: Callable[[int], int], until_s: float = SECONDS) -> int:
        """How many pass of a client that always has more, and is not read from while it is delayed."""
        passed = number = 0
        while self.clock.monotonic() < until_s:
            amount = amounts(number)
            number += 1
            decision = self.limiter.acquire(self.resource, amount)
            if decision is not None and decision.verdict is not LimitVerdict.DELAY:
                self.clock.advance(0.001)
                continue
            passed += amount
            self.clock.advance(decision.delay_s if decision is not None else 0.0)
        return passed


def _is_close(what: str, passed: float, ideal: float, read: float = 0.0) -> None:
    """Within 2 %, or what a single read has, where that is more."""
    error = passed / ideal - 1
    print(f"{what}: {passed:.0f} of {ideal:.0f}, {error:+.2%}")
    assert abs(passed - ideal) <= max(WITHIN * ideal, read)


@each_pattern
@pytest.mark.parametrize("rate", [20.0, 100.0, 1000.0])
def test_reject_keeps_the_rate(pattern: Callable[[float], Arrivals], rate: float) -> None:
    """In the first minute, too, passes what the rate says, however large the reads are."""
    harness = Harness(FlowSettings(name="r", count=rate))

    passed = harness.passed(pattern(rate))

    _is_close(f"reject {pattern.__name__} {rate:.0f}/s", passed, rate * SECONDS)


@each_pattern
def test_a_bucket_keeps_the_rate_and_begins_full(pattern: Callable[[float], Arrivals]) -> None:
    """With a burst, it passes once on top of what the rate says."""
    harness = Harness(FlowSettings(name="r", count=100.0, burst=50))

    passed = harness.passed(pattern(100.0))

    if pattern is _bursts:  # every 0.3 s a full bucket has room for 30 more, and no more than for 50 at first
        _is_close("bucket bursts", passed, 100.0 * SECONDS)
    else:
        _is_close(f"bucket {pattern.__name__}", passed - 50, 100.0 * SECONDS)


@pytest.mark.parametrize("jitter_s", [0.0, 0.02, 0.04])
def test_who_comes_at_the_rate_is_never_refused(jitter_s: float) -> None:
    """A client that keeps to its rate passes whole, though it is sometimes late."""
    harness = Harness(FlowSettings(name="r", count=10.0))
    arrivals = ((number * 0.1 + number * 7 % 11 / 10 * jitter_s, 1) for number in range(590))

    assert harness.passed(arrivals) == 590


@each_pattern
@pytest.mark.parametrize("rate", [20.0, 100.0, 1000.0])
def test_pace_keeps_the_rate(pattern: Callable[[float], Arrivals], rate: float) -> None:
    """What is refused beyond the queueing time costs nothing, and what passes comes at the rate."""
    harness = Harness(FlowSettings(name="r", count=rate, behaviour="pace"))

    passed = harness.passed(pattern(rate))

    _is_close(f"pace {pattern.__name__} {rate:.0f}/s", passed, rate * SECONDS)


@pytest.mark.parametrize("rate", [20.0, 100.0, 1000.0])
def test_pace_is_never_far_ahead(rate: float) -> None:
    """At no moment is more let in before its turn than 2 % of a minute's worth, or of the time gone by."""
    harness = Harness(FlowSettings(name="r", count=rate, behaviour="pace"))
    passed, most = 0, 0.0

    for number in range(int(200 * 2 * rate)):
        amount = int(1.2 * rate) if number % 490 == 250 else 1
        harness.clock.advance(max(number / (2 * rate) - harness.clock.monotonic(), 0.0))
        decision = harness.limiter.acquire(harness.resource, amount)
        if decision is None or decision.verdict is LimitVerdict.DELAY:
            passed += amount
        now = harness.clock.monotonic()
        most = max(most, passed - 2 - rate * now - WITHIN * rate * max(now, SECONDS))

    print(f"pace {rate:.0f}/s: at most {most / rate:+.3f} s beyond that")
    assert most <= 0


@pytest.mark.parametrize("every_s", [0.25, 2.5, 20.0])
@pytest.mark.parametrize("behaviour", ["pace", "warm_up_pace"])
def test_large_reads_have_their_turn_among_paced_ones(behaviour: Any, every_s: float) -> None:
    """However seldom they come among small ones that never end; and little of the rate is lost by that."""
    rate, seconds, chance = 100.0, 600.0, random.Random(1)
    harness = Harness(FlowSettings(name="r", count=rate, behaviour=behaviour))
    passed = large = 0
    at, next_large = 0.0, every_s

    while at < seconds:
        at += chance.expovariate(2 * rate)
        amount = 1
        if at >= next_large:
            next_large += every_s
            amount = int(1.2 * rate)
        harness.clock.advance(at - harness.clock.monotonic())
        decision = harness.limiter.acquire(harness.resource, amount)
        if decision is None or decision.verdict is LimitVerdict.DELAY:
            passed += amount
            large += amount > 1
    ideal = rate * seconds if behaviour == "pace" else WarmUp(rate, 10.0, 3.0).passed_by(seconds)

    print(f"{behaviour}, one in {every_s} s: {large} of {seconds / every_s:.0f} large ones")
    _is_close(behaviour, passed, ideal)
    assert large >= 3


@pytest.mark.parametrize("amount", [1, 7, 30])
@pytest.mark.parametrize(
    "rule",
    [
        FlowSettings(name="r", count=100.0, verdict="delay", burst=1),
        FlowSettings(name="r", count=100.0, verdict="delay"),
        FlowSettings(name="r", count=100.0, behaviour="pace"),
        FlowSettings(name="r", count=100.0, behaviour="pace", verdict="delay"),
    ],
    ids=["delay", "delay with burst", "pace", "pace without limit"],
)
def test_one_who_waits_is_held_to_the_rate(rule: FlowSettings, amount: int) -> None:
    """A client that is read from as soon as its delay is over passes at the rate."""
    harness = Harness(rule)

    passed = harness.passed_by_one_who_waits(lambda number: amount)

    _is_close(f"{rule.behaviour} {rule.verdict} waiting, reads of {amount}", passed, 100.0 * SECONDS)


@each_pattern
def test_warm_up_follows_the_curve(pattern: Callable[[float], Arrivals]) -> None:
    """From a cold start a minute's worth is the integral of the ideal curve."""
    rate, curve = 100.0, WarmUp(100.0, 20.0, 3.0)
    harness = Harness(FlowSettings(name="r", count=rate, behaviour="warm_up", warm_up_s=20.0))

    passed = harness.passed(pattern(rate))

    _is_close(f"warm_up {pattern.__name__}", passed, curve.passed_by(SECONDS))


@pytest.mark.parametrize("until_s", [5.0, 10.0, 20.0, 40.0])
def test_warm_up_follows_the_curve_all_the_way(until_s: float) -> None:
    """Not only at its end: while it gets warm, too, what has passed is what the curve says."""
    curve = WarmUp(1000.0, 20.0, 3.0)
    harness = Harness(FlowSettings(name="r", count=1000.0, behaviour="warm_up", warm_up_s=20.0))

    passed = harness.passed(_steady(1000.0), until_s)

    _is_close(f"warm_up to {until_s:.0f} s", passed, curve.passed_by(until_s))


@each_pattern
def test_warm_up_pace_follows_the_curve(pattern: Callable[[float], Arrivals]) -> None:
    """The distances shrink as the curve says, whoever comes and however many at once."""
    curve = WarmUp(100.0, 20.0, 3.0)
    harness = Harness(FlowSettings(name="r", count=100.0, behaviour="warm_up_pace", warm_up_s=20.0))

    passed = harness.passed(pattern(100.0))

    _is_close(f"warm_up_pace {pattern.__name__}", passed, curve.passed_by(SECONDS))


def test_one_who_waits_follows_the_curve() -> None:
    """A client that is read from as soon as its delay is over gets warm as the curve says."""
    curve = WarmUp(100.0, 20.0, 3.0)
    harness = Harness(FlowSettings(name="r", count=100.0, behaviour="warm_up_pace", warm_up_s=20.0))

    passed = harness.passed_by_one_who_waits(lambda number: 1 + number % 3)

    _is_close("warm_up_pace waiting", passed, curve.passed_by(SECONDS))


@pytest.mark.parametrize("amounts", [(1,), (1, 2, 3), (4, 1)], ids=str)
def test_concurrency_is_reached_and_never_exceeded(amounts: tuple[int, ...]) -> None:
    """With more asked for than may be, all that may be is in use at some moment, and never more."""
    harness = Harness(FlowSettings(name="r", count=10, grade="concurrency"))
    limiter, held, most, last = harness.limiter, [], 0, 0

    for number in range(6000):
        harness.clock.advance(0.01)
        amount = amounts[number % len(amounts)]
        if limiter.acquire(harness.resource, amount) is None:
            held.append(amount)
        most = max(most, sum(held))
        if number % 3 == 0 and held:
            limiter.release(harness.resource, held.pop(0))
        last = sum(held)

    print(f"concurrency {amounts}: at most {most} of 10")
    assert most == 10
    assert last > 0


@pytest.mark.parametrize("behaviour", ["reject", "warm_up", "pace", "warm_up_pace"])
def test_in_the_long_run_large_reads_are_within_the_rate(behaviour: str) -> None:
    """Reads larger than a second's worth are no reason to be off, in ten minutes."""
    harness = Harness(FlowSettings(name="r", count=20.0, behaviour=behaviour))  # type: ignore[arg-type]
    arrivals = ((number / 40, 30 if number % 50 == 25 else 1) for number in range(40 * 600))
    ideal = WarmUp(20.0, 10.0, 3.0).passed_by(600.0) if behaviour.startswith("warm") else 20.0 * 600

    passed = harness.passed(arrivals, 600.0)

    _is_close(f"{behaviour} in ten minutes", passed, ideal)


def test_a_large_read_is_not_starved_by_small_ones() -> None:
    """A read larger than a second's worth passes beside a stream of single packets, by rate and by pace."""
    for behaviour in ("reject", "pace", "warm_up", "warm_up_pace"):
        harness = Harness(FlowSettings(name="r", count=10.0, per="all", behaviour=behaviour))
        large = 0

        for number in range(12_000):
            harness.clock.advance(0.0101)
            amount = 25 if number % 7 == 3 else 1
            decision = harness.limiter.acquire(harness.resource, amount)
            passed = decision is None or decision.verdict is LimitVerdict.DELAY
            large += passed and amount == 25

        assert large > 1, behaviour


def test_a_large_concurrent_use_is_not_starved_by_small_ones() -> None:
    """Room is kept for what was refused for long, though single ones come all the time."""
    harness = Harness(FlowSettings(name="r", count=10, grade="concurrency"))
    limiter, held, large = harness.limiter, [], 0

    for number in range(1000):
        harness.clock.advance(0.01)
        amount = 8 if number % 5 == 0 else 1
        if limiter.acquire(harness.resource, amount) is None:
            held.append(amount)
            large += amount == 8
        while held and (sum(held) > 9 or number % 2):
            limiter.release(harness.resource, held.pop(0))
            break

    assert large > 1
