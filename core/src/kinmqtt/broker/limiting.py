"""Asks the limiters about resources, combines their decisions, and notifies them of releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kinmqtt.hooks.calls import FAILURES, Call
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import (
    WITHIN_LIMITS,
    LimitDecision,
    LimiterNeeds,
    LimitVerdict,
    Resource,
    ResourceKind,
)

if TYPE_CHECKING:
    from kinmqtt.hooks.registry import Hooks
    from kinmqtt_spi.services.metric import Metrics


def failed_closed(plugin: str, kind: ResourceKind) -> LimitDecision:
    """Return the decision for a request when a limiter marked ``fails_closed`` fails."""
    comes_in = kind is ResourceKind.CONNECTION or kind is ResourceKind.CONNECT
    reason = ReasonCode.SERVER_UNAVAILABLE if comes_in else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    return LimitDecision(LimitVerdict.REJECT, f"{plugin}, which failed", reason=reason)


class Limiting:
    """The interface to all limiters."""

    __slots__ = ("_calls", "_hooks", "_kinds", "_limited", "_releases", "holds_packets", "publishes", "topics")

    def __init__(self, hooks: Hooks, needs: Mapping[str, LimiterNeeds], metrics: Metrics) -> None:
        """``needs`` has the needs of each limiter, by plugin."""
        self._hooks = hooks
        self._calls = hooks.acquire.each()
        self._kinds: frozenset[ResourceKind] = frozenset().union(*(each.kinds for each in needs.values()))
        wants_publishes = ResourceKind.PUBLISH in self._kinds
        by_topic = any(each.topics for each in needs.values())
        self.topics = wants_publishes and by_topic
        """Whether limiters are asked for each PUBLISH, with its topic."""
        self.publishes = wants_publishes and not by_topic
        """Whether limiters are asked for PUBLISH once per read."""
        self._releases: dict[ResourceKind, list[Call]] = {}
        """The calls that release a resource, by kind."""
        for call in hooks.release.each():
            for kind in needs[call.plugin].releases if call.plugin in needs else ():
                self._releases.setdefault(kind, []).append(call)
        self.holds_packets = ResourceKind.SUBSCRIBE in self._releases or (
            self.topics and ResourceKind.PUBLISH in self._releases
        )
        """Whether a limiter needs a release for each single packet."""
        self._limited = metrics.counter("limiter.limited", "requests")

    def ask(self, resource: Resource, amount: int) -> LimitDecision:
        """Return the decision on using ``amount`` of a resource; without a limiter for its kind it is within limits.

        All limiters are asked, as each must count the use. The first refusal decides, else the longest DELAY.
        """
        if resource.kind not in self._kinds:
            return WITHIN_LIMITS
        decision: LimitDecision | None = None
        refused: list[str] | None = None
        for call in self._calls:
            try:
                answer: LimitDecision | None = call(resource, amount)
                if answer is None or answer.verdict is LimitVerdict.ALLOW:
                    continue
                delays = answer.verdict is LimitVerdict.DELAY
            except FAILURES as error:
                call.failed(error)
                if not call.implementation.closed:
                    continue
                answer, delays = failed_closed(call.plugin, resource.kind), False
            if not delays:
                if refused is None:
                    refused = []
                    decision = answer
                refused.append(call.plugin)
            elif refused is None and (decision is None or answer.delay_s > decision.delay_s):
                decision = answer
        if decision is None:
            return WITHIN_LIMITS
        self._limited.value += 1
        if self._hooks.limited.active:
            self._hooks.limited(resource, decision)
        if refused is not None:
            # The request is refused: release it at the limiters that granted it.
            self._release_all(resource, amount, refused)
        return decision

    def is_held(self, resource: Resource, decision: LimitDecision) -> bool:
        """Return whether this decision must be followed by :meth:`release`."""
        lets_through = decision.verdict is LimitVerdict.ALLOW or decision.verdict is LimitVerdict.DELAY
        return lets_through and resource.kind in self._releases

    def release(self, resource: Resource, amount: int) -> None:
        """Release what was granted; call it once for each grant."""
        self._release_all(resource, amount, ())

    def _release_all(self, resource: Resource, amount: int, but: Sequence[str]) -> None:
        for call in self._releases.get(resource.kind, ()):
            if call.plugin not in but:
                try:
                    call(resource, amount)
                except FAILURES as error:
                    call.failed(error)
