"""One connection from its first byte to its last: order, errors and time (sections 3.1, 4.8 and 4.13)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer
from core_harness.stores import SlowSessions
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    V311,
    Connack,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi import Decision, Message, hookimpl
from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import ALLOW

VERSIONS = [V31, V311, V5]

WILL = ConnectWill("wills", b"gone")


def told(peer: Peer, reason: ReasonCode) -> bool:
    """Whether the connection was closed with that reason where the version can say it, and else without a word."""
    return peer.closed and [p.reason for p in peer.of(DisconnectPacket)] == ([reason] if peer.version == V5 else [])


def bytes_of(*packets: Packet, version: int = V311) -> bytes:
    """Packets as one piece of input."""
    return b"".join(encode(packet, version) for packet in packets)


def listened(peer: Peer) -> bytearray:
    """Every byte that the broker writes from now on."""
    heard = bytearray()
    write = peer.link.write

    def tap(data: bytes) -> None:
        heard.extend(data)
        write(data)

    peer.link.write = tap  # type: ignore[method-assign]
    return heard


def wills(house: House) -> Peer:
    """A client that hears of wills."""
    return house.connect("heir").subscribe("wills")


# While CONNECT is answered


def test_what_comes_ahead_of_connack_waits_in_order() -> None:
    """A client may send before it has its CONNACK: all of it is carried out behind that, in order [MQTT-3.1.4-5]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sub = house.connect("s").subscribe("t")
    sessions.claims.slow = True
    peer = house.open()

    ahead: list[Packet] = [Subscribe(1, (SubscribeRequest("u"),)), Publish.build("t", b"1", 1, packet_id=2)]
    peer.send_bytes(bytes_of(Connect(V311, "c"), *ahead))
    peer.send_bytes(bytes_of(Publish.build("t", b"2"), Pingreq()))
    early = (len(peer.packets), len(sub.messages), peer.link.reading)
    sessions.claims.answer_all()
    house.settle()

    assert early == (0, 0, True)
    assert isinstance(peer.packets[0], Connack)
    assert {type(packet) for packet in peer.packets} == {Connack, Suback, Puback, Pingresp}
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]
    assert peer.link.reading


def test_an_error_ahead_of_connack_waits_its_turn() -> None:
    """What is wrong behind CONNECT closes the connection when CONNECT is answered, not before [MQTT-4.13.1-1]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sub = house.connect("s").subscribe("t")
    sessions.claims.slow = True
    peer = house.open(V5)

    peer.send_bytes(bytes_of(Connect(V5, "c"), Publish.build("t", b"1"), version=V5) + b"\x00\x00")
    early = peer.closed
    sessions.claims.answer_all()
    house.settle()

    assert not early
    assert [type(packet) for packet in peer.packets] == [Connack, DisconnectPacket]
    assert peer.of(DisconnectPacket)[0].reason is ReasonCode.MALFORMED_PACKET
    assert len(sub.messages) == 1


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_client_that_goes_before_its_connack(clean_start: bool) -> None:
    """A connection lost while its session is claimed leaves nobody connected, and can be made anew."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sessions.claims.slow = True
    peer = house.open().send(Connect(V311, "c", clean_start))

    peer.drop()
    sessions.claims.answer_all()
    house.settle()
    connected = house.broker.sessions.connected
    again = house.connect("c", clean_start=clean_start)

    assert peer.packets == []
    assert connected == 0
    assert len(house.broker.connections) == 1
    assert again.connack.reason is ReasonCode.SUCCESS


