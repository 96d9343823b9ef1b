"""MQTT 3.1 and 3.1.1: strings, reserved bits and packet identifiers (1.5.3, 2.2.2, 2.3.1, 4.7.3)."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V31, V311, ConnectWill, Puback, Publish, Suback, Unsuback

OLD = [V31, V311]

START = {V31: b"\x00\x06MQIsdp\x03", V311: b"\x00\x04MQTT\x04"}

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
    "U+FFFD": "\ufffd",
    "U+FFFF": "\uffff",
    "U+10000": "\U00010000",
    "U+10FFFF": "\U0010ffff",
    "U+FEFF in front": "\ufeffa",
    "U+FEFF behind": "a\ufeff",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "spaces": " a  b ",
}
"""Strings that MQTT takes as they are, the unusual ones with the usual."""

DISALLOWED = [name for name in WELL_FORMED if name in ("U+0001", "U+007F", "U+009F", "U+FDD0", "U+FFFF", "U+10FFFF")]
"""Those with a code point that nobody ought to send (section 1.5.3)."""

FIELDS = ["client id", "will topic", "user name", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"]


def field(data: bytes) -> bytes:
    """A field with its length in front."""
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    """A packet of fewer than 128 bytes."""
    assert len(body) < 128
    return bytes((first, len(body))) + body


def with_string(where: str, string: bytes, version: int) -> bytes:
    """A packet that is sound but for the string in that field, if that is not."""
    if where == "PUBLISH":
        return packet(0x32, field(string) + b"\x00\x01x")
    if where == "SUBSCRIBE":
        return packet(0x82, b"\x00\x01" + field(b"sound") + b"\x00" + field(string) + b"\x00")
    if where == "UNSUBSCRIBE":
        return packet(0xA2, b"\x00\x01" + field(b"sound") + field(string))
    flags, fields = {
        "client id": (0x02, [string]),
        "will topic": (0x06, [b"c", string, b"gone"]),
        "user name": (0x82, [b"c", string]),
    }[where]
    return packet(0x10, START[version] + bytes((flags, 0, 0)) + b"".join(map(field, fields)))


def ready(house: House, where: str, version: int) -> Peer:
    """A connection on which that packet may come next."""
    return house.connect("c", version) if where.isupper() else house.open(version)


# Strings


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("where", FIELDS)
@pytest.mark.parametrize("string", ILL_FORMED.values(), ids=ILL_FORMED.keys())
def test_what_is_no_string_closes_the_connection(string: bytes, where: str, version: int) -> None:
    """In every field, without an answer and without effect [MQTT-1.5.3-1, MQTT-1.5.3-2, MQTT-4.7.3-2]."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer = ready(house, where, version)
    before = len(peer.packets)

    peer.send_bytes(with_string(where, string, version))

    assert peer.closed
    assert len(peer.packets) == before
    assert heir.messages == []
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("where", FIELDS)
@pytest.mark.parametrize("string", WELL_FORMED.values(), ids=WELL_FORMED.keys())
def test_every_string_is_taken(string: str, where: str, version: int) -> None:
    """First and last code points, and, where the settings say so, control and non-characters [MQTT-1.5.3-1]."""
    house = House(control_characters="allow")
    peer = ready(house, where, version)

    peer.send_bytes(with_string(where, string.encode(), version))

    assert not peer.closed
    assert len(peer.packets) == (2 if where.isupper() else 1)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("where", FIELDS)
