"""MQTT 3.1 and 3.1.1, from CONNECT to the end of a connection: bytes, return codes, sessions, wills."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V31, V311, Connack, Connect, ConnectWill, Pingresp, Puback, Publish, Pubrel
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import ALLOW, deny

OLD = [V31, V311]

NAMES = {V31: b"\x00\x06MQIsdp\x03", V311: b"\x00\x04MQTT\x04"}

ACCEPTED = b"\x20\x02\x00\x00"
RESUMED = b"\x20\x02\x01\x00"

CLEAN = 0x02
WILL = 0x04
WILL_QOS_1 = 0x08
WILL_QOS_2 = 0x10
WILL_RETAIN = 0x20
PASSWORD = 0x40
USERNAME = 0x80


def field(data: bytes) -> bytes:
    """A field with its length in front."""
    return len(data).to_bytes(2, "big") + data


def connect_bytes(version: int, flags: int, *fields: bytes, keep_alive: int = 0, rest: bytes = b"") -> bytes:
    """A CONNECT with these flags and payload fields, whether they belong together or not."""
    body = NAMES[version] + bytes((flags,)) + keep_alive.to_bytes(2, "big") + b"".join(map(field, fields)) + rest
    assert len(body) < 128
    return bytes((0x10, len(body))) + body


def opened(house: House, version: int) -> tuple[Peer, bytearray]:
    """A network connection, and every byte that the broker writes on it."""
    peer = house.open(version)
    heard = bytearray()
    write = peer.link.write

    def tap(data: bytes) -> None:
        heard.extend(data)
        write(data)

    peer.link.write = tap  # type: ignore[method-assign]
    return peer, heard


def answer(data: bytes, version: int, house: House | None = None) -> tuple[bytes, bool]:
    """What the broker says to the first bytes of a connection, and whether it closes."""
    peer, heard = opened(house or House(), version)
    peer.send_bytes(data)
    return bytes(heard), peer.closed


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


class Guard:
    """Lets nobody in whose client id is ``no``, with that reason."""

    def __init__(self, reason: ReasonCode) -> None:
        self.reason = reason

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return deny(self.reason) if request.client_id == "no" else ALLOW


# The bytes of an answer


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("flags", [CLEAN, 0])
def test_accepted_in_four_bytes(version: int, flags: int) -> None:
    """A sound CONNECT is answered with return code 0 and nothing of later versions [MQTT-3.1.4-4, MQTT-3.2.2-3]."""
    assert answer(connect_bytes(version, flags, b"c"), version) == (ACCEPTED, False)


@pytest.mark.parametrize(("version", "told"), [(V31, ACCEPTED), (V311, RESUMED)])
def test_session_present_is_a_bit_of_3_1_1(version: int, told: bytes) -> None:
    """A session that is there sets the lowest bit, which MQTT 3.1 does not have [MQTT-3.2.2-2]."""
    house = House()
    house.connect("c", version, clean_start=False).drop()

    assert answer(connect_bytes(version, 0, b"c"), version, house) == (told, False)


@pytest.mark.parametrize("version", OLD)
def test_a_clean_session_is_never_present(version: int) -> None:
    """With CleanSession the bit is 0, whatever there was [MQTT-3.2.2-1]."""
    house = House()
    house.connect("c", version, clean_start=False).drop()

    assert answer(connect_bytes(version, CLEAN, b"c"), version, house) == (ACCEPTED, False)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (ReasonCode.SERVER_UNAVAILABLE, 3),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode.NOT_AUTHORIZED, 5),
    ],
)
def test_refused_in_four_bytes(version: int, reason: ReasonCode, code: int) -> None:
    """A refusal has its return code, no session, and the end behind it [MQTT-3.2.2-4, MQTT-3.2.2-5, MQTT-3.1.3-9]."""
    house = House(plugins={"guard": Guard(reason)})

    assert answer(connect_bytes(version, 0, b"no"), version, house) == (bytes((0x20, 2, 0, code)), True)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("reason", [ReasonCode.MALFORMED_PACKET, ReasonCode.TOPIC_NAME_INVALID])
def test_what_no_return_code_says_is_not_said(version: int, reason: ReasonCode) -> None:
    """Where none of the return codes applies the connection is closed without a CONNACK [MQTT-3.2.2-6]."""
    house = House(plugins={"guard": Guard(reason)})

    assert answer(connect_bytes(version, 0, b"no"), version, house) == (b"", True)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("flags", [CLEAN, 0])
def test_a_refused_client_keeps_its_session(version: int, flags: int) -> None:
    """A CONNECT that is refused neither resumes nor discards a session, nor takes it over [MQTT-3.1.4-3]."""

    class Late:
        refuses = False

        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Decision:
            return deny(ReasonCode.NOT_AUTHORIZED) if self.refuses else ALLOW

    guard = Late()
    house = House(plugins={"guard": guard})
    here = house.connect("c", version, clean_start=False).subscribe("a", qos=1)
    pub = house.connect("p")
    guard.refuses = True

    refused = answer(connect_bytes(version, flags, b"c"), version, house)
    pub.publish("a", b"x", qos=1)

    assert refused == (b"\x20\x02\x00\x05", True)
    assert not here.closed
    assert payloads(here) == [b"x"]


@pytest.mark.parametrize("version", OLD)
def test_nothing_behind_a_refused_connect_is_carried_out(version: int) -> None:
    """Packets that came with a CONNECT that is refused are neither answered nor routed [MQTT-3.1.4-5]."""
    house = House(plugins={"guard": Guard(ReasonCode.NOT_AUTHORIZED)})
    sub = house.connect("s").subscribe("a")
    behind = encode(Publish.build("a", b"x", 1, True, packet_id=1), version) + b"\xc0\x00"

    told = answer(connect_bytes(version, CLEAN, b"no") + behind, version, house)
    late = house.connect("late").subscribe("a")

    assert told == (b"\x20\x02\x00\x05", True)
    assert (sub.messages, late.messages) == ([], [])


# What is no CONNECT of these versions


def bad_connects() -> list[Any]:
    """CONNECT packets against section 3.1, for each version that they are against."""
    both: dict[str, tuple[int, list[bytes], bytes]] = {
        "will qos 3": (CLEAN | WILL | WILL_QOS_1 | WILL_QOS_2, [b"c", b"w", b""], b""),
        "will without fields": (CLEAN | WILL, [b"c"], b""),
        "will without message": (CLEAN | WILL, [b"c", b"w"], b""),
        "will message cut": (CLEAN | WILL, [b"c", b"w"], b"\x00\x05gon"),
        "password without user name": (CLEAN | PASSWORD, [b"c", b"pw"], b""),
        "no client id": (CLEAN, [], b""),
        "half a client id": (CLEAN, [], b"\x00\x05ab"),
        "half a length": (CLEAN | USERNAME, [b"c"], b"\x00"),
        "user name cut": (CLEAN | USERNAME, [b"c"], b"\x00\x09ann"),
    }
    new = {
        "reserved flag": (CLEAN | 1, [b"c"], b""),
        "reserved flag and nothing else": (1, [b"c"], b""),
        "will qos 1 without will": (CLEAN | WILL_QOS_1, [b"c"], b""),
        "will qos 2 without will": (CLEAN | WILL_QOS_2, [b"c"], b""),
        "will qos 3 without will": (CLEAN | WILL_QOS_1 | WILL_QOS_2, [b"c"], b""),
        "will retain without will": (CLEAN | WILL_RETAIN, [b"c"], b""),
        "will fields without will": (CLEAN, [b"c", b"w", b"gone"], b""),
        "user name without flag": (CLEAN, [b"c", b"ann"], b""),
        "password without flag": (CLEAN | USERNAME, [b"c", b"ann", b"pw"], b""),
        "user name missing": (CLEAN | USERNAME, [b"c"], b""),
        "password missing": (CLEAN | USERNAME | PASSWORD, [b"c", b"ann"], b""),
        "will takes the user name's place": (CLEAN | WILL | USERNAME, [b"c", b"w", b"ann"], b""),
        "a byte behind all": (CLEAN | USERNAME | PASSWORD, [b"c", b"ann", b"pw"], b"\x00"),
    }
    return [
        pytest.param(version, connect_bytes(version, flags, *fields, rest=rest), id=f"{name}-v{version}")
        for version, cases in ((V31, both), (V311, both | new))
        for name, (flags, fields, rest) in cases.items()
    ]


@pytest.mark.parametrize(("version", "data"), bad_connects())
def test_a_connect_against_the_rules_is_not_answered(version: int, data: bytes) -> None:
    """What is no CONNECT closes the connection without a CONNACK, and leaves nothing [MQTT-3.1.4-1, MQTT-3.1.2-3]."""
    house = House()
    heir = house.connect("heir").subscribe("#")

    assert answer(data, version, house) == (b"", True)
    assert heir.messages == []
    assert list(house.broker.sessions.by_id) == ["heir"]


@pytest.mark.parametrize("flags", [1, CLEAN | 1])
def test_in_3_1_the_reserved_flag_is_not_looked_at(flags: int) -> None:
    """Bit 0 of the Connect Flags is "not used" in MQTT 3.1, which forbids nothing (its section 3.1)."""
    assert answer(connect_bytes(V31, flags, b"c"), V31) == (ACCEPTED, False)


@pytest.mark.parametrize("flags", range(1, 16))
def test_a_connect_has_no_header_flags(flags: int) -> None:
    """Any flag in the fixed header is against section 3.1.1: no CONNACK [MQTT-2.2.2-1, MQTT-2.2.2-2]."""
    data = connect_bytes(V311, CLEAN, b"c")

    assert answer(bytes((data[0] | flags,)) + data[1:], V311) == (b"", True)


@pytest.mark.parametrize("flags", [WILL_QOS_1, WILL_QOS_2, WILL_QOS_1 | WILL_QOS_2, WILL_RETAIN])
def test_in_3_1_the_flags_of_a_will_count_with_a_will_only(flags: int) -> None:
    """MQTT 3.1 has Will QoS and Will Retain disregarded where there is no will (its section 3.1)."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer, heard = opened(house, V31)

    peer.send_bytes(connect_bytes(V31, CLEAN | flags, b"c"))
    peer.drop()

    assert heard == ACCEPTED
    assert heir.messages == []


