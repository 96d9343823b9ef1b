"""CONNACK of MQTT 5.0 (section 3.2): bytes, codes, sizes and what it promises; what no other test shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connack, Connect, ConnectWill, DisconnectPacket, Pingresp, Publish, Suback
from kinmqtt_spi import ALLOW, Client, Decision, Properties, ReasonCode, deny, hookimpl
from kinmqtt_spi.services.authentication import ConnectRequest, Redirect
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.values import Disconnect as Cut
from kinmqtt_spi.values import Message, Reject

CODES = [
    *(0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B),
    *(0x9C, 0x9D, 0x9F),
]
"""Every failing code of the table in section 3.2.2.2."""


class Guard:
    """Answers whether a client may come in."""

    def __init__(self, answer: Decision = ALLOW) -> None:
        self.answer = answer

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return self.answer


class Greeter:
    """Makes of the properties of a CONNACK what the test says."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    @hookimpl
    def connack_sending(self, client: Client, properties: Properties) -> Properties:
        return properties.replace(**self.changes)


def written(house: House, properties: Properties = Properties(), **fields: Any) -> tuple[Peer, bytes]:  # noqa: B008
    """A client that has connected, and every byte that it was sent."""
    peer = house.open(V5)
    heard = bytearray()
    write = peer.link.write

    def tap(data: bytes) -> None:
        heard.extend(data)
        write(data)

    peer.link.write = tap  # type: ignore[method-assign]
    wanted = {
        "client_id": "c",
        "clean_start": True,
        "keep_alive": 0,
        "username": None,
        "password": None,
        "will": None,
    }
    peer.send(Connect(version=V5, properties=properties, **{**wanted, **fields}))
    return peer, bytes(heard)


class Narrow(Greeter):
    """Offers neither QoS 2 nor retained messages, and keeps to that."""

    @hookimpl
    def publish_received(self, client: Client, message: Message) -> Cut | None:
        if message.qos == 2:
            return Cut(ReasonCode.QOS_NOT_SUPPORTED)
        return Cut(ReasonCode.RETAIN_NOT_SUPPORTED) if message.retain else None


# Flags and codes


@pytest.mark.parametrize(("clean_start", "there"), [(True, True), (True, False), (False, True), (False, False)])
def test_accepted_byte_by_byte(clean_start: bool, there: bool) -> None:
    """Only the lowest flag may be set, where the session is resumed, and the code is 0x00.

    [MQTT-3.1.4-5, MQTT-3.2.2-1, MQTT-3.2.2-2, MQTT-3.2.2-3]
    """
    house = House()
    if there:
        house.connect("c", V5, expiry_s=60).drop()

    peer, data = written(house, Properties(session_expiry_interval=60), clean_start=clean_start)

    assert data[0] == 0x20
    assert data[1] == len(data) - 2
    assert data[2] == (1 if there and not clean_start else 0)
    assert data[3] == 0
    assert data[4] == len(data) - 5
    assert not peer.closed


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("clean_start", [True, False])
def test_refused_byte_by_byte(code: int, clean_start: bool) -> None:
    """The code of the refusal, no flag though a session is there, and the end.

    [MQTT-3.2.2-1, MQTT-3.2.2-6, MQTT-3.2.2-7, MQTT-3.2.2-8, MQTT-3.1.4-2]
    """
    guard = Guard()
    house = House(plugins={"guard": guard})
    house.connect("c", V5, expiry_s=60).drop()
    guard.answer = deny(ReasonCode(code))

    peer, data = written(house, Properties(session_expiry_interval=60), clean_start=clean_start)

    assert data[:1] + data[2:4] == bytes((0x20, 0, code))
    assert data[1] == len(data) - 2
    assert len(peer.packets) == 1
    assert peer.closed


@pytest.mark.parametrize("reason", [each for each in ReasonCode if each >= 0x80 and each not in CODES])
def test_a_code_of_another_packet_is_not_sent(reason: ReasonCode) -> None:
    """A refusal for a reason that CONNACK has not is one that it has [MQTT-3.2.2-8, MQTT-3.2.2-7]."""
    peer, data = written(House(plugins={"guard": Guard(deny(reason))}))

    assert data[3] in CODES
    assert len(peer.packets) == 1
    assert peer.closed


# Before anything else, and once


