"""AUTH of MQTT 5.0 (sections 3.15 and 4.12): what no other test shows."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    Auth,
    Connack,
    ConnectWill,
    DisconnectPacket,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi import ALLOW, NO_PROPERTIES, Client, Decision, Properties, ReasonCode, deny, hookimpl
from kinmqtt_spi.services.authentication import ConnectRequest, Continue, ExchangeStep, Identity, allow_as

METHOD = Properties(authentication_method="RIDDLE")
ANSWER = Auth(ReasonCode.CONTINUE_AUTHENTICATION, METHOD.replace(authentication_data=b"man"))
WRONG = Auth(ReasonCode.CONTINUE_AUTHENTICATION, METHOD.replace(authentication_data=b"a dog"))
AGAIN = Auth(ReasonCode.REAUTHENTICATE, METHOD)
WILL = ConnectWill("wills", b"gone", 0, False, NO_PROPERTIES)


class Riddle:
    """The method RIDDLE: asks a question and wants an answer. Without a method anybody comes in."""

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return ALLOW

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Any:
        if step.method != "RIDDLE":
            return None
        if step.state is None:
            return Continue(b"what walks on four legs?", state="asked")
        if step.data == b"man":
            return allow_as(Identity("oedipus"), data=b"well done")
        return deny(ReasonCode.NOT_AUTHORIZED, "eaten")


class Greeter:
    """Puts an authentication method into every CONNACK."""

    @hookimpl
    def connack_sending(self, client: Client, properties: Properties) -> Properties:
        return properties.replace(authentication_method="RIDDLE", authentication_data=b"hello")


def riddled() -> House:
    """A broker that knows the method RIDDLE, and lets others in without one."""
    return House(plugins={"riddle": Riddle()})


def let_in(house: House, **more: Any) -> Peer:
    """A client that was let in after an exchange."""
    peer = house.connect("c", V5, properties=METHOD, **more).send(ANSWER)
    assert peer.connack.reason is ReasonCode.SUCCESS
    return peer


def steps(peer: Peer) -> list[tuple[int, str | None]]:
    """Reason and method of each AUTH that a client got."""
    return [(int(p.reason), p.properties.authentication_method) for p in peer.of(Auth)]


def test_every_step_has_the_code_and_the_method() -> None:
    """0x18 while it goes on and 0x00 at the end, always with the method of CONNECT.

    [MQTT-4.12.0-2, MQTT-4.12.0-5, MQTT-3.15.2-1]
    """
    client = let_in(riddled())

    client.send(AGAIN).send(ANSWER)

    assert steps(client) == [(0x18, "RIDDLE"), (0x18, "RIDDLE"), (0x00, "RIDDLE")]
    assert client.connack.properties.authentication_method == "RIDDLE"
    assert not client.closed


def test_nothing_but_method_and_data_is_in_an_auth() -> None:
    """No reason string and no user properties, so neither makes it too large [MQTT-3.15.2-2, MQTT-3.15.2-3]."""
    client = let_in(riddled()).send(AGAIN).send(ANSWER)

    told = {name for packet in client.of(Auth) for name in packet.properties.present}
    assert told == {"authentication_method", "authentication_data"}


def test_without_a_method_there_is_no_auth() -> None:
    """Neither AUTH nor a method in the CONNACK for a client that named none [MQTT-4.12.0-6]."""
    client = House().connect("c", V5)

    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None
    assert client.of(Auth) == []


def test_a_plugin_can_not_put_a_method_into_a_connack() -> None:
    """A client that named none is told none, whatever a plugin adds [MQTT-4.12.0-6]."""
    client = House(plugins={"greeter": Greeter()}).connect("c", V5)

    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None


@pytest.mark.parametrize("method", ["riddle", "RIDDLE ", "", "PLAIN"])
def test_a_method_that_is_not_known_is_refused(method: str) -> None:
    """0x8C and the end: methods are compared as they are [MQTT-4.12.0-1]."""
    client = riddled().connect("c", V5, properties=Properties(authentication_method=method))

    assert client.packets == [client.connack]
    assert client.connack.reason is ReasonCode.BAD_AUTHENTICATION_METHOD
    assert client.closed


def test_a_wrong_answer_is_refused() -> None:
    """A CONNACK with a failing code, and the end; no DISCONNECT before it [MQTT-4.12.0-4, MQTT-3.14.0-1]."""
    client = riddled().connect("c", V5, properties=METHOD).send(WRONG)

    assert [type(packet) for packet in client.packets] == [Auth, Connack]
    assert client.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert client.closed


BAD_STEPS = {
    "success": Auth(ReasonCode.SUCCESS, METHOD.replace(authentication_data=b"man")),
    "other method": Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="OTHER")),
}


@pytest.mark.parametrize("packet", [*BAD_STEPS.values(), AGAIN], ids=[*BAD_STEPS, "again"])
def test_a_step_that_does_not_fit_before_connack(packet: Auth) -> None:
    """0x82 in a CONNACK, and the end [MQTT-4.12.0-3, MQTT-4.12.0-5]."""
    client = riddled().connect("c", V5, properties=METHOD).send(packet)

    assert [type(packet) for packet in client.packets] == [Auth, Connack]
    assert client.connack.reason is ReasonCode.PROTOCOL_ERROR
    assert client.closed


@pytest.mark.parametrize("packet", [*BAD_STEPS.values(), ANSWER], ids=[*BAD_STEPS, "continue"])
def test_a_step_that_does_not_fit_after_connack(packet: Auth) -> None:
    """A repetition begins with 0x19 and the method of CONNECT; else it is 0x82 [MQTT-4.12.1-1, MQTT-4.12.0-5]."""
    client = let_in(riddled()).send(packet)

    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.PROTOCOL_ERROR]
    assert client.closed


def test_a_repetition_within_a_repetition_is_an_error() -> None:
    """The second step of a repetition is 0x18, not 0x19 again [MQTT-4.12.0-3]."""
    client = let_in(riddled()).send(AGAIN).send(AGAIN)

    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.PROTOCOL_ERROR]
    assert client.closed


@pytest.mark.parametrize("packet", [ANSWER, AGAIN], ids=["continue", "again"])
def test_auth_of_a_client_that_named_no_method(packet: Auth) -> None:
    """0x82: such a client must not send AUTH [MQTT-4.12.0-7]."""
    client = riddled().connect("c", V5).send(packet)

    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.PROTOCOL_ERROR]
    assert client.of(Auth) == []
    assert client.closed


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("flags", [0b0001, 0b0010, 0b0100, 0b1000])
def test_the_flags_of_auth_are_0000(flags: int, early: bool) -> None:
    """Anything else is malformed, 0x81, within the first exchange and later [MQTT-3.15.1-1]."""
    house = riddled()
    client = house.connect("c", V5, properties=METHOD) if early else let_in(house)
    data = encode(ANSWER if early else AGAIN, V5)

    client.send_bytes(bytes((data[0] | flags,)) + data[1:])

    last: Any = client.packets[-1]
    assert isinstance(last, Connack if early else DisconnectPacket)
    assert last.reason is ReasonCode.MALFORMED_PACKET
    assert client.closed


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("0b 01 09 15 0006 524944444c45", 0x82),
        ("0b 87 09 15 0006 524944444c45", 0x82),
        ("02 19 00", 0x82),
        ("14 19 12 15 0006 524944444c45 15 0006 524944444c45", 0x82),
        ("0d 19 0b 15 0006 524944444c45 0101", 0x81),
        ("06 19 04 16 0001 61", 0x82),
    ],
    ids=["code of SUBACK", "code of CONNACK", "no method", "method twice", "payload format", "data alone"],
)
def test_an_auth_that_breaks_a_rule(rest: str, reason: int) -> None:
    """DISCONNECT with the reason, and the end [MQTT-3.15.2-1, MQTT-4.13.1-1]."""
    client = let_in(riddled()).send_bytes(b"\xf0" + bytes.fromhex(rest))

    assert [int(p.reason) for p in client.of(DisconnectPacket)] == [reason]
    assert client.closed


@pytest.mark.parametrize(
    "packet",
    [Publish.build("a", b"x"), Publish.build("a", b"x", qos=1, packet_id=1), Subscribe(1, (SubscribeRequest("a"),))],
)
def test_during_the_first_exchange_nothing_else_comes(packet: Any) -> None:
    """0x82 in a CONNACK, and nobody gets the message [MQTT-3.1.2-30, MQTT-3.14.0-1]."""
    house = riddled()
    sub = house.connect("s", V5).subscribe("a")

    client = house.connect("c", V5, properties=METHOD).send(packet)

    assert client.connack.reason is ReasonCode.PROTOCOL_ERROR
    assert client.of(DisconnectPacket) == []
    assert client.closed
    assert sub.messages == []


def test_a_client_may_go_within_the_first_exchange() -> None:
    """DISCONNECT in place of the answer: no CONNACK, no session, no will."""
    house = riddled()
    sub = house.connect("s", V5).subscribe("wills")

    client = house.connect("c", V5, properties=METHOD, will=WILL).disconnect()

    assert [type(packet) for packet in client.packets] == [Auth]
    assert client.closed
    assert "c" not in house.broker.sessions.by_id
    assert sub.messages == []


def test_a_repetition_that_fails_ends_the_connection() -> None:
    """DISCONNECT with the reason, the close, and the will [MQTT-4.12.1-2]."""
    house = riddled()
    sub = house.connect("s", V5).subscribe("wills")
    client = let_in(house, will=WILL)

    client.send(AGAIN).send(WRONG)

    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.NOT_AUTHORIZED]
    assert isinstance(client.packets[-1], DisconnectPacket)
    assert client.closed
    assert len(sub.messages) == 1


def test_a_repetition_leaves_the_rest_alone() -> None:
    """Between its steps the other packets go both ways, and the session is the same behind it [MQTT-4.12.1-1]."""
    house = riddled()
    client = let_in(house).subscribe("a", qos=1)

    client.send(AGAIN).publish("a", b"1", qos=1).send_bytes(b"\xc0\x00").send(ANSWER)
    house.connect("p", V5).publish("a", b"2", qos=1)

    assert client.messages == [("a", b"1", 1), ("a", b"2", 1)]
    assert len(client.of(Pingresp)) == 1
    assert not client.closed


@pytest.mark.parametrize("size", [20, 1000])
def test_no_step_is_larger_than_the_client_takes(size: int) -> None:
    """An AUTH above the client's maximum packet size is not sent [MQTT-3.1.2-24]."""
    client = riddled().connect("c", V5, properties=METHOD.replace(maximum_packet_size=size))

    assert all(len(encode(packet, V5)) <= size for packet in client.packets)
    assert len(client.of(Auth)) == (size == 1000)
