"""Property lists (MQTT 5.0 section 2.2.2): a table of the 27 properties, and the code that uses it.

An identifier that is unknown or not allowed in its packet is malformed (section 2.2.2.2). A second occurrence, and a
value that its property's section forbids, are protocol errors.

The table knows packets, not directions: a Session Expiry Interval in a server's DISCONNECT or a Subscription
Identifier in a client's PUBLISH is decoded here and checked by the connection, which knows the sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from attrs import field, frozen

from kinmqtt.mqtt.codec.primitives import (
    MAX_VARINT,
    Cursor,
    write_binary,
    write_u8,
    write_u16,
    write_u32,
    write_utf8,
    write_utf8_pair,
    write_varint,
)
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, PacketTooLarge, ProtocolError, RemoteError
from kinmqtt.mqtt.packets import PacketType
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode

WILL: Final = 0
"""Stands for the Will Properties of a CONNECT where others have a packet type (section 3.1.3.2)."""

_SECTION: Final = "section 2.2.2.2"
"""The table of the properties. Its text, and the sections it refers to, have no statement numbers on values."""

_ANYTHING: Final = "any value"
_NOT_ZERO: Final = "not zero"
_BOOLEAN: Final = "0 or 1"
_TOPIC: Final = "a topic name"
_ALIAS: Final = "a topic alias"


class PropertyLimits(Protocol):
    """Bounds on property lists. The codec has no settings, so the caller passes them."""

    @property
    def max_user_properties(self) -> int:
        """Maximum number of repeatable properties (User Properties, Subscription Identifiers) in a list."""

    @property
    def max_properties_bytes(self) -> int:
        """The largest Property Length."""


@frozen(slots=True)
class FixedLimits:
    """Implements :class:`PropertyLimits` with two numbers."""

    max_user_properties: int
    max_properties_bytes: int


UNLIMITED: Final = FixedLimits(MAX_VARINT, MAX_VARINT)
"""The limits of MQTT itself: for a peer that is trusted not to send costly lists."""


@frozen
class _Kind:
    """A data type: how it is read and written."""

    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]


_BYTE: Final = _Kind(Cursor.u8, write_u8)
_U16: Final = _Kind(Cursor.u16, write_u16)
_U32: Final = _Kind(Cursor.u32, write_u32)
_VARINT: Final = _Kind(Cursor.varint, write_varint)
_TEXT: Final = _Kind(Cursor.utf8, write_utf8)
_PAIR: Final = _Kind(Cursor.utf8_pair, write_utf8_pair)
_BINARY: Final = _Kind(Cursor.binary, write_binary)


@frozen
class PropertyRule:
    """One row of the table: identifier, attribute of ``Properties``, type, and the packets that may have it."""

    identifier: int
    name: str
    kind: _Kind
    owners: frozenset[int]
    values: str = _ANYTHING
    repeats_in: frozenset[int] = frozenset()

    is_tuple: bool = field(init=False)
    """Whether the attribute of ``Properties`` collects all occurrences."""

    @is_tuple.default
    def _collects(self) -> bool:
        return self.name in ("subscription_identifier", "user_property")

    def check(self, value: Any) -> None:
        """Raise an error if the property's section forbids this ``value``."""
        if self.values is _BOOLEAN:
            if value > 1:
                raise ProtocolError(f"{self.name} is {value}; it must be 0 or 1", _SECTION)
        elif self.values is _NOT_ZERO:
            if not value:
                raise ProtocolError(f"{self.name} must not be 0", _SECTION)
        elif self.values is _ALIAS:
            if not value:
                raise RemoteError(ReasonCode.TOPIC_ALIAS_INVALID, "a Topic Alias of 0", "MQTT-3.3.2-8")
        elif self.values is _TOPIC:
            if not value:
                raise ProtocolError(f"{self.name} is empty", "MQTT-4.7.3-1")
            if "+" in value or "#" in value:
                raise ProtocolError(f"{self.name} contains a wildcard character", "MQTT-3.3.2-14")


