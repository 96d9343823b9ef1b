"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK of MQTT 5.0 (sections 3.8 to 3.11): what no other test shows."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import (
    V5,
    DisconnectPacket,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import Properties


def ended(peer: Peer) -> int:
    """The reason code with which the broker has ended a connection."""
    assert peer.closed
    [disconnect] = peer.of(DisconnectPacket)
    assert peer.packets[-1] is disconnect
    return int(disconnect.reason)


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


# Malformed packets


@pytest.mark.parametrize("flags", [0b0000, 0b0001, 0b0011, 0b0110, 0b1010, 0b1111])
@pytest.mark.parametrize(("sort", "rest"), [(0x80, "07 0001 00 0001 61 00"), (0xA0, "06 0001 00 0001 61")])
def test_the_flags_are_0010(sort: int, rest: str, flags: int) -> None:
    """Anything else is malformed, 0x81, and nothing of it is carried out [MQTT-3.8.1-1, MQTT-3.10.1-1]."""
    client = House().connect("c", V5)

    client.send_bytes(bytes((sort | flags,)) + bytes.fromhex(rest))

    assert ended(client) == 0x81
    assert not client.of(Suback) and not client.of(Unsuback)


@pytest.mark.parametrize("valid", [0b000000, 0b101110])
@pytest.mark.parametrize("reserved", [0b01, 0b10, 0b11])
def test_reserved_option_bits_are_malformed(reserved: int, valid: int) -> None:
    """Bits 6 and 7, also behind a filter that is all right [MQTT-3.8.3-5]."""
    house = House()
    client = house.connect("c", V5, expiry_s=60)

    client.send_bytes(bytes.fromhex("820b 0001 00 0001 61 00 0001 62") + bytes((reserved << 6 | valid,)))

    assert ended(client) == 0x81
    assert house.broker.sessions.by_id["c"].subscriptions == {}


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("8207 0001 00 0001 61 03", 0x82),
        ("8207 0001 00 0001 61 30", 0x82),
        ("8203 0001 00", 0x82),
        ("a203 0001 00", 0x82),
        ("8207 0000 00 0001 61 00", 0x82),
        ("a206 0000 00 0001 61", 0x82),
        ("8206 0001 00 0001 61", 0x81),
        ("8207 0001 00 0001 ff 00", 0x81),
        ("a206 0001 00 0001 ff", 0x81),
        ("8207 0001 00 0001 00 00", 0x81),
        ("8209 0001 02 0b00 0001 61 00", 0x82),
        ("820b 0001 04 0b01 0b01 0001 61 00", 0x82),
        ("a208 0001 02 0b01 0001 61", 0x81),
        ("820c 0001 05 1f 0002 6869 0001 61 00", 0x81),
        ("8210 0001 00 000a 2473686172652f672f61 04", 0x82),
    ],
    ids=[
        "QoS 3",
        "retain handling 3",
        "no filter",
        "no filter to unsubscribe",
        "packet identifier 0",
        "packet identifier 0 to unsubscribe",
        "no options",
        "filter not UTF-8",
        "filter to unsubscribe not UTF-8",
        "filter with U+0000",
        "subscription identifier 0",
        "subscription identifier twice",
        "subscription identifier to unsubscribe",
        "reason string",
        "no local and shared",
    ],
)
def test_a_request_that_breaks_a_rule_is_told_so(frame: str, reason: int) -> None:
    """DISCONNECT with the reason, and the end.

    [MQTT-3.8.3-1, MQTT-3.8.3-2, MQTT-3.8.3-4, MQTT-3.10.3-1, MQTT-3.10.3-2, MQTT-4.13.1-1]
    """
    client = House().connect("c", V5)

    client.send_bytes(bytes.fromhex(frame))

    assert ended(client) == reason
    assert not client.of(Suback) and not client.of(Unsuback)


# Answers


@pytest.mark.parametrize("packet_id", [1, 77, 65_535])
def test_answers_have_the_identifier_of_the_request(packet_id: int) -> None:
    """SUBACK and UNSUBACK, also where nothing is given up.

    [MQTT-3.8.4-1, MQTT-3.8.4-2, MQTT-3.10.4-4, MQTT-3.10.4-5]
    """
    client = House().connect("c", V5)

    client.send(Subscribe(packet_id, (SubscribeRequest("a"),)))
    client.send(Unsubscribe(packet_id, ("a",))).send(Unsubscribe(packet_id, ("a",)))

    assert [p.packet_id for p in client.of(Suback)] == [packet_id]
    assert [p.packet_id for p in client.of(Unsuback)] == [packet_id, packet_id]
    assert [[int(reason) for reason in p.reasons] for p in client.of(Unsuback)] == [[0x00], [0x11]]


