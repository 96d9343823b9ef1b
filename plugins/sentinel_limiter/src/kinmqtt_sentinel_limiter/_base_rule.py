"""What all rules have in common: a name, a refusal and counters."""

from __future__ import annotations

from kinmqtt_sentinel_limiter._settings import REASONS, AnswerSettings
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict
from kinmqtt_spi.services.metric import Metrics


class BaseRule:
    """A rule's name, its answer to what it refuses, and its counters."""

    def __init__(self, settings: AnswerSettings, metrics: Metrics) -> None:
        labels = {"rule": settings.name}
        self.name = settings.name
        self.shadow = settings.shadow
        self.reason = REASONS[settings.reason]
        verdict = LimitVerdict(settings.verdict)
        # A delayed request passes in the end, or is refused if the wait would be too long.
        verdict = LimitVerdict.REJECT if verdict is LimitVerdict.DELAY else verdict
        self.refusal = LimitDecision(verdict, settings.name, reason=self.reason)
        self.blocked = metrics.counter("limiter.blocked", "requests", labels)
        self.delayed = metrics.counter("limiter.delayed", "requests", labels)
        self.shadow_blocked = metrics.counter("limiter.shadow_blocked", "requests", labels)
