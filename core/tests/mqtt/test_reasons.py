"""Reason codes by packet and by version."""

from __future__ import annotations

import pytest

from kinmqtt.mqtt.errors import ProtocolError
from kinmqtt.mqtt.packets import PacketType
from kinmqtt.mqtt.reasons import (
    ALLOWED_REASONS,
    DISCONNECT_FROM_CLIENT,
    DISCONNECT_FROM_SERVER,
    connack_code,
    connack_reason,
    has_connack_code,
    reason_of,
    suback_code,
    suback_reason,
)
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("code", range(6))
def test_return_codes_survive_both_ways(code: int, version: int) -> None:
    """Each CONNACK return code of 3.1 and 3.1.1 has a reason that leads back to it."""
    assert connack_code(connack_reason(code, version), version) == code


@pytest.mark.parametrize("version", [3, 4])
def test_reserved_return_codes(version: int) -> None:
    """A CONNACK return code above 5 is reserved."""
    with pytest.raises(ProtocolError):
        connack_reason(6, version)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ReasonCode.SERVER_BUSY, 3),
        (ReasonCode.QUOTA_EXCEEDED, 3),
        (ReasonCode.BANNED, 5),
        (ReasonCode.BAD_AUTHENTICATION_METHOD, 5),
        (ReasonCode.MALFORMED_PACKET, 3),
    ],
)
def test_old_versions_hear_the_nearest_return_code(reason: ReasonCode, code: int) -> None:
    """A reason that 3.1.1 lacks becomes the return code that comes nearest."""
    assert connack_code(reason, 4) == code
    assert connack_code(reason, 5) == reason


def test_what_an_old_connack_cannot_say() -> None:
    """Where no return code applies, 3.1.1 wants no CONNACK at all (its MQTT-3.2.2-6)."""
    assert not has_connack_code(ReasonCode.PROTOCOL_ERROR, 4)
    assert has_connack_code(ReasonCode.PROTOCOL_ERROR, 5)
    assert has_connack_code(ReasonCode.NOT_AUTHORIZED, 3)


@pytest.mark.parametrize("reason", sorted(ALLOWED_REASONS[PacketType.SUBACK]))
def test_a_suback_of_old_knows_one_failure(reason: ReasonCode) -> None:
    """Before 5.0 every failure is 0x80, and grants are themselves (MQTT-3.9.3-2 of 3.1.1)."""
    expected = 0x80 if reason.is_failure else int(reason)

    assert suback_code(reason, 4) == suback_code(reason, 3) == expected
    assert suback_code(reason, 5) == reason
    assert suback_reason(expected, 4).is_failure is reason.is_failure


def test_reserved_suback_codes() -> None:
    """Any other SUBACK return code of 3.1.1 is reserved (its MQTT-3.9.3-2)."""
    with pytest.raises(ProtocolError):
        suback_reason(3, 4)


def test_the_sets_are_as_large_as_the_specifications_tables() -> None:
    """Each packet's table in chapter 3 has as many rows as its set has codes."""
    sizes = {packet_type.name: len(codes) for packet_type, codes in ALLOWED_REASONS.items()}

    # DISCONNECT: the 29 of section 3.14.2.1, and 0x8C, which section 2.4 gives it.
    assert sizes == {
        "CONNACK": 22, "PUBACK": 9, "PUBREC": 9, "PUBREL": 2, "PUBCOMP": 2, "SUBACK": 12, "UNSUBACK": 7,
        "DISCONNECT": 30, "AUTH": 3,
    }  # fmt: skip


def test_each_side_has_reasons_to_disconnect() -> None:
    """A will is asked for by a client, a takeover is told by a server."""
    assert ReasonCode.DISCONNECT_WITH_WILL not in DISCONNECT_FROM_SERVER
    assert ReasonCode.SESSION_TAKEN_OVER not in DISCONNECT_FROM_CLIENT


@pytest.mark.parametrize("packet_type", ALLOWED_REASONS)
def test_every_byte_is_a_reason_or_a_protocol_error(packet_type: PacketType) -> None:
    """A byte outside of a packet's set is a protocol error with the clause of that packet."""
    for value in range(256):
        if value in ALLOWED_REASONS[packet_type]:
            assert reason_of(value, packet_type) == value
        else:
            with pytest.raises(ProtocolError) as caught:
                reason_of(value, packet_type)
            assert caught.value.clause
