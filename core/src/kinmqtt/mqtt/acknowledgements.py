"""Encodes PUBACK, PUBREC, PUBREL and PUBCOMP in their shortest form.

Nearly every acknowledgement has four bytes; the general codec takes several times as long to encode one.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt.mqtt.qos_state import written_id
from kinmqtt_spi.reasons import ReasonCode

_PUBACK: Final = PacketType.PUBACK
_SUCCESS: Final = ReasonCode.SUCCESS

_PUBACK_OF: Final = b"\x40\x02"
_PUBREL_OF: Final = b"\x62\x02"
"""The first two bytes of the packets that contain only a packet identifier."""


def success(packet_type: PacketType, packet_id: int) -> bytes:
    """Encode a successful acknowledgement; the reason code is omitted in every version (section 3.4.2.1)."""
    return (_PUBACK_OF if packet_type is _PUBACK else bytes((packet_type << 4, 2))) + written_id(packet_id)


def with_reason(packet_type: PacketType, packet_id: int, reason: ReasonCode) -> bytes:
    """Encode an MQTT 5 acknowledgement with a reason code and without properties."""
    return bytes((packet_type << 4, 3, packet_id >> 8, packet_id & 0xFF, reason))


def pubrel(version: int, packet_id: int, reason: ReasonCode) -> bytes:
    """Encode a PUBREL; before MQTT 5 it has no reason code."""
    if reason is _SUCCESS or version != V5:
        return _PUBREL_OF + written_id(packet_id)
    return bytes((0x62, 3, packet_id >> 8, packet_id & 0xFF, reason))