_P = PacketType
_MESSAGE: Final = frozenset({_P.PUBLISH, WILL})
_AUTHENTICATED: Final = frozenset({_P.CONNECT, _P.CONNACK, _P.AUTH})
_OPENING: Final = frozenset({_P.CONNECT, _P.CONNACK})
_CONNECT: Final = frozenset({_P.CONNECT})
_CONNACK: Final = frozenset({_P.CONNACK})
_REASONED: Final = frozenset(
    {
        _P.CONNACK, _P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK, _P.DISCONNECT,
        _P.AUTH,
    }
)  # fmt: skip
_EVERYWHERE: Final = _REASONED | {_P.CONNECT, _P.PUBLISH, _P.SUBSCRIBE, _P.UNSUBSCRIBE, WILL}

RULES: Final[tuple[PropertyRule, ...]] = (
    PropertyRule(0x01, "payload_format_indicator", _BYTE, _MESSAGE, _BOOLEAN),
    PropertyRule(0x02, "message_expiry_interval", _U32, _MESSAGE),
    PropertyRule(0x03, "content_type", _TEXT, _MESSAGE),
    PropertyRule(0x08, "response_topic", _TEXT, _MESSAGE, _TOPIC),
    PropertyRule(0x09, "correlation_data", _BINARY, _MESSAGE),
    PropertyRule(
        0x0B,
        "subscription_identifier",
        _VARINT,
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        _NOT_ZERO,
        frozenset({_P.PUBLISH}),
    ),
    PropertyRule(0x11, "session_expiry_interval", _U32, _OPENING | {_P.DISCONNECT}),
    PropertyRule(0x12, "assigned_client_identifier", _TEXT, _CONNACK),
    PropertyRule(0x13, "server_keep_alive", _U16, _CONNACK),
    PropertyRule(0x15, "authentication_method", _TEXT, _AUTHENTICATED),
    PropertyRule(0x16, "authentication_data", _BINARY, _AUTHENTICATED),
    PropertyRule(0x17, "request_problem_information", _BYTE, _CONNECT, _BOOLEAN),
    PropertyRule(0x18, "will_delay_interval", _U32, frozenset({WILL})),
    PropertyRule(0x19, "request_response_information", _BYTE, _CONNECT, _BOOLEAN),
    PropertyRule(0x1A, "response_information", _TEXT, _CONNACK),
    PropertyRule(0x1C, "server_reference", _TEXT, _CONNACK | {_P.DISCONNECT}),
    PropertyRule(0x1F, "reason_string", _TEXT, _REASONED),
    PropertyRule(0x21, "receive_maximum", _U16, _OPENING, _NOT_ZERO),
    PropertyRule(0x22, "topic_alias_maximum", _U16, _OPENING),
    PropertyRule(0x23, "topic_alias", _U16, frozenset({_P.PUBLISH}), _ALIAS),
    PropertyRule(0x24, "maximum_qos", _BYTE, _CONNACK, _BOOLEAN),
    PropertyRule(0x25, "retain_available", _BYTE, _CONNACK, _BOOLEAN),
    PropertyRule(0x26, "user_property", _PAIR, _EVERYWHERE, _ANYTHING, _EVERYWHERE),
    PropertyRule(0x27, "maximum_packet_size", _U32, _OPENING, _NOT_ZERO),
    PropertyRule(0x28, "wildcard_subscription_available", _BYTE, _CONNACK, _BOOLEAN),
    PropertyRule(0x29, "subscription_identifier_available", _BYTE, _CONNACK, _BOOLEAN),
    PropertyRule(0x2A, "shared_subscription_available", _BYTE, _CONNACK, _BOOLEAN),
)

_BY_IDENTIFIER: Final[Mapping[int, Mapping[int, PropertyRule]]] = {
    owner: {rule.identifier: rule for rule in RULES if owner in rule.owners} for owner in (WILL, *PacketType)
}
_BY_NAME: Final[Mapping[str, PropertyRule]] = {rule.name: rule for rule in RULES}


