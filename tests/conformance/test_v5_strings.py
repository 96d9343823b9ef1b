"""MQTT 5.0: strings, lengths, reserved flags, packet identifiers and property lengths (sections 1.5 and 2)."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import V5, Connack, DisconnectPacket, Publish, Subscribe, SubscribeRequest, Unsubscribe
from kinmqtt_spi import Properties

ILL_FORMED = {
    "U+0000": b"a\x00b",
    "U+0000 alone": b"\x00",
    "U+D800": b"\xed\xa0\x80",
    "U+DBFF": b"\xed\xaf\xbf",
    "U+DC00": b"\xed\xb0\x80",
    "U+DFFF": b"\xed\xbf\xbf",
    "a surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "U+110000": b"\xf4\x90\x80\x80",
    "a fifth byte": b"\xf8\x88\x80\x80\x80",
    "overlong slash": b"\xc0\xaf",
    "overlong U+0000": b"\xc0\x80",
    "overlong in three bytes": b"\xe0\x80\xaf",
    "overlong in four bytes": b"\xf0\x80\x80\xaf",
    "a continuation alone": b"a\x80",
    "a character cut": b"a\xe2\x82",
    "0xFF": b"\xff",
}
"""No UTF-8, or not MQTT's, by what is wrong with it."""

WELL_FORMED = {
    "U+0001": "a\u0001",
    "U+007F": "\u007f",
    "U+009F": "\u009f",
    "U+D7FF": "\ud7ff",
    "U+E000": "\ue000",
    "U+FDD0": "\ufdd0",
    "U+FFFF": "\uffff",
    "U+10000": "\U00010000",
    "U+10FFFF": "\U0010ffff",
    "U+FEFF in front": "\ufeffa",
    "U+FEFF within": "a\ufeffb",
    "U+FEFF behind": "a\ufeff",
    "U+FEFF alone": "\ufeff",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
}
"""Strings that MQTT takes as they are, the unusual ones with the usual."""

DISALLOWED = [name for name in WELL_FORMED if name in ("U+0001", "U+007F", "U+009F", "U+FDD0", "U+FFFF", "U+10FFFF")]
"""Those with a code point that nobody ought to send (section 1.5.4)."""

NAMES = [
    "client id",
    "will topic",
    "user name",
    "response topic of the will",
    "topic of PUBLISH",
    "response topic of PUBLISH",
    "filter of SUBSCRIBE",
    "filter of UNSUBSCRIBE",
]
"""The strings that name somebody or something."""

IN_CONNECT = [
    "client id",
    "will topic",
    "user name",
    "name in CONNECT",
    "value in CONNECT",
    "name in the will",
    "value in the will",
    "content type of the will",
    "response topic of the will",
]
AFTERWARDS = [
    "topic of PUBLISH",
    "name in PUBLISH",
    "value in PUBLISH",
    "content type of PUBLISH",
    "response topic of PUBLISH",
    "filter of SUBSCRIBE",
    "name in SUBSCRIBE",
    "filter of UNSUBSCRIBE",
    "value in UNSUBSCRIBE",
    "reason string of PUBACK",
    "value in PUBREC",
    "reason string of DISCONNECT",
]

A = b"\x00\x01a"
CONNECT = b"\x00\x04MQTT\x05"


def field(data: bytes) -> bytes:
    """A field with its length in front."""
    return len(data).to_bytes(2, "big") + data


def listed(data: bytes) -> bytes:
    """Properties with their length in front."""
    assert len(data) < 128
    return bytes((len(data),)) + data


def packet(first: int, body: bytes) -> bytes:
    """A packet of fewer than 128 bytes."""
    assert len(body) < 128
    return bytes((first, len(body))) + body


