"""Delayed publish: ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` when the time has come."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from kinmqtt_spi import Client, Decision, Drop, Message, Reject, hookimpl, on_topics
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.retain import retained_bytes
from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import Maybe, MessageId

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

PREFIX: Final = "$delayed/"

HELD_BYTES: Final = 300
"""What a message that waits takes besides itself and what is kept of it, about."""


@frozen(slots=True)
class DelayedSettings:
    """``[plugins.delayed]``."""

    max_messages: int = setting(10_000, help="messages that may wait at one time", minimum=0)
    max_bytes: int = setting(
        64 << 20, help="what they may take in memory, with what is kept of them, about", unit="bytes", minimum=0
    )
    max_messages_per_client: int = setting(1000, help="how many of them may be of one client id", minimum=0)
    max_bytes_per_client: int = setting(8 << 20, help="what these may take", unit="bytes", minimum=0)
    user_share: float = setting(
        0.5,
        help="how much of max_messages and max_bytes one user may take, or one address of those without a user name "
        "that was checked; 1 for all of it",
        minimum=0.001,
        maximum=1,
    )
    max_delay_s: int = setting(42_949_670, help="the longest delay", unit="s", minimum=1)


@frozen(slots=True, order=True)
class _Held:
    """A message that waits, in the order of its time."""

    due: float
    """On the monotonic clock."""
    serial: int
    key: str = field(order=False)
    message: Message = field(order=False)
    user: str = field(order=False)
    """The publisher's :attr:`~kinmqtt_spi.values.Client.quota_key`."""
    size_bytes: int = field(order=False)

    @property
    def client_id(self) -> str:
        """Whose it is."""
        return self.message.publisher.client_id


class _Tally:
    """How many messages wait, and what they take: of each of some names, and in all."""

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0
        self._by_name: dict[str, tuple[int, int]] = {}

    def of(self, name: str) -> tuple[int, int]:
        """Messages and bytes of one name."""
        return self._by_name.get(name, (0, 0))

    def add(self, name: str, messages: int, size_bytes: int) -> None:
        """So many more, or less."""
        self.messages += messages
        self.size_bytes += size_bytes
        its_messages, its_bytes = self.of(name)
        if its_messages + messages:
            self._by_name[name] = (its_messages + messages, its_bytes + size_bytes)
        else:
            del self._by_name[name]