def test_in_3_1_the_length_overrules_the_flags() -> None:
    """MQTT 3.1 lets user name and password be missing though their flags are set (its section 3.1)."""
    assert answer(connect_bytes(V31, CLEAN | USERNAME, b"c"), V31) == (ACCEPTED, False)
    assert answer(connect_bytes(V31, CLEAN | USERNAME | PASSWORD, b"c", b"ann"), V31) == (ACCEPTED, False)


@pytest.mark.parametrize(
    "start",
    [
        b"\x00\x04MQTT\x00",
        b"\x00\x04MQTT\x01",
        b"\x00\x04MQTT\x02",
        b"\x00\x04MQTT\x03",
        b"\x00\x06MQIsdp\x00",
        b"\x00\x06MQIsdp\x02",
        b"\x00\x06MQIsdp\x04",
    ],
)
def test_an_unsupported_level_is_told_and_closed(start: bytes) -> None:
    """A level that is not served gets return code 1, then the end, and no session [MQTT-3.1.2-2]."""
    house = House()
    body = start + b"\x02\x00\x00\x00\x01c"

    assert answer(bytes((0x10, len(body))) + body, V311, house) == (b"\x20\x02\x00\x01", True)
    assert house.broker.sessions.by_id == {}


@pytest.mark.parametrize("name", [b"MQTT\x00", b"mqtt", b"MQIsdP", b"MQT", b"", b"MQTTX", "ＭＱＴＴ".encode()])
@pytest.mark.parametrize("level", [3, 4, 5, 6])
def test_another_protocols_name_is_not_served(name: bytes, level: int) -> None:
    """Whatever it says of its level: closed without a word of MQTT, and no session [MQTT-3.1.2-1]."""
    house = House()
    body = field(name) + bytes((level,)) + b"\x02\x00\x00\x00\x01c"

    told = answer(bytes((0x10, len(body))) + body, V311, house)

    assert told == (b"", True)
    assert house.broker.sessions.by_id == {}


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "first",
    [b"\x30\x04\x00\x01ax", b"\x82\x06\x00\x01\x00\x01a\x00", b"\xc0\x00", b"\xe0\x00", b"\x20\x02\x00\x00"],
    ids=["PUBLISH", "SUBSCRIBE", "PINGREQ", "DISCONNECT", "CONNACK"],
)
def test_connect_comes_first(version: int, first: bytes) -> None:
    """Another packet ahead of CONNECT ends the connection, the CONNECT behind it unanswered [MQTT-3.1.0-1]."""
    house = House()
    sub = house.connect("s").subscribe("a")

    assert answer(first + connect_bytes(version, CLEAN, b"c"), version, house) == (b"", True)
    assert sub.messages == []


