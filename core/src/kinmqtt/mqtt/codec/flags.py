"""The lower four bits of a packet's first byte (MQTT 5.0 section 2.1.3), in one table for all packet types.

MQTT 3.1 calls the flags of most packets "not used" where 3.1.1 reserves them; in 3.1 they are ignored (3.1 sections
3.2 and 3.4 to 3.14). SUBSCRIBE, UNSUBSCRIBE and PUBREL must have QoS 1, and may be repeated with DUP. A CONNECT
begins with 0x10 in every version, because its version is not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kinmqtt.mqtt.codec.publish import checked_qos
from kinmqtt.mqtt.errors import MalformedPacket
from kinmqtt.mqtt.packets import V31, PacketType

TLS_HANDSHAKE: Final = 0x16
"""The first byte of a ClientHello (RFC 8446 section 5.1), which looks like a CONNECT with flags."""

_RESERVED: Final = "MQTT-2.1.3-1"
_ALL: Final = 0x0F
_QOS: Final = 0x06
_RETAIN: Final = 0x01

_RULES: Final[Mapping[int, tuple[int, int, str]]] = {
    PacketType.CONNECT: (0x0, _ALL, _RESERVED),
    PacketType.CONNACK: (0x0, 0, _RESERVED),
    PacketType.PUBACK: (0x0, 0, _RESERVED),
    PacketType.PUBREC: (0x0, 0, _RESERVED),
    PacketType.PUBREL: (0x2, _QOS, "MQTT-3.6.1-1"),
    PacketType.PUBCOMP: (0x0, 0, _RESERVED),
    PacketType.SUBSCRIBE: (0x2, _QOS, "MQTT-3.8.1-1"),
    PacketType.SUBACK: (0x0, 0, _RESERVED),
    PacketType.UNSUBSCRIBE: (0x2, _QOS, "MQTT-3.10.1-1"),
    PacketType.UNSUBACK: (0x0, 0, _RESERVED),
    PacketType.PINGREQ: (0x0, 0, _RESERVED),
    PacketType.PINGRESP: (0x0, 0, _RESERVED),
    PacketType.DISCONNECT: (0x0, 0, "MQTT-3.14.1-1"),
    PacketType.AUTH: (0x0, 0, "MQTT-3.15.1-1"),
}
"""For each type except PUBLISH: its flags, those that MQTT 3.1 checks, and the clause."""


def check_flags(first_byte: int, version: int) -> None:
    """Raise :class:`MalformedPacket` if ``version`` has no packet with that first byte; the type must exist."""
    packet_type = first_byte >> 4
    flags = first_byte & 0x0F
    if packet_type == PacketType.PUBLISH:
        if flags > _RETAIN:
            checked_qos(flags)
        return
    expected, used_in_31, clause = _RULES[packet_type]
    if flags == expected or (version == V31 and flags & used_in_31 == expected):
        return
    text = f"the fixed header's flags are 0x{flags:X}, not 0x{expected:X}"
    if first_byte == TLS_HANDSHAKE:
        text += ": this is a TLS handshake, but this listener has no TLS"
    raise MalformedPacket(text, clause)