class Delayed:
    """Holds messages until they are due, over restarts where the broker keeps anything.

    A client needs the right to publish to both names: to that under ``$delayed/``, which the broker asks for of every
    PUBLISH, and to the topic itself.
    """

    def __init__(self) -> None:
        self._context: Context | None = None
        self._settings = DelayedSettings()
        self._waiting: list[_Held] = []
        self._clients = _Tally()
        self._users = _Tally()
        """Of each client id and of each user; those with them whose keeping is under way."""
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
        context.metrics.gauge("count", "messages", lambda: self._clients.messages)
        context.metrics.gauge("size", "bytes", lambda: self._clients.size_bytes)

    @hookimpl
    async def start(self, context: Context) -> None:
        """Take up what waited when the broker stopped; what has become due meanwhile is published at once."""
        values = await context.kept()
        for key, value in sorted(values.items()):
            try:
                due, message, user = _unpacked(value)
            except (ValueError, TypeError, KeyError) as error:
                context.log.error("what is kept as {key} is no delayed message: {error}", key=key, error=error)
                continue
            moment = context.clock.monotonic() + due - context.clock.now()
            self._serial += 1
            held = _Held(moment, self._serial, key, message, user, _size_bytes(key, value, message))
            self._comes(held)
            heappush(self._waiting, held)
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
        self._clients, self._users = _Tally(), _Tally()

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
            return self._hold_later(answer, client, message, topic, int(seconds))
        return self._hold(answer, client, message, topic, int(seconds))

    async def _hold_later(
        self, answer: Awaitable[Decision], client: Client, message: Message, topic: str, delay_s: int
    ) -> Drop | Reject:
        return self._hold(await answer, client, message, topic, delay_s)

    def _hold(self, decision: Decision, client: Client, message: Message, topic: str, delay_s: int) -> Drop | Reject:
        context = self._context
        if context is None or not decision.allowed:
            return Reject(decision.reason, decision.text)
        # Its expiry begins when it is published, or one that waits long could never be delivered.
        message = message.replace(topic=topic).received(MessageId(0, 0), 0.0, None)
        user = client.quota_key
        # Nothing is packed that can't be held in any case.
        full = self._bound_reached(message.publisher.client_id, user, message.size_bytes)
        if full is not None:
            return _refused(full)
        due = context.clock.now() + delay_s
        self._serial += 1
        key = f"{int(due * 1000):015}-{context.node.uid:016x}-{self._serial}"
        value = _packed(due, message, user)
        size_bytes = _size_bytes(key, value, message)
        held = _Held(context.clock.monotonic() + delay_s, self._serial, key, message, user, size_bytes)
        full = self._bound_reached(held.client_id, user, size_bytes)
        if full is not None:
            return _refused(full)
        self._comes(held)
        context.keep(key, value, kept=lambda: self._push(held), unkept=lambda: self._leaves(held))
        return Drop("delayed")

    def _bound_reached(self, client_id: str, user: str, size_bytes: int) -> str | None:
        """The setting that a message of that size would exceed; ``None`` for none."""
        bounds = self._settings
        client_messages, client_bytes = self._clients.of(client_id)
        user_messages, user_bytes = self._users.of(user)
        if self._clients.messages >= bounds.max_messages:
            return "max_messages"
        if self._clients.size_bytes + size_bytes > bounds.max_bytes:
            return "max_bytes"
        if client_messages >= bounds.max_messages_per_client:
            return "max_messages_per_client"
        if client_bytes + size_bytes > bounds.max_bytes_per_client:
            return "max_bytes_per_client"
        if user_messages >= ceil(bounds.max_messages * bounds.user_share):
            return "user_share"
        if user_bytes + size_bytes > ceil(bounds.max_bytes * bounds.user_share):
            return "user_share"
        return None

    def _comes(self, held: _Held) -> None:
        self._clients.add(held.client_id, 1, held.size_bytes)
        self._users.add(held.user, 1, held.size_bytes)

    def _push(self, held: _Held) -> None:
        heappush(self._waiting, held)
        self._arm()

    def _leaves(self, held: _Held) -> None:
        self._clients.add(held.client_id, -1, -held.size_bytes)
        self._users.add(held.user, -1, -held.size_bytes)

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
        while self._waiting and self._waiting[0].due <= now:
            held = heappop(self._waiting)
            self._leaves(held)
            try:
                context.publish(held.message, in_place_of=held.key)
            except ValueError as error:
                context.keep(held.key, None)
                context.log.error("a delayed message can't be published: {error}", error=error)
        self._arm()


def _refused(bound: str) -> Reject:
    return Reject(ReasonCode.QUOTA_EXCEEDED, f"too many delayed messages (plugins.delayed.{bound})")


def _size_bytes(key: str, value: bytes, message: Message) -> int:
    """What a message counts for that waits: it is held here, and with the retained messages as it is kept."""
    return message.size_bytes + HELD_BYTES + retained_bytes(Message(f"$plugin/delayed/{key}", value))


def _packed(due: float, message: Message, user: str) -> bytes:
    """A message, when it is due (seconds since the epoch) and whose share it takes, as JSON."""
    return json.dumps({"due": due, "message": to_plain(message), "user": user}).encode()


def _unpacked(value: bytes) -> tuple[float, Message, str]:
    """What :func:`_packed` has packed; raises ``ValueError`` or its kin for anything else."""
    known: dict[str, Any] = json.loads(value)
    message = from_plain(Message, known["message"])
    publisher = message.publisher
    # A value from before users were kept has none.
    user = known.get("user", Client(publisher.client_id, publisher.username).quota_key)
    if not isinstance(user, str):
        raise ValueError(f"its user is {user!r}")
    return float(known["due"]), message, user