def test_two_connects_of_one_client_id_stand_in_line() -> None:
    """The later CONNECT has the session in the end, and the earlier connection is closed [MQTT-3.1.4-3]."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sessions.claims.slow = True
    first = house.open(V5).send(Connect(V5, "c"))
    second = house.open(V5).send(Connect(V5, "c"))

    sessions.claims.answer_all()
    house.settle()

    assert (first.closed, second.closed) == (True, False)
    assert first.packets == list(first.of(Connack))
    assert first.connack.reason.is_failure
    assert second.connack.reason is ReasonCode.SUCCESS
    assert house.broker.sessions.connected == 1


# Order and form


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"MQTT", 0, b"\x20\x02\x00\x01"),
        (b"MQTT", 2, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 1, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 0x84, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 0x83, b"\x20\x02\x00\x01"),
        (b"MQTTS", 4, b""),
        (b"HTTP", 5, b""),
        (b"HTTP", 6, b""),
    ],
)
def test_an_unknown_protocol_is_told_so_in_the_oldest_way(name: bytes, level: int, answer: bytes) -> None:
    """A version that is not spoken gets return code 1, which every client can read [MQTT-3.1.2-2 of 3.1.1].

    A bridge of MQTT 3.1 that sets the highest bit reads that it must do without it. Who speaks no MQTT gets nothing.
    """
    body = len(name).to_bytes(2, "big") + name + bytes((level,)) + b"\x02\x00\x00\x00\x01c"
    peer = House().open()
    heard = listened(peer)

    peer.send_bytes(b"\x10" + bytes((len(body),)) + body)

    assert heard == answer
    assert peer.closed


@pytest.mark.parametrize("level", [6, 0x85])
def test_a_protocol_of_the_future_is_told_so_in_mqtt_5(level: int) -> None:
    """A higher version than 5 gets a CONNACK with 0x84 [MQTT-3.1.2-2]."""
    peer = House().open(V5)

    peer.send_bytes(b"\x10\x0e\x00\x04MQTT" + bytes((level,)) + b"\x02\x00\x00\x00\x00\x01c")

    assert peer.connack.reason is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert peer.closed


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ahead", [True, False], ids=["in one read", "later"])
def test_a_second_connect_is_an_error(version: int, ahead: bool) -> None:
    """A client says CONNECT once: the second closes the connection, and the will is published [MQTT-3.1.0-2]."""
    house = House()
    heir = wills(house)
    connect = Connect(version, "c", will=WILL)
    peer = house.open(version)

    if ahead:
        peer.send_bytes(bytes_of(connect, connect, version=version))
    else:
        peer.send(connect).send(connect)

    assert len(peer.of(Connack)) == 1
    assert told(peer, ReasonCode.PROTOCOL_ERROR)
    assert heir.messages == [("wills", b"gone", 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_ends_a_read_where_it_stands(version: int) -> None:
    """What comes before a malformed packet is carried out, what comes behind it is not [MQTT-4.8.0-1]."""
    house = House()
    sub = house.connect("s").subscribe("t")
    peer = house.connect("c", version)
    good = [encode(Publish.build("t", payload), version) for payload in (b"1", b"2", b"3")]

    peer.send_bytes(good[0] + good[1] + b"\x36\x00" + good[2])
    peer.send_bytes(good[2])

    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]
    assert [packet.reason for packet in peer.of(DisconnectPacket)] == (
        [ReasonCode.MALFORMED_PACKET] if version == V5 else []
    )
    assert peer.closed


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_costs_its_author_only(version: int) -> None:
    """The will of a client that breaks a rule is published, and everybody else is served as before."""
    house = House()
    heir = wills(house)
    peer = house.connect("c", version, will=WILL)

    peer.send_bytes(b"\xf1\x00")
    house.connect("p").publish("wills", b"other")

    assert peer.closed
    assert [payload for _, payload, _ in heir.messages] == [b"gone", b"other"]
    assert house.broker.runtime.statistics.remote_errors.value == 1


# Size


@pytest.mark.parametrize("version", [V311, V5])
def test_a_packet_too_large_is_refused_by_its_header(version: int) -> None:
    """One byte too many is 0x95 in MQTT 5 before the rest has come; the largest allowed is taken [MQTT-3.2.2-15]."""
    house = House(max_packet_bytes=200)
    sub = house.connect("s").subscribe("t")
    peer = house.connect("c", version)
    size = 200 - len(encode(Publish.build("t", b"x" * 150), version)) + 150
    largest = encode(Publish.build("t", b"x" * size), version)
    too_large = encode(Publish.build("t", b"x" * (size + 1)), version)

    peer.send_bytes(largest)
    before = peer.closed
    peer.send_bytes(too_large[:4])

    assert (len(largest), before) == (200, False)
    assert len(sub.messages) == 1
    assert [packet.reason for packet in peer.of(DisconnectPacket)] == (
        [ReasonCode.PACKET_TOO_LARGE] if version == V5 else []
    )
    assert peer.closed
    if version == V5:
        assert peer.connack.properties.maximum_packet_size == 200


def test_a_stranger_has_less_room_than_a_client() -> None:
    """The limit of the first packet holds until the client is let in, and then the other one."""
    house = House(max_connect_bytes=64, max_packet_bytes=1000)
    sub = house.connect("s").subscribe("t")
    stranger = house.open(V5)
    heard = listened(stranger)

    stranger.send_bytes(encode(Connect(V5, "c" * 60), V5)[:2])
    house.connect("c").publish("t", b"x" * 500)

    assert (stranger.closed, bytes(heard)) == (True, b"")
    assert len(sub.messages) == 1


# Errors of the broker's own


class Faulty(NaiveIndex):
    """An index with a mistake in it."""

    def match(self, topic: str) -> Any:
        if topic == "fault":
            raise RuntimeError("a mistake in match")
        return super().match(topic)

    def add(self, client_id: str, subscription: Any) -> bool:
        if subscription.filter == "fault":
            raise RuntimeError("a mistake in add")
        return super().add(client_id, subscription)

    @hookimpl
    def subscription_index(self) -> Faulty:
        return self


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("packet", ["PUBLISH", "SUBSCRIBE"])
def test_an_internal_error_hurts_one_connection(version: int, packet: str) -> None:
    """Where a packet can't be handled its connection is closed, with 0x80 in MQTT 5; the others go on."""
    house = House(plugins={"faulty": Faulty()})
    sub = house.connect("s").subscribe("t", qos=1)
    pub = house.connect("p")
    peer = house.connect("c", version)

    if packet == "PUBLISH":
        peer.publish("fault", b"x", qos=1)
    else:
        peer.subscribe("fault")
    pub.publish("t", b"x", qos=1)
    again = house.connect("c", version).subscribe("t")

    assert told(peer, ReasonCode.UNSPECIFIED_ERROR)
    assert (peer.of(Puback), peer.of(Suback)) == ([], [])
    assert sub.messages == [("t", b"x", 1)]
    assert len(pub.of(Puback)) == 1
    assert again.granted == [0]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_internal_error_in_a_connect(version: int) -> None:
    """A CONNECT that can't be handled is refused as far as the version can say so, and may be tried again."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions})
    sessions.claims.slow = True
    peer = house.connect("c", version)

    sessions.claims.slow = False
    sessions.claims.answer(RuntimeError("a mistake"))
    house.settle()
    again = house.connect("c", version)

    assert peer.closed
    reason = ReasonCode.UNSPECIFIED_ERROR if version == V5 else ReasonCode.SERVER_UNAVAILABLE
    assert [packet.reason for packet in peer.of(Connack)] == [reason]
    assert again.connack.reason is ReasonCode.SUCCESS


# Time


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("keep_alive", [1, 2, 7, 60])
def test_keep_alive_is_one_and_a_half_times_what_was_asked(keep_alive: int, version: int) -> None:
    """A silent client is cut off behind 1.5 times its keep alive, no sooner, and leaves its will [MQTT-3.1.2-22]."""
    house = House()
    heir = wills(house)
    client = house.connect("c", version, keep_alive=keep_alive, will=WILL)

    house.advance(1.5 * keep_alive - 0.1)
    before = client.closed
    house.advance(3)

    assert not before
    assert told(client, ReasonCode.KEEP_ALIVE_TIMEOUT)
    assert len(heir.messages) == 1


def test_what_a_client_gets_is_no_sign_of_life() -> None:
    """A client that only receives and says nothing is cut off all the same [MQTT-3.1.2-22]."""
    house = House()
    client = house.connect("c", keep_alive=4).subscribe("t")
    pub = house.connect("p")

    for _ in range(10):
        pub.publish("t")
        house.advance(1)

    assert client.closed
    assert 5 < len(client.messages) < 10


def test_a_keep_alive_of_nought_is_none() -> None:
    """Such a client may be silent for ever."""
    house = House(connect_time_limit_s=5)
    client = house.connect("c", V5)

    house.advance(10_000)

    assert not client.closed


class Thinker:
    """Answers whether a client may publish when the test says so."""

    def __init__(self) -> None:
        self.answer: Deferred[Decision] = Deferred()

    @hookimpl
    def authorize(self) -> Deferred[Decision]:
        return self.answer


def test_a_client_that_is_not_read_from_is_not_silent() -> None:
    """While the broker does not read, a client's silence is not its own; behind that its time begins anew."""
    thinker = Thinker()
    house = House(plugins={"thinker": thinker})
    client = house.connect("c", keep_alive=2).publish("t", qos=1)

    house.advance(8)
    held = client.closed
    thinker.answer.callback(ALLOW)
    house.settle()
    house.advance(10)

    assert (held, client.closed) == (False, True)
    assert len(client.of(Puback)) == 1


