"""Delayed publish: ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` when the time has come."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from kinmqtt_spi import Client, Decision, Drop, Message, Reject, hookimpl, on_topics
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import Maybe, MessageId

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

PREFIX: Final = "$delayed/"

AT_ONCE: Final = 20
"""Messages published in one turn of the event loop, however many are due in the same second."""


@frozen(slots=True)
class DelayedSettings:
    """``[plugins.delayed]``."""

    max_messages: int = setting(10_000, help="messages that may wait at one time", minimum=0)
    max_bytes: int = setting(64 << 20, help="their topics, payloads and properties", unit="bytes", minimum=0)
    max_delay_s: int = setting(42_949_670, help="the longest delay", unit="s", minimum=1)


@frozen(slots=True, order=True)
class _Held:
    """A message that waits, in the order of its time."""

    due: float
    """On the monotonic clock."""
    serial: int
    key: str = field(order=False)
    message: Message = field(order=False)
    size_bytes: int = field(order=False)


class Delayed:
    """Holds messages until they are due, over restarts where the broker keeps anything.

    A client needs the right to publish to both names: to that under ``$delayed/``, which the broker asks for of every
    PUBLISH, and to the topic itself.
    """

    def __init__(self) -> None:
        self._context: Context | None = None
        self._settings = DelayedSettings()
        self._waiting: list[_Held] = []
        self._count = self._bytes = 0
        """Those with them whose keeping is under way."""
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
        context.metrics.gauge("count", "messages", lambda: self._count)
        context.metrics.gauge("size", "bytes", lambda: self._bytes)

    @hookimpl
    async def start(self, context: Context) -> None:
        """Take up what waited when the broker stopped; what has become due meanwhile is published at once."""
        values = await context.kept()
        for key, value in sorted(values.items()):
            try:
                due, message = _unpacked(value)
            except (ValueError, TypeError, KeyError) as error:
                context.log.error("what is kept as {key} is no delayed message: {error}", key=key, error=error)
                continue
            moment = context.clock.monotonic() + due - context.clock.now()
            self._serial += 1
            self._count += 1
            self._bytes += message.size_bytes
            heappush(self._waiting, _Held(moment, self._serial, key, message, message.size_bytes))
        self._arm()

    @hookimpl
    def reload(self, settings: DelayedSettings) -> tuple[str, ...]:
        """Take new bounds; what waits already goes on waiting."""
        self._settings = settings
        return ()

    @hookimpl
    def stop(self) -> None:
        """Wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._count = self._bytes = 0

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
        settings = self._settings
        size_bytes = held.size_bytes
        if self._count >= settings.max_messages or self._bytes + size_bytes > settings.max_bytes:
            return Reject(ReasonCode.QUOTA_EXCEEDED, "too many delayed messages")
        due = context.clock.now() + delay_s
        self._serial += 1
        key = f"{int(due * 1000):015}-{context.node.uid:016x}-{self._serial}"
        waits = _Held(context.clock.monotonic() + delay_s, self._serial, key, held, size_bytes)
        self._count += 1
        self._bytes += size_bytes
        context.keep(key, _packed(due, held), kept=lambda: self._push(waits), unkept=lambda: self._leaves(waits))
        return Drop("delayed")

    def _push(self, held: _Held) -> None:
        heappush(self._waiting, held)
        self._arm()

    def _leaves(self, held: _Held) -> None:
        self._count -= 1
        self._bytes -= held.size_bytes

    def _arm(self) -> None:
        """One timer, for the message that is due first."""
        context = self._context
        if context is None or not self._waiting:
            return
        due = self._waiting[0].due
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        # By the time of this call it may be due already.
        self._timer = context.clock.later(max(0.0, due - context.clock.monotonic()), self._publish_due)

    def _publish_due(self) -> None:
        self._timer = None
        context = self._context
        if context is None:
            return
        now = context.clock.monotonic()
        for _ in range(AT_ONCE):
            if not self._waiting or self._waiting[0].due > now:
                break
            held = heappop(self._waiting)
            self._leaves(held)
            try:
                context.publish(held.message, in_place_of=held.key)
            except ValueError as error:
                context.keep(held.key, None)
                context.log.error("a delayed message can't be published: {error}", error=error)
        self._arm()


def _packed(due: float, message: Message) -> bytes:
    """A message, and when it is due (seconds since the epoch), as JSON."""
    return json.dumps({"due": due, "message": to_plain(message)}).encode()


def _unpacked(value: bytes) -> tuple[float, Message]:
    """What :func:`_packed` has packed; raises ``ValueError`` or its kin for anything else."""
    known = json.loads(value)
    return float(known["due"]), from_plain(Message, known["message"])