@pytest.mark.parametrize("version", OLD)
def test_connack_comes_first(version: int) -> None:
    """What a resumed session holds and what the client asks for at once come behind CONNACK [MQTT-3.2.0-1]."""
    house = House()
    house.connect("c", version, clean_start=False).subscribe("a", qos=1).drop()
    house.connect("p").publish("a", b"waits", qos=1)
    peer, heard = opened(house, version)

    peer.send_bytes(connect_bytes(version, 0, b"c") + b"\xc0\x00")

    assert isinstance(peer.packets[0], Connack)
    assert heard[:2] == b"\x20\x02"
    assert {type(packet) for packet in peer.packets[1:]} == {Publish, Pingresp}


# Client identifiers


ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize("version", OLD)
def test_plain_client_ids_are_taken(version: int) -> None:
    """Every length from 1 to 23 and every letter and digit is allowed [MQTT-3.1.3-5]."""
    house = House()
    ids = [ALPHABET[start : start + length] for length in range(1, 24) for start in (0, 20, 39)]

    told = [answer(connect_bytes(version, CLEAN, each.encode()), version, house) for each in ids]

    assert told == [(ACCEPTED, False)] * len(ids)
    assert set(house.broker.sessions.by_id) == set(ids)


@pytest.mark.parametrize("version", OLD)
def test_client_ids_are_told_apart_by_every_character(version: int) -> None:
    """Case, composition and U+FEFF make another client: nobody is taken over [MQTT-3.1.3-2, MQTT-1.5.3-3]."""
    house = House()
    ids = ["a", "A", "\u00e9", "e\u0301", "\ufeffa", "a\ufeff", " a", "a/#"]

    peers = [house.connect(each, version) for each in ids]

    assert [peer.closed for peer in peers] == [False] * len(ids)
    assert set(house.broker.sessions.by_id) == set(ids)