@pytest.mark.parametrize(
    ("version", "asked", "set_to", "stays_s"),
    [(V5, 600, 10, 15), (V5, 0, 10, 15), (V5, 8, None, 12), (V311, 20, None, 30), (V311, 0, None, 10_000)],
)
def test_the_server_may_set_the_keep_alive(version: int, asked: int, set_to: int | None, stays_s: int) -> None:
    """What MQTT 5 is told in place of its own keep alive holds; older clients keep theirs [MQTT-3.2.2-21]."""
    house = House(max_keep_alive_s=10)
    client = house.connect("c", version, keep_alive=asked)

    house.advance(stays_s)
    before = client.closed
    house.advance(3)

    assert client.connack.properties.server_keep_alive == set_to
    assert before is False
    assert client.closed is (asked > 0 or version == V5)


def test_a_connect_that_trickles_has_no_more_time() -> None:
    """The limit counts from the connection's first moment, whatever comes in the meantime."""
    house = House(connect_time_limit_s=5)
    peer = house.open()

    for byte in encode(Connect(V311, "a-long-client-id"), V311)[:8]:
        peer.send_bytes(bytes((byte,)))
        house.advance(1)

    assert peer.closed
    assert peer.packets == []


@pytest.mark.parametrize("version", [V311, V5])
def test_an_answer_that_takes_too_long_is_no_answer(version: int) -> None:
    """A CONNECT that is not answered in time is refused; its session, claimed too late, serves the next."""
    sessions = SlowSessions()
    house = House(plugins={"sessions": sessions}, connect_time_limit_s=5)
    sessions.claims.slow = True
    peer = house.connect("c", version)

    house.advance(7)
    closed = peer.closed
    sessions.claims.answer_all()
    house.settle()
    again = house.connect("c", version)

    assert closed
    assert all(packet.reason.is_failure for packet in peer.of(Connack))
    assert len(peer.of(Connack)) == (1 if version == V5 else 0)
    assert again.connack.reason is ReasonCode.SUCCESS
    assert house.broker.sessions.connected == 1


