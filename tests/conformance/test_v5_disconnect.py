"""PINGREQ, DISCONNECT and errors of MQTT 5.0 (sections 3.12, 3.14 and 4.13): what no other test shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connack, ConnectWill, DisconnectPacket, Pingresp, Publish, Pubrel
from kinmqtt.mqtt.reasons import DISCONNECT_FROM_SERVER
from kinmqtt_spi import NO_PROPERTIES, Properties, ReasonCode

MALFORMED = bytes.fromhex("c100")
"""A PINGREQ with a reserved bit."""

ERRORS = [
    ("c100", 0x81),
    ("c00100", 0x81),
    ("00 00", 0x81),
    ("d000", 0x82),
    ("9004 0001 00 00", 0x82),
    ("b004 0001 00 00", 0x82),
    ("2003 00 00 00", 0x82),
    ("1010 0004 4d515454 05 02 0000 00 0003 616263", 0x82),
    ("30 ffffffff 01", 0x81),
    ("3004 0001 2b 00", 0x90),
    ("3007 0001 61 03 23ffff", 0x94),
    ("30 ff7f", 0x95),
    ("f000", 0x82),
]
"""What no connected client may send, and the reason that the specification gives for it."""

WILL = ConnectWill("wills", b"gone", 0, False, NO_PROPERTIES)


def recorded(peer: Peer) -> list[bytes]:
    """All bytes that the broker writes from now on, also behind its close."""
    written: list[bytes] = []
    write: Callable[[bytes], None] = peer.link.write

    def note(data: bytes) -> None:
        if data:
            written.append(data)
        write(data)

    peer.link.write = note  # type: ignore[method-assign]
    return written


# Reserved bits


@pytest.mark.parametrize("flags", [0b0001, 0b0010, 0b0100, 0b1000, 0b1111])
@pytest.mark.parametrize("rest", ["00", "0100", "020000"])
def test_the_flags_of_disconnect_are_0000(flags: int, rest: str) -> None:
    """Anything else is answered with 0x81, and is no start_disconnect: the will is published [MQTT-3.14.1-1]."""
    house = House()
    sub = house.connect("s", V5).subscribe("wills")
    client = house.connect("c", V5, will=WILL)

    client.send_bytes(bytes((0xE0 | flags,)) + bytes.fromhex(rest))

    assert [int(p.reason) for p in client.of(DisconnectPacket)] == [0x81]
    assert client.closed
    assert len(sub.messages) == 1


@pytest.mark.parametrize("flags", [0b0001, 0b0010, 0b0100, 0b1000])
def test_the_flags_of_pingreq_are_0000(flags: int) -> None:
    """Anything else is malformed, and gets no PINGRESP [MQTT-2.1.3-1, MQTT-4.13.1-1]."""
    client = House().connect("c", V5)

    client.send_bytes(bytes((0xC0 | flags, 0)))

    assert client.of(Pingresp) == []
    assert [int(p.reason) for p in client.of(DisconnectPacket)] == [0x81]


def test_each_ping_is_answered() -> None:
    """One PINGRESP for each PINGREQ [MQTT-3.12.4-1]."""
    client = House().connect("c", V5)

    client.send_bytes(b"\xc0\x00" * 3)

    assert len(client.of(Pingresp)) == 3


# What the broker says as it closes


@pytest.mark.parametrize(("frame", "reason"), ERRORS)
def test_an_error_is_told_and_ends_the_connection(frame: str, reason: int) -> None:
    """The reason first, then the close, and nothing behind it.

    [MQTT-4.13.1-1, MQTT-4.13.2-1, MQTT-3.14.2-1, MQTT-3.14.2-2, MQTT-3.14.4-1, MQTT-3.14.4-2]
    """
    house = House(max_packet_bytes=1000)
    client = house.connect("c", V5, expiry_s=60).subscribe("a", qos=1)
    written = recorded(client)

    client.send_bytes(bytes.fromhex(frame))
    house.connect("p", V5).publish("a", b"x").publish("a", b"x", qos=1)
    house.advance(5)

    [disconnect] = client.of(DisconnectPacket)
    assert int(disconnect.reason) == reason
    assert disconnect.reason in DISCONNECT_FROM_SERVER
    assert disconnect.properties.session_expiry_interval is None
    assert written == [encode(disconnect, V5)]
    assert client.closed


@pytest.mark.parametrize("before", ["publish", "release", "subscribe"])
def test_what_was_right_is_answered_or_not_but_never_behind_disconnect(before: str) -> None:
    """An error in the same read as good packets: DISCONNECT is the last that goes out [MQTT-3.14.4-1]."""
    client = House().connect("c", V5, silent=True).subscribe("a", qos=1)
    good = {
        "publish": encode(Publish.build("a", b"x", qos=1, packet_id=1), V5) + encode(Publish.build("a", b"y"), V5),
        "release": encode(Publish.build("a", b"x", qos=2, packet_id=1), V5) + encode(Pubrel(1), V5),
        "subscribe": bytes.fromhex("8207 0009 00 0001 62 01"),
    }
    written = recorded(client)

    client.send_bytes(good[before] + MALFORMED)

    assert isinstance(client.packets[-1], DisconnectPacket)
    assert b"".join(written).endswith(encode(client.packets[-1], V5))
    assert client.closed


@pytest.mark.parametrize(("frame", "reason"), ERRORS)
def test_before_connack_there_is_no_disconnect(frame: str, reason: int) -> None:
    """A connection on which nobody has connected is closed without a word [MQTT-3.14.0-1]."""
    house = House(max_connect_bytes=1000)
    client = house.open(V5)

    client.send_bytes(bytes.fromhex(frame if not frame.startswith("10") else "1100"))

    assert client.packets == []
    assert client.closed


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("100f 0004 4d515454 05 03 0000 00 0002 6162", 0x81),
        ("1011 0004 4d515454 05 02 0000 03 210000 0001 61", 0x82),
        ("1010 0004 4d515454 05 02 0000 00 0002 6162 00", 0x81),
        ("100f 0004 4d515454 06 02 0000 00 0002 6162", 0x84),
    ],
    ids=["reserved flag", "receive maximum 0", "trailing byte", "version 6"],
)
def test_a_bad_connect_gets_a_connack(frame: str, reason: int) -> None:
    """A CONNACK with the reason and the end, and no DISCONNECT [MQTT-3.14.0-1, MQTT-4.13.2-1]."""
    client = House().open(V5).send_bytes(bytes.fromhex(frame))

    assert [type(p) for p in client.packets] == [Connack]
    assert int(client.connack.reason) == reason
    assert client.closed


@pytest.mark.parametrize("room", [0, -1])
def test_a_reason_string_that_does_not_fit_is_left_out(room: int) -> None:
    """DISCONNECT is as large as the client takes, or goes without its text [MQTT-3.14.2-3, MQTT-3.14.2-4]."""
    probe = House().connect("c", V5).send_bytes(MALFORMED)
    [whole] = probe.of(DisconnectPacket)
    limit = Properties(maximum_packet_size=len(encode(whole, V5)) + room)
    client = House().connect("c", V5, properties=limit)

    client.send_bytes(MALFORMED)

    assert whole.properties.reason_string
    assert client.of(DisconnectPacket) == [DisconnectPacket(ReasonCode.MALFORMED_PACKET) if room else whole]
    assert client.closed


def test_a_client_that_is_taken_over_hears_so_last() -> None:
    """0x8E, and nothing behind it, though messages come in the same turn [MQTT-3.14.4-1, MQTT-3.14.4-2]."""
    house = House()
    first = house.connect("c", V5, expiry_s=60).subscribe("a", qos=1)
    written = recorded(first)

    second = house.connect("c", V5, clean_start=False, expiry_s=60)
    house.connect("p", V5).publish("a", b"x", qos=1)

    assert [int(p.reason) for p in first.of(DisconnectPacket)] == [0x8E]
    assert len(written) == 1
    assert first.closed
    assert second.messages == [("a", b"x", 1)]


# What a client says as it goes


@pytest.mark.parametrize(
    "reason", [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]
)
def test_the_will_of_a_client_that_disconnects(reason: int) -> None:
    """0x00 discards it, every other reason leaves it to be published; the connection is closed without an answer.

    [MQTT-3.14.4-3, MQTT-3.14.2-1, MQTT-4.13.2-1]
    """
    house = House()
    sub = house.connect("s", V5).subscribe("wills")
    client = house.connect("c", V5, will=WILL)

    client.send_bytes(bytes((0xE0, 1, reason)))

    assert client.closed
    assert client.of(DisconnectPacket) == []
    assert len(sub.messages) == (reason != 0x00)


@pytest.mark.parametrize("data", [b"\xe0\x00", b"\xe0\x01\x00", b"\xe0\x02\x00\x00"])
def test_a_goodbye_may_be_spelled_out(data: bytes) -> None:
    """Remaining Length 0, 1 and 2 say the same where the reason is 0x00 (section 3.14.2)."""
    house = House()
    sub = house.connect("s", V5).subscribe("wills")
    client = house.connect("c", V5, will=WILL)

    client.send_bytes(data)

    assert client.closed
    assert (client.of(DisconnectPacket), sub.messages) == ([], [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("e001 01", 0x82),
        ("e001 84", 0x82),
        ("e001 92", 0x82),
        ("e00c 00 0a 11 00000001 11 00000001", 0x82),
        ("e004 00 02 0101", 0x81),
        ("e008 00 06 1f 0000 1f 0000", 0x82),
        ("e007 00 05 11 00000001", 0x82),
        ("e003 00 00 00", 0x81),
        ("e003 00 01 1f", 0x81),
    ],
    ids=[
        "code of SUBACK",
        "code of CONNACK",
        "code of PUBREL",
        "expiry twice",
        "payload format",
        "reason string twice",
        "expiry raised from 0",
        "trailing byte",
        "property cut short",
    ],
)
def test_a_goodbye_that_breaks_a_rule_is_none(data: str, reason: int) -> None:
    """It is answered with an error, and the will is published [MQTT-3.14.2-1, MQTT-4.13.1-1]."""
    house = House()
    sub = house.connect("s", V5).subscribe("wills")
    client = house.connect("c", V5, will=WILL)

    client.send_bytes(bytes.fromhex(data))

    assert [int(p.reason) for p in client.of(DisconnectPacket)] == [reason]
    assert client.closed
    assert len(sub.messages) == 1


@pytest.mark.parametrize("code", sorted(DISCONNECT_FROM_SERVER - {ReasonCode.SUCCESS}))
def test_the_codes_of_a_server_are_those_of_the_specification(code: ReasonCode) -> None:
    """Every code that the broker may send in DISCONNECT is one that the table gives to a server [MQTT-3.14.2-1]."""
    # 0x8C is in the table of section 2.4 and not in that of 3.14.2.1.
    table = "80 81 82 83 87 89 8B 8C 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F A0 A1 A2"

    assert int(code) in bytes.fromhex(table)


def test_what_a_client_sends_behind_an_error_is_not_read() -> None:
    """Packets behind the malformed one, in the same read and later, are not carried out [MQTT-4.13.1-1]."""
    house = House()
    sub = house.connect("s", V5).subscribe("a")
    client: Any = house.connect("c", V5)
    good = encode(Publish.build("a", b"x"), V5)

    client.send_bytes(MALFORMED + good)
    client.connection.receive(good)
    house.settle()

    assert sub.messages == []
