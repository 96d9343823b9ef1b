"""The reason codes that each packet may have (MQTT 5.0 section 2.4), and their codes in MQTT 3.1 and 3.1.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kinmqtt.mqtt.errors import ProtocolError
from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt_spi.reasons import ReasonCode

_R = ReasonCode


def _codes(*values: int) -> frozenset[ReasonCode]:
    return frozenset(map(ReasonCode, values))


_PUBACK_CODES: Final = _codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)

# Section 3.14.2.1 lists no 0x8C, section 2.4 does, and a failed re-authentication needs it.
DISCONNECT_FROM_CLIENT: Final = _codes(
    0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x8C, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99
)  # fmt: skip
DISCONNECT_FROM_SERVER: Final = _codes(
    0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96,
    0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
)  # fmt: skip

ALLOWED_REASONS: Final[Mapping[PacketType, frozenset[ReasonCode]]] = {
    PacketType.CONNACK: _codes(
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99,
        0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ),
    PacketType.PUBACK: _PUBACK_CODES,
    PacketType.PUBREC: _PUBACK_CODES,
    PacketType.PUBREL: _codes(0x00, 0x92),
    PacketType.PUBCOMP: _codes(0x00, 0x92),
    PacketType.SUBACK: _codes(
        0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2
    ),
    PacketType.UNSUBACK: _codes(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91),
    PacketType.DISCONNECT: DISCONNECT_FROM_CLIENT | DISCONNECT_FROM_SERVER,
    PacketType.AUTH: _codes(0x00, 0x18, 0x19),
}  # fmt: skip
"""The codes MQTT 5.0 allows in each type of packet, whichever side sends it."""

_CONNACK_CODES: Final[Mapping[ReasonCode, int]] = {
    _R.SUCCESS: 0,
    _R.UNSUPPORTED_PROTOCOL_VERSION: 1,
    _R.CLIENT_IDENTIFIER_NOT_VALID: 2,
    _R.SERVER_UNAVAILABLE: 3,
    _R.UNSPECIFIED_ERROR: 3,
    _R.IMPLEMENTATION_SPECIFIC_ERROR: 3,
    _R.SERVER_BUSY: 3,
    _R.SERVER_SHUTTING_DOWN: 3,
    _R.QUOTA_EXCEEDED: 3,
    _R.USE_ANOTHER_SERVER: 3,
    _R.SERVER_MOVED: 3,
    _R.CONNECTION_RATE_EXCEEDED: 3,
    _R.BAD_USER_NAME_OR_PASSWORD: 4,
    _R.BAD_AUTHENTICATION_METHOD: 5,
    _R.NOT_AUTHORIZED: 5,
    _R.BANNED: 5,
}
_CONNACK_REASONS: Final = (
    _R.SUCCESS,
    _R.UNSUPPORTED_PROTOCOL_VERSION,
    _R.CLIENT_IDENTIFIER_NOT_VALID,
    _R.SERVER_UNAVAILABLE,
    _R.BAD_USER_NAME_OR_PASSWORD,
    _R.NOT_AUTHORIZED,
)
_SUBACK_V3_REASONS: Final[Mapping[int, ReasonCode]] = {
    0x00: _R.SUCCESS,
    0x01: _R.GRANTED_QOS_1,
    0x02: _R.GRANTED_QOS_2,
    0x80: _R.UNSPECIFIED_ERROR,
}
_CLAUSES: Final[Mapping[PacketType, str]] = {
    PacketType.CONNACK: "MQTT-3.2.2-8",
    PacketType.PUBACK: "MQTT-3.4.2-1",
    PacketType.PUBREC: "MQTT-3.5.2-1",
    PacketType.PUBREL: "MQTT-3.6.2-1",
    PacketType.PUBCOMP: "MQTT-3.7.2-1",
    PacketType.SUBACK: "MQTT-3.9.3-2",
    PacketType.UNSUBACK: "MQTT-3.11.3-2",
    PacketType.DISCONNECT: "MQTT-3.14.2-1",
    PacketType.AUTH: "MQTT-3.15.2-1",
}
_BY_VALUE: Final[Mapping[int, ReasonCode]] = {int(code): code for code in ReasonCode}


def reason_of(value: int, packet_type: PacketType) -> ReasonCode:
    """Return the MQTT 5.0 reason code in a peer's packet; raise :class:`ProtocolError` if it is not allowed there."""
    reason = _BY_VALUE.get(value)
    if reason is None or reason not in ALLOWED_REASONS[packet_type]:
        text = f"{packet_type.name} must not carry reason code 0x{value:02X}"
        raise ProtocolError(text, _CLAUSES[packet_type])
    return reason


def has_connack_code(reason: ReasonCode, version: int) -> bool:
    """Tell whether a CONNACK of this version can express ``reason``.

    If not, a 3.1 or 3.1.1 server closes without a CONNACK (MQTT-3.1.4-1 and MQTT-3.2.2-6 of 3.1.1).
    """
    return version == V5 or reason in _CONNACK_CODES


def connack_code(reason: ReasonCode, version: int) -> int:
    """Return the byte for ``reason`` in a CONNACK: the reason itself in 5.0, before it a return code 0 to 5.

    A reason without a return code (see :func:`has_connack_code`) becomes 3, Server unavailable, which does not blame
    the client.
    """
    return int(reason) if version == V5 else _CONNACK_CODES.get(reason, 3)


def connack_reason(code: int, version: int) -> ReasonCode:
    """Return the reason for a CONNACK's byte; raise :class:`ProtocolError` for a reserved one."""
    if version == V5:
        return reason_of(code, PacketType.CONNACK)
    if code >= len(_CONNACK_REASONS):
        raise ProtocolError(f"CONNACK return code {code} is reserved", "section 3.2.2.3 (3.1.1)")
    return _CONNACK_REASONS[code]


def suback_code(reason: ReasonCode, version: int) -> int:
    """Return the byte for ``reason`` in a SUBACK: the reason itself in 5.0, before it a granted QoS or 0x80.

    MQTT 3.1 has no failure code. It gets 0x80 too: a client that reads only the two QoS bits takes it for QoS 0, and
    one that knows 0x80 learns the truth; an invented grant would deceive both.
    """
    return int(reason) if version == V5 or not reason.is_failure else 0x80


def suback_reason(code: int, version: int) -> ReasonCode:
    """Return the reason for a SUBACK's byte; raise :class:`ProtocolError` for a reserved one."""
    if version == V5:
        return reason_of(code, PacketType.SUBACK)
    reason = _SUBACK_V3_REASONS.get(code)
    if reason is None:
        raise ProtocolError(f"SUBACK return code 0x{code:02X} is reserved", "MQTT-3.9.3-2 (3.1.1)")
    return reason


def fitting(reason: ReasonCode, packet_type: PacketType, otherwise: ReasonCode) -> ReasonCode:
    """Return the reason if a server's packet may have it, else ``otherwise``."""
    allowed = DISCONNECT_FROM_SERVER if packet_type is PacketType.DISCONNECT else ALLOWED_REASONS[packet_type]
    return reason if reason in allowed else otherwise