@pytest.mark.parametrize("name", WELL_FORMED)
def test_what_nobody_ought_to_send_closes_the_connection(name: str, where: str, version: int) -> None:
    """A control or non-character in a name, without an answer and without effect (section 1.5.3); no other string."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer = ready(house, where, version)
    before = len(peer.packets)

    peer.send_bytes(with_string(where, WELL_FORMED[name].encode(), version))

    assert peer.closed == (name in DISALLOWED)
    if peer.closed:
        assert len(peer.packets) == before
        assert heir.messages == []
        assert house.broker.router.index.count() == 1


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("topic", WELL_FORMED.values(), ids=WELL_FORMED.keys())
def test_topics_are_delivered_as_they_came(topic: str, version: int) -> None:
    """Nothing is stripped, composed or replaced, on the wire neither [MQTT-1.5.3-3, MQTT-4.7.3-4]."""
    house = House(control_characters="allow")
    sub = house.connect("s", version).send_bytes(packet(0x82, b"\x00\x01" + field(topic.encode()) + b"\x00"))
    heard = bytearray()
    sub.link.write = heard.extend  # type: ignore[assignment, method-assign]

    house.connect("p", version).send_bytes(packet(0x30, field(topic.encode()) + b"x"))

    assert bytes(heard) == packet(0x30, field(topic.encode()) + b"x")


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    ("filter", "topic"),
    [
        ("a", "\ufeffa"),
        ("\ufeffa", "a"),
        ("\u00e9", "e\u0301"),
        ("a", "A"),
        ("a", " a"),
        ("a", "a "),
        ("a/b", "a//b"),
        ("a/b", "/a/b"),
        ("a/b", "a/b/"),
        ("\uff0b", "a"),
        ("stra\u00dfe", "strasse"),
    ],
)
def test_topics_that_look_alike_are_apart(filter: str, topic: str, version: int) -> None:
    """Filters are compared as they are written, live and retained [MQTT-4.7.3-4, MQTT-1.5.3-3, MQTT-3.3.2-3]."""
    house = House()
    sub = house.connect("s", version).subscribe(filter)
    house.connect("p", version).publish(topic, b"x", retain=True)
    late = house.connect("late", version).subscribe(filter)

    assert (sub.messages, late.messages) == ([], [])


@pytest.mark.parametrize("version", OLD)
def test_a_payload_and_a_will_are_no_strings(version: int) -> None:
    """What is no UTF-8 goes through where bytes are meant (section 3.3.3)."""
    house = House()
    noise = bytes(range(256)) + b"\xed\xa0\x80\x00"
    sub = house.connect("s", version).subscribe("#")

    house.connect("p", version).publish("a", noise)
    house.connect("c", version, will=ConnectWill("w", noise)).drop()

    assert sub.messages == [("a", noise, 0), ("w", noise, 0)]


@pytest.mark.parametrize("version", OLD)
def test_topics_of_65535_bytes(version: int) -> None:
    """Where the limits allow them the longest names and filters are taken whole [MQTT-4.7.3-3, MQTT-4.7.3-1]."""
    house = House(max_topic_bytes=65_535)
    longest = "\u20ac" * 21_845
    sub = house.connect("s", version).subscribe(longest).subscribe("+")

    house.connect("p", version).publish(longest, b"x", qos=1).publish(longest[:-1] + "abc", b"y")

    assert len(longest.encode()) == 65_535
    assert sub.messages == [(longest, b"x", 0), (longest[:-1] + "abc", b"y", 0)]
    assert sub.unsubscribe(longest).of(Unsuback) != []


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("where", ["will topic", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_a_topic_has_a_character(where: str, version: int) -> None:
    """An empty topic or filter is a violation [MQTT-4.7.3-1]."""
    peer = ready(House(), where, version)
    before = len(peer.packets)

    peer.send_bytes(with_string(where, b"", version))

    assert peer.closed
    assert len(peer.packets) == before


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("where", ["will topic", "PUBLISH"])
@pytest.mark.parametrize("topic", [b"#", b"+", b"a/#", b"a/+", b"+/a", b"a/+/b", b"a#", b"a+", b"#a"])
def test_a_topic_name_has_no_wildcards(topic: bytes, where: str, version: int) -> None:
    """Neither as a level nor within one [MQTT-3.3.2-2, MQTT-4.7.1-1]."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer = ready(house, where, version)
    before = len(peer.packets)

    peer.send_bytes(with_string(where, topic, version))

    assert peer.closed
    assert len(peer.packets) == before
    assert heir.messages == []


# Reserved bits


HEADERS = {
    "PUBACK": (0x40, b"\x00\x01"),
    "PUBREC": (0x50, b"\x00\x01"),
    "PUBREL": (0x62, b"\x00\x01"),
    "PUBCOMP": (0x70, b"\x00\x01"),
    "SUBSCRIBE": (0x82, b"\x00\x01\x00\x01a\x00"),
    "UNSUBSCRIBE": (0xA2, b"\x00\x01\x00\x01a"),
    "PINGREQ": (0xC0, b""),
    "DISCONNECT": (0xE0, b""),
}
"""The first byte and a body of every packet that a client sends after CONNECT and that has no flags of its own."""


@pytest.mark.parametrize("name", HEADERS)
def test_flags_that_are_not_the_tables(name: str) -> None:
    """All fifteen others close the connection [MQTT-2.2.2-2, MQTT-3.6.1-1, MQTT-3.8.1-1, MQTT-3.10.1-1]."""
    house = House()
    first, body = HEADERS[name]
    wrong = [first & 0xF0 | flags for flags in range(16) if first & 0xF0 | flags != first]
    taken = []

    for byte in wrong:
        client = house.connect("c")
        client.send_bytes(packet(byte, body))
        if not client.closed or len(client.packets) != 1:
            taken.append(byte)

    assert taken == []