class Slowpoke:
    """Lets a client in when the test says so."""

    def __init__(self) -> None:
        self.answers: list[Deferred[Decision]] = []

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Deferred[Decision]:
        self.answers.append(Deferred())
        return self.answers[-1]


def test_the_connect_limit_ends_with_connack() -> None:
    """A client that was let in just in time has its keep alive from then on."""
    slowpoke = Slowpoke()
    house = House(plugins={"slowpoke": slowpoke}, connect_time_limit_s=5)
    client = house.connect("c", keep_alive=10)

    house.advance(4)
    slowpoke.answers[0].callback(ALLOW)
    house.settle()
    house.advance(10)

    assert client.connack.reason is ReasonCode.SUCCESS
    assert not client.closed


# Answers that are there at once, and lead to others that are not


class Prompt:
    """Is asked as if it took time, and answers at once."""

    @hookimpl
    async def authorize(self) -> None:
        return None


class SlowOnSome:
    """Thinks about messages below slow/."""

    def __init__(self) -> None:
        self.pending: list[Deferred[None]] = []

    @hookimpl
    def publish_received(self, message: Message) -> Deferred[None] | None:
        if not message.topic.startswith("slow/"):
            return None
        self.pending.append(Deferred())
        return self.pending[-1]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("version", [V311, V5])
def test_packets_stay_in_order_behind_an_answer_that_led_to_another(prompt: bool, version: int) -> None:
    """What is done at once may have begun something that is waited for: what follows waits with it."""
    slow = SlowOnSome()
    house = House(plugins={"slow": slow, **({"prompt": Prompt()} if prompt else {})})
    subscriber = house.connect("s").subscribe("#")
    peer = house.connect("p", version)
    frames: list[Packet] = [*(Publish.build(topic, b"x") for topic in ("slow/1", "fast/2")), DisconnectPacket()]
    peer.send_bytes(b"".join(encode(each, version) for each in frames))
    assert subscriber.messages == []

    slow.pending[0].callback(None)
    house.settle()

    assert [topic for topic, _, _ in subscriber.messages] == ["slow/1", "fast/2"]
    assert peer.closed