def test_each_filter_has_its_answer_in_its_place() -> None:
    """What was granted, or why not, in the order of the request; the same to unsubscribe.

    [MQTT-3.8.4-5, MQTT-3.8.4-6, MQTT-3.8.4-7, MQTT-3.9.3-1, MQTT-3.9.3-2, MQTT-3.10.4-6, MQTT-3.11.3-1,
    MQTT-3.11.3-2]
    """
    client = House().connect("c", V5)
    wanted = [("a", 2), ("b/#/c", 1), ("c", 0), ("d+", 1), ("$share//x", 0), ("e", 1), ("$share/g/e", 2), ("a", 1)]

    client.send(Subscribe(1, tuple(SubscribeRequest(filter, qos) for filter, qos in wanted)))
    client.send(Unsubscribe(2, ("e", "x", "b/#/c", "a", "a", "$share/g/e", "$share/h/e")))

    assert client.granted == [0x02, 0x8F, 0x00, 0x8F, 0x8F, 0x01, 0x02, 0x01]
    assert client.given_up == [0x00, 0x11, 0x8F, 0x00, 0x11, 0x00, 0x11]
    assert (len(client.of(Suback)), len(client.of(Unsuback))) == (1, 1)


def test_one_packet_with_many_filters_is_as_many_packets() -> None:
    """The second of two equal filters replaces the first, and what is retained comes as if each stood alone.

    [MQTT-3.8.4-5, MQTT-3.8.4-3]
    """
    house = House()
    house.connect("p", V5).publish("a", b"kept", qos=1, retain=True)
    alone, together = house.connect("c", V5), house.connect("d", V5)
    requests = (SubscribeRequest("a", 0), SubscribeRequest("a", 1), SubscribeRequest("a", 1, retain_handling=1))

    for request in requests:
        alone.send(Subscribe(next(alone.packet_ids), (request,)))
    together.send(Subscribe(1, requests))
    house.connect("p", V5).publish("a", b"live", qos=2)

    assert alone.messages == together.messages
    assert together.messages == [("a", b"kept", 0), ("a", b"kept", 1), ("a", b"live", 1)]


@pytest.mark.parametrize(
    "filter", ["sport/tennis#", "sport/#/ranking", "#/a", "a/#b", "sport+", "a/b+/c", "++", "+#"]
)
def test_misplaced_wildcards_are_refused(filter: str) -> None:
    """0x8F; others of the same packet are granted [MQTT-4.7.1-1, MQTT-4.7.1-2]."""
    client = House().connect("c", V5)

    client.send(Subscribe(1, (SubscribeRequest(filter), SubscribeRequest("a", 1))))

    assert client.granted == [0x8F, 0x01]
    assert not client.closed


@pytest.mark.parametrize(
    "filter", ["$share", "$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/g#/a"]
)
def test_bad_shared_filters(filter: str) -> None:
    """A share name has a character at least and no wildcard, and a filter follows it; ``$share`` is a plain topic.

    [MQTT-4.8.2-1, MQTT-4.8.2-2]
    """
    client = House().connect("c", V5)

    client.send(Subscribe(1, (SubscribeRequest(filter),))).send(Unsubscribe(2, (filter,)))

    assert (client.granted, client.given_up) == (([0x00], [0x00]) if filter == "$share" else ([0x8F], [0x8F]))
    assert not client.closed


@pytest.mark.parametrize(
    "packet",
    [
        Subscribe(1, tuple(SubscribeRequest(f"{n}") for n in range(20))),
        Unsubscribe(1, tuple(f"{n}" for n in range(20))),
    ],
)
@pytest.mark.parametrize(("size", "answered"), [(25, True), (24, False)])
def test_answers_have_nothing_to_leave_out(packet: Any, size: int, answered: bool) -> None:
    """Neither reason string nor user properties, so no answer is too large for what it need not say.

    One that is too large with its reasons alone is not sent at all (section 3.1.2.11.4).
    [MQTT-3.9.2-1, MQTT-3.9.2-2, MQTT-3.11.2-1, MQTT-3.11.2-2]
    """
    client = House().connect("c", V5, properties=Properties(maximum_packet_size=size))

    client.send(packet)

    answers: list[Any] = [*client.of(Suback), *client.of(Unsuback)]
    assert [answer.properties for answer in answers] == [Properties()] * answered
    assert not client.closed


# Subscriptions


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(qos: int) -> None:
    """A client's own messages do not come to it, also as retained ones; others' do [MQTT-3.8.3-3]."""
    house = House()
    client = house.connect("c", V5).subscribe("a", qos=2, no_local=True)
    other = house.connect("o", V5).subscribe("a", qos=2)

    client.publish("a", b"mine", qos=qos)
    other.publish("a", b"other", qos=qos)

    assert payloads(client) == [b"other"]
    assert payloads(other) == [b"mine", b"other"]


def test_no_local_goes_by_the_client_id() -> None:
    """What a client published in an earlier connection is its own too [MQTT-3.8.3-3]."""
    house = House()
    client = house.connect("c", V5, expiry_s=60, will=None).subscribe("a", qos=1, no_local=True)
    client.publish("a", b"mine", qos=1).drop()

    again = house.connect("c", V5, clean_start=False, expiry_s=60)
    house.connect("d", V5).publish("a", b"other", qos=1)

    assert payloads(again) == [b"other"]


