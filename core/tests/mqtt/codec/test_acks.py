"""PUBACK, PUBREC, PUBREL and PUBCOMP beyond the corpus."""

from __future__ import annotations

import pytest

from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.codec.acks import Acknowledgement
from kinmqtt.mqtt.errors import LocalError
from kinmqtt.mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize(
    ("packet", "encoded"),
    [
        (Puback(1), "40020001"),
        (Pubrec(1, ReasonCode.QUOTA_EXCEEDED), "5003000197"),
        (Pubrel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), "6203000192"),
        (Pubcomp(1, properties=Properties(reason_string="x")), "7008000100041f000178"),
    ],
)
def test_the_shortest_form_is_sent(packet: Acknowledgement, encoded: str) -> None:
    """Reason and properties are left out from the end where they say nothing (section 3.4.2.1)."""
    assert encode(packet, 5).hex() == encoded


@pytest.mark.parametrize("version", [3, 4])
def test_old_versions_hear_the_packet_identifier(version: int) -> None:
    """Before 5.0 an acknowledgement says no more than which packet it is for."""
    packet = Puback(258, ReasonCode.NOT_AUTHORIZED, Properties(reason_string="no"))

    assert encode(packet, version) == b"\x40\x02\x01\x02"


@pytest.mark.parametrize(
    "packet",
    [
        Puback(0),
        Pubrec(65_536),
        Puback(1, ReasonCode.GRANTED_QOS_1),
        Pubrel(1, ReasonCode.NOT_AUTHORIZED),
        Pubcomp(1, ReasonCode.UNSPECIFIED_ERROR),
        Pubrec(1, properties=Properties(topic_alias=1)),
    ],
)
def test_acknowledgements_that_cannot_be_sent(packet: Acknowledgement) -> None:
    """A bad Packet Identifier, reason or property is a fault of ours (MQTT-3.4.2-1)."""
    with pytest.raises(LocalError):
        encode(packet, 5)