def test_a_client_without_an_id_gets_one() -> None:
    """Two clients without a client id are two sessions, each of its own connection [MQTT-3.1.3-6]."""
    house = House()
    first, second = house.open(V311), house.open(V311)

    for peer in (first, second):
        peer.send_bytes(connect_bytes(V311, CLEAN, b"")).subscribe("a")
    house.connect("p").publish("a", b"x")
    ids = set(house.broker.sessions.by_id) - {"p"}
    first.drop()

    assert (payloads(first), payloads(second)) == ([b"x"], [b"x"])
    assert len(ids) == 2
    assert all(ids)
    assert not second.closed
    assert len(house.broker.sessions.by_id) == 2


@pytest.mark.parametrize(("version", "flags"), [(V311, 0), (V311, WILL), (V31, CLEAN), (V31, 0)])
def test_no_client_id_where_one_is_needed(version: int, flags: int) -> None:
    """Without CleanSession, and in MQTT 3.1 always, it is return code 2 and the end [MQTT-3.1.3-7, MQTT-3.1.3-8]."""
    house = House()
    fields = [b"", b"w", b"gone"] if flags & WILL else [b""]

    assert answer(connect_bytes(version, flags, *fields), version, house) == (b"\x20\x02\x00\x02", True)
    assert house.broker.sessions.by_id == {}


@pytest.mark.parametrize("version", OLD)
def test_a_client_id_that_is_too_long(version: int) -> None:
    """A broker that limits client ids refuses a longer one with return code 2 [MQTT-3.1.3-9]."""
    house = House(max_client_id_bytes=23)

    assert answer(connect_bytes(version, CLEAN, b"a" * 23), version, house) == (ACCEPTED, False)
    assert answer(connect_bytes(version, CLEAN, b"a" * 24), version, house) == (b"\x20\x02\x00\x02", True)


# The order of the fields


@pytest.mark.parametrize("version", OLD)
def test_the_fields_of_a_connect_are_read_in_order(version: int) -> None:
    """Client id, will topic, will message, user name, password [MQTT-3.1.3-1, MQTT-3.1.3-3, MQTT-3.1.2-9]."""
    seen: list[tuple[str, str | None, bytes | None]] = []

    class Witness:
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Decision:
            seen.append((request.client_id, request.username, request.password))
            return ALLOW

    house = House(plugins={"witness": Witness()})
    heir = house.connect("heir").subscribe("t/will", qos=2)
    flags = CLEAN | WILL | WILL_QOS_2 | USERNAME | PASSWORD
    client = house.open(version)

    client.send_bytes(connect_bytes(version, flags, b"id", b"t/will", b"\x00\xff", b"ann", b"p\x00\xff")).drop()

    assert seen[-1] == ("id", "ann", b"p\x00\xff")
    assert heir.messages == [("t/will", b"\x00\xff", 2)]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("flags", [0, USERNAME, USERNAME | PASSWORD])
