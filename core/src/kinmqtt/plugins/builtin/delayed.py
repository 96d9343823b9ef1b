"""Delayed publish: ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` when the time has come."""

from __future__ import annotations

from collections.abc import Awaitable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from attrs import frozen

from kinmqtt_spi import Client, Decision, Drop, Message, Reject, hookimpl, on_topics
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import Maybe, MessageId

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

PREFIX: Final = "$delayed/"


@frozen(slots=True)
class DelayedSettings:
    """``[plugins.delayed]``."""

    max_messages: int = setting(10_000, help="messages that may wait at one time", minimum=0)
    max_bytes: int = setting(64 << 20, help="their topics and payloads", unit="bytes", minimum=0)
    max_delay_s: int = setting(42_949_670, help="the longest delay", unit="s", minimum=1)


class Delayed:
    """Holds messages until they are due. They are in memory: what waits ends with the process.

    A client needs the right to publish to both names: to that under ``$delayed/``, which the broker asks for of every
    PUBLISH, and to the topic itself.
    """

    def __init__(self) -> None:
        self._context: Context | None = None
        self._settings = DelayedSettings()
        self._waiting: list[tuple[float, int, Message]] = []
        self._bytes = 0
        self._serial = 0
        self._timer: Timer | None = None
        self._armed_for = 0.0

    @hookimpl
    def settings_class(self) -> type[DelayedSettings]:
        """The bounds."""
        return DelayedSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the bounds."""
        self._context = context
        self._settings = context.settings
        context.metrics.gauge("count", "messages", lambda: len(self._waiting))

    @hookimpl
    def reload(self, settings: DelayedSettings) -> tuple[str, ...]:
        """Take new bounds; what waits already goes on waiting."""
        self._settings = settings
        return ()

    @hookimpl
    def stop(self) -> None:
        """Forget what waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._bytes = 0

    @hookimpl
    @on_topics("$delayed/#")
    def publish_received(self, client: Client, message: Message) -> Maybe[Drop | Reject]:
        """Take a message aside until it is due."""
        return self._aside(client, message, Action.PUBLISH)

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Maybe[Drop | Reject | None]:
        """The same for a will."""
        return self._aside(client, message, Action.WILL) if message.topic.startswith(PREFIX) else None

    def _aside(self, client: Client, message: Message, action: Action) -> Maybe[Drop | Reject]:
        seconds, _, topic = message.topic[len(PREFIX) :].partition("/")
        if not (seconds.isascii() and seconds.isdecimal()) or not topic:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "expected $delayed/<seconds>/<topic>")
        longest = self._settings.max_delay_s
        if len(seconds) > 12 or int(seconds) > longest:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, f"the delay is more than {longest} s")
        if topic.startswith(PREFIX):
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "a delay within a delay")
        if self._context is None:
            return Reject(ReasonCode.SERVER_UNAVAILABLE, "not configured")
        answer = self._context.authorize(AuthorizationRequest(client, action, topic, message.qos, message.retain))
        if isinstance(answer, Awaitable):
            return self._hold_later(answer, message, topic, int(seconds))
        return self._hold(answer, message, topic, int(seconds))

    async def _hold_later(
        self, answer: Awaitable[Decision], message: Message, topic: str, delay_s: int
    ) -> Drop | Reject:
        return self._hold(await answer, message, topic, delay_s)

    def _hold(self, decision: Decision, message: Message, topic: str, delay_s: int) -> Drop | Reject:
        context = self._context
        if context is None or not decision.allowed:
            return Reject(decision.reason, decision.text)
        # Its expiry begins when it is published, or one that waits long could never be delivered.
        held = message.replace(topic=topic).received(MessageId(0, 0), 0.0, None)
        size = _size(held)
        if len(self._waiting) >= self._settings.max_messages or self._bytes + size > self._settings.max_bytes:
            return Reject(ReasonCode.QUOTA_EXCEEDED, "too many delayed messages")
        self._serial += 1
        self._bytes += size
        heappush(self._waiting, (context.clock.monotonic() + delay_s, self._serial, held))
        self._arm()
        return Drop("delayed")

    def _arm(self) -> None:
        """One timer, for the message that is due first."""
        context = self._context
        if context is None or not self._waiting:
            return
        due = self._waiting[0][0]
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        self._timer = context.clock.later(due - context.clock.monotonic(), self._publish_due)

    def _publish_due(self) -> None:
        self._timer = None
        context = self._context
        if context is None:
            return
        now = context.clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, message = heappop(self._waiting)
            self._bytes -= _size(message)
            context.publish(message)
        self._arm()


def _size(message: Message) -> int:
    return len(message.topic) + len(message.payload)
