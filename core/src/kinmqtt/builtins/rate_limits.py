"""The built-in limiter: token buckets by the rules of ``[[plugins.rate_limits.rules]]``.

Without rules the broker does not call it, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.limiter import Rule, TokenBuckets
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.settings import setting

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context


@frozen(slots=True)
class RuleSettings:
    """One rule."""

    name: str = setting(help="the rule's name in metrics and logs")
    kind: ResourceKind = setting(help="the kind of use that is limited")
    rate_per_s: float = setting(help="the permitted rate per second", minimum=0.001)
    burst: float | None = setting(None, help="the permitted burst; default: one second's worth", minimum=1)
    per: Literal["client", "address", "username", "listener", "all"] = setting(
        "client", help="the scope of a count: the uses that share a bucket"
    )
    topics: tuple[str, ...] | None = setting(
        None, help="for publish: limit only topics that match one of these filters"
    )
    verdict: LimitVerdict = setting(LimitVerdict.DELAY, help="the action on excess")


@frozen(slots=True)
class RateLimitSettings:
    """``[plugins.rate_limits]``."""

    rules: tuple[RuleSettings, ...] = setting((), help="the rules; the first exceeded rule decides")


class RateLimits:
    """A limiter with token buckets; see :class:`kinmqtt_spi.memory.limiter.TokenBuckets`."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._buckets: TokenBuckets | None = None

    @hookimpl
    def settings_class(self) -> type[RateLimitSettings]:
        """Return the class of the settings."""
        return RateLimitSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Create the buckets, which use the broker's clock."""
        self._context = context
        self._fill(context.settings)

    @hookimpl
    def reload(self, settings: RateLimitSettings) -> Sequence[str]:
        """Use new rules with full buckets. The kinds of use that are limited are fixed at the start of the broker."""
        before = self.limiter_needs()
        self._fill(settings)
        after = self.limiter_needs()
        if after.kinds <= before.kinds and (before.topics or not after.topics):
            return ()
        return ("rules for kinds of use that had no rule at the start need a restart",)

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        """Return the kinds of use that the rules limit."""
        return LimiterNeeds(frozenset()) if self._buckets is None else self._buckets.limiter_needs()

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
        """Take tokens from the buckets."""
        return None if self._buckets is None else self._buckets.acquire(resource, amount)

    def _fill(self, settings: RateLimitSettings) -> None:
        if self._context is None:
            raise AssemblyError("rate_limits is not configured")
        rules = [
            Rule(
                rule.name,
                rule.kind,
                rule.rate_per_s,
                max(1.0, rule.rate_per_s) if rule.burst is None else rule.burst,
                rule.per,
                rule.topics,
                rule.verdict,
            )
            for rule in settings.rules
        ]
        self._buckets = TokenBuckets(rules, self._context.clock.monotonic) if rules else None
