"""PUBACK, PUBREC, PUBREL and PUBCOMP (MQTT 5.0 sections 3.4 to 3.7), which have the same structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from kinmqtt.mqtt.codec.flags import check_flags
from kinmqtt.mqtt.codec.primitives import Cursor, checked_packet_id, packet_of, write_packet_id
from kinmqtt.mqtt.codec.properties import UNLIMITED, PropertyLimits, read_properties, write_properties
from kinmqtt.mqtt.errors import LocalError, MalformedPacket
from kinmqtt.mqtt.packets import V5, PacketType, Puback, Pubcomp, Pubrec, Pubrel
from kinmqtt.mqtt.reasons import ALLOWED_REASONS, reason_of
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode

Acknowledgement: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp

_SUCCESS: Final = ReasonCode.SUCCESS
_SHORT: Final = 2  # a Packet Identifier alone: Success, without properties

_FIRST_BYTES: Final[Mapping[type[Acknowledgement], int]] = {
    Puback: 0x40,
    Pubrec: 0x50,
    Pubrel: 0x62,
    Pubcomp: 0x70,
}
_SHORT_HEADS: Final = {kind: bytes((first_byte, _SHORT)) for kind, first_byte in _FIRST_BYTES.items()}
_TYPES: Final[Mapping[type[Acknowledgement], PacketType]] = {
    Puback: PacketType.PUBACK,
    Pubrec: PacketType.PUBREC,
    Pubrel: PacketType.PUBREL,
    Pubcomp: PacketType.PUBCOMP,
}


def decode_puback(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Puback:
    """Read a PUBACK."""
    check_flags(frame[0], version)
    return Puback(*_fields(frame, body, version, limits, PacketType.PUBACK))


def decode_pubrec(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Pubrec:
    """Read a PUBREC."""
    check_flags(frame[0], version)
    return Pubrec(*_fields(frame, body, version, limits, PacketType.PUBREC))


def decode_pubrel(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Pubrel:
    """Read a PUBREL."""
    check_flags(frame[0], version)
    return Pubrel(*_fields(frame, body, version, limits, PacketType.PUBREL))


def decode_pubcomp(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Pubcomp:
    """Read a PUBCOMP."""
    check_flags(frame[0], version)
    return Pubcomp(*_fields(frame, body, version, limits, PacketType.PUBCOMP))


def encode_acknowledgement(packet: Acknowledgement, version: int) -> bytes:
    """Encode in the shortest form.

    Before 5.0 there is only the Packet Identifier: reason and properties are omitted, so that the callers need not
    know the version.
    """
    kind = type(packet)
    reason = packet.reason
    if reason is not _SUCCESS and reason not in ALLOWED_REASONS[_TYPES[kind]]:
        raise LocalError(f"{_TYPES[kind].name} must not carry {reason!r}")
    identifier = write_packet_id(packet.packet_id)
    if version != V5 or (reason is _SUCCESS and not packet.properties):
        return _SHORT_HEADS[kind] + identifier
    first_byte = _FIRST_BYTES[kind]
    if not packet.properties:
        return bytes((first_byte, 3)) + identifier + bytes((reason,))
    return packet_of(first_byte, identifier, bytes((reason,)), write_properties(packet.properties, _TYPES[kind]))


def _fields(
    frame: bytes, body: int, version: int, limits: PropertyLimits, packet_type: PacketType
) -> tuple[int, ReasonCode, Properties]:
    size = len(frame) - body
    if size == _SHORT:
        return checked_packet_id(frame[body] << 8 | frame[body + 1]), _SUCCESS, NO_PROPERTIES
    if version != V5:
        raise MalformedPacket(f"{packet_type.name} has a body of {size} bytes, not 2", "section 4.13.1")
    reader = Cursor(frame, body)
    packet_id = reader.packet_id()
    reason = reason_of(reader.u8(), packet_type)
    if size == _SHORT + 1:
        return packet_id, reason, NO_PROPERTIES
    properties = read_properties(reader, packet_type, limits)
    reader.finish()
    return packet_id, reason, properties
