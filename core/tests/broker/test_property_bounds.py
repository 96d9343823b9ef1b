"""How many properties one packet may have, whichever packet it is (section 4.13.2, docs/limits.md)."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec.primitives import packet_of, write_utf8, write_varint
from kinmqtt.mqtt.packets import V5, Connack, DisconnectPacket, Puback, Publish
from kinmqtt_spi import Message, Properties, hookimpl
from kinmqtt_spi.reasons import ReasonCode

PAIR = b"\x26\0\0\0\0"
IDENTIFIER = b"\x0b\x01"

HEADS = {
    "PUBLISH": (0x30, write_utf8("t"), b""),
    "PUBACK": (0x40, b"\0\1\0", b""),
    "PUBREC": (0x50, b"\0\1\0", b""),
    "PUBREL": (0x62, b"\0\1\0", b""),
    "PUBCOMP": (0x70, b"\0\1\0", b""),
    "SUBSCRIBE": (0x82, b"\0\1", write_utf8("t") + b"\0"),
    "UNSUBSCRIBE": (0xA2, b"\0\1", write_utf8("t")),
    "DISCONNECT": (0xE0, b"\0", b""),
    "AUTH": (0xF0, b"\x19", b""),
}
"""Each packet with properties that a connected client sends: first byte, what stands before them and behind."""


def packet(name: str, listed: bytes) -> bytes:
    """A packet with these properties."""
    first_byte, before, behind = HEADS[name]
    return packet_of(first_byte, before, write_varint(len(listed)), listed, behind)


def connect(listed: bytes = b"", of_will: bytes | None = None) -> bytes:
    """A CONNECT with these properties, and these of its will."""
    will = b"" if of_will is None else write_varint(len(of_will)) + of_will + write_utf8("w") + write_utf8("")
    flags = 2 if of_will is None else 6
    head = write_utf8("MQTT") + bytes((5, flags, 0, 0))
    return packet_of(0x10, head, write_varint(len(listed)), listed, write_utf8("c"), will)


def told(peer: Peer) -> list[int]:
    """The reasons for which the connection was closed."""
    return [int(each.reason) for each in peer.of(DisconnectPacket)]


@pytest.mark.parametrize("name", HEADS)
def test_too_many_user_properties_close_the_connection(name: str) -> None:
    """Of whichever packet: 0x97, for no rule of MQTT is broken and a bound of the broker is (section 4.13.2)."""
    peer = House().connect("c", V5)

    peer.send_bytes(packet(name, PAIR * 101))

    assert told(peer) == [0x97]
    assert peer.closed


@pytest.mark.parametrize("name", ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"])
def test_as_many_user_properties_as_may_be_are_taken(name: str) -> None:
    """A hundred in one packet, by default."""
    peer = House().connect("c", V5)

    peer.send_bytes(packet(name, PAIR * 100))

    assert not peer.closed


@pytest.mark.parametrize("data", [connect(PAIR * 101), connect(of_will=PAIR * 101)], ids=["connect", "will"])
def test_a_connect_with_too_many_user_properties_is_refused(data: bytes) -> None:
    """A CONNACK of 0x97 (section 4.13.2)."""
    peer = House().open(V5)

    peer.send_bytes(data)

    assert [int(each.reason) for each in peer.of(Connack)] == [0x97]
    assert peer.closed


def test_the_will_has_a_bound_of_its_own() -> None:
    """What CONNECT has itself leaves its will as much."""
    peer = House().open(V5)

    peer.send_bytes(connect(PAIR * 100, PAIR * 100))

    assert peer.connack.reason is ReasonCode.SUCCESS


def test_subscription_identifiers_count_too() -> None:
    """What may be repeated in a PUBLISH is bounded before it is judged that no client may send it."""
    peer = House(max_user_properties=3).connect("c", V5)

    peer.send_bytes(packet("PUBLISH", PAIR * 2 + IDENTIFIER * 2))

    assert told(peer) == [0x97]


def test_the_bytes_of_properties_are_bounded() -> None:
    """Two pairs of 64 KB are more than 128 KiB: 0x95 (section 4.13.2)."""
    peer = House().connect("c", V5)

    peer.send_bytes(packet("PUBLISH", (b"\x26" + write_utf8("n" * 60_000) + write_utf8("v" * 60_000)) * 2))

    assert told(peer) == [0x95]


def test_the_packets_before_it_are_carried_out() -> None:
    """What came in the same read is not lost with it."""
    house = House()
    sub = house.connect("s", V5).subscribe("t")
    peer = house.connect("c", V5)

    peer.send_bytes(packet("PUBLISH", PAIR) + packet("PUBLISH", PAIR * 101))

    assert len(sub.messages) == 1
    assert told(peer) == [0x97]


def test_what_plugins_make_is_not_held_to_it() -> None:
    """A plugin that adds to a message that has as many as may be has it delivered."""

    class Adds:
        @hookimpl
        def publish_received(self, message: Message) -> Message:
            pairs = (*message.properties.user_property, ("added", "by a plugin"))
            return message.replace(properties=message.properties.replace(user_property=pairs))

    house = House(plugins={"adds": Adds()})
    sub = house.connect("s", V5).subscribe("t")
    pub = house.connect("c", V5)

    pub.publish("t", b"x", qos=1, properties=Properties(user_property=(("", ""),) * 100))

    assert [int(each.reason) for each in pub.of(Puback)] == [0]
    assert [len(each.properties.user_property) for each in sub.of(Publish)] == [101]
