"""PUBACK, PUBREC, PUBREL and PUBCOMP of MQTT 5.0 (sections 3.4 to 3.7): what no other test shows."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, DisconnectPacket, Puback, Pubcomp, Publish, Pubrec, Pubrel
from kinmqtt_spi import Decision, Properties, ReasonCode, deny, hookimpl
from kinmqtt_spi.services.authorization import AuthorizationRequest

WORDS = Properties(reason_string="no room", user_property=(("a", "1"), ("a", "2")))


class Guard:
    """Lets nobody publish, and says why."""

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision:
        return deny(text="not on a Sunday")


def taking(qos: int) -> tuple[House, Peer]:
    """A client that has got one message and not answered it, under packet identifier 1."""
    house = House()
    sub = house.connect("s", V5, silent=True).subscribe("a", qos=2)
    house.connect("p", V5).publish("a", b"x", qos=qos)
    assert [p.packet_id for p in sub.of(Publish)] == [1]
    return house, sub


def ended(peer: Peer) -> int:
    """The reason code with which the broker has ended a connection."""
    assert peer.closed
    [disconnect] = peer.of(DisconnectPacket)
    assert peer.packets[-1] is disconnect
    return int(disconnect.reason)


# Reason codes


@pytest.mark.parametrize("reason", [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
@pytest.mark.parametrize(("qos", "first_byte"), [(1, 0x40), (2, 0x50)])
def test_every_reason_of_a_client_is_understood(qos: int, first_byte: int, reason: int) -> None:
    """The codes of PUBACK and PUBREC: below 0x80 the message is received, else it is refused and over.

    [MQTT-3.4.2-1, MQTT-3.5.2-1, MQTT-4.3.3-4]
    """
    house, sub = taking(qos)

    sub.send_bytes(bytes((first_byte, 3, 0, 1, reason)))

    goes_on = qos == 2 and reason < 0x80
    assert not sub.closed
    assert [p.packet_id for p in sub.of(Pubrel)] == ([1] if goes_on else [])
    assert len(house.broker.sessions.by_id["s"].outgoing) == int(goes_on)


@pytest.mark.parametrize("reason", [0x01, 0x11, 0x81, 0x82, 0x92, 0x93, 0x9A, 0xFF])
@pytest.mark.parametrize(("qos", "first_byte"), [(1, 0x40), (2, 0x50)])
def test_a_reason_of_another_packet_is_an_error(qos: int, first_byte: int, reason: int) -> None:
    """0x82 for whatever is no code of PUBACK or PUBREC [MQTT-3.4.2-1, MQTT-3.5.2-1]."""
    _, sub = taking(qos)

    sub.send_bytes(bytes((first_byte, 3, 0, 1, reason)))

    assert ended(sub) == 0x82


@pytest.mark.parametrize("first_byte", [0x62, 0x70])
@pytest.mark.parametrize(
    ("reason", "fits"), [(0x00, True), (0x92, True), (0x10, False), (0x80, False), (0x91, False)]
)
def test_pubrel_and_pubcomp_have_two_reasons(first_byte: int, reason: int, fits: bool) -> None:
    """Success and 0x92; anything else is 0x82 [MQTT-3.6.2-1, MQTT-3.7.2-1]."""
    _, sub = taking(2)
    sub.publish("b", qos=2, packet_id=1).send(Pubrec(1))

    sub.send_bytes(bytes((first_byte, 3, 0, 1, reason)))

    assert sub.closed is not fits
    if not fits:
        assert ended(sub) == 0x82


@pytest.mark.parametrize("reason", [0x00, 0x92])
def test_a_release_is_answered_whatever_its_reason(reason: int) -> None:
    """PUBREL with 0x92 releases the identifier as a plain one does, and gets its PUBCOMP [MQTT-4.3.3-11]."""
    house = House()
    sub = house.connect("s", V5).subscribe("a", qos=2)
    pub = house.connect("p", V5, silent=True).publish("a", b"1", qos=2, packet_id=7)

    pub.send(Pubrel(7, ReasonCode(reason))).publish("a", b"2", qos=2, packet_id=7)

    assert [(p.packet_id, int(p.reason)) for p in pub.of(Pubcomp)] == [(7, 0)]
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


# Properties


@pytest.mark.parametrize(
    ("qos", "packets"),
    [
        (1, [Puback(1, ReasonCode.QUOTA_EXCEEDED, WORDS)]),
        (2, [Pubrec(1, ReasonCode.SUCCESS, WORDS), Pubcomp(1, ReasonCode.SUCCESS, WORDS)]),
        (2, [Pubrec(1, ReasonCode.NOT_AUTHORIZED, WORDS)]),
    ],
)
def test_a_client_may_say_more(qos: int, packets: list[Any]) -> None:
    """Reason string and user properties change nothing, and the place is free behind them (section 3.4.2.2)."""
    house, sub = taking(qos)

    for packet in packets:
        sub.send(packet)

    assert not sub.closed
    assert len(house.broker.sessions.by_id["s"].outgoing) == 0


@pytest.mark.parametrize("first_byte", [0x40, 0x50, 0x62, 0x70])
@pytest.mark.parametrize(
    ("properties", "reason"),
    [("06 1f 0000 1f 0000", 0x82), ("02 0101", 0x81), ("05 11 00000001", 0x81), ("04 1f 0001 ff", 0x81)],
    ids=["reason string twice", "payload format", "session expiry", "not UTF-8"],
)
def test_properties_that_do_not_belong_there(first_byte: int, properties: str, reason: int) -> None:
    """A second reason string is 0x82; another packet's property is malformed, as is a text that is none."""
    client = House().connect("c", V5, silent=True)
    body = b"\x00\x01\x00" + bytes.fromhex(properties)

    client.send_bytes(bytes((first_byte, len(body))) + body)

    assert ended(client) == reason


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("room", [0, -1])
def test_a_reason_string_must_fit(qos: int, answer: type[Puback] | type[Pubrec], room: int) -> None:
    """It is there where the packet is just as large as the client takes, and falls away where it is one byte more.

    [MQTT-3.4.2-2, MQTT-3.5.2-2]
    """
    whole = answer(1, ReasonCode.NOT_AUTHORIZED, Properties(reason_string="not on a Sunday"))
    properties = Properties(maximum_packet_size=len(encode(whole, V5)) + room)
    pub = House(plugins={"guard": Guard()}).connect("p", V5, properties=properties)

    pub.publish("t", b"x", qos=qos, packet_id=1)

    assert pub.of(answer) == [answer(1, ReasonCode.NOT_AUTHORIZED) if room else whole]
    assert not pub.closed


