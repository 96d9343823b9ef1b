"""Asking the limiters: what they want to be asked, how their answers combine, and the end of what they granted."""

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
    """What becomes of a request where a limiter fails that is marked ``fails_closed``."""
    comes_in = kind is ResourceKind.CONNECTION or kind is ResourceKind.CONNECT
    reason = ReasonCode.SERVER_UNAVAILABLE if comes_in else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    return LimitDecision(LimitVerdict.REJECT, f"{plugin}, which failed", reason=reason)


class Limiting:
    """The face of all limiters together."""

    __slots__ = ("_calls", "_hooks", "_kinds", "_limited", "_releases", "holds_packets", "publishes", "topics")

    def __init__(self, hooks: Hooks, needs: Mapping[str, LimiterNeeds], metrics: Metrics) -> None:
        """``needs`` are those of each limiter, by plugin."""
        self._hooks = hooks
        self._calls = hooks.acquire.each()
        self._kinds: frozenset[ResourceKind] = frozenset().union(*(each.kinds for each in needs.values()))
        wants_publishes = ResourceKind.PUBLISH in self._kinds
        by_topic = any(each.topics for each in needs.values())
        self.topics = wants_publishes and by_topic
        """Whether PUBLISH is asked for packet by packet, with its topic."""
        self.publishes = wants_publishes and not by_topic
        """Whether PUBLISH is asked for once a read."""
        self._releases: dict[ResourceKind, list[Call]] = {}
        """Who wants to know the end of what was granted."""
        for call in hooks.release.each():
            for kind in needs[call.plugin].releases if call.plugin in needs else ():
                self._releases.setdefault(kind, []).append(call)
        self.holds_packets = ResourceKind.SUBSCRIBE in self._releases or (
            self.topics and ResourceKind.PUBLISH in self._releases
        )
        """Whether somebody wants to know when a single packet is carried out."""
        self._limited = metrics.counter("limiter.limited", "requests")

    def ask(self, resource: Resource, amount: int) -> LimitDecision:
        """Whether ``amount`` of a resource may be used; what no limiter looks at is within limits.

        All are asked: each must know of what goes on. The first that refuses counts, else the longest DELAY.
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
            # Nothing comes of it: those who granted their part have it back at once.
            self._release_all(resource, amount, refused)
        return decision

    def is_held(self, resource: Resource, decision: LimitDecision) -> bool:
        """Whether somebody wants to know the end of what was granted with this decision."""
        lets_through = decision.verdict is LimitVerdict.ALLOW or decision.verdict is LimitVerdict.DELAY
        return lets_through and resource.kind in self._releases

    def release(self, resource: Resource, amount: int) -> None:
        """What was granted is over; to be called once for each."""
        self._release_all(resource, amount, ())

    def _release_all(self, resource: Resource, amount: int, but: Sequence[str]) -> None:
        for call in self._releases.get(resource.kind, ()):
            if call.plugin not in but:
                try:
                    call(resource, amount)
                except FAILURES as error:
                    call.failed(error)
