"""Asking the limiters: what they want to be asked, and what is told of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.services.limiter import (
    WITHIN_LIMITS,
    LimitDecision,
    LimiterNeeds,
    Resource,
    ResourceKind,
)

if TYPE_CHECKING:
    from kinmqtt.broker.hooks import Hooks
    from kinmqtt_spi.services.metric import Metrics


class Limiting:
    """The face of all limiters together."""

    __slots__ = ("_hooks", "_kinds", "_limited", "publishes", "topics")

    def __init__(self, hooks: Hooks, needs: LimiterNeeds, metrics: Metrics) -> None:
        self._hooks = hooks
        self._kinds = needs.kinds if hooks.acquire.active else frozenset()
        wants_publishes = ResourceKind.PUBLISH in self._kinds
        self.topics = wants_publishes and needs.topics
        """Whether PUBLISH is asked for packet by packet, with its topic."""
        self.publishes = wants_publishes and not needs.topics
        """Whether PUBLISH is asked for once a read."""
        self._limited = metrics.counter("limiter.limited", "requests")

    def ask(self, resource: Resource, amount: int) -> LimitDecision:
        """Whether ``amount`` of a resource may be used; what no limiter looks at is within limits."""
        if resource.kind not in self._kinds:
            return WITHIN_LIMITS
        decision = self._hooks.acquire(resource, amount)
        if decision is None:
            return WITHIN_LIMITS
        self._limited.value += 1
        if self._hooks.limited.active:
            self._hooks.limited(resource, decision)
        return decision