def with_string(where: str, string: bytes) -> bytes:
    """A packet that is sound but for the string in that place, if that is not."""
    text = field(string)
    if where in IN_CONNECT:
        flags, properties, payload = {
            "client id": (0x02, b"", text),
            "will topic": (0x06, b"", A + b"\x00" + text + A),
            "user name": (0x82, b"", A + text),
            "name in CONNECT": (0x02, b"\x26" + text + A, A),
            "value in CONNECT": (0x02, b"\x26" + A + text, A),
            "name in the will": (0x06, b"", A + listed(b"\x26" + text + A) + A + A),
            "value in the will": (0x06, b"", A + listed(b"\x26" + A + text) + A + A),
            "content type of the will": (0x06, b"", A + listed(b"\x03" + text) + A + A),
            "response topic of the will": (0x06, b"", A + listed(b"\x08" + text) + A + A),
        }[where]
        return packet(0x10, CONNECT + bytes((flags, 0, 0)) + listed(properties) + payload)
    first, body = {
        "topic of PUBLISH": (0x30, text + b"\x00"),
        "name in PUBLISH": (0x30, A + listed(b"\x26" + text + A)),
        "value in PUBLISH": (0x30, A + listed(b"\x26" + A + text)),
        "content type of PUBLISH": (0x30, A + listed(b"\x03" + text)),
        "response topic of PUBLISH": (0x30, A + listed(b"\x08" + text)),
        "filter of SUBSCRIBE": (0x82, b"\x00\x01\x00" + A + b"\x00" + text + b"\x00"),
        "name in SUBSCRIBE": (0x82, b"\x00\x01" + listed(b"\x26" + text + A) + A + b"\x00"),
        "filter of UNSUBSCRIBE": (0xA2, b"\x00\x01\x00" + A + text),
        "value in UNSUBSCRIBE": (0xA2, b"\x00\x01" + listed(b"\x26" + A + text) + A),
        "reason string of PUBACK": (0x40, b"\x00\x01\x80" + listed(b"\x1f" + text)),
        "value in PUBREC": (0x50, b"\x00\x01\x80" + listed(b"\x26" + A + text)),
        "reason string of DISCONNECT": (0xE0, b"\x04" + listed(b"\x1f" + text)),
    }[where]
    return packet(first, body)


def ready(house: House, where: str) -> Peer:
    """A connection on which that packet may come next."""
    if where in IN_CONNECT:
        return house.open(V5)
    peer = house.connect("c", V5)
    del peer.packets[:]
    return peer


def told(peer: Peer) -> list[tuple[type, int]]:
    """Type and reason of everything that the client got."""
    return [(type(packet), int(packet.reason)) for packet in peer.packets]  # type: ignore[union-attr]


def heard(peer: Peer) -> bytearray:
    """Every byte that the broker writes from now on."""
    written = bytearray()
    write = peer.link.write

    def tap(data: bytes) -> None:
        written.extend(data)
        write(data)

    peer.link.write = tap  # type: ignore[method-assign]
    return written


# Strings


@pytest.mark.parametrize("where", [*IN_CONNECT, *AFTERWARDS])
@pytest.mark.parametrize("string", ILL_FORMED.values(), ids=ILL_FORMED.keys())
def test_what_is_no_string_is_malformed(string: bytes, where: str) -> None:
    """0x81 in a CONNACK or DISCONNECT, then the end, and nothing is done: in every field and in both of a pair.

    [MQTT-1.5.4-1, MQTT-1.5.4-2, MQTT-1.5.7-1, MQTT-3.1.3-4, MQTT-3.1.3-11, MQTT-3.1.3-12]
    """
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer = ready(house, where)

    peer.send_bytes(with_string(where, string))

    assert told(peer) == [(Connack if where in IN_CONNECT else DisconnectPacket, 0x81)]
    assert peer.closed
    assert heir.messages == []
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize("where", [*IN_CONNECT, *AFTERWARDS])
@pytest.mark.parametrize("string", WELL_FORMED.values(), ids=WELL_FORMED.keys())
def test_every_string_is_taken(string: str, where: str) -> None:
    """First and last code points, and, where the settings say so, control and non-characters [MQTT-1.5.4-1]."""
    peer = ready(House(control_characters="allow"), where)

    peer.send_bytes(with_string(where, string.encode()))

    assert peer.closed is (where == "reason string of DISCONNECT")
    assert peer.of(DisconnectPacket) == []
    assert [int(connack.reason) for connack in peer.of(Connack)] == ([0] if where in IN_CONNECT else [])