def test_user_name_and_password_may_be_empty(version: int, flags: int) -> None:
    """What has its flag is there though it is empty, and else is not [MQTT-3.1.2-18 to MQTT-3.1.2-21]."""
    seen: list[tuple[str | None, bytes | None]] = []

    class Witness:
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Decision:
            seen.append((request.username, request.password))
            return ALLOW

    house = House(plugins={"witness": Witness()})
    fields = [b"c"] + [b""] * flags.bit_count()

    told = answer(connect_bytes(version, CLEAN | flags, *fields), version, house)

    assert told == (ACCEPTED, False)
    assert seen == [("" if flags & USERNAME else None, b"" if flags & PASSWORD else None)]


# Sessions


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("end", ["disconnect", "drop", "taken over"])
def test_a_clean_session_lasts_as_long_as_its_connection(version: int, end: str) -> None:
    """Nothing of it is in a later session, though that does not ask for a clean one [MQTT-3.1.2-6, MQTT-3.2.2-3]."""
    house = House()
    first = house.connect("c", version, silent=True).subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"in flight", qos=2)
    first.publish("b", b"1", qos=2, packet_id=7)
    if end == "disconnect":
        first.disconnect()
    elif end == "drop":
        first.drop()
    sub = house.connect("s").subscribe("b", qos=2)

    again = house.connect("c", version, clean_start=False)
    pub.publish("a", b"later", qos=1)
    again.publish("b", b"2", qos=2, packet_id=7)

    assert first.closed
    assert not again.connack.session_present
    assert again.messages == []
    assert payloads(sub) == [b"2"]


@pytest.mark.parametrize("version", OLD)
def test_a_clean_session_discards_one_that_is_connected(version: int) -> None:
    """The kept session ends with the takeover, and the clean one with its connection [MQTT-3.1.2-6, MQTT-3.1.4-2]."""
    house = House()
    kept = house.connect("c", version, clean_start=False).subscribe("a", qos=1)

    clean = house.connect("c", version)
    house.connect("p").publish("a", b"x", qos=1)
    clean.disconnect()
    last = house.connect("c", version, clean_start=False)

    assert (kept.closed, kept.messages, clean.messages) == (True, [], [])
    assert (clean.connack.session_present, last.connack.session_present) == (False, False)
    assert last.messages == []


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("end", ["disconnect", "drop"])
def test_a_session_is_kept_however_its_connection_ended(version: int, end: str) -> None:
    """QoS 1 and 2 of the time away come, in order, QoS 0 may; subscriptions stand [MQTT-3.1.2-4, MQTT-3.1.2-5]."""
    house = House()
    client = house.connect("c", version, clean_start=False).subscribe("a", qos=2).subscribe("low", qos=0)
    client.disconnect() if end == "disconnect" else client.drop()
    pub = house.connect("p")
    for number in range(4):
        pub.publish("a", b"%d" % number, qos=1 + number % 2)
    pub.publish("other", b"x", qos=2)

    again = house.connect("c", version, clean_start=False)
    pub.publish("low", b"live", qos=2)

    assert [(payload, qos) for _, payload, qos in again.messages] == [
        (b"0", 1),
        (b"1", 2),
        (b"2", 1),
        (b"3", 2),
        (b"live", 0),
    ]
    assert not any(packet.dup for packet in again.of(Publish))


@pytest.mark.parametrize("version", OLD)
def test_a_session_lasts_as_long_as_its_connection_at_least(version: int) -> None:
    """Neither clean nor kept sessions fall away beneath a client that is there [MQTT-4.1.0-2, MQTT-4.1.0-1]."""
    house = House()
    clean = house.connect("clean", version).subscribe("a", qos=1)
    kept = house.connect("kept", version, clean_start=False).subscribe("a", qos=1)

    house.advance(100_000)
    house.connect("p").publish("a", b"x", qos=1)

    assert (payloads(clean), payloads(kept)) == ([b"x"], [b"x"])


