"""CONNECT of MQTT 5.0 (section 3.1): bytes, reason codes, sessions, wills; what no other test shows."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connack, ConnectWill, DisconnectPacket, Pingresp, Publish, Pubrec
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import ALLOW, Client, Decision, Properties, ReasonCode, deny, hookimpl
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest

CLEAN = 0x02
WILL = 0x04
WILL_QOS_1 = 0x08
WILL_QOS_2 = 0x10
WILL_RETAIN = 0x20
PASSWORD = 0x40
USERNAME = 0x80

START = b"\x00\x04MQTT\x05"
NONE = b"\x00"
"""An empty list of properties."""
C = b"\x00\x01c"
W = b"\x00\x01w"
X = b"\x00\x01x"

PROPERTIES = {
    0x01: b"\x01",
    0x02: b"\x00\x00\x00\x09",
    0x03: b"\x00\x01t",
    0x08: b"\x00\x01t",
    0x09: b"\x00\x01t",
    0x0B: b"\x09",
    0x11: b"\x00\x00\x00\x09",
    0x12: b"\x00\x01t",
    0x13: b"\x00\x09",
    0x15: b"\x00\x01t",
    0x16: b"\x00\x01t",
    0x17: b"\x01",
    0x18: b"\x00\x00\x00\x09",
    0x19: b"\x01",
    0x1A: b"\x00\x01t",
    0x1C: b"\x00\x01t",
    0x1F: b"\x00\x01t",
    0x21: b"\x00\x09",
    0x22: b"\x00\x09",
    0x23: b"\x00\x09",
    0x24: b"\x01",
    0x25: b"\x01",
    0x26: b"\x00\x01t\x00\x01t",
    0x27: b"\x00\x00\x09\x00",
    0x28: b"\x01",
    0x29: b"\x01",
    0x2A: b"\x01",
}
"""Every property of MQTT 5.0 with a sound value, from the table of section 2.2.2.2."""

OF_CONNECT = [0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27]
OF_A_WILL = [0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]


def field(data: bytes) -> bytes:
    """A field with its length in front."""
    return len(data).to_bytes(2, "big") + data


def listed(data: bytes) -> bytes:
    """Properties with their length in front."""
    assert len(data) < 128
    return bytes((len(data),)) + data


def connect_bytes(flags: int, *rest: bytes, start: bytes = START, keep_alive: int = 0) -> bytes:
    """A CONNECT with these flags, and behind its keep alive whatever is given."""
    body = start + bytes((flags,)) + keep_alive.to_bytes(2, "big") + b"".join(rest)
    assert len(body) < 128
    return bytes((0x10, len(body))) + body


def refused(peer: Peer) -> int | None:
    """The code of the CONNACK that was all the client got before the close."""
    [connack] = peer.packets
    assert isinstance(connack, Connack)
    assert not connack.session_present
    assert peer.closed
    return int(connack.reason)


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


class Guard:
    """Answers what the test says, as far as it says anything."""

    def __init__(self, answer: Decision = ALLOW) -> None:
        self.answer = answer
        self.requests: list[ConnectRequest] = []

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        self.requests.append(request)
        return self.answer


class Narrow:
    """What a broker is like that has no QoS 2 and no retained messages."""

    @hookimpl
    def connack_sending(self, client: Client, properties: Properties) -> Properties:
        return properties.replace(maximum_qos=1, retain_available=0)

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision | None:
        if request.action is Action.WILL and request.qos == 2:
            return deny(ReasonCode.QOS_NOT_SUPPORTED)
        if request.action is Action.WILL and request.retain:
            return deny(ReasonCode.RETAIN_NOT_SUPPORTED)
        return None


# The protocol's name and version


@pytest.mark.parametrize("name", [b"MQTT\x00", b"mqtt", b"MQT", b"", b"MQTTX", b"HTTP", b"\xef\xbb\xbfMQTT"])
def test_another_protocols_name_is_not_served(name: bytes) -> None:
    """The end, and no session. The broker may say 0x84 and does not: this is no client of MQTT [MQTT-3.1.2-1]."""
    house = House()
    written = bytearray()
    peer = house.open(V5)
    peer.link.write = written.extend  # type: ignore[assignment, method-assign]

    peer.send_bytes(connect_bytes(CLEAN, NONE, C, start=field(name) + b"\x05"))

    assert (bytes(written), peer.closed) == (b"", True)
    assert house.broker.sessions.by_id == {}


def test_the_old_name_with_the_new_version_is_told_so() -> None:
    """MQIsdp is a name of MQTT's, so that 0x84 is said [MQTT-3.1.2-1, MQTT-3.1.2-2]."""
    peer = House().open(V5).send_bytes(connect_bytes(CLEAN, NONE, C, start=field(b"MQIsdp") + b"\x05"))

    assert refused(peer) == 0x84


