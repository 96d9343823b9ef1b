"""PUBLISH packets of the far broker, read in time that grows with their length only."""

from __future__ import annotations

import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers

from kinmqtt_bridge_mqtt.receiving import PAIR_BYTES, read_publish, size_of


def read(properties: bytes, payload: bytes = b"x") -> MQTTMessage:
    """Read a packet of MQTT 5 with QoS 1 and these properties."""
    length = VariableByteIntegers.encode(len(properties))
    return read_publish(0x33, b"\0\x03a/b\0\x07" + length + properties + payload, True)


def test_a_packet_is_read_as_paho_writes_it() -> None:
    """All that PUBLISH may have."""
    written = Properties(PacketTypes.PUBLISH)
    written.PayloadFormatIndicator = 1
    written.MessageExpiryInterval = 70_000
    written.ContentType = "text/plain"
    written.ResponseTopic = "r/\xe9"
    written.CorrelationData = b"c\0"
    written.UserProperty = [("a", "1"), ("a", "2")]
    expected = {name: value for name, value in vars(written).items() if name[0].isupper()}
    written.SubscriptionIdentifier = 300
    message = read_publish(0x33, b"\0\x03a/b\0\x07" + written.pack() + b"x", True)
    assert (message.topic, message.mid, message.qos, message.retain, message.payload) == ("a/b", 7, 1, True, b"x")
    assert message.properties is not None
    assert {name: value for name, value in vars(message.properties).items() if name[0].isupper()} == expected


def test_a_byte_order_mark_in_a_property_is_a_character() -> None:
    """MQTT-1.5.4-3. The message would end the connection, and come again for ever."""
    message = read(b"\x26\0\x03\xef\xbb\xbf\0\0")
    assert vars(message.properties)["UserProperty"] == [("\ufeff", "")]


def test_many_user_properties_are_read_in_linear_time_and_counted() -> None:
    """A mebibyte of them: paho would hold the event loop for minutes."""
    count = 200_000
    message = read(b"\x26\0\0\0\0" * count)
    assert len(vars(message.properties)["UserProperty"]) == count
    assert size_of(message) == 1 + count * (5 + PAIR_BYTES)


@pytest.mark.parametrize(
    "properties",
    [
        b"\x26\0\x01a",  # no value
        b"\x26\0\x01a\0\x05b",  # a value that ends behind the properties
        b"\x26\0\x01\xff\0\0",  # no UTF-8
        b"\x26\0\x01\0\0\0",  # U+0000
        b"\x01\x01\x01\x01",  # twice
        b"\x02\0\0",  # too short
        b"\x0b\xff\xff\xff\xff\x7f",  # a length without an end
        b"\x11\0\0\0\0",  # of another packet
    ],
)
def test_malformed_properties_are_refused(properties: bytes) -> None:
    """The link ends then."""
    with pytest.raises(ValueError):
        read(properties, b"")


def test_a_packet_that_ends_too_early_is_refused() -> None:
    """At any place."""
    whole = b"\0\x03a/b\0\x07\x05\x26\0\x00\0\x00"
    read_publish(0x32, whole, True)
    for length in range(len(whole)):
        with pytest.raises(ValueError):
            read_publish(0x32, whole[:length], True)
    with pytest.raises(ValueError):
        read_publish(0x30, b"\0\0", False)  # no topic