# Wills


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_flags_of_a_will_hold(version: int, retain: bool, qos: int) -> None:
    """Its QoS and RETAIN are those of CONNECT [MQTT-3.1.2-9, MQTT-3.1.2-14, MQTT-3.1.2-16, MQTT-3.1.2-17]."""
    house = House()
    heir = house.connect("heir", version).subscribe("w", qos=2)

    peer = house.open(version)
    peer.send_bytes(
        connect_bytes(version, CLEAN | WILL | qos << 3 | WILL_RETAIN * retain, b"c", b"w", b"gone")
    ).drop()
    late = house.connect("late", version).subscribe("w", qos=2)

    assert [(p.payload, p.qos, p.retain) for p in heir.of(Publish)] == [(b"gone", qos, False)]
    assert [(p.payload, p.qos, p.retain) for p in late.of(Publish)] == ([(b"gone", qos, True)] if retain else [])


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("end", ["drop", "disconnect", "error", "silence", "taken over"])
def test_a_client_without_a_will_leaves_none(version: int, end: str) -> None:
    """Nothing is published for it, nor a will of its earlier connection again [MQTT-3.1.2-12, MQTT-3.1.2-10]."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    house.connect("c", version, clean_start=False, will=ConnectWill("w", b"first")).drop()
    client = house.connect("c", version, clean_start=False, keep_alive=4)

    if end == "drop":
        client.drop()
    elif end == "disconnect":
        client.disconnect()
    elif end == "error":
        client.send_bytes(b"\x00\x00")
    elif end == "silence":
        house.advance(8)
    else:
        house.connect("c", version)

    assert client.closed
    assert payloads(heir) == [b"first"]


@pytest.mark.parametrize("version", OLD)
def test_a_will_is_published_once(version: int) -> None:
    """It is gone when it was published: no later connection or end brings it again [MQTT-3.1.2-10]."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    client = house.connect("c", version, clean_start=False, will=ConnectWill("w", b"gone"))

    client.send_bytes(b"\xff\x00")
    client.drop()
    house.connect("c", version, clean_start=False).disconnect()
    house.connect("c", version).drop()

    assert payloads(heir) == [b"gone"]


@pytest.mark.parametrize("version", OLD)
def test_the_next_connections_will_is_the_one_that_counts(version: int) -> None:
    """A will belongs to its network connection, not to the session [MQTT-3.1.2-8]."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    house.connect("c", version, clean_start=False, will=ConnectWill("w", b"1")).disconnect()

    house.connect("c", version, clean_start=False, will=ConnectWill("w", b"2")).drop()

    assert payloads(heir) == [b"2"]


# Keep alive


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "packet", [b"\xc0\x00", b"\x30\x03\x00\x01a", b"\x40\x02\x00\x09"], ids=["PINGREQ", "PUBLISH", "PUBACK"]
)
def test_any_packet_is_a_sign_of_life(version: int, packet: bytes) -> None:
    """A client that sends a packet within its keep alive stays, a silent one not [MQTT-3.1.2-23, MQTT-3.1.2-24]."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    client = house.connect("c", version, keep_alive=10, will=ConnectWill("w", b"gone"))

    for _ in range(6):
        house.advance(9)
        client.send_bytes(packet)
    stayed = not client.closed
    house.advance(17)

    assert stayed
    assert client.closed
    assert payloads(heir) == [b"gone"]


# One CONNECT, one DISCONNECT


@pytest.mark.parametrize("version", OLD)
def test_a_second_connect_changes_nothing_but_the_end(version: int) -> None:
    """Its bytes are not answered, and its fields, clean session and will, count for nothing [MQTT-3.1.0-2]."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    peer, heard = opened(house, version)
    peer.send(Connect(version, "c", clean_start=False, will=ConnectWill("w", b"first"))).subscribe("a", qos=1)
    before = len(heard)

    peer.send(Connect(version, "other", will=ConnectWill("w", b"second")))
    again = house.connect("c", V311, clean_start=False)

    assert (len(heard), peer.closed) == (before, True)
    assert payloads(heir) == [b"first"]
    assert again.connack.session_present
    assert set(house.broker.sessions.by_id) == {"heir", "c"}


@pytest.mark.parametrize("flags", range(1, 16))
def test_a_disconnect_with_flags_is_none(flags: int) -> None:
    """A reserved bit is a violation: the connection is closed and the will stands [MQTT-3.14.1-1]."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    client = house.connect("c", will=ConnectWill("w", b"gone"))

    client.send_bytes(bytes((0xE0 | flags, 0)))

    assert client.closed
    assert payloads(heir) == [b"gone"]


