"""The values that services and hooks exchange: frozen, slotted, and free of any reference to the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from attrs import evolve, field, fields, frozen, make_class
from attrs.converters import optional

from kinmqtt_spi.properties import NO_PROPERTIES, TEXT_BYTES, Properties, text_bytes
from kinmqtt_spi.reasons import ReasonCode

T = TypeVar("T")

Maybe: TypeAlias = T | Awaitable[T]
"""A value, or a coroutine or Deferred of one. Asyncio futures are adapted by the core."""

Commit: TypeAlias = Awaitable[None] | None
"""What a batch of writes answers: ``None`` when it is already kept, else an awaitable that fires when it is.

It fails with :class:`~kinmqtt_spi.errors.Fenced` or :class:`~kinmqtt_spi.errors.ServiceUnavailable`.
"""

# What CPython 3.11 takes on a machine of 64 bits, about; see :mod:`kinmqtt_spi.properties`.

MESSAGE_BYTES: Final = 300
"""What a message takes besides its topic's characters, its payload and its properties: the objects themselves."""

LEVEL_BYTES: Final = 170
"""What each further level of a filter takes in an index that goes level by level.

One that other filters share takes little, and one of its own about 300 bytes: this is in between.
"""

WILD_LEVEL_BYTES: Final = 70
"""The same of a level that is a ``+``, which has its place beside the others."""

SUBSCRIPTION_BYTES: Final = 700
"""What a subscription takes besides its filter: in its session, in the session store and in the index."""

SHARE_BYTES: Final = 1100
"""What a shared subscription takes on top of that, with the group that it may be the only member of, besides the name
of its group."""

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


def _text(text: str | None) -> str:
    return text or ""


class QoS(IntEnum):
    """Quality of service (section 4.3)."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


class MessageId(NamedTuple):
    """The broker's own name for a message, never a packet identifier: unique across nodes and restarts."""

    node: int
    """The uid of the node that received the message: 64 random bits, fresh for each process."""
    counter: int
    """Counts the messages that node has received."""


@frozen(slots=True)
class NodeIdentity:
    """Who this broker process is."""

    name: str
    uid: int


@frozen(slots=True)
class Address:
    """Where a peer connects from; ``port`` is ``None`` where the transport has none (a Unix socket)."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


@frozen(slots=True)
class Client:
    """A connected client as services see it."""

    client_id: str
    """Its own, or the one an authenticator or the broker gave it."""
    username: str | None = None
    """The user that an authenticator has verified; ``None`` for an anonymous client, whatever CONNECT says."""
    address: Address = Address("")
    """Where it connects from: ``host`` and ``port``."""
    listener: str = ""
    """The name of the listener it came to."""
    protocol_version: int = 4
    """The protocol level of CONNECT: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
    certificate_subject: str | None = None
    """Whom a verified client certificate was issued to (RFC 4514), where it has shown one."""
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    """What an authenticator added, for authorizers and limiters to use."""
    anonymous: bool = False
    """Whether no authenticator has vouched for it: then ``username`` is whatever it says of itself."""

    @property
    def quota_key(self) -> str:
        """Under which name to count what it takes of what all share: its user, else the address it comes from.

        A client may come again under other client ids, and one that nobody has checked under other user names.
        """
        if self.username is None or self.anonymous:
            return f"address {self.address.host}"
        return f"user {self.username}"


@frozen(slots=True)
class Publisher:
    """Who published a message: a client, or the broker and its plugins (``client_id`` empty)."""

    client_id: str
    username: str | None = None


THE_BROKER: Final = Publisher("")


# Without weak references, whose slot would keep a class of the same slots from becoming this one.
@frozen(slots=True, weakref_slot=False)
class Message:
    """An application message (section 1.2) on its way through the broker."""

    topic: str
    payload: bytes = field(default=b"", repr=lambda payload: f"<{len(payload)} bytes>")
    """Never decoded by the broker and never written to a log."""
    qos: int = 0
    retain: bool = field(default=False, converter=bool)
    properties: Properties = NO_PROPERTIES
    publisher: Publisher = THE_BROKER
    id: MessageId = MessageId(0, 0)
    received_at: float = field(default=0.0, converter=float)
    """Seconds since the epoch, UTC."""
    expires_at: float | None = field(default=None, converter=optional(float))
    """Seconds since the epoch, UTC, after which the message is not delivered any more (section 3.3.2.3.3)."""
    frame: bytes | None = field(default=None, eq=False, repr=False)
    """The PUBLISH packet it came in, so that it can go out unchanged; ``None`` once a plugin has replaced it."""
    frame_version: int = field(default=0, eq=False, repr=False)
    """The protocol version that ``frame`` is written in."""

    def replace(
        self,
        *,
        topic: str | None = None,
        payload: bytes | None = None,
        qos: int | None = None,
        retain: bool | None = None,
        properties: Properties | None = None,
    ) -> Message:
        """A changed copy. It forgets ``frame``, so that what goes out is what the copy says."""
        return evolve(
            self,
            topic=self.topic if topic is None else topic,
            payload=self.payload if payload is None else payload,
            qos=self.qos if qos is None else qos,
            retain=self.retain if retain is None else retain,
            properties=self.properties if properties is None else properties,
            frame=None,
            frame_version=0,
        )

    def received(self, id: MessageId, at: float, expires_at: float | None) -> Message:
        """A copy that has come to the broker at this moment (seconds since the epoch), under this id."""
        return evolve(self, id=id, received_at=at, expires_at=expires_at)

    @property
    def size_bytes(self) -> int:
        """About what the message takes in memory, which is what it counts for where bytes are bounded.

        Its topic, its payload and its properties, and :data:`MESSAGE_BYTES` for the objects that hold them.
        """
        topic = self.topic
        # As text_bytes has it, without the call: each message that is queued comes here more than once.
        size_bytes = MESSAGE_BYTES + (len(topic) if topic.isascii() else 4 * len(topic)) + len(self.payload)
        return size_bytes + self.properties.size_bytes if self.properties else size_bytes

    def has_expired(self, now: float) -> bool:
        """Whether the message must no longer be delivered at ``now`` (seconds since the epoch)."""
        return self.expires_at is not None and now >= self.expires_at


