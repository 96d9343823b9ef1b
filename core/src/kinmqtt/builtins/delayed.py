"""Delayed publish: a message to ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` after that time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
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
from kinmqtt_spi.values import THE_BROKER, Maybe, Publisher

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

PREFIX: Final = "$delayed/"

HELD_BYTES: Final = 300
"""Approximate overhead of a delayed message and its stored copy."""
AT_ONCE: Final = 20
"""Maximum number of messages published in one turn of the event loop."""


@frozen(slots=True)
class DelayedSettings:
    """``[plugins.delayed]``."""

    max_messages: int = setting(10_000, help="the maximum number of delayed messages", minimum=0)
    max_bytes: int = setting(
        64 << 20, help="the approximate memory for delayed messages and their stored copies", unit="bytes", minimum=0
    )
    max_messages_per_client: int = setting(1000, help="the maximum number for one client id", minimum=0)
    max_bytes_per_client: int = setting(
        8 << 20, help="the memory for the delayed messages of one client id", unit="bytes", minimum=0
    )
    user_share: float = setting(
        0.5,
        help="the share of max_messages and max_bytes for one user, or for one address without a verified user name; "
        "1 for all of it",
        minimum=0.001,
        maximum=1,
    )
    max_delay_s: int = setting(42_949_670, help="the longest delay", unit="s", minimum=1)


@frozen(slots=True, order=True)
class _Held:
    """A delayed message, ordered by its due time."""

    due: float
    """In seconds of the monotonic clock."""
    serial: int
    key: str = field(order=False)
    message: Message = field(order=False)
    client: Client = field(order=False)
    """The publisher, as it was at the time of publishing."""
    size_bytes: int = field(order=False)

    @property
    def client_id(self) -> str:
        """The publisher's client id."""
        return self.client.client_id

    @property
    def user(self) -> str:
        """The user or address whose share the message counts against."""
        return self.client.quota_key


class _Tally:
    """Number and size of delayed messages, by name and in total."""

    def __init__(self) -> None:
        self.messages = self.size_bytes = 0
        self._by_name: dict[str, tuple[int, int]] = {}

    def of(self, name: str) -> tuple[int, int]:
        """Return the number and size in bytes for one name."""
        return self._by_name.get(name, (0, 0))

    def add(self, name: str, messages: int, size_bytes: int) -> None:
        """Add to the number and size; negative values subtract."""
        self.messages += messages
        self.size_bytes += size_bytes
        its_messages, its_bytes = self.of(name)
        if its_messages + messages:
            self._by_name[name] = (its_messages + messages, its_bytes + size_bytes)
        else:
            del self._by_name[name]