@pytest.mark.parametrize("refused", [False, True])
def test_acknowledgements_stay_small(refused: bool) -> None:
    """None has properties where the client takes small packets only; PUBREL and PUBCOMP never have any.

    [MQTT-3.6.2-2, MQTT-3.6.2-3, MQTT-3.7.2-2, MQTT-3.7.2-3, MQTT-3.4.2-3, MQTT-3.5.2-3]
    """
    house = House(plugins={"guard": Guard()} if refused else {})
    client = house.connect("c", V5, properties=Properties(maximum_packet_size=16), silent=True)
    if not refused:
        client.subscribe("a", qos=2)
        client.publish("a", qos=2, packet_id=1).publish("b", qos=1, packet_id=2)

    client.send(Pubrec(1)).send(Pubrel(1)).publish("c", qos=1, packet_id=3).publish("c", qos=2, packet_id=4)

    acknowledgements = [p for p in client.packets if isinstance(p, Puback | Pubrec | Pubrel | Pubcomp)]
    assert {type(p) for p in acknowledgements} == {Puback, Pubrec, Pubrel, Pubcomp}
    assert all(p.properties == Properties() for p in acknowledgements)
    assert not client.closed


# Reserved bits


@pytest.mark.parametrize("flags", [0b0000, 0b0001, 0b0011, 0b0110, 0b1010, 0b1111])
def test_the_flags_of_pubrel_are_0010(flags: int) -> None:
    """Anything else is malformed, 0x81, and the connection is closed [MQTT-3.6.1-1]."""
    client = House().connect("c", V5).publish("a", qos=2, packet_id=1)

    client.send_bytes(bytes((0x60 | flags, 2, 0, 1)))

    assert ended(client) == 0x81


@pytest.mark.parametrize("flags", [0b0001, 0b0010, 0b0100, 0b1000])
@pytest.mark.parametrize("sort", [0x40, 0x50, 0x70])
def test_the_flags_of_other_acknowledgements_are_0000(sort: int, flags: int) -> None:
    """PUBACK, PUBREC and PUBCOMP too are malformed otherwise [MQTT-2.1.3-1, MQTT-4.13.1-1]."""
    _, client = taking(2)

    client.send_bytes(bytes((sort | flags, 2, 0, 1)))

    assert ended(client) == 0x81