def test_connack_comes_first() -> None:
    """What waits, what was in flight and what the client asks for at once come behind it [MQTT-3.2.0-1]."""
    house = House()
    kept = house.connect("c", V5, expiry_s=60, silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"flies", qos=2)
    kept.drop()
    house.connect("q").publish("a", b"waits", qos=1)
    peer = house.open(V5)
    connect = Connect(V5, "c", False, 0, None, None, None, Properties(session_expiry_interval=60))

    peer.send_bytes(encode(connect, V5) + b"\xc0\x00")

    assert isinstance(peer.packets[0], Connack)
    assert peer.connack.session_present
    assert [p.payload for p in peer.of(Publish)] == [b"flies", b"waits"]
    assert len(peer.of(Pingresp)) == 1


def test_there_is_one_connack() -> None:
    """Whatever comes later, on this connection or another, brings no second [MQTT-3.2.0-2]."""
    house = House()
    client = house.connect("c", V5, expiry_s=60).subscribe("a", qos=1)
    client.publish("a", b"x", qos=2).send_bytes(b"\xc0\x00")
    other = house.connect("c", V5, clean_start=False, expiry_s=60)
    client.send_bytes(b"\xc0\x00")

    assert [len(peer.of(Connack)) for peer in (client, other)] == [1, 1]


# Size


def refusals() -> dict[str, Callable[[], House]]:
    """Brokers that refuse a client ``c`` with a text, each by something else."""

    class Steward:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Decision | None:
            return deny(text="no wills") if request.action is Action.WILL else None

    class Porter:
        @hookimpl
        def connect_received(self, request: ConnectRequest) -> Reject:
            return Reject(ReasonCode.BANNED, "go away from here")

    class Brake:
        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
            if resource.kind is not ResourceKind.CONNECT:
                return None
            return LimitDecision(LimitVerdict.DISCONNECT, "connects of a host")

    class Guide:
        @hookimpl
        def choose_server(self, client: Client, redirect: Redirect | None) -> Redirect:
            return Redirect("a-server-with-a-long-name.example", permanent=True)

    return {
        "authentication": lambda: House(plugins={"guard": Guard(deny(ReasonCode.BANNED, "go away from here"))}),
        "will": lambda: House(plugins={"steward": Steward()}),
        "levels": lambda: House(max_topic_levels=1),
        "porter": lambda: House(plugins={"porter": Porter()}),
        "brake": lambda: House(plugins={"brake": Brake()}),
        "guide": lambda: House(plugins={"guide": Guide()}),
    }


@pytest.mark.parametrize("refusal", refusals().values(), ids=refusals().keys())
@pytest.mark.parametrize("size", [1, 4, 5, 6, 12, 20, 1000])
def test_a_refusal_is_no_larger_than_the_client_takes(refusal: Callable[[], House], size: int) -> None:
    """The text falls away first, then the CONNACK itself; the end comes in each case.

    [MQTT-3.1.2-24, MQTT-3.2.2-19, MQTT-3.2.2-7]
    """
    peer, data = written(refusal(), Properties(maximum_packet_size=size), will=ConnectWill("w/t", b"x"))

    assert len(data) <= size
    assert peer.closed
    assert size < 1000 or len(data) > 5
    if data:
        assert data[2] == 0
        assert data[3] >= 0x80


@pytest.mark.parametrize("room", [-1, 0])
def test_a_reason_string_in_a_connack_must_fit(room: int) -> None:
    """It is there where the packet is just as large as the client takes, and not where it is one byte more.

    [MQTT-3.2.2-19]
    """
    house = House(plugins={"guard": Guard(deny(ReasonCode.BANNED, "go away"))})
    _, whole = written(house)

    peer, data = written(house, Properties(maximum_packet_size=len(whole) + room))

    assert peer.connack.reason is ReasonCode.BANNED
    assert peer.connack.properties.reason_string == ("go away" if room == 0 else None)
    assert len(data) == (len(whole) if room == 0 else 5)


@pytest.mark.parametrize("room", [-1, 0])
@pytest.mark.parametrize(
    "changes", [{"user_property": (("a", "b"), ("c", "d"))}, {"reason_string": "welcome"}], ids=["pairs", "text"]
)
def test_what_a_plugin_adds_to_a_connack_must_fit(changes: dict[str, Any], room: int) -> None:
    """User properties and a reason string are left out where they make it too large, and the client comes in.

    [MQTT-3.2.2-19, MQTT-3.2.2-20]
    """
    house = House(plugins={"greeter": Greeter(**changes)})
    _, whole = written(house)

    peer, data = written(house, Properties(maximum_packet_size=len(whole) + room))

    properties = peer.connack.properties
    assert (properties.user_property, properties.reason_string) == (
        (changes.get("user_property", ()), changes.get("reason_string")) if room == 0 else ((), None)
    )
    assert properties.receive_maximum is not None
    assert len(data) <= len(whole) + room
    assert not peer.closed