def read_properties(reader: Cursor, owner: int, limits: PropertyLimits = UNLIMITED) -> Properties:
    """Decode a Property Length and its properties; ``owner`` is a :class:`PacketType` or :data:`WILL`.

    Reading stops at the ``limits``: with 0x95 for a list that is too long, with 0x97 for one with too many
    repeatable properties. Each of these costs far more time than its bytes suggest, during which other clients wait.
    Such a list violates no rule of MQTT, so the error has no clause (section 4.13.2).
    """
    length = reader.varint()
    if not length:
        return NO_PROPERTIES
    outer_end = reader.end
    reader.end = reader.pos + length
    if reader.end > outer_end:
        raise MalformedPacket("the Property Length runs past the end of the packet", "section 2.2.2.1")
    most_bytes = limits.max_properties_bytes
    if length > most_bytes:
        raise PacketTooLarge(f"properties of {length} bytes; at most {most_bytes} are accepted")
    most = limits.max_user_properties
    repeated = 0
    rules = _BY_IDENTIFIER[owner]
    present: dict[str, Any] = {}
    while reader.pos < reader.end:
        identifier = reader.varint()
        rule = rules.get(identifier)
        if rule is None:
            raise MalformedPacket(f"property 0x{identifier:02X} does not belong in this packet", _SECTION)
        if rule.is_tuple:
            repeated += 1
            if repeated > most:
                text = f"more than {most} User Properties and Subscription Identifiers in one packet"
                raise RemoteError(ReasonCode.QUOTA_EXCEEDED, text)
        value = rule.kind.read(reader)
        rule.check(value)
        _keep(present, rule, value, owner)
    reader.end = outer_end
    # Collected in lists, because a growing tuple would be copied each time.
    for name, value in present.items():
        if isinstance(value, list):
            present[name] = tuple(value)
    if "authentication_data" in present and "authentication_method" not in present:
        raise ProtocolError("Authentication Data without an Authentication Method", "section 3.1.2.11.10")
    return Properties.from_wire(present)


def write_properties(properties: Properties, owner: int, written: bytes = b"") -> bytes:
    """Encode a Property Length and its properties; raise :class:`LocalError` for any that ``owner`` must not have.

    The already encoded properties ``written`` (see :func:`written_properties`) come first.
    """
    if not properties and not written:
        return b"\0"
    body = written + written_properties(properties, owner) if properties else written
    return write_varint(len(body)) + body


def written_properties(properties: Properties, owner: int) -> bytes:
    """Encode properties without their length, so that properties common to many packets are encoded once."""
    parts: list[bytes] = []
    for name, value in properties.present.items():
        rule = _BY_NAME[name]
        if owner not in rule.owners:
            raise LocalError(f"{name} does not belong in this packet", _SECTION)
        values = value if rule.is_tuple else (value,)
        if len(values) > 1 and owner not in rule.repeats_in:
            raise LocalError(f"{name} may be given once")
        parts += [_written(rule, each) for each in values]
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise LocalError("Authentication Data without an Authentication Method")
    return b"".join(parts)


def _keep(present: dict[str, Any], rule: PropertyRule, value: Any, owner: int) -> None:
    if not rule.is_tuple:
        if rule.name in present:
            raise ProtocolError(f"{rule.name} is given twice", _SECTION)
        present[rule.name] = value
    elif rule.name in present:
        if owner not in rule.repeats_in:
            raise ProtocolError(f"{rule.name} is given twice", _SECTION)
        present[rule.name].append(value)
    else:
        present[rule.name] = [value]


def _written(rule: PropertyRule, value: Any) -> bytes:
    try:
        rule.check(value)
    except RemoteError as error:
        raise LocalError(error.text) from None
    return bytes((rule.identifier,)) + rule.kind.write(value)
