"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK beyond the corpus."""

from __future__ import annotations

import pytest

from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.errors import LocalError
from kinmqtt.mqtt.packets import Packet, Suback, Subscribe, SubscribeRequest, Unsuback, Unsubscribe
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Subscribe(1, ()), 4),
        (Subscribe(0, (SubscribeRequest("a"),)), 4),
        (Subscribe(1, (SubscribeRequest(""),)), 4),
        (Subscribe(1, (SubscribeRequest("a", 3),)), 5),
        (Subscribe(1, (SubscribeRequest("a", retain_handling=3),)), 5),
        (Subscribe(1, (SubscribeRequest("a", no_local=True),)), 4),
        (Subscribe(1, (SubscribeRequest("$share/g/a", no_local=True),)), 5),
        (Unsubscribe(1, ()), 4),
        (Unsubscribe(1, ("",)), 4),
        (Suback(1, ()), 4),
        (Suback(1, (ReasonCode.BANNED,)), 5),
        (Unsuback(1), 5),
        (Unsuback(1, (ReasonCode.GRANTED_QOS_1,)), 5),
    ],
)
def test_packets_that_cannot_be_sent(packet: Packet, version: int) -> None:
    """What these packets cannot say is a fault of ours."""
    with pytest.raises(LocalError):
        encode(packet, version)


@pytest.mark.parametrize("version", [3, 4])
def test_old_versions_hear_of_failures_alike(version: int) -> None:
    """Before 5.0 every failed subscription is 0x80, and an UNSUBACK has no reasons."""
    properties = Properties(reason_string="no")
    reasons = (ReasonCode.GRANTED_QOS_2, ReasonCode.NOT_AUTHORIZED, ReasonCode.QUOTA_EXCEEDED)

    assert encode(Suback(1, reasons, properties), version) == b"\x90\x05\x00\x01\x02\x80\x80"
    assert encode(Unsuback(1, (ReasonCode.SUCCESS,), properties), version) == b"\xb0\x02\x00\x01"