# What it promises


def test_everything_is_offered() -> None:
    """No Maximum QoS and no Retain Available: QoS 2 and retained messages are taken and granted.

    [MQTT-3.2.2-9, MQTT-3.2.2-10]
    """
    house = House()
    client = house.connect("c", V5)
    for qos in (0, 1, 2):
        client.subscribe(f"a/{qos}", qos=qos)
    client.publish("a/2", b"x", qos=2, retain=True)

    told = client.connack.properties
    assert (told.maximum_qos, told.retain_available) == (None, None)
    assert told.wildcard_subscription_available in (None, 1)
    assert told.subscription_identifier_available in (None, 1)
    assert told.shared_subscription_available in (None, 1)
    assert [int(reason) for p in client.of(Suback) for reason in p.reasons] == [0, 1, 2]
    assert client.messages == [("a/2", b"x", 2)]


@pytest.mark.parametrize("maximum_qos", [0, 1])
def test_a_lower_maximum_of_a_plugin_limits_no_subscription(maximum_qos: int) -> None:
    """Who is told of a Maximum QoS may subscribe with any [MQTT-3.2.2-10]."""
    client = House(plugins={"greeter": Greeter(maximum_qos=maximum_qos)}).connect("c", V5)
    for qos in (0, 1, 2):
        client.subscribe(f"a/{qos}", qos=qos)

    assert client.connack.properties.maximum_qos == maximum_qos
    assert len(client.of(Suback)) == 3
    assert all(reason <= 2 for p in client.of(Suback) for reason in p.reasons)
    assert not client.closed


@pytest.mark.parametrize("told", [1, 20, 600])
@pytest.mark.parametrize("asked", [0, 8])
def test_a_keep_alive_of_a_plugin_is_the_brokers_too(asked: int, told: int) -> None:
    """What the client is told, or asked for where it is told nothing, is how long it may be silent.

    [MQTT-3.2.2-21, MQTT-3.2.2-22, MQTT-3.1.2-22]
    """
    house = House(plugins={"greeter": Greeter(server_keep_alive=told)})
    client = house.connect("c", V5, keep_alive=asked)
    counts = client.connack.properties.server_keep_alive
    keep_alive = asked if counts is None else counts

    house.advance(keep_alive * 1.5 - 0.5)
    before = client.closed
    house.advance(3)

    assert before is False
    assert client.closed is (keep_alive > 0)
    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.KEEP_ALIVE_TIMEOUT] * (keep_alive > 0)


def test_what_is_told_of_limits_is_kept() -> None:
    """Each limit in CONNACK is that at which the broker closes: 0x95, 0x94 and 0x93.

    [MQTT-3.2.2-15, MQTT-3.2.2-17]
    """
    house = House(max_packet_bytes=100, topic_alias_maximum=3, receive_maximum=2)
    told = house.connect("c", V5).connack.properties
    reasons = []

    for data in (
        b"\x30\x63" + b"\x00\x01a\x00" + b"x" * 95,
        b"\x30\x07\x00\x01a\x03\x23\x00\x04",
        b"".join(b"\x34\x06\x00\x01a\x00" + bytes((number,)) + b"\x00" for number in (1, 2, 3)),
    ):
        [disconnect] = house.connect("c", V5).send_bytes(data).of(DisconnectPacket)
        reasons.append(int(disconnect.reason))

    assert (told.maximum_packet_size, told.topic_alias_maximum, told.receive_maximum) == (100, 3, 2)
    assert reasons == [0x95, 0x94, 0x93]


@pytest.mark.parametrize(("qos", "retain", "code"), [(2, False, 0x9B), (1, True, 0x9A), (1, False, None)])
def test_a_plugin_may_keep_to_what_it_promised(qos: int, retain: bool, code: int | None) -> None:
    """A message beyond what a client was told is answered with 0x9B or 0x9A, and reaches nobody.

    [MQTT-3.2.2-11, MQTT-3.2.2-14]
    """
    house = House(plugins={"narrow": Narrow(maximum_qos=1, retain_available=0)})
    sub = house.connect("s").subscribe("a", qos=2)

    client = house.connect("c", V5).publish("a", b"x", qos=qos, retain=retain)

    told = client.connack.properties
    assert (told.maximum_qos, told.retain_available) == (1, 0)
    assert [int(p.reason) for p in client.of(DisconnectPacket)] == ([] if code is None else [code])
    assert client.closed is (code is not None)
    assert len(sub.messages) == (code is None)