@pytest.mark.parametrize("name", HEADERS)
def test_in_3_1_only_the_qos_of_a_request_counts(name: str) -> None:
    """Of MQTT 3.1's flags one must hold, QoS 1 of PUBREL and requests; others are "not used" (its chapter 3)."""
    first, body = HEADERS[name]
    needed = first & 0x06

    for flags in range(16):
        client = House().connect("c", V31)
        client.send_bytes(packet(first & 0xF0 | flags, body))
        refused = client.closed and name != "DISCONNECT"
        assert refused == (flags & 0x06 != needed and needed > 0), flags


@pytest.mark.parametrize("options", [0x04, 0x41, 0xFE])
def test_in_3_1_two_bits_of_a_request_count(options: int) -> None:
    """The upper six bits of the requested QoS are "not used" in MQTT 3.1 (its section 3.8)."""
    client = House().connect("c", V31)

    client.send_bytes(packet(0x82, b"\x00\x01\x00\x01a" + bytes((options,))))

    assert client.of(Suback)[0].reasons == (options & 3,)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_both_qos_bits_close_the_connection(first: int, version: int) -> None:
    """QoS 3 is none, with and without DUP and RETAIN, and reaches nobody [MQTT-3.3.1-4]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    client = house.connect("c", version)

    client.send_bytes(packet(first, b"\x00\x01a\x00\x01x"))

    assert client.closed
    assert len(client.packets) == 1
    assert sub.messages == []
    assert house.connect("late").subscribe("a").messages == []


@pytest.mark.parametrize("first", [0x38, 0x39])
def test_dup_goes_with_qos_1_and_2_only(first: int) -> None:
    """A QoS 0 message is not repeated, so DUP is a violation [MQTT-3.3.1-2]."""
    house = House()
    sub = house.connect("s").subscribe("a")
    client = house.connect("c", V311)

    client.send_bytes(packet(first, b"\x00\x01ax"))

    assert client.closed
    assert sub.messages == []


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("first", [0x00, 0x0F, 0xF0, 0xF1, 0xFF])
def test_packet_types_0_and_15_are_reserved(first: int, version: int) -> None:
    """They close the connection [MQTT-2.2.2-2, MQTT-4.8.0-1]."""
    client = House().connect("c", version).send_bytes(bytes((first, 0)))

    assert client.closed
    assert len(client.packets) == 1


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "data",
    [b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x00", b"\xb0\x02\x00\x01", b"\xd0\x00"],
    ids=["CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"],
)
def test_what_only_a_server_sends_is_a_violation(data: bytes, version: int) -> None:
    """A client that sends it is cut off, and its will is published [MQTT-4.8.0-1]."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    client = house.connect("c", version, will=ConnectWill("w", b"gone"))

    client.send_bytes(data)

    assert client.closed
    assert len(client.packets) == 1
    assert heir.messages == [("w", b"gone", 0)]


