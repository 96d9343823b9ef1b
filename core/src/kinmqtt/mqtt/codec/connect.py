"""CONNECT and CONNACK (MQTT 5.0 sections 3.1 and 3.2)."""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.codec.flags import check_flags
from kinmqtt.mqtt.codec.primitives import (
    Cursor,
    packet_of,
    write_binary,
    write_u16,
    write_utf8,
)
from kinmqtt.mqtt.codec.properties import UNLIMITED, WILL, PropertyLimits, read_properties, write_properties
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, ProtocolError, RemoteError, UnsupportedVersion
from kinmqtt.mqtt.packets import V5, V31, V311, Connack, Connect, ConnectWill, PacketType
from kinmqtt.mqtt.reasons import ALLOWED_REASONS, connack_code, connack_reason
from kinmqtt.mqtt.topics import check_topic_name
from kinmqtt_spi.properties import NO_PROPERTIES
from kinmqtt_spi.reasons import ReasonCode

_NAMES: Final = {V31: "MQIsdp", V311: "MQTT", V5: "MQTT"}

BRIDGE_BIT: Final = 0x80
"""The bit of the protocol level with which a bridge introduces itself in MQTT 3.1.1."""

_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_RETAIN: Final = 0x20
_WILL_QOS: Final = 0x18
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80


def peek_version(frame: bytes, body: int) -> int | None:
    """Return the protocol level in a CONNECT, supported or not, even if the rest of it is invalid.

    ``None`` if the frame is not a CONNECT or does not begin with a protocol name of MQTT.
    """
    if frame[0] >> 4 != PacketType.CONNECT:
        return None
    for name in (b"\x00\x04MQTT", b"\x00\x06MQIsdp"):
        if frame.startswith(name, body) and len(frame) > body + len(name):
            return frame[body + len(name)]
    return None


def decode_connect(frame: bytes, body: int, version: int = 0, limits: PropertyLimits = UNLIMITED) -> Connect:
    """Decode a CONNECT of any supported version; ``version`` is ignored, because the packet has its own.

    A Client Identifier that its version forbids raises :class:`RemoteError` with 0x85, after all other checks. One
    of more than 23 characters is accepted in every version: 3.1 forbids it, but every deployed broker allows it (3.1
    section 3.1).
    """
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    level = _level(reader)
    is_bridge = level == V311 | BRIDGE_BIT
    if is_bridge:
        level = V311
    flags = reader.u8()
    _check_connect_flags(flags, level)
    keep_alive = reader.u16()
    properties = read_properties(reader, PacketType.CONNECT, limits) if level == V5 else NO_PROPERTIES
    client_id = reader.utf8()
    will = _will(reader, flags, level, limits) if flags & _WILL else None
    username = reader.utf8() if _has(reader, flags & _USERNAME, level) else None
    password = reader.binary() if _has(reader, flags & _PASSWORD, level) else None
    reader.finish()
    clean_start = bool(flags & _CLEAN_START)
    if not client_id:
        _check_empty_client_id(level, clean_start)
    return Connect(level, client_id, clean_start, keep_alive, username, password, will, properties, is_bridge)


