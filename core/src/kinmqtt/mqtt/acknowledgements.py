"""PUBACK, PUBREC, PUBREL and PUBCOMP, written in their shortest form.

Nearly every acknowledgement is four bytes long; the general codec takes several times as long to write one.
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
"""How the packets begin that end with a packet identifier."""


def success(packet_type: PacketType, packet_id: int) -> bytes:
    """An acknowledgement that says success, which is left out in every version (section 3.4.2.1)."""
    return (_PUBACK_OF if packet_type is _PUBACK else bytes((packet_type << 4, 2))) + written_id(packet_id)


def with_reason(packet_type: PacketType, packet_id: int, reason: ReasonCode) -> bytes:
    """An acknowledgement of MQTT 5 with a reason code and without properties."""
    return bytes((packet_type << 4, 3, packet_id >> 8, packet_id & 0xFF, reason))


def pubrel(version: int, packet_id: int, reason: ReasonCode) -> bytes:
    """A PUBREL; before MQTT 5 it has no reason code."""
    if reason is _SUCCESS or version != V5:
        return _PUBREL_OF + written_id(packet_id)
    return bytes((0x62, 3, packet_id >> 8, packet_id & 0xFF, reason))