@pytest.mark.parametrize("flags", range(1, 16))
def test_in_3_1_the_flags_of_a_disconnect_are_not_looked_at(flags: int) -> None:
    """They are "not used" (its section 3.14): the client has gone in good order, and its will with it."""
    house = House()
    heir = house.connect("heir").subscribe("w")
    client = house.connect("c", V31, will=ConnectWill("w", b"gone"))

    client.send_bytes(bytes((0xE0 | flags, 0)))

    assert client.closed
    assert payloads(heir) == []


@pytest.mark.parametrize("version", OLD)
def test_a_disconnect_is_the_end(version: int) -> None:
    """The broker closes without an answer, drops the will, reads nothing more [MQTT-3.14.4-1 to MQTT-3.14.4-3]."""
    house = House()
    heir = house.connect("heir").subscribe("#")
    peer, heard = opened(house, version)
    peer.send(Connect(version, "c", will=ConnectWill("w", b"gone")))
    del heard[:]

    peer.send_bytes(b"\xe0\x00" + encode(Publish.build("a", b"x", 1, packet_id=1), version) + b"\xc0\x00")
    peer.drop()

    assert (bytes(heard), peer.closed) == (b"", True)
    assert heir.messages == []


# A session that is resumed


@pytest.mark.parametrize("version", OLD)
def test_unacknowledged_packets_are_sent_again_in_order(version: int) -> None:
    """PUBLISH with DUP and PUBREL, in the order of the first time, then what is new [MQTT-4.4.0-1, MQTT-4.6.0-1]."""
    house = House()
    first = house.connect("c", version, clean_start=False, silent=True).subscribe("a", qos=2)
    pub = house.connect("p")
    for number in range(1, 6):
        pub.publish("a", b"%d" % number, qos=2 - number % 2)
    first.send_bytes(b"\x50\x02\x00\x02\x40\x02\x00\x01").drop()
    pub.publish("a", b"6", qos=1)

    again = house.connect("c", version, clean_start=False, silent=True)

    *repeated, new = again.of(Publish)
    assert [(p.payload, p.qos, p.packet_id) for p in repeated] == [(b"3", 1, 3), (b"4", 2, 4), (b"5", 1, 5)]
    assert all(packet.dup for packet in repeated)
    assert (new.payload, new.dup) == (b"6", False)
    assert new.packet_id not in (0, 2, 3, 4, 5)
    assert [p.packet_id for p in again.of(Pubrel)] == [2]


@pytest.mark.parametrize("version", OLD)
def test_an_exchange_is_ended_after_a_second_reconnect(version: int) -> None:
    """What stays unacknowledged is sent at each reconnection, what was acknowledged at none [MQTT-4.4.0-1]."""
    house = House()
    house.connect("c", version, clean_start=False, silent=True).subscribe("a", qos=1)
    house.connect("p").publish("a", b"x", qos=1)

    second = house.connect("c", version, clean_start=False, silent=True)
    third = house.connect("c", version, clean_start=False)
    fourth = house.connect("c", version, clean_start=False)

    assert [[(p.packet_id, p.dup) for p in peer.of(Publish)] for peer in (second, third, fourth)] == [
        [(1, True)],
        [(1, True)],
        [],
    ]


@pytest.mark.parametrize("version", OLD)
def test_a_publisher_may_send_again_on_a_new_connection(version: int) -> None:
    """QoS 1 is acknowledged anew, an open QoS 2 exchange goes on where it was [MQTT-4.4.0-1, MQTT-4.3.3-2]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    first = house.connect("c", version, clean_start=False, silent=True)
    first.publish("a", b"2", qos=2, packet_id=9).drop()

    again = house.connect("c", version, clean_start=False, silent=True)
    again.publish("a", b"2", qos=2, packet_id=9, dup=True).publish("a", b"1", qos=1, packet_id=8, dup=True)
    again.send_bytes(b"\x62\x02\x00\x09")
    again.publish("a", b"new", qos=2, packet_id=9)

    assert payloads(sub) == [b"2", b"1", b"new"]
    assert [p.packet_id for p in again.of(Puback)] == [8]