class Delayed:
    """Holds messages until they are due; they survive restarts if the broker has persistence.

    A client needs the right to publish to both topics: to the one under ``$delayed/``, which the broker checks for
    each PUBLISH, and to the target topic, which is checked at publishing and again when the message is due.
    """

    def __init__(self) -> None:
        self._context: Context | None = None
        self._settings = DelayedSettings()
        self._waiting: list[_Held] = []
        self._clients = _Tally()
        self._users = _Tally()
        """By client id and by user; includes messages whose commit is pending."""
        self._serial = 0
        self._timer: Timer | None = None
        self._armed_for = 0.0

    @hookimpl
    def settings_class(self) -> type[DelayedSettings]:
        """Return the class of the settings."""
        return DelayedSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the bounds and claim the topics."""
        self._context = context
        context.claim_topics(f"{PREFIX}#", Action.PUBLISH, Action.WILL)
        self._settings = context.settings
        context.metrics.gauge("count", "messages", lambda: self._clients.messages)
        context.metrics.gauge("size", "bytes", lambda: self._clients.size_bytes)

    @hookimpl
    async def start(self, context: Context) -> None:
        """Load the delayed messages; those that are due by now are published immediately."""
        self._take_back(context, await context.persisted())

    @hookimpl
    def values_adopted(self, values: Mapping[str, bytes]) -> None:
        """Hold the messages that a node has held which is gone."""
        if self._context is not None:
            self._take_back(self._context, values)

    def _take_back(self, context: Context, values: Mapping[str, bytes]) -> None:
        for key, value in sorted(values.items()):
            try:
                due, message, client = _unpacked(value)
            except (ValueError, TypeError, KeyError) as error:
                context.log.error("the stored value {key} is not a delayed message: {error}", key=key, error=error)
                continue
            moment = context.clock.monotonic() + due - context.clock.now()
            self._serial += 1
            held = _Held(moment, self._serial, key, message, client, _size_bytes(key, value, message))
            self._comes(held)
            heappush(self._waiting, held)
        self._arm()

    @hookimpl
    def reload(self, settings: DelayedSettings) -> tuple[str, ...]:
        """Use new bounds; messages that are already delayed stay."""
        self._settings = settings
        return ()

    @hookimpl
    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._clients, self._users = _Tally(), _Tally()

    @hookimpl
    @on_topics("$delayed/#")
    def publish_received(self, client: Client, message: Message) -> Maybe[Drop | Reject | None]:
        """Hold a message until it is due."""
        return self._aside(client, message, Action.PUBLISH)

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Maybe[Drop | Reject | None]:
        """Hold a will like a message. Its client also needs the right to publish to the target topic."""
        return self._aside(client, message, Action.WILL, Action.PUBLISH)

    def _aside(self, client: Client, message: Message, *actions: Action) -> Maybe[Drop | Reject | None]:
        if not f"{message.topic}/".startswith(PREFIX):
            return None  # Not a delayed topic: an ordinary will, or a topic that another plugin has rewritten.
        seconds, _, topic = message.topic[len(PREFIX) :].partition("/")
        if not (seconds.isascii() and seconds.isdecimal()) or not topic:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "expected $delayed/<seconds>/<topic>")
        longest = self._settings.max_delay_s
        if len(seconds) > 12 or int(seconds) > longest:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, f"the delay is more than {longest} s")
        if topic.startswith("$"):
            # A due message goes to subscribers and bypasses plugins that handle clients' publishes to such topics.
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "the topic after $delayed/<seconds>/ begins with $")
        if self._context is None:
            return Reject(ReasonCode.SERVER_UNAVAILABLE, "not configured")
        asked = [AuthorizationRequest(client, action, topic, message.qos, message.retain) for action in actions]
        return self._take(self._context, asked, message.replace(topic=topic), int(seconds))

    def _take(
        self, context: Context, asked: Sequence[AuthorizationRequest], message: Message, delay_s: int
    ) -> Maybe[Drop | Reject]:
        """Hold a message if the client is allowed to do all the actions."""
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
        # The message expiry begins when it is published, or a long delay would exceed it.
        # The id stays: who publishes it in the place of this node must not deliver it twice.
        held = message.received(message.id, 0.0, None)
        # Check the bounds before packing the message.
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
        context.persist(
            key,
            value,
            after_commit=lambda: self._push(waits),
            on_commit_failed=lambda: self._leaves(waits),
            on_behalf_of=client,
        )
        return Drop("delayed")

    def _bound_reached(self, client_id: str, user: str, size_bytes: int) -> str | None:
        """Return the setting that a message of this size would exceed, or ``None``."""
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
        """Set the timer for the message that is due first."""
        context = self._context
        if context is None or not self._waiting:
            return
        due = self._waiting[0].due
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        # It may be due already.
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
                context.persist(held.key, None)
                context.log.error("a delayed message can't be published: {error}", error=error)
        self._arm()


def _packed(due: float, message: Message, client: Client) -> bytes:
    """Encode a message, its publisher and its due time (seconds since the epoch) as JSON."""
    # The message's publisher is the client, so its client id is stored only once.
    plain = to_plain(evolve(message, publisher=THE_BROKER))
    return json.dumps({"due": due, "message": plain, "client": to_plain(client)}).encode()


def _unpacked(value: bytes) -> tuple[float, Message, Client]:
    """Decode the result of :func:`_packed`; raise ``ValueError`` or a related error for other bytes.

    Earlier versions stored nothing of the client except the message's publisher.
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
    """The size that counts for a delayed message: the held message and its copy in the retain store."""
    return message.size_bytes + HELD_BYTES + retained_bytes(Message(f"$plugin/delayed/{key}", value))
