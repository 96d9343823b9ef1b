"""Token buckets: so much a second, and so much at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from attrs import field, frozen, validators

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import (
    WITHIN_LIMITS,
    LimitDecision,
    LimiterNeeds,
    LimitVerdict,
    Resource,
    ResourceKind,
)
from kinmqtt_spi.topics import matches

Per: TypeAlias = Literal["client", "address", "username", "listener", "all"]

_ATTRIBUTES: Final = {
    "client": "client_id",
    "address": "address",
    "username": "username",
    "listener": "listener",
}


@frozen(slots=True)
class Rule:
    """So much of a resource for each of ``per``.

    A rule has nothing to say of a resource that lacks what it asks for: a client id before CONNECT, a topic
    where none is given.
    """

    name: str
    kind: ResourceKind
    rate_per_s: float = field(validator=validators.gt(0))
    """How many tokens come back each second."""
    burst: float = field(validator=validators.ge(1))
    """How many tokens there are at most."""
    per: Per = field(default="client", validator=validators.in_((*_ATTRIBUTES, "all")))
    topics: tuple[str, ...] | None = None
    """Topic filters, of which one must match; ``None`` for all topics."""
    verdict: LimitVerdict = LimitVerdict.DELAY
    """What an excess brings. DELAY lets it pass on credit, and lasts until the credit is paid back."""
    reason: ReasonCode = ReasonCode.QUOTA_EXCEEDED

    def key(self, resource: Resource) -> str | None:
        """Whose bucket the resource is taken from; ``None`` where the rule has nothing to say of it."""
        if self.kind is not resource.kind:
            return None
        if self.topics is not None:
            topic = resource.topic
            if topic is None or not any(matches(filter, topic) for filter in self.topics):
                return None
        if self.per == "all":
            return ""
        key: str | None = getattr(resource, _ATTRIBUTES[self.per])
        return key


class _Bucket:
    """Tokens at a moment; below zero, what was taken on credit."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class TokenBuckets:
    """A plugin that limits by rules; ``monotonic`` answers seconds that never go back.

    An amount passes while there is a token for the first of it, and what it takes beyond is owed: a read may hold
    more packets than any burst allows, and passes or is refused as a whole. Whoever is in debt waits until it is
    paid back, so that the rate is kept, and at most one read passes too much at a time. What one rule refuses
    costs no other rule's tokens. At most ``buckets`` buckets are kept: a full one is as good as none and is dropped,
    then the one unused longest.
    """

    def __init__(self, rules: Sequence[Rule], monotonic: Callable[[], float], *, buckets: int = 100_000) -> None:
        self.rules = tuple(rules)
        self._monotonic = monotonic
        self._max_buckets = buckets
        self._buckets: OrderedDict[tuple[int, str], _Bucket] = OrderedDict()
        """By rule and whom it is for, the one used last behind all others."""

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        """Ask for no more than the rules look at."""
        return LimiterNeeds(
            frozenset(rule.kind for rule in self.rules),
            any(rule.topics is not None and rule.kind is ResourceKind.PUBLISH for rule in self.rules),
        )

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> LimitDecision:
        """Take ``amount`` tokens, on credit if need be, by every rule that fits, or by none where one refuses."""
        now = self._monotonic()
        taken: list[tuple[Rule, _Bucket]] = []
        for number, rule in enumerate(self.rules):
            key = rule.key(resource)
            if key is None:
                continue
            bucket = self._bucket(number, key, now)
            if rule.verdict is not LimitVerdict.DELAY and bucket.tokens < 1:
                return LimitDecision(rule.verdict, rule.name, reason=rule.reason)
            taken.append((rule, bucket))
        decision = WITHIN_LIMITS
        for rule, bucket in taken:
            bucket.tokens -= amount
            delay_s = -bucket.tokens / rule.rate_per_s
            if rule.verdict is LimitVerdict.DELAY and delay_s > decision.delay_s:
                decision = LimitDecision(LimitVerdict.DELAY, rule.name, delay_s, rule.reason)
        return decision

    def __len__(self) -> int:
        """How many buckets are kept."""
        return len(self._buckets)

    def _bucket(self, number: int, key: str, now: float) -> _Bucket:
        """The bucket as it is at ``now``, behind all others."""
        rule = self.rules[number]
        bucket = self._buckets.get((number, key))
        if bucket is None:
            self._make_room(now)
            bucket = self._buckets[number, key] = _Bucket(rule.burst, now)
            return bucket
        self._buckets.move_to_end((number, key))
        bucket.tokens = min(rule.burst, bucket.tokens + (now - bucket.at) * rule.rate_per_s)
        bucket.at = now
        return bucket

    def _make_room(self, now: float) -> None:
        """For each new bucket drop up to two that are full by now, so that their number can fall."""
        for _ in range(2):
            if not self._buckets:
                return
            oldest = next(iter(self._buckets))
            rule, bucket = self.rules[oldest[0]], self._buckets[oldest]
            full = bucket.tokens + (now - bucket.at) * rule.rate_per_s >= rule.burst
            if full or len(self._buckets) >= self._max_buckets:
                del self._buckets[oldest]
