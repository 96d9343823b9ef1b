"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK (MQTT 5.0 sections 3.8 to 3.11).

A Topic Filter is decoded as a string that is not empty. Its wildcards, and the form of a Shared Subscription, are
checked by :mod:`kinmqtt.mqtt.topics`, because an error there is one reason code of a SUBACK instead of the end of the
connection.
"""

from __future__ import annotations

from kinmqtt.mqtt.codec.flags import check_flags
from kinmqtt.mqtt.codec.primitives import Cursor, packet_of, write_packet_id, write_utf8
from kinmqtt.mqtt.codec.properties import UNLIMITED, PropertyLimits, read_properties, write_properties
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, ProtocolError
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    PacketType,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt.mqtt.reasons import ALLOWED_REASONS, reason_of, suback_code, suback_reason
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode

_QOS = 0x03


def decode_subscribe(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Subscribe:
    """Read a SUBSCRIBE with at least one request."""
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    packet_id = reader.packet_id()
    properties = _properties(reader, version, PacketType.SUBSCRIBE, limits)
    requests: list[SubscribeRequest] = []
    while reader.pos < reader.end:
        requests.append(_request(_filter(reader), reader.u8(), version))
    if not requests:
        raise ProtocolError("a SUBSCRIBE without a Topic Filter", "MQTT-3.8.3-2")
    return Subscribe(packet_id, tuple(requests), properties)


def has_more_filters(frame: bytes, body: int, version: int, most: int) -> bool:
    """Tell whether a SUBSCRIBE or UNSUBSCRIBE has more than ``most`` Topic Filters, by reading only their lengths.

    Malformed packets are left to the decoder.
    """
    reader = Cursor(frame, body + 2)
    options_bytes = 1 if frame[0] >> 4 == PacketType.SUBSCRIBE else 0
    try:
        if version == V5:
            reader.take(reader.varint())
        for _ in range(most):
            if reader.pos >= reader.end:
                return False
            size = reader.u16()
            reader.pos += size + options_bytes
    except MalformedPacket:
        return False
    return reader.pos < reader.end


def decode_suback(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Suback:
    """Read a SUBACK with at least one reason; 0x80 is the only failure before 5.0."""
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    packet_id = reader.packet_id()
    properties = _properties(reader, version, PacketType.SUBACK, limits)
    reasons = tuple(suback_reason(code, version) for code in frame[reader.pos :])
    if not reasons:
        raise ProtocolError("a SUBACK without a reason code", "MQTT-3.8.4-6")
    return Suback(packet_id, reasons, properties)


def decode_unsubscribe(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Unsubscribe:
    """Read an UNSUBSCRIBE with at least one filter."""
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    packet_id = reader.packet_id()
    properties = _properties(reader, version, PacketType.UNSUBSCRIBE, limits)
    filters: list[str] = []
    while reader.pos < reader.end:
        filters.append(_filter(reader))
    if not filters:
        raise ProtocolError("an UNSUBSCRIBE without a Topic Filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, tuple(filters), properties)


def decode_unsuback(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Unsuback:
    """Decode an UNSUBACK: only a Packet Identifier before 5.0, at least one reason since."""
    check_flags(frame[0], version)
    reader = Cursor(frame, body)
    packet_id = reader.packet_id()
    if version != V5:
        reader.finish()
        return Unsuback(packet_id)
    properties = read_properties(reader, PacketType.UNSUBACK, limits)
    reasons = tuple(reason_of(code, PacketType.UNSUBACK) for code in frame[reader.pos :])
    if not reasons:
        raise ProtocolError("an UNSUBACK without a reason code", "MQTT-3.11.3-1")
    return Unsuback(packet_id, reasons, properties)


def encode_subscribe(packet: Subscribe, version: int) -> bytes:
    """Encode a SUBSCRIBE; raise :class:`LocalError` without a request, and for an option that the version lacks."""
    if not packet.requests:
        raise LocalError("a SUBSCRIBE needs a Topic Filter")
    parts = [write_packet_id(packet.packet_id)]
    if version == V5:
        parts.append(write_properties(packet.properties, PacketType.SUBSCRIBE))
    for request in packet.requests:
        parts += (_written_filter(request.filter), bytes((_options(request, version),)))
    return packet_of(0x82, *parts)


def encode_suback(packet: Suback, version: int) -> bytes:
    """Encode a SUBACK; before 5.0 properties are omitted, and every failure is 0x80."""
    _check_reasons(packet.reasons, PacketType.SUBACK)
    parts = [write_packet_id(packet.packet_id)]
    if version == V5:
        parts.append(write_properties(packet.properties, PacketType.SUBACK))
    parts.append(bytes(suback_code(reason, version) for reason in packet.reasons))
    return packet_of(0x90, *parts)


def encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Encode an UNSUBSCRIBE; raise :class:`LocalError` without a filter."""
    if not packet.filters:
        raise LocalError("an UNSUBSCRIBE needs a Topic Filter")
    parts = [write_packet_id(packet.packet_id)]
    if version == V5:
        parts.append(write_properties(packet.properties, PacketType.UNSUBSCRIBE))
    parts += map(_written_filter, packet.filters)
    return packet_of(0xA2, *parts)


