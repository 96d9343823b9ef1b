"""Token buckets: a rate and a burst."""

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
    """A rate and a burst of a resource, for each value of ``per``.

    A rule does not apply to a resource without the field it needs: a client id before CONNECT, or a topic that is not
    given.
    """

    name: str
    kind: ResourceKind
    rate_per_s: float = field(validator=validators.gt(0))
    """The tokens that are added each second."""
    burst: float = field(validator=validators.ge(1))
    """The maximum number of tokens."""
    per: Per = field(default="client", validator=validators.in_((*_ATTRIBUTES, "all")))
    topics: tuple[str, ...] | None = None
    """Topic filters, one of which must match; ``None`` for all topics."""
    verdict: LimitVerdict = LimitVerdict.DELAY
    """The verdict on an excess. DELAY allows it on credit, and lasts until the tokens are back at zero."""
    reason: ReasonCode = ReasonCode.QUOTA_EXCEEDED

    def key(self, resource: Resource) -> str | None:
        """Return the key of the resource's bucket; ``None`` if the rule does not apply."""
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
    """A number of tokens at a time; negative if tokens were taken on credit."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class TokenBuckets:
    """A plugin that limits by rules. ``monotonic`` returns seconds that never go back.

    An amount passes if the bucket has one token, and the rest is taken on credit: a read may have more packets than
    any burst, and is allowed or refused as a whole. With a negative balance nothing passes, so the rate holds, and at
    most one read at a time exceeds the burst. A refusal by one rule takes no tokens of other rules. There are at most
    ``buckets`` buckets: full ones are dropped first, because they equal new ones, then the least recently used.
    """

    def __init__(self, rules: Sequence[Rule], monotonic: Callable[[], float], *, buckets: int = 100_000) -> None:
        self.rules = tuple(rules)
        self._monotonic = monotonic
        self._max_buckets = buckets
        self._buckets: OrderedDict[tuple[int, str], _Bucket] = OrderedDict()
        """Buckets by rule and key, the least recently used first."""

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        """Return the kinds and topics that the rules need."""
        return LimiterNeeds(
            frozenset(rule.kind for rule in self.rules),
            any(rule.topics is not None and rule.kind is ResourceKind.PUBLISH for rule in self.rules),
        )

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> LimitDecision:
        """Take ``amount`` tokens from the bucket of every matching rule, or from none if one refuses."""
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
        """Return the number of buckets."""
        return len(self._buckets)

    def _bucket(self, number: int, key: str, now: float) -> _Bucket:
        """Return the bucket, refilled for ``now`` and marked as most recently used."""
        rule = self.rules[number]
        bucket = self._buckets.get((number, key))
        if bucket is None:
            self._evict_full(now)
            bucket = self._buckets[number, key] = _Bucket(rule.burst, now)
            return bucket
        self._buckets.move_to_end((number, key))
        bucket.tokens = min(rule.burst, bucket.tokens + (now - bucket.at) * rule.rate_per_s)
        bucket.at = now
        return bucket

    def _evict_full(self, now: float) -> None:
        """Drop up to two full buckets for each new one, so that their number can decrease."""
        for _ in range(2):
            if not self._buckets:
                return
            oldest = next(iter(self._buckets))
            rule, bucket = self.rules[oldest[0]], self._buckets[oldest]
            full = bucket.tokens + (now - bucket.at) * rule.rate_per_s >= rule.burst
            if full or len(self._buckets) >= self._max_buckets:
                del self._buckets[oldest]
