"""The values that services and hooks exchange. They are frozen, slotted, and do not refer to the broker."""

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
"""The answer to a batch of writes: ``None`` if it is committed, else an awaitable that fires when it is.

It fails with :class:`~kinmqtt_spi.errors.Fenced` or :class:`~kinmqtt_spi.errors.ServiceUnavailable`.
"""

# Approximate sizes with CPython 3.11 on 64 bits; see :mod:`kinmqtt_spi.properties`.

MESSAGE_BYTES: Final = 300
"""The memory of a message without the characters of its topic, its payload and its properties."""

LEVEL_BYTES: Final = 170
"""The memory of each further level of a filter in an index by level.

A level that other filters share takes little, and one of its own about 300 bytes. This is a mean.
"""

WILD_LEVEL_BYTES: Final = 70
"""The memory of a level that is a ``+``, for which an index by level has a slot in each node."""

SUBSCRIPTION_BYTES: Final = 700
"""The memory of a subscription without its filter: in its session, in the session store and in the index."""

SHARE_BYTES: Final = 1100
"""The additional memory of a shared subscription and its group, without the name of the group."""

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


def _text(text: str | None) -> str:
    return text or ""


class QoS(IntEnum):
    """Quality of service (section 4.3)."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


class MessageId(NamedTuple):
    """The broker's identifier of a message, unique across nodes and restarts. It is not a packet identifier."""

    node: int
    """The uid of the node that received the message: 64 random bits, fresh for each process."""
    counter: int
    """The number of messages that the node has received."""


@frozen(slots=True)
class NodeIdentity:
    """The identity of a broker process: its name, and a uid of its own."""

    name: str
    uid: int


@frozen(slots=True)
class Address:
    """A peer's address. ``port`` is ``None`` if the transport has none (a Unix socket)."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


@frozen(slots=True)
class Client:
    """A connected client as services see it."""

    client_id: str
    """The client id in CONNECT, or the one that an authenticator or the broker has assigned."""
    username: str | None = None
    """The user that an authenticator has verified; ``None`` for an anonymous client, whatever CONNECT says."""
    address: Address = Address("")
    """The client's address: ``host`` and ``port``."""
    listener: str = ""
    """The name of the listener that accepted the connection."""
    protocol_version: int = 4
    """The protocol level of CONNECT: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
    certificate_subject: str | None = None
    """The subject of a verified client certificate (RFC 4514), if the client has sent one."""
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    """Attributes from the authenticator, for authorizers and limiters."""
    anonymous: bool = False
    """Whether no authenticator has verified the client: then ``username`` is unverified."""

    @property
    def quota_key(self) -> str:
        """The key for quotas on shared resources: the user, or the address of an anonymous client.

        A client may connect with other client ids, and an unverified one with other user names.
        """
        if self.username is None or self.anonymous:
            return f"address {self.address.host}"
        return f"user {self.username}"


@frozen(slots=True)
class Publisher:
    """The publisher of a message: a client, or the broker and its plugins (``client_id`` empty)."""

    client_id: str
    username: str | None = None


THE_BROKER: Final = Publisher("")


# No weak references: with their slot, make_message could not turn an object of another class into this one.
@frozen(slots=True, weakref_slot=False)
class Message:
    """An application message (section 1.2) on its way through the broker."""

    topic: str
    payload: bytes = field(default=b"", repr=lambda payload: f"<{len(payload)} bytes>")
    """The broker never decodes the payload and never logs it."""
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
    """The received PUBLISH packet, to be sent unchanged; ``None`` after a plugin has replaced the message."""
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
        """Return a changed copy, without ``frame``, so that the changes are sent."""
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
        """Return a copy that was received ``at`` (seconds since the epoch), with this id."""
        return evolve(self, id=id, received_at=at, expires_at=expires_at)

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory, which counts against limits in bytes.

        It includes the topic, the payload, the properties, and :data:`MESSAGE_BYTES` for the objects.
        """
        topic = self.topic
        # Inlines text_bytes, because this runs more than once for each queued message.
        size_bytes = MESSAGE_BYTES + (len(topic) if topic.isascii() else 4 * len(topic)) + len(self.payload)
        return size_bytes + self.properties.size_bytes if self.properties else size_bytes

    def has_expired(self, now: float) -> bool:
        """Tell whether the message has expired at ``now`` (seconds since the epoch)."""
        return self.expires_at is not None and now >= self.expires_at


_OpenMessage: Any = make_class(
    "_OpenMessage",
    {each.name: field(default=each.default) for each in fields(Message)},
    slots=True,
    weakref_slot=False,
    eq=False,
)


def make_message(
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
    """Make a :class:`Message` from all of its fields, in a quarter of the constructor's time.

    The constructor of a frozen class sets each field with ``object.__setattr__``. This function makes an object of a
    class with the same slots that is not frozen, and then changes its class.
    """
    made = _OpenMessage(
        topic, payload, qos, retain, properties, publisher, id, received_at, expires_at, frame, frame_version
    )
    made.__class__ = Message
    message: Message = made
    return message


class RetainHandling(IntEnum):
    """Whether retained messages are sent at subscription (section 3.8.3.1)."""

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
    """The subscription identifier (section 3.8.2.1.2), sent with each delivery."""

    @property
    def full_filter(self) -> str:
        """The filter as the client sent it, which UNSUBSCRIBE compares (MQTT-3.10.4-1)."""
        return self.filter if self.share_group is None else f"$share/{self.share_group}/{self.filter}"

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory, which counts against limits in bytes.

        It depends only on the filter and the group, so that replacing a subscription does not change it. The
        characters of the filter count twice: as a whole, and level by level.
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
    """A will message (section 3.1.2.5) and its delay in seconds."""

    message: Message
    delay_s: int = 0


class Verdict(Enum):
    """The three answers to a decide hook. A boolean could not tell a denial from an abstention."""

    ALLOW = "allow"
    DENY = "deny"
    ABSTAIN = "abstain"


@frozen(slots=True)
class Decision:
    """An answer to a decide hook, with a reason for the client."""

    verdict: Verdict
    reason: ReasonCode = field(default=ReasonCode.SUCCESS, converter=ReasonCode)
    text: str = field(default="", converter=_text)
    """For the log, and for the client if the protocol has a reason string."""

    @property
    def allowed(self) -> bool:
        """Tell whether the verdict is ALLOW."""
        return self.verdict is Verdict.ALLOW


ALLOW: Final = Decision(Verdict.ALLOW)
ABSTAIN: Final = Decision(Verdict.ABSTAIN)


def deny(reason: ReasonCode = ReasonCode.NOT_AUTHORIZED, text: str = "") -> Decision:
    """Return a denial with a reason code and a text for the client."""
    return Decision(Verdict.DENY, reason, text)


@frozen(slots=True)
class Drop:
    """An intercept's answer: drop the value, and answer the client as if it was accepted."""

    text: str = field(default="", converter=_text)


@frozen(slots=True)
class Reject:
    """An intercept's answer: refuse with this reason code. MQTT 3 clients get the nearest code of their version."""

    reason: ReasonCode = field(default=ReasonCode.NOT_AUTHORIZED, converter=ReasonCode)
    text: str = field(default="", converter=_text)


@frozen(slots=True)
class Disconnect:
    """An intercept's answer: close the client's connection with this reason code."""

    reason: ReasonCode = field(default=ReasonCode.ADMINISTRATIVE_ACTION, converter=ReasonCode)
    text: str = field(default="", converter=_text)


Outcome: TypeAlias = T | Drop | Reject | Disconnect | None
"""An intercept's answer: ``None`` leaves the value unchanged, another value replaces it."""
