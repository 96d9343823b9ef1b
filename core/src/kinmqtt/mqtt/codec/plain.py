"""PINGREQ, PINGRESP, DISCONNECT and AUTH (MQTT 5.0 sections 3.12 to 3.15)."""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.codec.flags import check_flags
from kinmqtt.mqtt.codec.primitives import Cursor, packet_of
from kinmqtt.mqtt.codec.properties import UNLIMITED, PropertyLimits, read_properties, write_properties
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, ProtocolError
from kinmqtt.mqtt.packets import PINGREQ, PINGRESP, V5, Auth, DisconnectPacket, PacketType, Pingreq, Pingresp
from kinmqtt.mqtt.reasons import ALLOWED_REASONS, reason_of
from kinmqtt_spi.reasons import ReasonCode

_DISCONNECT: Final = DisconnectPacket()
_PINGREQ_BYTES: Final = b"\xc0\x00"
_PINGRESP_BYTES: Final = b"\xd0\x00"


def decode_pingreq(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Pingreq:
    """Decode a PINGREQ, which has no body in any version."""
    check_flags(frame[0], version)
    Cursor(frame, body).finish()
    return PINGREQ


def decode_pingresp(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Pingresp:
    """Decode a PINGRESP, which has no body in any version."""
    check_flags(frame[0], version)
    Cursor(frame, body).finish()
    return PINGRESP


def decode_disconnect(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> DisconnectPacket:
    """Decode a DISCONNECT: before 5.0 it is empty; in 5.0 its end may be omitted (section 3.14.2)."""
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    size = reader.end - body
    if not size or version != V5:
        reader.finish()
        return _DISCONNECT
    reason = reason_of(reader.u8(), PacketType.DISCONNECT)
    if size == 1:
        return DisconnectPacket(reason)
    properties = read_properties(reader, PacketType.DISCONNECT, limits)
    reader.finish()
    return DisconnectPacket(reason, properties)


def decode_auth(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Auth:
    """Decode an AUTH (section 3.15).

    Section 3.15.2.1 lets an AUTH of length 0 mean Success without properties, though section 3.15.2.2.2 then
    requires an Authentication Method: the empty packet is decoded, and the authentication may refuse it. Any other
    AUTH must have a method, and there is no form with only a reason.
    """
    check_flags(frame[0], version)
    if version != V5:
        raise MalformedPacket("packet type 15 is reserved before MQTT 5.0", "section 2.2.1 (3.1.1)")
    reader = Cursor(frame, body)
    if reader.end == body:
        return Auth()
    reason = reason_of(reader.u8(), PacketType.AUTH)
    properties = read_properties(reader, PacketType.AUTH, limits)
    reader.finish()
    if properties.authentication_method is None:
        raise ProtocolError("AUTH without an Authentication Method", "section 3.15.2.2.2")
    return Auth(reason, properties)


def encode_pingreq(packet: Pingreq, version: int) -> bytes:
    """Encode a PINGREQ: the same two bytes in every version."""
    return _PINGREQ_BYTES


def encode_pingresp(packet: Pingresp, version: int) -> bytes:
    """Encode a PINGRESP: the same two bytes in every version."""
    return _PINGRESP_BYTES


def encode_disconnect(packet: DisconnectPacket, version: int) -> bytes:
    """Encode in the shortest form; before 5.0 reason and properties are omitted."""
    _check_reason(packet.reason, PacketType.DISCONNECT)
    if version != V5 or (packet.reason == ReasonCode.SUCCESS and not packet.properties):
        return b"\xe0\x00"
    if not packet.properties:
        return bytes((0xE0, 1, packet.reason))
    return packet_of(0xE0, bytes((packet.reason,)), write_properties(packet.properties, PacketType.DISCONNECT))


def encode_auth(packet: Auth, version: int) -> bytes:
    """Encode an AUTH; raise :class:`LocalError` before 5.0, and for properties without an Authentication Method."""
    if version != V5:
        raise LocalError("there is no AUTH before MQTT 5.0")
    _check_reason(packet.reason, PacketType.AUTH)
    if packet.reason == ReasonCode.SUCCESS and not packet.properties:
        return b"\xf0\x00"
    if packet.properties.authentication_method is None:
        raise LocalError("AUTH needs an Authentication Method")
    return packet_of(0xF0, bytes((packet.reason,)), write_properties(packet.properties, PacketType.AUTH))


def _check_reason(reason: ReasonCode, packet_type: PacketType) -> None:
    if reason not in ALLOWED_REASONS[packet_type]:
        raise LocalError(f"{packet_type.name} must not carry {reason.name}")
