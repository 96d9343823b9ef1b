"""Publish to one client: a message to ``$p2p/<client id>/<topic>`` goes to that client's session only."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kinmqtt_spi import Drop, Message, Reject, hookimpl, on_topics
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.plugin import DeliveryResult

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.values import Maybe

PREFIX = "$p2p/"


class Direct:
    """Delivers without a subscription. For an offline client the message is queued in its session."""

    def __init__(self) -> None:
        self._context: Context | None = None

    @hookimpl
    def configure(self, context: Context) -> None:
        """Store the context and claim the topics."""
        self._context = context
        context.claim_topics(f"{PREFIX}#", Action.PUBLISH, Action.WILL)
        self._undeliverable = context.metrics.counter("undeliverable", "messages")

    @hookimpl
    @on_topics("$p2p/#")
    def publish_received(self, message: Message) -> Maybe[Drop | Reject | None]:
        """Deliver to the client that the topic names; a slash in a client id is written %2F."""
        return self._deliver(message)

    @hookimpl
    def will_publishing(self, message: Message) -> Maybe[Drop | Reject | None]:
        """Deliver a will in the same way."""
        return self._deliver(message)

    def _deliver(self, message: Message) -> Maybe[Drop | Reject | None]:
        if not f"{message.topic}/".startswith(PREFIX):
            return None  # Not a direct topic: an ordinary will, or a topic that another plugin has rewritten.
        name, _, topic = message.topic[len(PREFIX) :].partition("/")
        if not name or not topic:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "expected $p2p/<client id>/<topic>")
        if topic.startswith("$"):
            # The right to send to a client must not allow to impersonate the broker.
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "the topic after $p2p/<client id>/ begins with $")
        if self._context is None:
            return Reject(ReasonCode.SERVER_UNAVAILABLE, "not configured")
        delivery = self._context.deliver(unquote(name), message.replace(topic=topic, retain=False))
        if isinstance(delivery, Awaitable):
            return self._answer_later(delivery)
        return self._answer(delivery)

    async def _answer_later(self, delivery: Awaitable[DeliveryResult]) -> Drop | Reject:
        """Answer when another node has: the client's session is there."""
        try:
            return self._answer(await delivery)
        except ServiceUnavailable as error:
            self._undeliverable.value += 1
            return Reject(error.reason, "the node that may have the client's session does not answer")

    def _answer(self, delivery: DeliveryResult) -> Drop | Reject:
        if delivery is DeliveryResult.TAKEN:
            return Drop("delivered to one client")
        self._undeliverable.value += 1
        if delivery is DeliveryResult.REFUSED:
            return Reject(ReasonCode.QUOTA_EXCEEDED, "the client's queue is full")
        return Drop("no session has this client id")