_OpenMessage: Any = make_class(
    "_OpenMessage",
    {each.name: field(default=each.default) for each in fields(Message)},
    slots=True,
    weakref_slot=False,
    eq=False,
)


def message_made(
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: Properties,
    publisher: Publisher,
    id: MessageId,
    received_at: float,
    expires_at: float | None,
    frame: bytes | None,
    frame_version: int,
) -> Message:
    """A :class:`Message` with all of its fields, as the constructor makes it, in a quarter of the time.

    A frozen class fills its fields one by one behind the back of its own ``__setattr__``. Here a class with the same
    slots that is not frozen is filled, and then becomes a :class:`Message`.
    """
    made = _OpenMessage(
        topic, payload, qos, retain, properties, publisher, id, received_at, expires_at, frame, frame_version
    )
    made.__class__ = Message
    message: Message = made
    return message


class RetainHandling(IntEnum):
    """When a subscription brings the retained messages along (section 3.8.3.1)."""

    SEND = 0
    SEND_IF_NEW = 1
    DO_NOT_SEND = 2


@frozen(slots=True)
class Subscription:
    """One subscription of one client (section 3.8.3)."""

    filter: str
    """The topic filter, without the ``$share/group/`` in front of a shared one."""
    qos: int = 0
    """The maximum QoS granted."""
    share_group: str | None = None
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = RetainHandling.SEND
    identifier: int | None = None
    """The subscription identifier (section 3.8.2.1.2), sent along with each delivery."""

    @property
    def full_filter(self) -> str:
        """The filter as the client wrote it: what UNSUBSCRIBE compares (MQTT-3.10.4-1)."""
        return self.filter if self.share_group is None else f"$share/{self.share_group}/{self.filter}"

    @property
    def size_bytes(self) -> int:
        """About what the subscription takes in memory, which is what it counts for where bytes are bounded.

        It depends on the filter and the group alone, so that another QoS, say, changes nothing. The characters of
        the filter count twice: as a whole, and level by level.
        """
        filter = self.filter
        filter_bytes = text_bytes(filter)
        size_bytes = SUBSCRIPTION_BYTES + 2 * filter_bytes + LEVEL_BYTES * filter.count("/")
        size_bytes -= (LEVEL_BYTES - WILD_LEVEL_BYTES) * filter.count("/+")
        if self.share_group is None:
            return size_bytes
        return size_bytes + SHARE_BYTES + TEXT_BYTES + filter_bytes + 2 * text_bytes(self.share_group)


@frozen(slots=True)
class Will:
    """A will message (section 3.1.2.5) and how long to wait before it is published."""

    message: Message
    delay_s: int = 0


class Verdict(Enum):
    """The three answers to a question. Never a bare boolean: "no" and "not mine" differ."""

    ALLOW = "allow"
    DENY = "deny"
    ABSTAIN = "abstain"


@frozen(slots=True)
class Decision:
    """An answer to a decide hook, with the reason a client may be told."""

    verdict: Verdict
    reason: ReasonCode = field(default=ReasonCode.SUCCESS, converter=ReasonCode)
    text: str = field(default="", converter=_text)
    """For the log, and for the client where the protocol has a reason string."""

    @property
    def allowed(self) -> bool:
        """Whether the verdict is ALLOW."""
        return self.verdict is Verdict.ALLOW


ALLOW: Final = Decision(Verdict.ALLOW)
ABSTAIN: Final = Decision(Verdict.ABSTAIN)


def deny(reason: ReasonCode = ReasonCode.NOT_AUTHORIZED, text: str = "") -> Decision:
    """A refusal with the reason code and text the client is told."""
    return Decision(Verdict.DENY, reason, text)


@frozen(slots=True)
class Drop:
    """An intercept's answer: forget the value, answer the client as if all were well."""

    text: str = field(default="", converter=_text)


@frozen(slots=True)
class Reject:
    """An intercept's answer: refuse with this reason code; MQTT 3 clients are told what their version can say."""

    reason: ReasonCode = field(default=ReasonCode.NOT_AUTHORIZED, converter=ReasonCode)
    text: str = field(default="", converter=_text)


@frozen(slots=True)
class Disconnect:
    """An intercept's answer: close the client's connection with this reason code."""

    reason: ReasonCode = field(default=ReasonCode.ADMINISTRATIVE_ACTION, converter=ReasonCode)
    text: str = field(default="", converter=_text)


Outcome: TypeAlias = T | Drop | Reject | Disconnect | None
"""What an intercept answers: ``None`` leaves the value as it is, another value replaces it."""
