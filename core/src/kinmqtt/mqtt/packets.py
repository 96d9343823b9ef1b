"""The fifteen MQTT control packets as values (MQTT 5.0 chapter 3), the same for every protocol version.

Fields that a version lacks are absent or have their defaults: a 3.1.1 PUBACK is a success without properties. No
``repr`` here shows a password, authentication data or a payload, only their sizes, so that packets can be logged.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

from attrs import field, frozen
from mypy_extensions import mypyc_attr

from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode

V31: Final = 3
V311: Final = 4
V5: Final = 5


class PacketType(IntEnum):
    """The upper four bits of a packet's first byte (MQTT 5.0 section 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


def _show_size(value: bytes | None) -> str:
    return "None" if value is None else f"<{len(value)} bytes>"


def _show_properties(properties: Properties) -> str:
    shown = (
        f"{name}={_show_size(value) if isinstance(value, bytes) else repr(value)}"
        for name, value in properties.present.items()
    )
    return f"Properties({', '.join(shown)})"


@frozen
class ConnectWill:
    """The message to publish when a client's connection is lost (section 3.1.3); ``topic`` is a valid Topic Name."""

    topic: str
    payload: bytes = field(repr=_show_size)
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Connect:
    """A client's request to connect (section 3.1). ``keep_alive`` is in seconds, 0 for none.

    ``clean_start`` is the Clean Session bit of older versions, in which the same bit means that the session ends
    with the connection. ``is_bridge``: the highest bit of the protocol level is set, as the bridges of Mosquitto do
    in MQTT 3.1.1, which has no subscription options: the client wants No Local and Retain As Published.
    """

    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = field(default=None, repr=_show_size)
    will: ConnectWill | None = None
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)
    is_bridge: bool = False


@frozen
class Connack:
    """The answer to a CONNECT (section 3.2)."""

    session_present: bool = False
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class _Acknowledgement:
    packet_id: int
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Puback(_Acknowledgement):
    """A QoS 1 PUBLISH has been accepted or refused (section 3.4)."""


@frozen
class Pubrec(_Acknowledgement):
    """A QoS 2 PUBLISH has been received (section 3.5)."""


@frozen
class Pubrel(_Acknowledgement):
    """A QoS 2 PUBLISH is released (section 3.6)."""


@frozen
class Pubcomp(_Acknowledgement):
    """A QoS 2 PUBLISH is complete (section 3.7)."""


@frozen
class SubscribeRequest:
    """One Topic Filter with its Subscription Options (section 3.8.3.1); old versions have the QoS only."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@frozen
class Subscribe:
    """A client's request for subscriptions (section 3.8). The filters are not empty, and not checked further."""

    packet_id: int
    requests: tuple[SubscribeRequest, ...]
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Suback:
    """The answer to a SUBSCRIBE, with a reason for each request in order (section 3.9)."""

    packet_id: int
    reasons: tuple[ReasonCode, ...]
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Unsubscribe:
    """A client's request to remove subscriptions (section 3.10)."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Unsuback:
    """The answer to an UNSUBSCRIBE (section 3.11); before 5.0 without ``reasons``."""

    packet_id: int
    reasons: tuple[ReasonCode, ...] = ()
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Pingreq:
    """A client's sign of life (section 3.12)."""


@frozen
class Pingresp:
    """The answer to a PINGREQ (section 3.13)."""


@frozen
class DisconnectPacket:
    """The last packet of a connection (section 3.14); before 5.0 only a client sends it, without a reason."""

    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@frozen
class Auth:
    """A step of an extended authentication (section 3.15), MQTT 5.0 only."""

    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES, repr=_show_properties)


@mypyc_attr(acyclic=True, free_list_len=1)
class Publish:
    """An application message (section 3.3): the hot packet, and therefore written by hand.

    A received one has the whole packet in ``frame``: ``topic_end`` is the offset after the topic's bytes and
    ``payload_start`` that of the payload, which is copied only on request. One that was built from parts has only
    the payload in ``frame`` and 0 in ``topic_end``. ``packet_id`` is 0 in QoS 0.

    Treat it as immutable: all recipients share one instance.
    """

    __slots__ = (
        "dup", "frame", "packet_id", "payload_start", "properties", "qos", "retain", "topic", "topic_end",
    )  # fmt: skip

    def __init__(
        self,
        frame: bytes,
        topic: str,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        properties: Properties,
        topic_end: int,
        payload_start: int,
    ) -> None:
        self.frame = frame
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties
        self.topic_end = topic_end
        self.payload_start = payload_start

    @classmethod
    def build(
        cls,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> Publish:
        """Build a message that was not received."""
        return cls(payload, topic, qos, retain, dup, packet_id, properties, 0, 0)

    @property
    def payload(self) -> bytes:
        """The Application Message."""
        return self.frame[self.payload_start :]

    @property
    def payload_size(self) -> int:
        """The payload's size in bytes, without a copy."""
        return len(self.frame) - self.payload_start

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Publish):
            return NotImplemented
        return (
            self.topic == other.topic
            and self.payload == other.payload
            and self.qos == other.qos
            and self.retain == other.retain
            and self.dup == other.dup
            and self.packet_id == other.packet_id
            and self.properties == other.properties
        )

    def __repr__(self) -> str:
        return (
            f"Publish(topic={self.topic!r}, payload=<{self.payload_size} bytes>, qos={self.qos}, "
            f"retain={self.retain}, dup={self.dup}, packet_id={self.packet_id}, "
            f"properties={_show_properties(self.properties)})"
        )


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | DisconnectPacket
    | Auth
)

PINGREQ: Final = Pingreq()
PINGRESP: Final = Pingresp()