def test_a_second_subscription_takes_the_place_of_the_first() -> None:
    """QoS, options and identifier are those of the last SUBSCRIBE, and each message comes once [MQTT-3.8.4-3]."""
    house = House()
    client = house.connect("c", V5)
    client.subscribe("a", 2, Properties(subscription_identifier=(1,)), no_local=True, retain_as_published=True)

    client.subscribe("a", 1)
    client.publish("a", b"mine", qos=2, retain=True)

    [packet] = client.of(Publish)
    assert (packet.qos, packet.retain, packet.properties.subscription_identifier) == (1, False, ())


@pytest.mark.parametrize("first", ["$share/g/a", "a"])
def test_shared_and_not_shared_are_two_subscriptions(first: str) -> None:
    """Neither replaces the other, and either may be given up alone [MQTT-3.8.4-3, MQTT-3.10.4-1]."""
    house = House()
    client = house.connect("c", V5).subscribe(first).subscribe("a" if first != "a" else "$share/g/a")
    pub = house.connect("p", V5).publish("a", b"two")

    client.unsubscribe("a")
    pub.publish("a", b"one")

    assert payloads(client) == [b"two", b"two", b"one"]


@pytest.mark.parametrize("qos", [1, 2])
def test_replacing_a_subscription_loses_nothing(qos: int) -> None:
    """Retained messages come again, and what waited, or is under way, still comes [MQTT-3.8.4-4]."""
    house = House()
    client = house.connect("c", V5, properties=Properties(receive_maximum=1), silent=True).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    for payload in (b"1", b"2", b"3"):
        pub.publish("a", payload, qos=qos)
    pub.publish("a", b"kept", qos=qos, retain=True)

    client.subscribe("a", qos=2)
    pub.publish("a", b"4", qos=qos)
    client.silent = False
    client.send(Puback(1) if qos == 1 else Pubrec(1))

    assert payloads(client) == [b"1", b"2", b"3", b"kept", b"kept", b"4"]


def test_retained_messages_do_not_come_for_a_shared_subscription() -> None:
    """Whatever its retain handling (section 4.8.2)."""
    house = House()
    house.connect("p", V5).publish("a", b"x", retain=True)

    client = house.connect("c", V5).subscribe("$share/g/a").subscribe("$share/g/a")

    assert client.messages == []


# UNSUBSCRIBE


@pytest.mark.parametrize(
    ("filter", "given_up", "left"),
    [
        ("a/+", 0x00, {"a/b", "A/+", "#"}),
        ("a/b", 0x00, {"a/+", "A/+", "#"}),
        ("#", 0x00, {"a/+", "a/b", "A/+"}),
        ("+/b", 0x11, {"a/+", "a/b", "A/+", "#"}),
        ("a/", 0x11, {"a/+", "a/b", "A/+", "#"}),
        ("a/B", 0x11, {"a/+", "a/b", "A/+", "#"}),
    ],
)
def test_filters_are_compared_character_by_character(filter: str, given_up: int, left: set[str]) -> None:
    """A filter takes away its own subscription, and none that it would match [MQTT-3.10.4-1]."""
    house = House()
    client = house.connect("c", V5)
    for each in ("a/+", "a/b", "A/+", "#"):
        client.subscribe(each)

    client.unsubscribe(filter)

    assert client.given_up == [given_up]
    assert set(house.broker.sessions.by_id["c"].subscriptions) == left


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_is_added_behind_an_unsubscribe(qos: int) -> None:
    """What is published after it does not come, and what comes by another filter does [MQTT-3.10.4-2]."""
    house = House()
    client = house.connect("c", V5).subscribe("a", qos=2).subscribe("a/#", qos=0)
    pub = house.connect("p", V5)

    client.unsubscribe("a")
    pub.publish("a", b"1", qos=qos)
    client.unsubscribe("a/#")
    pub.publish("a", b"2", qos=qos)

    assert client.messages == [("a", b"1", 0)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_delivery_that_has_begun_is_completed(qos: int) -> None:
    """Also over the next connection, with the same identifier, though nobody subscribes now [MQTT-3.10.4-3]."""
    house = House()
    client = house.connect("c", V5, expiry_s=60, silent=True).subscribe("a", qos=2)
    house.connect("p", V5).publish("a", b"x", qos=qos)

    client.unsubscribe("a").drop()
    again = house.connect("c", V5, clean_start=False, expiry_s=60)

    assert [(p.payload, p.dup, p.packet_id) for p in again.of(Publish)] == [(b"x", True, 1)]
    assert [p.packet_id for p in again.of(Pubrel)] == ([1] if qos == 2 else [])
    assert len(house.broker.sessions.by_id["c"].outgoing) == 0
