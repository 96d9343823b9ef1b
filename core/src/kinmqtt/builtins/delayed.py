"""Delayed publish: ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` when the time has come."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Final

from attrs import evolve, field, frozen

from kinmqtt_spi import Client, Decision, Drop, Message, Reject, hookimpl, on_topics
from kinmqtt_spi.plain import from_plain, to_plain
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.retain import retained_bytes
from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import THE_BROKER, Maybe, MessageId, Publisher

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

PREFIX: Final = "$delayed/"

HELD_BYTES: Final = 300
"""What a message that waits takes besides itself and what is kept of it, about."""
AT_ONCE: Final = 20
"""Messages published in one turn of the event loop, however many are due in the same second."""


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
    client: Client = field(order=False)
    """Who has left it, as it was then."""
    size_bytes: int = field(order=False)

    @property
    def client_id(self) -> str:
        """Whose it is."""
        return self.client.client_id

    @property
    def user(self) -> str:
        """Whose share it takes."""
        return self.client.quota_key


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
    PUBLISH, and to the topic itself, when it leaves the message and again when that is due.
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
        """Take the bounds, and the topics."""
        self._context = context
        context.claim_topics(f"{PREFIX}#", Action.PUBLISH, Action.WILL)
        self._settings = context.settings
        context.metrics.gauge("count", "messages", lambda: self._clients.messages)
        context.metrics.gauge("size", "bytes", lambda: self._clients.size_bytes)

    @hookimpl
    async def start(self, context: Context) -> None:
        """Take up what waited when the broker stopped; what has become due meanwhile is published at once."""
        values = await context.kept()
        for key, value in sorted(values.items()):
            try:
                due, message, client = _unpacked(value)
            except (ValueError, TypeError, KeyError) as error:
                context.log.error("what is kept as {key} is no delayed message: {error}", key=key, error=error)
                continue
            moment = context.clock.monotonic() + due - context.clock.now()
            self._serial += 1
            held = _Held(moment, self._serial, key, message, client, _size_bytes(key, value, message))
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
    def publish_received(self, client: Client, message: Message) -> Maybe[Drop | Reject | None]:
        """Take a message aside until it is due."""
        return self._aside(client, message, Action.PUBLISH)

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Maybe[Drop | Reject | None]:
        """The same for a will: it will be published as a message is, so it takes the right to that, too."""
        return self._aside(client, message, Action.WILL, Action.PUBLISH)

    def _aside(self, client: Client, message: Message, *actions: Action) -> Maybe[Drop | Reject | None]:
        if not f"{message.topic}/".startswith(PREFIX):
            return None  # A will as any other, or what another plugin has moved elsewhere.
        seconds, _, topic = message.topic[len(PREFIX) :].partition("/")
        if not (seconds.isascii() and seconds.isdecimal()) or not topic:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "expected $delayed/<seconds>/<topic>")
        longest = self._settings.max_delay_s
        if len(seconds) > 12 or int(seconds) > longest:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, f"the delay is more than {longest} s")
        if topic.startswith("$"):
            # What is due goes to subscribers, and past the plugins that take what clients publish to such topics.
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "the topic behind $delayed/<seconds>/ begins with $")
        if self._context is None:
            return Reject(ReasonCode.SERVER_UNAVAILABLE, "not configured")
        asked = [AuthorizationRequest(client, action, topic, message.qos, message.retain) for action in actions]
        return self._take(self._context, asked, message.replace(topic=topic), int(seconds))

    def _take(
        self, context: Context, asked: Sequence[AuthorizationRequest], message: Message, delay_s: int
    ) -> Maybe[Drop | Reject]:
        """Hold a message where every question is answered with yes."""
        for position, request in enumerate(asked):
            answer = context.authorize(request)
            if isinstance(answer, Awaitable):
                return self._take_later(context, answer, asked[position:], message, delay_s)
            if not answer.allowed:
                return Reject(answer.reason, answer.text)
        return self._hold(context, asked[-1].client, message, delay_s)

    async def _take_later(
        self,
        context: Context,
        answer: Awaitable[Decision],
        asked: Sequence[AuthorizationRequest],
        message: Message,
        delay_s: int,
    ) -> Drop | Reject:
        decision = await answer
        if not decision.allowed:
            return Reject(decision.reason, decision.text)
        if len(asked) == 1:
            return self._hold(context, asked[0].client, message, delay_s)
        taken = self._take(context, asked[1:], message, delay_s)
        return await taken if isinstance(taken, Awaitable) else taken

    def _hold(self, context: Context, client: Client, message: Message, delay_s: int) -> Drop | Reject:
        # Its expiry begins when it is published, or one that waits long could never be delivered.
        held = message.received(MessageId(0, 0), 0.0, None)
        # Nothing is packed that can't be held in any case.
        full = self._bound_reached(client.client_id, client.quota_key, held.size_bytes)
        if full is not None:
            return _refused(full)
        due = context.clock.now() + delay_s
        self._serial += 1
        key = f"{int(due * 1000):015}-{context.node.uid:016x}-{self._serial}"
        value = _packed(due, held, client)
        size_bytes = _size_bytes(key, value, held)
        full = self._bound_reached(client.client_id, client.quota_key, size_bytes)
        if full is not None:
            return _refused(full)
        waits = _Held(context.clock.monotonic() + delay_s, self._serial, key, held, client, size_bytes)
        self._comes(waits)
        context.keep(key, value, kept=lambda: self._push(waits), on_commit_failed=lambda: self._leaves(waits))
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
        for _ in range(AT_ONCE):
            if not self._waiting or self._waiting[0].due > now:
                break
            held = heappop(self._waiting)
            self._leaves(held)
            try:
                context.publish(held.message, in_place_of=held.key, on_behalf_of=held.client)
            except ValueError as error:
                context.keep(held.key, None)
                context.log.error("a delayed message can't be published: {error}", error=error)
        self._arm()


def _packed(due: float, message: Message, client: Client) -> bytes:
    """A message, who has left it, and when it is due (seconds since the epoch), as JSON."""
    # Its publisher is the client: a name that a client chose need not stand there twice.
    plain = to_plain(evolve(message, publisher=THE_BROKER))
    return json.dumps({"due": due, "message": plain, "client": to_plain(client)}).encode()


def _unpacked(value: bytes) -> tuple[float, Message, Client]:
    """What :func:`_packed` has packed; raises ``ValueError`` or its kin for anything else.

    Of what an earlier version has kept no more is known of the client than the message says.
    """
    known = json.loads(value)
    due, message = float(known["due"]), from_plain(Message, known["message"])
    if "client" not in known:
        return due, message, Client(message.publisher.client_id, message.publisher.username)
    client = from_plain(Client, known["client"])
    return due, evolve(message, publisher=Publisher(client.client_id, client.username)), client


def _refused(bound: str) -> Reject:
    return Reject(ReasonCode.QUOTA_EXCEEDED, f"too many delayed messages (plugins.delayed.{bound})")


def _size_bytes(key: str, value: bytes, message: Message) -> int:
    """What a message counts for that waits: it is held here, and with the retained messages as it is kept."""
    return message.size_bytes + HELD_BYTES + retained_bytes(Message(f"$plugin/delayed/{key}", value))