def decode_connack(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Connack:
    """Decode a CONNACK. MQTT 3.1 has no Session Present: its byte is reserved."""
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    flags = reader.u8()
    if flags > 1 or (flags and version == V31):
        raise MalformedPacket("reserved bits of the Connect Acknowledge Flags are set", "MQTT-3.2.2-1")
    reason = connack_reason(reader.u8(), version)
    if flags and reason != ReasonCode.SUCCESS:
        raise ProtocolError("Session Present in a refusal", "MQTT-3.2.2-6")
    properties = read_properties(reader, PacketType.CONNACK, limits) if version == V5 else NO_PROPERTIES
    reader.finish()
    return Connack(bool(flags), reason, properties)


def encode_connect(packet: Connect, version: int) -> bytes:
    """Encode a CONNECT; ``version`` is ignored, because the packet has its own. Before 5.0 properties are omitted."""
    level = packet.version
    if level not in _NAMES:
        raise LocalError(f"{level} is not a protocol version")
    if level != V5 and packet.password is not None and packet.username is None:
        raise LocalError("a password without a user name needs MQTT 5.0")
    if not packet.client_id and (level == V31 or (level == V311 and not packet.clean_start)):
        raise LocalError("this CONNECT needs a Client Identifier")
    if packet.is_bridge and level != V311:
        raise LocalError("a bridge introduces itself in MQTT 3.1.1 only")
    flags = packet.clean_start << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    if packet.will is not None:
        flags |= _WILL | packet.will.qos << 3 | packet.will.retain << 5
    parts = [write_utf8(_NAMES[level]), bytes((level | packet.is_bridge << 7, flags)), write_u16(packet.keep_alive)]
    if level == V5:
        parts.append(write_properties(packet.properties, PacketType.CONNECT))
    parts.append(write_utf8(packet.client_id))
    if packet.will is not None:
        parts += _written_will(packet.will, level)
    if packet.username is not None:
        parts.append(write_utf8(packet.username))
    if packet.password is not None:
        parts.append(write_binary(packet.password))
    return packet_of(0x10, *parts)


def encode_connack(packet: Connack, version: int) -> bytes:
    """Encode a CONNACK; before 5.0 properties are omitted, and in 3.1 Session Present as well."""
    if packet.reason not in ALLOWED_REASONS[PacketType.CONNACK]:
        raise LocalError(f"CONNACK must not carry {packet.reason.name}")
    if packet.session_present and packet.reason != ReasonCode.SUCCESS:
        raise LocalError("Session Present in a refusal")
    flags = 1 if packet.session_present and version != V31 else 0
    head = bytes((flags, connack_code(packet.reason, version)))
    if version != V5:
        return packet_of(0x20, head)
    return packet_of(0x20, head, write_properties(packet.properties, PacketType.CONNACK))


def _level(reader: Cursor) -> int:
    name = reader.utf8()
    level = reader.u8()
    if name not in ("MQTT", "MQIsdp"):
        raise UnsupportedVersion(level, "the protocol name is not MQTT's", "MQTT-3.1.2-1")
    if level == V311 | BRIDGE_BIT and name == "MQTT":
        return level
    if _NAMES.get(level) != name:
        raise UnsupportedVersion(level, f"{name} with protocol level {level} is not supported", "MQTT-3.1.2-2")
    return level


def _check_connect_flags(flags: int, level: int) -> None:
    if level == V31:
        flags &= ~_RESERVED  # MQTT 3.1: not used, and not necessarily 0 (3.1 section 3.1).
        if not flags & _WILL:
            flags &= ~(_WILL_QOS | _WILL_RETAIN)  # MQTT 3.1 ignores these without a ConnectWill.
    if flags & _RESERVED:
        raise MalformedPacket("the reserved Connect Flag is set", "MQTT-3.1.2-3")
    will_qos = flags >> 3 & 0x03
    if will_qos == 3:
        raise MalformedPacket("a Will QoS of 3", "MQTT-3.1.2-12")
    if not flags & _WILL:
        if will_qos:
            raise MalformedPacket("a Will QoS without a Will", "MQTT-3.1.2-11")
        if flags & _WILL_RETAIN:
            raise MalformedPacket("Will Retain without a Will", "MQTT-3.1.2-13")
    if level != V5 and flags & _PASSWORD and not flags & _USERNAME:
        raise MalformedPacket("a password without a user name", "MQTT-3.1.2-22 (3.1.1)")


def _has(reader: Cursor, flag: int, level: int) -> bool:
    """Tell whether a flagged field is present: in 3.1 the Remaining Length decides (3.1 section 3.1)."""
    return bool(flag) and not (level == V31 and reader.pos == reader.end)


def _check_empty_client_id(level: int, clean_start: bool) -> None:
    invalid = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    if level == V31:
        raise RemoteError(invalid, "MQTT 3.1 needs a Client Identifier", "section 3.1 (3.1)")
    if level == V311 and not clean_start:
        raise RemoteError(invalid, "a persistent session needs a Client Identifier", "MQTT-3.1.3-8 (3.1.1)")


def _will(reader: Cursor, flags: int, level: int, limits: PropertyLimits) -> ConnectWill:
    properties = read_properties(reader, WILL, limits) if level == V5 else NO_PROPERTIES
    topic = reader.utf8()
    check_topic_name(topic)
    return ConnectWill(topic, reader.binary(), flags >> 3 & 0x03, bool(flags & _WILL_RETAIN), properties)


def _written_will(will: ConnectWill, level: int) -> list[bytes]:
    if not 0 <= will.qos <= 2:
        raise LocalError(f"a Will QoS of {will.qos}")
    try:
        check_topic_name(will.topic)
    except RemoteError as error:
        raise LocalError(error.text) from None
    properties = [write_properties(will.properties, WILL)] if level == V5 else []
    return [*properties, write_utf8(will.topic), write_binary(will.payload)]