def encode_unsuback(packet: Unsuback, version: int) -> bytes:
    """Encode an UNSUBACK; before 5.0 reasons and properties are omitted."""
    identifier = write_packet_id(packet.packet_id)
    if version != V5:
        return packet_of(0xB0, identifier)
    _check_reasons(packet.reasons, PacketType.UNSUBACK)
    properties = write_properties(packet.properties, PacketType.UNSUBACK)
    return packet_of(0xB0, identifier, properties, bytes(packet.reasons))


def _properties(reader: Cursor, version: int, packet_type: PacketType, limits: PropertyLimits) -> Properties:
    return read_properties(reader, packet_type, limits) if version == V5 else NO_PROPERTIES


def _filter(reader: Cursor) -> str:
    text = reader.utf8()
    if not text:
        raise ProtocolError("an empty Topic Filter", "MQTT-4.7.3-1")
    return text


def _request(filter: str, options: int, version: int) -> SubscribeRequest:
    """Decode the options byte (section 3.8.3.1)."""
    if version != V5:
        if version == V31:
            options &= _QOS  # MQTT 3.1 has six unused bits here, not necessarily 0.
        if options > 2:
            raise MalformedPacket(f"Requested QoS byte 0x{options:02X}", "MQTT-3-8.3-4 (3.1.1)")
        return SubscribeRequest(filter, options)
    if options & 0xC0:
        raise MalformedPacket("reserved bits of the Subscription Options are set", "MQTT-3.8.3-5")
    qos = options & 0x03
    retain_handling = options >> 4
    if qos == 3 or retain_handling == 3:
        raise ProtocolError("a Maximum QoS or Retain Handling of 3", "section 3.8.3.1")
    no_local = bool(options & 0x04)
    if no_local and filter.startswith("$share/"):
        raise ProtocolError("No Local on a Shared Subscription", "MQTT-3.8.3-4")
    return SubscribeRequest(filter, qos, no_local, bool(options & 0x08), retain_handling)


def _options(request: SubscribeRequest, version: int) -> int:
    if not (0 <= request.qos <= 2 and 0 <= request.retain_handling <= 2):
        raise LocalError(f"a QoS of {request.qos} or Retain Handling of {request.retain_handling}")
    if request.no_local and request.filter.startswith("$share/"):
        raise LocalError("No Local on a Shared Subscription")
    options = request.qos | request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4
    if version != V5 and options > 2:
        raise LocalError("Subscription Options other than the QoS need MQTT 5.0")
    return options


def _written_filter(filter: str) -> bytes:
    if not filter:
        raise LocalError("an empty Topic Filter")
    return write_utf8(filter)


def _check_reasons(reasons: tuple[ReasonCode, ...], packet_type: PacketType) -> None:
    if not reasons:
        raise LocalError(f"{packet_type.name} needs a reason code for each Topic Filter")
    wrong = set(reasons) - ALLOWED_REASONS[packet_type]
    if wrong:
        raise LocalError(f"{packet_type.name} must not carry {', '.join(sorted(code.name for code in wrong))}")