@pytest.mark.parametrize("level", [6, 7, 0x7F, 0x85, 0x86, 0xFF])
@pytest.mark.parametrize("rest", [NONE + C, b"", b"\xff\xff\xff"])
def test_another_version_is_told_so(level: int, rest: bytes) -> None:
    """0x84 whatever stands behind the version, then the end, and no session [MQTT-3.1.2-2]."""
    house = House()
    peer = house.open(V5).send_bytes(connect_bytes(CLEAN, rest, start=b"\x00\x04MQTT" + bytes((level,))))

    assert refused(peer) == 0x84
    assert house.broker.sessions.by_id == {}


# What is no CONNECT


MALFORMED = {
    "reserved flag": connect_bytes(CLEAN | 1, NONE, C),
    "reserved flag with all others": connect_bytes(0xF7, NONE, C, NONE, W, X, X, X),
    "will qos 3": connect_bytes(CLEAN | WILL | WILL_QOS_1 | WILL_QOS_2, NONE, C, NONE, W, X),
    "will qos 1 without will": connect_bytes(CLEAN | WILL_QOS_1, NONE, C),
    "will qos 2 without will": connect_bytes(CLEAN | WILL_QOS_2, NONE, C),
    "will qos 3 without will": connect_bytes(CLEAN | WILL_QOS_1 | WILL_QOS_2, NONE, C),
    "will retain without will": connect_bytes(CLEAN | WILL_RETAIN, NONE, C),
    "will flags without will, but its fields": connect_bytes(CLEAN | WILL_QOS_1, NONE, C, NONE, W, X),
    "will without fields": connect_bytes(CLEAN | WILL, NONE, C),
    "will without topic": connect_bytes(CLEAN | WILL, NONE, C, NONE),
    "will without payload": connect_bytes(CLEAN | WILL, NONE, C, NONE, W),
    "will without properties": connect_bytes(CLEAN | WILL, NONE, C, W, X),
    "will payload cut": connect_bytes(CLEAN | WILL, NONE, C, NONE, W, b"\x00\x05gon"),
    "will fields without will": connect_bytes(CLEAN, NONE, C, NONE, W, X),
    "user name without flag": connect_bytes(CLEAN, NONE, C, X),
    "user name missing": connect_bytes(CLEAN | USERNAME, NONE, C),
    "user name cut": connect_bytes(CLEAN | USERNAME, NONE, C, b"\x00\x09ann"),
    "password without flag": connect_bytes(CLEAN | USERNAME, NONE, C, X, X),
    "password missing": connect_bytes(CLEAN | USERNAME | PASSWORD, NONE, C, X),
    "password cut": connect_bytes(CLEAN | PASSWORD, NONE, C, b"\x00\x05pw"),
    "half a length": connect_bytes(CLEAN | USERNAME, NONE, C, b"\x00"),
    "no client id": connect_bytes(CLEAN, NONE),
    "half a client id": connect_bytes(CLEAN, NONE, b"\x00\x05ab"),
    "no properties": connect_bytes(CLEAN),
    "the shape of 3.1.1": connect_bytes(CLEAN, C),
    "properties past the end": connect_bytes(CLEAN, b"\x7f", C),
    "properties that end within a value": connect_bytes(CLEAN, b"\x03\x11\x00\x00\x00\x09", C),
    "a byte behind all": connect_bytes(CLEAN, NONE, C, b"\x00"),
    "half a keep alive": bytes((0x10, 9)) + START + b"\x02\x00",
    "no flags": bytes((0x10, 7)) + START,
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_connect_is_malformed(data: bytes) -> None:
    """CONNACK with 0x81 and Session Present 0, the end, and nothing is left of it.

    [MQTT-3.1.4-1, MQTT-3.1.2-3, MQTT-3.1.2-9, MQTT-3.1.2-11, MQTT-3.1.2-12, MQTT-3.1.2-13, MQTT-3.1.2-16,
    MQTT-3.1.2-17, MQTT-3.1.2-18, MQTT-3.1.2-19, MQTT-3.1.3-1, MQTT-3.1.3-3]
    """
    house = House()
    heir = house.connect("heir").subscribe("#")

    peer = house.open(V5).send_bytes(data)

    assert refused(peer) == 0x81
    assert heir.messages == []
    assert list(house.broker.sessions.by_id) == ["heir"]


@pytest.mark.parametrize("length", range(9, 40))
def test_a_connect_that_is_cut_is_malformed(length: int) -> None:
    """Wherever it ends behind its version, with a length to match: 0x81 [MQTT-3.1.4-1, MQTT-3.1.3-1]."""
    properties = listed(b"\x21\x00\x09\x22\x00\x09")
    whole = connect_bytes(0xEE, properties, b"\x00\x01c", listed(b"\x18\x00\x00\x00\x09"), W, X, X, X)
    assert len(whole) == 40

    peer = House().open(V5).send_bytes(bytes((0x10, length - 2)) + whole[2:length])

    assert refused(peer) == 0x81


@pytest.mark.parametrize("identifier", [each for each in PROPERTIES if each not in OF_CONNECT])
def test_a_property_that_does_not_belong_in_a_connect(identifier: int) -> None:
    """It is malformed: 0x81 (section 2.2.2.2) [MQTT-3.1.4-1]."""
    peer = House().open(V5)

    peer.send_bytes(connect_bytes(CLEAN, listed(bytes((identifier,)) + PROPERTIES[identifier]), C))

    assert refused(peer) == 0x81


@pytest.mark.parametrize("identifier", [each for each in PROPERTIES if each not in OF_A_WILL])
def test_a_property_that_does_not_belong_in_a_will(identifier: int) -> None:
    """It is malformed: 0x81 (section 2.2.2.2) [MQTT-3.1.4-1]."""
    peer = House().open(V5)
    properties = listed(bytes((identifier,)) + PROPERTIES[identifier])

    peer.send_bytes(connect_bytes(CLEAN | WILL, NONE, C, properties, W, X))

    assert refused(peer) == 0x81


@pytest.mark.parametrize("identifier", [each for each in OF_CONNECT if each != 0x26])
def test_a_property_of_connect_twice(identifier: int) -> None:
    """Any but a User Property is a protocol error, 0x82, though both are equal (section 3.1.2.11)."""
    once = bytes((identifier,)) + PROPERTIES[identifier]
    method = b"\x15\x00\x01t" if identifier == 0x16 else b""

    peer = House().open(V5).send_bytes(connect_bytes(CLEAN, listed(method + once + once), C))

    assert refused(peer) == 0x82


@pytest.mark.parametrize("identifier", [each for each in OF_A_WILL if each != 0x26])
def test_a_property_of_a_will_twice(identifier: int) -> None:
    """Any but a User Property is a protocol error, 0x82 (section 3.1.3.2)."""
    once = bytes((identifier,)) + PROPERTIES[identifier]

    peer = House().open(V5).send_bytes(connect_bytes(CLEAN | WILL, NONE, C, listed(once + once), W, X))

    assert refused(peer) == 0x82


@pytest.mark.parametrize(
    "properties",
    [
        b"\x21\x00\x00",
        b"\x27\x00\x00\x00\x00",
        b"\x17\x02",
        b"\x19\xff",
        b"\x16\x00\x01t",
    ],
    ids=["receive maximum", "packet size", "problem information", "response information", "data without method"],
)
def test_a_value_that_its_property_forbids(properties: bytes) -> None:
    """0x82, for each that section 3.1.2.11 calls a protocol error."""
    peer = House().open(V5).send_bytes(connect_bytes(CLEAN, listed(properties), C))

    assert refused(peer) == 0x82


@pytest.mark.parametrize(
    ("properties", "topic", "code"),
    [
        (b"\x01\x02", b"w", 0x82),
        (b"\x08\x00\x03a/#", b"w", 0x82),
        (b"\x08\x00\x01+", b"w", 0x82),
        (b"", b"w/#", 0x90),
        (b"", b"+", 0x90),
        (b"", b"", 0x90),
    ],
)
def test_a_will_that_no_publish_could_be(properties: bytes, topic: bytes, code: int) -> None:
    """Its topic and properties are those of a PUBLISH: the CONNECT is refused (section 3.1.3.2) [MQTT-3.1.4-1]."""
    peer = House().open(V5)

    peer.send_bytes(connect_bytes(CLEAN | WILL, NONE, C, listed(properties), field(topic), X))

    assert refused(peer) == code


@pytest.mark.parametrize("identifier", OF_CONNECT)
def test_each_property_of_connect_is_taken_alone(identifier: int) -> None:
    """Nothing else has to be there, but a method for data; a method that nobody knows is 0x8C [MQTT-3.1.4-5]."""
    method = b"\x15\x00\x01t" if identifier == 0x16 else b""
    peer = House().open(V5)

    peer.send_bytes(connect_bytes(CLEAN, listed(method + bytes((identifier,)) + PROPERTIES[identifier]), C))

    assert int(peer.connack.reason) == (0x8C if identifier in (0x15, 0x16) else 0)


@pytest.mark.parametrize("length", range(2, 9))
def test_a_connect_that_is_cut_before_its_version(length: int) -> None:
    """Nobody knows what to answer in: the end without a word [MQTT-3.1.4-1]."""
    peer = House().open(V5).send_bytes((bytes((0x10, length - 2)) + START)[:length])

    assert peer.packets == []
    assert peer.closed


# The fields and their order


def test_the_fields_of_a_connect_are_read_in_order() -> None:
    """Client id, will properties, will topic, will payload, user name, password.

    [MQTT-3.1.3-1, MQTT-3.1.3-3, MQTT-3.1.2-9, MQTT-3.1.2-17, MQTT-3.1.2-19, MQTT-3.1.2-12]
    """
    guard = Guard()
    house = House(plugins={"guard": guard})
    heir = house.connect("heir", V5).subscribe("t/will", qos=2)
    fields = (
        b"\x00\x02id",
        listed(b"\x03\x00\x01t"),
        field(b"t/will"),
        field(b"\x00\xff"),
        field(b"ann"),
        field(b"p\xff"),
    )
    client = house.open(V5)

    client.send_bytes(connect_bytes(CLEAN | WILL | WILL_QOS_2 | USERNAME | PASSWORD, NONE, *fields)).drop()

    seen = guard.requests[-1]
    assert (seen.client_id, seen.username, seen.password) == ("id", "ann", b"p\xff")
    assert heir.messages == [("t/will", b"\x00\xff", 2)]
    assert heir.of(Publish)[0].properties == Properties(content_type="t")


@pytest.mark.parametrize("flags", [0, USERNAME, PASSWORD, USERNAME | PASSWORD])
def test_user_name_and_password_are_there_by_their_flags(flags: int) -> None:
    """Each may be there alone, and may be empty.

    [MQTT-3.1.2-16, MQTT-3.1.2-17, MQTT-3.1.2-18, MQTT-3.1.2-19]
    """
    guard = Guard()
    fields = [b"\x00\x00"] * ((flags & USERNAME > 0) + (flags & PASSWORD > 0))

    client = House(plugins={"guard": guard}).open(V5).send_bytes(connect_bytes(CLEAN | flags, NONE, C, *fields))

    [seen] = guard.requests
    assert client.connack.reason is ReasonCode.SUCCESS
    assert seen.username == ("" if flags & USERNAME else None)
    assert seen.password == (b"" if flags & PASSWORD else None)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_has_the_qos_and_retain_of_its_flags(qos: int, retain: bool) -> None:
    """Published as it was left, and kept where it asked for that.

    [MQTT-3.1.2-7, MQTT-3.1.2-8, MQTT-3.1.2-12, MQTT-3.1.2-14, MQTT-3.1.2-15, MQTT-3.2.2-12, MQTT-3.2.2-13]
    """
    house = House()
    heir = house.connect("heir", V5).subscribe("w", qos=2)
    client = house.open(V5)

    client.send_bytes(connect_bytes(CLEAN | WILL | qos << 3 | retain << 5, NONE, C, NONE, W, X))
    before = heir.messages
    client.drop()

    assert client.connack.reason is ReasonCode.SUCCESS
    assert before == []
    assert heir.messages == [("w", b"x", qos)]
    assert house.connect("late", V5).subscribe("w", qos=2).messages == ([("w", b"x", qos)] if retain else [])


def test_user_properties_of_a_will_keep_their_order() -> None:
    """Equal names too, over a delay [MQTT-3.1.3-10]."""
    house = House()
    heir = house.connect("heir", V5).subscribe("w")
    pairs = (("b", "1"), ("a", "2"), ("b", "0"), ("", ""), ("b", "1"))
    will = ConnectWill("w", b"x", properties=Properties(user_property=pairs, will_delay_interval=3))

    house.connect("c", V5, will=will, expiry_s=60).drop()
    house.advance(4)

    assert [p.properties for p in heir.of(Publish)] == [Properties(user_property=pairs)]


@pytest.mark.parametrize(("flags", "code"), [(WILL_QOS_2, 0x9B), (WILL_RETAIN, 0x9A), (WILL_QOS_1, 0)])
def test_a_will_beyond_what_the_broker_offers(flags: int, code: int) -> None:
    """A plugin that offers less has wills refused, with 0x9B or 0x9A [MQTT-3.2.2-12, MQTT-3.2.2-13]."""
    house = House(plugins={"narrow": Narrow()})
    heir = house.connect("heir").subscribe("w")
    peer = house.open(V5).send_bytes(connect_bytes(CLEAN | WILL | flags, NONE, C, NONE, W, X))

    assert int(peer.connack.reason) == code
    assert peer.closed is bool(code)
    assert heir.messages == []


# Client identifiers


ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_plain_client_ids_are_taken() -> None:
    """Every length from 1 to 23 and every letter and digit, as they are, though the limit is low [MQTT-3.1.3-5]."""
    house = House(max_client_id_bytes=23)
    ids = [ALPHABET[start : start + length] for length in range(1, 24) for start in (0, 20, 39)]

    peers = [house.connect(each, V5) for each in ids]

    assert {peer.connack.reason for peer in peers} == {ReasonCode.SUCCESS}
    assert {peer.connack.properties.assigned_client_identifier for peer in peers} == {None}
    assert set(house.broker.sessions.by_id) == set(ids)


def test_client_ids_are_told_apart_by_every_character() -> None:
    """Case, composition, spaces and U+FEFF make another client: nobody is taken over [MQTT-3.1.3-2]."""
    house = House()
    ids = ["a", "A", "\u00e9", "e\u0301", "\ufeffa", "a\ufeff", " a", "a ", "a/#", "$a"]

    peers = [house.connect(each, V5) for each in ids]

    assert [peer.closed for peer in peers] == [False] * len(ids)
    assert set(house.broker.sessions.by_id) == set(ids)


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_client_without_an_id_gets_one(clean_start: bool) -> None:
    """It is told in CONNACK, differs from all there are, and is the client's from then on.

    [MQTT-3.1.3-6, MQTT-3.1.3-7, MQTT-3.2.2-16]
    """
    house = House()
    peers = [house.connect("", V5, clean_start=clean_start, expiry_s=60).subscribe("a", qos=1) for _ in range(5)]
    ids = [peer.connack.properties.assigned_client_identifier for peer in peers]
    first = ids[0]
    assert first is not None

    peers[0].drop()
    house.connect("p").publish("a", b"x", qos=1)
    again = house.connect(first, V5, clean_start=False, expiry_s=60)

    assert len(set(ids)) == 5
    assert all(ids)
    assert {peer.connack.session_present for peer in peers} == {False}
    assert again.connack.session_present
    assert again.connack.properties.assigned_client_identifier is None
    assert payloads(again) == [b"x"]
    assert not any(peer.closed for peer in peers[1:])


def test_a_client_id_that_is_too_long_is_not_valid() -> None:
    """One byte more than the broker takes is 0x85, and the end; bytes count, not characters [MQTT-3.1.3-8]."""
    house = House(max_client_id_bytes=23)

    longest = house.open(V5).send_bytes(connect_bytes(CLEAN, NONE, field(b"a" * 23)))
    too_long = house.open(V5).send_bytes(connect_bytes(CLEAN, NONE, field(b"a" * 24)))
    accented = house.open(V5).send_bytes(connect_bytes(CLEAN, NONE, field("\u00e9".encode() * 12)))

    assert not longest.closed
    assert refused(too_long) == refused(accented) == 0x85
    assert list(house.broker.sessions.by_id) == ["a" * 23]


# The first packet, and a second


FIRST = {
    "PUBLISH": b"\x30\x05\x00\x01a\x00x",
    "SUBSCRIBE": b"\x82\x07\x00\x01\x00\x00\x01a\x00",
    "PINGREQ": b"\xc0\x00",
    "DISCONNECT": b"\xe0\x00",
    "AUTH": b"\xf0\x06\x18\x04\x15\x00\x01t",
    "CONNACK": b"\x20\x03\x00\x00\x00",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_connect_comes_first(first: bytes) -> None:
    """Another packet ahead of CONNECT ends the connection, the CONNECT behind it unanswered [MQTT-3.1.0-1]."""
    house = House()
    sub = house.connect("s").subscribe("a")

    peer = house.open(V5).send_bytes(first + connect_bytes(CLEAN, NONE, C))

    assert peer.packets == []
    assert peer.closed
    assert sub.messages == []
    assert "c" not in house.broker.sessions.by_id


@pytest.mark.parametrize("client_id", [C, b"\x00\x05other"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_second_connect_is_a_protocol_error(client_id: bytes, ahead: bool) -> None:
    """DISCONNECT with 0x82 and the end; no second CONNACK, no second session, nothing behind it is done.

    [MQTT-3.1.0-2, MQTT-3.2.0-2]
    """
    house = House()
    sub = house.connect("s").subscribe("a")
    first, second = connect_bytes(CLEAN, NONE, C), connect_bytes(CLEAN, NONE, client_id) + FIRST["PUBLISH"]
    peer = house.open(V5)

    for data in [first + second] if ahead else [first, second]:
        peer.send_bytes(data)

    assert [type(packet) for packet in peer.packets] == [Connack, DisconnectPacket]
    assert [int(p.reason) for p in peer.of(DisconnectPacket)] == [0x82]
    assert peer.closed
    assert sub.messages == []
    assert list(house.broker.sessions.by_id) == ["s"]


# Refusals


@pytest.mark.parametrize("method", ["", "plain", "SCRAM-SHA-1"])
def test_a_method_that_nobody_knows_is_refused(method: str) -> None:
    """0x8C and the end, whatever an authenticator without methods would say (section 4.12) [MQTT-3.1.4-2]."""
    house = House(plugins={"guard": Guard()})

    peer = house.connect("c", V5, properties=Properties(authentication_method=method))

    assert refused(peer) == 0x8C
    assert house.broker.sessions.by_id == {}


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_refused_client_changes_nothing(clean_start: bool) -> None:
    """Who holds the client id stays, with its session and its will [MQTT-3.1.4-2, MQTT-3.1.4-3, MQTT-3.1.4-4]."""
    guard = Guard()
    house = House(plugins={"guard": guard})
    heir = house.connect("heir").subscribe("w")
    here = house.connect("c", V5, expiry_s=60, will=ConnectWill("w", b"old")).subscribe("a", qos=1)
    pub = house.connect("p")
    guard.answer = deny(ReasonCode.NOT_AUTHORIZED)

    peer = house.connect("c", V5, clean_start=clean_start, will=ConnectWill("w", b"new"))
    pub.publish("a", b"x", qos=1)

    assert refused(peer) == 0x87
    assert not here.closed
    assert payloads(here) == [b"x"]
    assert heir.messages == []
    here.drop()
    assert payloads(heir) == [b"old"]


@pytest.mark.parametrize("apart", [True, False])
def test_nothing_behind_a_refused_connect_is_carried_out(apart: bool) -> None:
    """Neither what came in the same read nor what comes later is answered or routed [MQTT-3.1.4-6]."""
    guard = Guard()
    house = House(plugins={"guard": guard})
    sub = house.connect("s").subscribe("a")
    guard.answer = deny(ReasonCode.BANNED)
    behind = encode(Publish.build("a", b"x", 1, True, packet_id=1), V5) + FIRST["SUBSCRIBE"] + FIRST["PINGREQ"]
    peer = house.open(V5)

    for data in [connect_bytes(CLEAN, NONE, C), behind] if apart else [connect_bytes(CLEAN, NONE, C) + behind]:
        peer.send_bytes(data)
    guard.answer = ALLOW

    assert refused(peer) == 0x8A
    assert sub.messages == []
    assert house.connect("late").subscribe("a").messages == []


def test_a_client_need_not_wait_for_its_connack() -> None:
    """What it sends at once is carried out behind it [MQTT-3.1.4-5, MQTT-3.2.0-1]."""
    house = House()
    sub = house.connect("s").subscribe("a")

    peer = house.open(V5).send_bytes(connect_bytes(CLEAN, NONE, C) + FIRST["PUBLISH"] + FIRST["PINGREQ"])

    assert [type(packet) for packet in peer.packets] == [Connack, Pingresp]
    assert payloads(sub) == [b"x"]


# Taking over


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_takeover_and_clean_start(clean_start: bool) -> None:
    """The one before gets 0x8E and the end; its session goes on or not, as the new one asks.

    [MQTT-3.1.4-3, MQTT-3.1.4-4, MQTT-3.1.4-5, MQTT-3.1.2-4, MQTT-3.1.2-5, MQTT-3.2.2-2, MQTT-3.2.2-3]
    """
    house = House()
    before = house.connect("c", V5, expiry_s=60).subscribe("a", qos=1)

    after = house.connect("c", V5, clean_start=clean_start, expiry_s=60)
    house.connect("p").publish("a", b"x", qos=1)

    assert [int(p.reason) for p in before.of(DisconnectPacket)] == [0x8E]
    assert before.closed
    assert isinstance(before.packets[-1], DisconnectPacket)
    assert after.connack.reason is ReasonCode.SUCCESS
    assert after.connack.session_present is not clean_start
    assert payloads(after) == ([] if clean_start else [b"x"])


def test_a_session_that_is_not_there_is_made() -> None:
    """Clean Start 0 for a client id that is new: Session Present 0, and a session all the same.

    [MQTT-3.1.2-6, MQTT-3.2.2-3, MQTT-3.1.2-23]
    """
    house = House()
    first = house.connect("c", V5, clean_start=False, expiry_s=60).subscribe("a", qos=1).drop()
    house.connect("p").publish("a", b"x", qos=1)

    again = house.connect("c", V5, clean_start=False, expiry_s=60)

    assert (first.connack.session_present, again.connack.session_present) == (False, True)
    assert payloads(again) == [b"x"]


@pytest.mark.parametrize("interval", [b"", b"\x11\x00\x00\x00\x00"])
def test_without_an_expiry_interval_the_session_ends_with_its_connection(interval: bytes) -> None:
    """Absent is 0, and Clean Start 0 does not change that [MQTT-3.1.2-23]."""
    house = House()

    house.open(V5).send_bytes(connect_bytes(0, listed(interval), C)).subscribe("a", qos=1).drop()

    assert "c" not in house.broker.sessions.by_id
    again = house.open(V5).send_bytes(connect_bytes(0, listed(interval), C))
    assert again.connack.session_present is False


# What the client asks for


def limited(size: int, **more: Any) -> Properties:
    """A client that takes packets up to that size."""
    return Properties(maximum_packet_size=size, **more)


def sizes(peer: Peer) -> list[int]:
    """How large each packet was that the client got."""
    return [len(encode(packet, V5)) for packet in peer.packets]


@pytest.mark.parametrize("size", [20, 21, 22, 40])
def test_no_packet_is_larger_than_the_client_takes(size: int) -> None:
    """Neither PUBLISH, SUBACK nor DISCONNECT, and what is too large is over [MQTT-3.1.2-24, MQTT-3.1.2-25]."""
    house = House(max_inflight=1)
    sub = house.connect("s", V5, properties=limited(size)).subscribe("a", qos=2)
    pub = house.connect("p")
    for length in (1, 11, 12, 13, 14, 15, 16, 40, 2):
        for qos in (0, 1, 2):
            pub.publish("a", b"x" * length, qos=qos)
    filters = b"".join(b"\x00\x01" + bytes((letter,)) + b"\x00" for letter in range(ord("a"), ord("z")))
    sub.send_bytes(bytes((0x82, 3 + len(filters))) + b"\x00\x09\x00" + filters)
    sub.send_bytes(b"\x00\x00")

    assert max(sizes(sub)) <= size
    fits = [
        (n, qos) for n in (1, 2, 11, 12, 13, 14, 15, 16, 40) for qos in (0, 1, 2) if n + (8 if qos else 6) <= size
    ]
    assert sorted((len(payload), qos) for _, payload, qos in sub.messages) == fits
    assert isinstance(sub.packets[-1], DisconnectPacket)
    assert sub.closed


def test_a_message_that_fits_exactly_is_sent() -> None:
    """The limit counts the whole packet, fixed header and all, and one byte more is too much [MQTT-3.1.2-24]."""
    house = House()
    sub = house.connect("s", V5, properties=limited(100)).subscribe("a", qos=1)
    pub = house.connect("p")

    for length in (94, 95):
        pub.publish("a", b"x" * length, qos=0)
    for length in (92, 93):
        pub.publish("a", b"x" * length, qos=1)

    assert [len(payload) for payload in payloads(sub)] == [94, 92]
    assert sizes(sub)[-2:] == [100, 100]
    assert len(house.broker.sessions.by_id["s"].outgoing) == 0


def test_response_information_is_not_for_who_did_not_ask() -> None:
    """With a 0, or without the property, no plugin can have it sent either [MQTT-3.1.2-28]."""

    class Greeter:
        @hookimpl
        def connack_sending(self, client: Client, properties: Properties) -> Properties:
            return properties.replace(response_information="reply/")

    settings = BrokerSettings(sys_interval_s=0, response_information="reply/${clientid}/")
    told = []
    for house in (House(settings=settings), House(plugins={"greeter": Greeter()})):
        for properties in (Properties(), Properties(request_response_information=0)):
            told.append(house.connect("c", V5, properties=properties).connack.properties.response_information)

    assert told == [None] * 4


@pytest.mark.parametrize("wants", [0, 1, None])
def test_problem_information_is_left_out_where_it_is_not_wanted(wants: int | None) -> None:
    """In PUBACK and PUBREC; DISCONNECT and CONNACK may have it all the same [MQTT-3.1.2-29]."""

    class Refuser:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Decision:
            return deny(text="not on a Sunday")

    house = House(plugins={"refuser": Refuser()})
    properties = Properties() if wants is None else Properties(request_problem_information=wants)
    client = house.connect("c", V5, properties=properties).subscribe("a")
    client.publish("a", b"x", qos=1).publish("a", b"x", qos=2).unsubscribe("a")

    acknowledgements = [p for p in client.packets if not isinstance(p, Connack)]
    reasons = [p.properties.reason_string for p in acknowledgements]  # type: ignore[union-attr]
    assert len(acknowledgements) == 4
    assert isinstance(acknowledgements[2], Pubrec)
    assert reasons[1:3] == ([None, None] if wants == 0 else ["not on a Sunday"] * 2)
    assert {p.properties.user_property for p in acknowledgements} == {()}  # type: ignore[union-attr]
    assert wants != 0 or set(reasons) == {None}
