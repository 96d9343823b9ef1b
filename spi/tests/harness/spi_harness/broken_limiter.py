"""Limiters that break one promise each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.memory.limiter import Rule, TokenBuckets
from kinmqtt_spi.memory.plugin import Completed, TurnableClock
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import (
    WITHIN_LIMITS,
    LimitDecision,
    LimiterNeeds,
    LimitVerdict,
    Resource,
    ResourceKind,
)
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.testing.limiter import LimiterCase, LimiterContract

PUBLISH = Resource(ResourceKind.PUBLISH, "tcp:1883", "192.0.2.1", "client", "user")
CONNECT = Resource(ResourceKind.CONNECT, "tcp:1883", "192.0.2.1", "client")
DELAYING = Rule("publishes", ResourceKind.PUBLISH, 5, 8)
BURST = 8


BY_ADDRESS = Rule("publishes", ResourceKind.PUBLISH, 5, 8, "address")
NEIGHBOUR = evolve(PUBLISH, address="192.0.2.10")


class _Broken(LimiterContract):
    """``double`` is a limiter by rate."""

    reloads = keeps_use = bounded = True
    bound = 1000
    rule = DELAYING
    double: type[TokenBuckets]

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        plugin = self.double([self.rule], clock.monotonic, buckets=self.bound)
        return LimiterCase(plugin, PUBLISH, BURST, CONNECT, self.rule.rate_per_s)

    def size(self, case: LimiterCase) -> int:
        return len(case.plugin)

    def reload(self, case: LimiterCase, drive: Driver) -> None:
        """Buckets have no settings to take: where a double has, it says so."""
        getattr(case.plugin, "reload", lambda: None)()


class _ByAddress(_Broken):
    """The same for each address."""

    rule = BY_ADDRESS

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        plugin = self.double([self.rule], clock.monotonic, buckets=self.bound)
        others = [evolve(PUBLISH, client_id="other"), evolve(PUBLISH, client_id=None, username="other")]
        return LimiterCase(plugin, PUBLISH, BURST, CONNECT, self.rule.rate_per_s, others, [NEIGHBOUR])


class Slots:
    """A sound limiter: so many at once for each client."""

    def __init__(self) -> None:
        self.held: Counter[str | None] = Counter()

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        kinds = frozenset({ResourceKind.CONNECT})
        return LimiterNeeds(kinds, releases=kinds)

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> Any:
        if resource.kind is not ResourceKind.CONNECT:
            return None
        if self.held[resource.client_id] + amount > BURST:
            return LimitDecision(LimitVerdict.REJECT, "at once")
        self.held[resource.client_id] += amount
        return WITHIN_LIMITS

    @hookimpl
    def release(self, resource: Resource, amount: int) -> None:
        self.held[resource.client_id] -= amount


class SoundSlots(LimiterContract):
    """``double`` is a limiter by how much there is at once, which breaks nothing here."""

    limits_rate = False
    limits_concurrency = True
    double: type[Slots] = Slots

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        return LimiterCase(self.double(), CONNECT, BURST, PUBLISH)


class TestLIMITER_01_AnswersLater(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            return Completed(lambda: answer)


class TestLIMITER_01_AnswersABoolean(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return super().acquire(resource, amount) is WITHIN_LIMITS


class TestLIMITER_02_LimitsEverything(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return super().acquire(evolve(resource, kind=ResourceKind.PUBLISH), amount)


class TestLIMITER_03_LetsOneMorePass(_Broken):
    class double(TokenBuckets):
        def _bucket(self, number: int, key: str, now: float) -> Any:
            new = (number, key) not in self._buckets
            bucket = super()._bucket(number, key, now)
            bucket.tokens += new
            return bucket


class TestLIMITER_03_BeginsEmpty(_Broken):
    class double(TokenBuckets):
        def _bucket(self, number: int, key: str, now: float) -> Any:
            new = (number, key) not in self._buckets
            bucket = super()._bucket(number, key, now)
            if new:
                bucket.tokens = 0
            return bucket


class TestLIMITER_04_CountsCalls(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return super().acquire(resource, 1)


class TestLIMITER_05_NamesNoRule(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return evolve(super().acquire(resource, amount), rule="")


class TestLIMITER_06_DelaysForEver(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            return evolve(answer, delay_s=float("inf")) if answer.delay_s > 10 else answer


class TestLIMITER_06_DelaysByNothing(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return evolve(super().acquire(resource, amount), delay_s=0.0)


class TestLIMITER_07_SaysSuccess(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return evolve(super().acquire(resource, amount), reason=ReasonCode.SUCCESS)


class TestLIMITER_08_NeedsAClientId(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            assert resource.client_id is not None
            return super().acquire(resource, amount)


class TestLIMITER_09_AsksForNothing(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset())


class TestLIMITER_09_HidesItsTopics(_Broken):
    rule = evolve(DELAYING, topics=("a/#",))

    class double(TokenBuckets):
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset({ResourceKind.PUBLISH}))


class TestLIMITER_09_WantsNoReleases(SoundSlots):
    class double(Slots):
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset({ResourceKind.CONNECT}))


class TestLIMITER_10_CountsAllTogether(_Broken):
    rule = evolve(DELAYING, per="all")
    double = TokenBuckets


class TestLIMITER_11_IsTooSlow(_Broken):
    class double(TokenBuckets):
        def _bucket(self, number: int, key: str, now: float) -> Any:
            return super()._bucket(number, key, now / 2)


class TestLIMITER_11_ForgetsItsDebts(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            return evolve(answer, delay_s=0.01) if answer.verdict is LimitVerdict.DELAY else answer

        def _bucket(self, number: int, key: str, now: float) -> Any:
            bucket = super()._bucket(number, key, now)
            bucket.tokens = max(bucket.tokens, 0.0)
            return bucket


class TestLIMITER_12_CountsCallsForTime(_Broken):
    class double(TokenBuckets):
        calls = 0

        def _bucket(self, number: int, key: str, now: float) -> Any:
            self.calls += 1
            return super()._bucket(number, key, now + self.calls)


class TestLIMITER_12_RefusesForEver(_Broken):
    class double(TokenBuckets):
        refused: LimitDecision | None = None

        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = self.refused or super().acquire(resource, amount)
            self.refused = None if answer is WITHIN_LIMITS else answer
            return answer


class TestLIMITER_12_NeverForgives(_Broken):
    class double(TokenBuckets):
        def _bucket(self, number: int, key: str, now: float) -> Any:
            return super()._bucket(number, key, 0.0)


class TestLIMITER_13_RemembersEverybody(_Broken):
    class double(TokenBuckets):
        def _evict_full(self, now: float) -> None:
            pass


class TestLIMITER_13_GivesUpWhenFull(_Broken):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return WITHIN_LIMITS if len(self) >= 1000 else super().acquire(resource, amount)


class TestLIMITER_24_WantsAFullBucket(_Broken):
    rule = evolve(DELAYING, verdict=LimitVerdict.REJECT)

    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            rule = self.rules[0]
            key = rule.key(resource)
            bucket = None if key is None else self._bucket(0, key, self._monotonic())
            if bucket is not None and bucket.tokens < min(amount, rule.burst):
                return LimitDecision(rule.verdict, rule.name)
            return super().acquire(resource, amount)


class TestLIMITER_24_ForgivesDebts(_Broken):
    rule = evolve(DELAYING, verdict=LimitVerdict.REJECT)

    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            for bucket in self._buckets.values():
                bucket.tokens = max(bucket.tokens, 0.0)
            return answer


class TestLIMITER_14_IgnoresReleases(SoundSlots):
    class double(Slots):
        @hookimpl
        def release(self, resource: Resource, amount: int) -> None:
            pass


class TestLIMITER_15_CountsWhatItRefused(SoundSlots):
    class double(Slots):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            if answer is not None and answer is not WITHIN_LIMITS:
                self.held[resource.client_id] += amount
            return answer


class TestLIMITER_16_ReleasesOne(SoundSlots):
    class double(Slots):
        @hookimpl
        def release(self, resource: Resource, amount: int) -> None:
            self.held[resource.client_id] -= 1


class TestLIMITER_16_BreaksInTheLongRun(SoundSlots):
    class double(Slots):
        rounds = 0

        @hookimpl
        def release(self, resource: Resource, amount: int) -> None:
            self.rounds += 1
            super().release(resource, amount + (self.rounds % 100 == 0))


class TestLIMITER_17_KnowsClientsById(_ByAddress):
    rule = DELAYING
    double = TokenBuckets


class TestLIMITER_17_CountsEachUserOfAnAddress(_ByAddress):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return super().acquire(evolve(resource, address=f"{resource.address} {resource.username}"), amount)


class TestLIMITER_18_LooksAtTheBeginning(_ByAddress):
    class double(TokenBuckets):
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            return super().acquire(evolve(resource, address=resource.address[:9]), amount)


class TestLIMITER_19_KnowsTheLastOne(_Broken):
    class double(TokenBuckets):
        def _bucket(self, number: int, key: str, now: float) -> Any:
            if (number, key) not in self._buckets:
                self._buckets.clear()
            return super()._bucket(number, key, now)


class TestLIMITER_19_BeginsAnewAfterRefusals(_Broken):
    class double(TokenBuckets):
        refused = 0

        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            self.refused += answer is not WITHIN_LIMITS
            if self.refused == 10:
                self._buckets.clear()
            return answer


class TestLIMITER_20_ReleasesTheLastOne(SoundSlots):
    class double(Slots):
        granted: list[Resource]

        def __init__(self) -> None:
            super().__init__()
            self.granted = []

        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            if answer is WITHIN_LIMITS:
                self.granted.append(resource)
            return answer

        @hookimpl
        def release(self, resource: Resource, amount: int) -> None:
            super().release(self.granted.pop(0), amount)


class TestLIMITER_21_ForgetsItsRules(_Broken):
    class double(TokenBuckets):
        def reload(self) -> None:
            self.rules = ()


class TestLIMITER_21_AddsToItsRules(_Broken):
    class double(TokenBuckets):
        def reload(self) -> None:
            self.rules = tuple(evolve(rule, burst=rule.burst + 1) for rule in self.rules)


class TestLIMITER_22_ForgetsItsBuckets(_Broken):
    class double(TokenBuckets):
        def reload(self) -> None:
            self._buckets.clear()


class TestLIMITER_23_GivesUpOnWhoComesOften(_Broken):
    class double(TokenBuckets):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.refused: Counter[str | None] = Counter()

        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> Any:
            answer = super().acquire(resource, amount)
            self.refused[resource.client_id] += answer is not WITHIN_LIMITS
            return LimitDecision(LimitVerdict.DROP, "for ever") if self.refused[resource.client_id] > 30 else answer