@pytest.mark.parametrize("where", [*IN_CONNECT, *AFTERWARDS])
@pytest.mark.parametrize("name", WELL_FORMED)
def test_what_nobody_ought_to_send_is_malformed_in_a_name(name: str, where: str) -> None:
    """0x81, then the end, and nothing is done, as section 1.5.4 allows; no other string, and in names only."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer = ready(house, where)

    peer.send_bytes(with_string(where, WELL_FORMED[name].encode()))

    if name in DISALLOWED and where in NAMES:
        assert told(peer) == [(Connack if where in IN_CONNECT else DisconnectPacket, 0x81)]
        assert peer.closed
        assert heir.messages == []
        assert house.broker.router.index.count() == 1
    else:
        assert peer.of(DisconnectPacket) == []
        assert [int(connack.reason) for connack in peer.of(Connack)] == ([0] if where in IN_CONNECT else [])


@pytest.mark.parametrize("string", WELL_FORMED.values(), ids=WELL_FORMED.keys())
def test_strings_go_out_as_they_came(string: str) -> None:
    """Topic, content type, response topic and both parts of a pair, U+FEFF with them [MQTT-1.5.4-3, MQTT-1.5.7-1]."""
    house = House(control_characters="allow")
    raw = field(string.encode())
    sub = house.connect("s", V5).send_bytes(packet(0x82, b"\x00\x01\x00" + raw + b"\x00"))
    written = heard(sub)
    message = packet(0x30, raw + listed(b"\x03" + raw + b"\x08" + raw + b"\x26" + raw + raw) + b"x")

    house.connect("p", V5).send_bytes(message)

    assert bytes(written) == message


def test_a_byte_order_mark_is_part_of_a_name() -> None:
    """Client ids, filters and topics with and without U+FEFF in front are two [MQTT-1.5.4-3]."""
    house = House()
    plain, marked = house.connect("c", V5).subscribe("a"), house.connect("\ufeffc", V5).subscribe("\ufeffa")

    house.connect("p", V5).publish("a", b"1").publish("\ufeffa", b"2")

    assert plain.messages == [("a", b"1", 0)]
    assert marked.messages == [("\ufeffa", b"2", 0)]


# Variable Byte Integers


PADDED_IN_CONNECT = {
    "length of the properties": CONNECT + b"\x02\x00\x00" + b"\x80\x00" + A,
    "length of some properties": CONNECT + b"\x02\x00\x00" + b"\x83\x00" + b"\x21\x00\x01" + A,
    "length in four bytes": CONNECT + b"\x02\x00\x00" + b"\x80\x80\x80\x00" + A,
    "length of the will's properties": CONNECT + b"\x06\x00\x00\x00" + A + b"\x80\x00" + A + A,
    "identifier of a property": CONNECT + b"\x02\x00\x00" + b"\x04\xa1\x00\x00\x01" + A,
    "length in five bytes": CONNECT + b"\x02\x00\x00" + b"\x80\x80\x80\x80\x00" + A,
}

PADDED_AFTERWARDS = {
    "remaining length of PINGREQ": b"\xc0\x80\x00",
    "remaining length of PUBLISH": b"\x30\x84\x80\x00" + A + b"\x00",
    "remaining length in five bytes": b"\xc0\x80\x80\x80\x80\x00",
    "remaining length that does not end": b"\x30\xff\xff\xff\xff",
    "properties of PUBLISH": packet(0x30, A + b"\x80\x00"),
    "properties of SUBSCRIBE": packet(0x82, b"\x00\x01\x80\x00" + A + b"\x00"),
    "subscription identifier": packet(0x82, b"\x00\x01\x03\x0b\x81\x00" + A + b"\x00"),
    "subscription identifier in five bytes": packet(0x82, b"\x00\x01\x06\x0b\x80\x80\x80\x80\x01" + A + b"\x00"),
    "properties of UNSUBSCRIBE": packet(0xA2, b"\x00\x01\x80\x00" + A),
    "properties of PUBACK": packet(0x40, b"\x00\x01\x00\x80\x00"),
    "properties of DISCONNECT": packet(0xE0, b"\x00\x80\x00"),
    "identifier of a property": packet(0x30, A + b"\x03\x81\x00\x00"),
}


@pytest.mark.parametrize("body", PADDED_IN_CONNECT.values(), ids=PADDED_IN_CONNECT.keys())
def test_a_padded_number_in_a_connect_is_malformed(body: bytes) -> None:
    """A number in more bytes than it takes: CONNACK with 0x81, and the end [MQTT-1.5.5-1]."""
    peer = House().open(V5).send_bytes(packet(0x10, body))

    assert told(peer) == [(Connack, 0x81)]
    assert peer.closed


@pytest.mark.parametrize("data", PADDED_AFTERWARDS.values(), ids=PADDED_AFTERWARDS.keys())
def test_a_padded_number_is_malformed(data: bytes) -> None:
    """In fixed headers, property lengths, identifiers and values: DISCONNECT with 0x81 [MQTT-1.5.5-1]."""
    house = House()
    heir = house.connect("heir").subscribe("a")
    peer = ready(house, "PUBLISH")

    peer.send_bytes(data)

    assert told(peer) == [(DisconnectPacket, 0x81)]
    assert peer.closed
    assert heir.messages == []


@pytest.mark.parametrize("size", [1, 120, 127, 128, 129, 16_370, 16_383, 16_384, 16_385, 70_000])
def test_the_brokers_numbers_take_the_fewest_bytes(size: int) -> None:
    """Remaining Length, Property Length and Subscription Identifier, on both sides of each bound [MQTT-1.5.5-1]."""
    house = House()
    sub = house.connect("s", V5, properties=Properties()).subscribe(
        "a", properties=Properties(subscription_identifier=(size,))
    )
    written = heard(sub)
    text = "x" * min(size, 65_535)

    house.connect("p", V5).publish("a", b"y" * size, properties=Properties(user_property=(("", text),)))

    properties = b"\x0b" + shortest(size)
    pair = b"\x26\x00\x00" + field(text.encode())
    bodies = [
        A + shortest(len(properties + pair)) + each + b"y" * size for each in (properties + pair, pair + properties)
    ]
    assert bytes(written) in [b"\x30" + shortest(len(body)) + body for body in bodies]


def shortest(value: int) -> bytes:
    """A Variable Byte Integer by section 1.5.5."""
    encoded = []
    while True:
        value, byte = divmod(value, 128)
        encoded.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(encoded)


# Reserved flags, packet identifiers, property lengths


@pytest.mark.parametrize("flags", range(1, 16))
def test_a_connect_has_no_header_flags(flags: int) -> None:
    """Any of them is malformed: CONNACK with 0x81 and the end, no session [MQTT-2.1.3-1, MQTT-3.1.4-1]."""
    house = House()
    peer = house.open(V5).send_bytes(packet(0x10 | flags, CONNECT + b"\x02\x00\x00\x00" + A))

    assert told(peer) == [(Connack, 0x81)]
    assert peer.closed
    assert house.broker.sessions.by_id == {}


@pytest.mark.parametrize("first", [0x00, 0x0F])
def test_packet_type_0_is_reserved(first: int) -> None:
    """It is malformed: 0x81 (section 2.1.2) [MQTT-2.1.3-1]."""
    peer = ready(House(), "PUBLISH").send_bytes(bytes((first, 0)))

    assert told(peer) == [(DisconnectPacket, 0x81)]
    assert peer.closed


@pytest.mark.parametrize(
    "data",
    [
        packet(0x32, A + b"\x00\x00" + b"\x00"),
        packet(0x34, A + b"\x00\x00" + b"\x00"),
        packet(0x82, b"\x00\x00\x00" + A + b"\x00"),
        packet(0xA2, b"\x00\x00\x00" + A),
        packet(0x40, b"\x00\x00"),
        packet(0x50, b"\x00\x00"),
        packet(0x62, b"\x00\x00"),
        packet(0x70, b"\x00\x00"),
    ],
    ids=["PUBLISH 1", "PUBLISH 2", "SUBSCRIBE", "UNSUBSCRIBE", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"],
)
def test_an_identifier_is_not_0(data: bytes) -> None:
    """A Packet Identifier of 0 is a protocol error, and nothing is done for it [MQTT-2.2.1-3, MQTT-2.2.1-5]."""
    house = House()
    sub = house.connect("s").subscribe("a")
    client = ready(house, "PUBLISH").send_bytes(data)

    assert told(client) == [(DisconnectPacket, 0x82)]
    assert client.closed
    assert sub.messages == []
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize("packet_id", [b"\x00\x01", b"\x00\xff", b"\x01\x00", b"\xff\xff"])
def test_answers_carry_the_identifier(packet_id: bytes) -> None:
    """Every acknowledgement has that of what it answers, byte by byte [MQTT-2.2.1-5, MQTT-2.2.1-6, MQTT-2.2.2-1]."""
    house = House()
    house.connect("s").subscribe("x")
    client = house.connect("c", V5, silent=True)
    written = heard(client)
    answers = []

    for data in (
        packet(0x32, b"\x00\x01x" + packet_id + b"\x00"),
        packet(0x34, b"\x00\x01x" + packet_id + b"\x00"),
        packet(0x62, packet_id),
        packet(0x82, packet_id + b"\x00\x00\x01a\x02\x00\x01b\x01\x00\x01c\x00"),
        packet(0xA2, packet_id + b"\x00\x00\x01a\x00\x01z"),
        b"\xc0\x00",
    ):
        client.send_bytes(data)
        answers.append(bytes(written))
        written.clear()

    assert answers == [
        b"\x40\x02" + packet_id,
        b"\x50\x02" + packet_id,
        b"\x70\x02" + packet_id,
        b"\x90\x06" + packet_id + b"\x00\x02\x01\x00",
        b"\xb0\x05" + packet_id + b"\x00\x00\x11",
        b"\xd0\x00",
    ]


def test_the_brokers_packets_byte_by_byte() -> None:
    """QoS 0 has no identifier, others one that is new, PUBREL flags 0010, and no properties are one byte of 0.

    [MQTT-2.2.1-2, MQTT-2.2.1-4, MQTT-2.1.3-1, MQTT-2.2.2-1]
    """
    house = House()
    sub = house.connect("s", V5, silent=True).subscribe("a", qos=2)
    written = heard(sub)
    pub = house.connect("p", V5)
    sent = []

    for qos in (0, 1, 2):
        pub.publish("a", b"x", qos=qos)
        sent.append(bytes(written))
        written.clear()
    identifiers = [data[5:7] for data in sent[1:]]
    sub.send_bytes(b"\x50\x02" + identifiers[1])

    assert sent == [
        b"\x30\x05\x00\x01a\x00x",
        b"\x32\x07\x00\x01a" + identifiers[0] + b"\x00x",
        b"\x34\x07\x00\x01a" + identifiers[1] + b"\x00x",
    ]
    assert b"\x00\x00" not in identifiers
    assert identifiers[0] != identifiers[1]
    assert bytes(written) == b"\x62\x02" + identifiers[1]


def test_what_follows_the_properties_of_qos_0_is_payload() -> None:
    """Where an identifier would stand there is none: those bytes belong to the message [MQTT-2.2.1-2]."""
    house = House()
    sub = house.connect("s", V5).subscribe("a")

    house.connect("p", V5).send_bytes(packet(0x30, A + b"\x00" + b"\x00\x01x"))

    assert sub.messages == [("a", b"\x00\x01x", 0)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_request_may_use_an_identifier_again_when_it_is_answered(qos: int) -> None:
    """Identifiers are free behind the last answer, for any of the three packets [MQTT-2.2.1-3]."""
    house = House()
    client = house.connect("c", V5).subscribe("none")
    sub = house.connect("s").subscribe("a", qos=2)

    for _ in range(3):
        client.publish("a", b"x", qos=qos, packet_id=7)
        client.send(Subscribe(7, (SubscribeRequest("b", 1),)))
        client.send(Unsubscribe(7, ("b",)))

    assert len(sub.messages) == 3
    assert not client.closed


def test_both_sides_number_for_themselves() -> None:
    """One identifier may be in use in both directions at once (section 2.2.1) [MQTT-2.2.1-4]."""
    house = House()
    client = house.connect("c", V5, silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"to", qos=2)
    [packet_id] = [p.packet_id for p in client.of(Publish)]
    written = heard(client)
    raw = packet_id.to_bytes(2, "big")

    client.send_bytes(packet(0x34, b"\x00\x01b" + raw + b"\x00")).send_bytes(b"\x50\x02" + raw)
    client.send_bytes(b"\x62\x02" + raw).send_bytes(b"\x70\x02" + raw)

    assert bytes(written) == b"\x50\x03" + raw + b"\x10" + b"\x62\x02" + raw + b"\x70\x02" + raw
    assert len(house.broker.sessions.by_id["c"].outgoing) == 0


@pytest.mark.parametrize(
    "data",
    [
        packet(0x30, A),
        packet(0x32, A + b"\x00\x01"),
        packet(0x82, b"\x00\x01"),
        packet(0xA2, b"\x00\x01"),
        packet(0x30, A + b"\x01"),
        packet(0x82, b"\x00\x01\x7f" + A + b"\x00"),
        packet(0xE0, b"\x00\x01"),
    ],
    ids=[
        "PUBLISH 0 without",
        "PUBLISH 1 without",
        "SUBSCRIBE without",
        "UNSUBSCRIBE without",
        "PUBLISH too long",
        "SUBSCRIBE too long",
        "DISCONNECT too long",
    ],
)
def test_a_property_length_must_be_there_and_fit(data: bytes) -> None:
    """A packet without one, or with one beyond its end, is malformed: 0x81 [MQTT-2.2.2-1]."""
    peer = ready(House(), "PUBLISH").send_bytes(data)

    assert told(peer) == [(DisconnectPacket, 0x81)]
    assert peer.closed
