"""PINGREQ, PINGRESP, DISCONNECT and AUTH beyond the corpus."""

from __future__ import annotations

import pytest

from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.errors import LocalError
from kinmqtt.mqtt.packets import PINGREQ, PINGRESP, Auth, DisconnectPacket, Packet
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize("version", [3, 4, 5])
def test_pings_are_two_bytes(version: int) -> None:
    """PINGREQ and PINGRESP are the same in every version, and one object each."""
    assert encode(PINGREQ, version) == b"\xc0\x00"
    assert encode(PINGRESP, version) == b"\xd0\x00"
    assert decode(b"\xc0\x00", 2, version) is PINGREQ
    assert decode(b"\xd0\x00", 2, version) is PINGRESP


@pytest.mark.parametrize(
    ("packet", "encoded"),
    [
        (DisconnectPacket(), "e000"),
        (DisconnectPacket(ReasonCode.SESSION_TAKEN_OVER), "e0018e"),
        (DisconnectPacket(properties=Properties(session_expiry_interval=1)), "e00700051100000001"),
        (Auth(), "f000"),
    ],
)
def test_the_shortest_form_is_sent(packet: Packet, encoded: str) -> None:
    """Reason and properties are left out from the end where they say nothing (section 3.14.2)."""
    assert encode(packet, 5).hex() == encoded


@pytest.mark.parametrize("version", [3, 4])
def test_an_old_disconnect_is_empty(version: int) -> None:
    """Before 5.0 a DISCONNECT gives no reason."""
    assert encode(DisconnectPacket(ReasonCode.DISCONNECT_WITH_WILL), version) == b"\xe0\x00"


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Auth(), 4),
        (Auth(ReasonCode.CONTINUE_AUTHENTICATION), 5),
        (Auth(ReasonCode.NOT_AUTHORIZED, Properties(authentication_method="m")), 5),
        (DisconnectPacket(ReasonCode.GRANTED_QOS_1), 5),
        (DisconnectPacket(properties=Properties(topic_alias=1)), 5),
    ],
)
def test_packets_that_cannot_be_sent(packet: Packet, version: int) -> None:
    """AUTH before 5.0 or without its method, and reasons of other packets, are faults of ours."""
    with pytest.raises(LocalError):
        encode(packet, version)
