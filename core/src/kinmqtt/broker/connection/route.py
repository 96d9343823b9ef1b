"""The route of a published topic, cached by the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.hooks.dispatch import HookVerdict, Intercept
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Authorization, Cache
from kinmqtt_spi.values import Client, Message

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services

_SUCCESS: Final = ReasonCode.SUCCESS


class TopicRoute:
    """A topic published by a client: its right to publish, the fan-out and the hooks to call."""

    __slots__ = (
        "bytes",
        "cacheable",
        "expires_at",
        "fanout",
        "intercept",
        "messages",
        "reason",
        "remembered",
        "straight",
        "text",
        "topic",
    )

    def __init__(self, topic: str, ruling: HookVerdict) -> None:
        self.topic = topic
        decision = ruling.decision
        self.reason = _SUCCESS if decision.allowed else decision.reason
        self.text = decision.text
        self.cacheable = not ruling.failed
        self.expires_at: float | None = None
        if isinstance(decision, Authorization):
            self.cacheable = decision.cache is not Cache.NEVER
            self.expires_at = decision.expires_at
        self.fanout: Fanout | None = None
        self.intercept: Intercept[[Client, Message], Message] | None = None
        self.messages = 0
        """PUBLISH packets since traffic was last counted."""
        self.bytes = 0
        """The bytes of these packets."""
        self.remembered = False
        """Whether the connection caches this route; its traffic is then counted later."""
        self.straight = False
        """Whether a plain QoS 0 packet is forwarded unchanged, with no hook or limiter to call."""

    def refresh(self, services: Services, version: int) -> None:
        """Load the topic's current fan-out and hooks."""
        runtime = services.runtime
        fanout = self.fanout = services.fanouts.get(self.topic)
        self.intercept = runtime.hooks.publish_received.for_topic(self.topic)
        watched = self.intercept is not None or runtime.notifies_published or services.limiting.topics
        watched |= services.overload.drops
        self.straight = (
            self.reason is _SUCCESS
            and self.expires_at is None
            and not watched
            and fanout.is_simple
            and fanout.takes(version)
        )