# Packet identifiers


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "data",
    [
        packet(0x32, b"\x00\x01a\x00\x00x"),
        packet(0x34, b"\x00\x01a\x00\x00x"),
        packet(0x82, b"\x00\x00\x00\x01a\x00"),
        packet(0xA2, b"\x00\x00\x00\x01a"),
    ],
    ids=["PUBLISH 1", "PUBLISH 2", "SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_an_identifier_is_not_0(data: bytes, version: int) -> None:
    """A Packet Identifier of 0 is a violation, and nothing is done for it [MQTT-2.3.1-1]."""
    house = House()
    sub = house.connect("s").subscribe("a")
    client = house.connect("c", version).send_bytes(data)

    assert client.closed
    assert len(client.packets) == 1
    assert sub.messages == []
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("packet_id", [b"\x00\x01", b"\x00\xff", b"\x01\x00", b"\xff\xff"])
def test_answers_carry_the_identifier(packet_id: bytes, version: int) -> None:
    """Every acknowledgement has its packet's [MQTT-2.3.1-6, MQTT-2.3.1-7, MQTT-3.8.4-2, MQTT-3.10.4-4]."""
    house = House()
    client = house.connect("c", version, silent=True)
    heard = bytearray()
    client.link.write = heard.extend  # type: ignore[assignment, method-assign]
    told = []

    for data in (
        packet(0x32, b"\x00\x01x" + packet_id),
        packet(0x34, b"\x00\x01x" + packet_id),
        packet(0x62, packet_id),
        packet(0x82, packet_id + b"\x00\x01a\x02\x00\x01b\x01\x00\x01c\x00"),
        packet(0xA2, packet_id + b"\x00\x01a\x00\x01z"),
        b"\xc0\x00",
    ):
        client.send_bytes(data)
        told.append(bytes(heard))
        heard.clear()

    assert told == [
        b"\x40\x02" + packet_id,
        b"\x50\x02" + packet_id,
        b"\x70\x02" + packet_id,
        b"\x90\x05" + packet_id + b"\x02\x01\x00",
        b"\xb0\x02" + packet_id,
        b"\xd0\x00",
    ]


@pytest.mark.parametrize("version", OLD)
def test_the_brokers_packets_byte_by_byte(version: int) -> None:
    """QoS 0 has no identifier, others have one, PUBREL has flags 0010 [MQTT-2.3.1-5, MQTT-2.3.1-1, MQTT-2.2.2-1]."""
    house = House()
    sub = house.connect("s", version, silent=True).subscribe("a", qos=2)
    heard = bytearray()
    sub.link.write = heard.extend  # type: ignore[assignment, method-assign]
    pub = house.connect("p", version)
    sent = []

    for qos in (0, 1, 2):
        pub.publish("a", b"x", qos=qos)
        sent.append(bytes(heard))
        heard.clear()
    identifiers = [data[5:7] for data in sent[1:]]
    sub.send_bytes(b"\x50\x02" + identifiers[1])

    assert sent == [
        b"\x30\x04\x00\x01ax",
        b"\x32\x06\x00\x01a" + identifiers[0] + b"x",
        b"\x34\x06\x00\x01a" + identifiers[1] + b"x",
    ]
    assert b"\x00\x00" not in identifiers
    assert identifiers[0] != identifiers[1]
    assert heard == b"\x62\x02" + identifiers[1]


def test_the_broker_uses_no_identifier_twice() -> None:
    """What is unacknowledged, published or released, keeps its own, also over 65535 [MQTT-2.3.1-4, MQTT-4.3.2-1]."""
    house = House(max_inflight=3)
    sub = house.connect("s", silent=True).subscribe("a", qos=2)
    pub = house.connect("p")
    outgoing = house.broker.sessions.by_id["s"].outgoing
    pub.publish("a", b"held", qos=2).publish("a", b"released", qos=2)
    held, released = (p.packet_id for p in sub.of(Publish))
    sub.send_bytes(b"\x50\x02" + released.to_bytes(2, "big"))
    used = []

    for _ in range(65_540):
        pub.publish("a", b"", qos=1, packet_id=1)
        used.append(sub.packets.pop().packet_id)  # type: ignore[union-attr]
        sub.send_bytes(b"\x40\x02" + used[-1].to_bytes(2, "big"))
        del pub.packets[:]

    assert len(outgoing) == 2
    assert {held, released, 0}.isdisjoint(used)
    assert len(set(used)) == 65_533


@pytest.mark.parametrize("version", OLD)
def test_both_sides_number_for_themselves(version: int) -> None:
    """One identifier may be in use in both directions, and in packets of several types (section 2.3.1)."""
    house = House()
    client = house.connect("c", version, silent=True).subscribe("a", qos=1)
    house.connect("p").publish("a", b"to", qos=1)
    packet_id = client.of(Publish)[0].packet_id

    client.publish("b", b"from", qos=1, packet_id=packet_id)
    client.send_bytes(b"\x82\x06" + packet_id.to_bytes(2, "big") + b"\x00\x01b\x00")
    client.send(Puback(packet_id))

    assert [p.packet_id for p in client.of(Puback)] == [packet_id]
    assert [p.packet_id for p in client.of(Suback)][-1] == packet_id
    assert not client.closed
    assert len(house.broker.sessions.by_id["c"].outgoing) == 0


# Several packets


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_behind_a_violation_is_carried_out(qos: int, version: int) -> None:
    """What came before it is, and is not delivered again when it is repeated [MQTT-4.8.0-1, MQTT-4.3.3-2]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    client = house.connect("c", version, clean_start=False)
    good = [encode(Publish.build("a", b"%d" % number, qos, packet_id=number), version) for number in (1, 2)]

    client.send_bytes(good[0] + b"\x62\x01\x00" + good[1])
    again = house.connect("c", version, clean_start=False)
    again.publish("a", b"1", qos=2, packet_id=1, dup=True) if qos == 2 else again.publish("a", b"2", qos=1)

    assert client.closed
    assert [payload for _, payload, _ in sub.messages] == ([b"1"] if qos == 2 else [b"1", b"2"])
    assert not again.closed
