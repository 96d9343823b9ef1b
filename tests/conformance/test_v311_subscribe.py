"""MQTT 3.1 and 3.1.1: SUBSCRIBE, UNSUBSCRIBE and their answers (sections 3.8 to 3.11 and 4.7.1)."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import (
    V31,
    V311,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.values import ALLOW, deny

OLD = [V31, V311]


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


def subscribe(*requests: tuple[str, int], packet_id: int = 1) -> Subscribe:
    """One SUBSCRIBE for several filters."""
    return Subscribe(packet_id, tuple(SubscribeRequest(filter, qos) for filter, qos in requests))


class Authorizer:
    """Forbids what is below ``no``."""

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision:
        return deny() if request.action is Action.SUBSCRIBE and request.topic.startswith("no") else ALLOW


# SUBSCRIBE


def test_suback_byte_by_byte() -> None:
    """A code for each filter, in order: the granted QoS or 0x80 [MQTT-3.8.4-5, MQTT-3.9.3-1, MQTT-3.9.3-2]."""
    house = House(plugins={"authorizer": Authorizer()})
    client = house.connect("c", V311)
    heard = bytearray()
    client.link.write = heard.extend  # type: ignore[assignment, method-assign]

    client.send(subscribe(("a", 2), ("no/a", 0), ("b", 0), ("no/b", 2), ("c", 1), packet_id=0x1234))

    assert heard == b"\x90\x07\x12\x34\x02\x80\x00\x80\x01"
    assert house.broker.router.index.count() == 3


@pytest.mark.parametrize("version", OLD)
def test_several_filters_are_as_several_subscribes(version: int) -> None:
    """Carried out one by one, a filter twice among them, with one SUBACK [MQTT-3.8.4-4, MQTT-3.8.4-1]."""
    house = House()
    house.connect("p").publish("a", b"kept", qos=2, retain=True)
    one = house.connect("one", version).send(subscribe(("a", 2), ("b", 1), ("a", 0)))
    apart = house.connect("apart", version)
    for filter, qos in (("a", 2), ("b", 1), ("a", 0)):
        apart.subscribe(filter, qos)

    house.connect("q").publish("a", b"x", qos=2).publish("b", b"y", qos=2)

    assert [[int(reason) for reason in p.reasons] for p in one.of(Suback)] == [[2, 1, 0]]
    assert sorted(one.messages) == sorted(apart.messages)
    assert sorted(apart.messages) == [("a", b"kept", 0), ("a", b"kept", 2), ("a", b"x", 0), ("b", b"y", 1)]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 1)])
def test_a_replacement_interrupts_nothing(version: int, before: int, after: int) -> None:
    """Live messages go on with the new QoS, retained ones come again, those in flight stay [MQTT-3.8.4-3]."""
    house = House()
    pub = house.connect("p").publish("a", b"kept", qos=2, retain=True)
    sub = house.connect("s", version).subscribe("a", qos=before)
    pub.publish("a", b"1", qos=2)

    sub.send_bytes(b"\x82\x06\x00\x63\x00\x01a" + bytes((after,)))
    pub.publish("a", b"2", qos=2)
    sub.unsubscribe("a")
    pub.publish("a", b"3", qos=2)

    assert [(p.payload, p.qos, p.retain) for p in sub.of(Publish)] == [
        (b"kept", before, True),
        (b"1", before, False),
        (b"kept", after, True),
        (b"2", after, False),
    ]


@pytest.mark.parametrize("version", OLD)
def test_overlapping_filters_bring_the_highest_qos(version: int) -> None:
    """A message comes with the highest QoS that a fitting filter has, as far as it has it itself [MQTT-3.3.5-1]."""
    house = House()
    sub = house.connect("s", version).send(subscribe(("a/#", 0), ("a/+", 2), ("a/b", 1), ("b", 2)))
    pub = house.connect("p")

    for qos in (0, 1, 2):
        pub.publish("a/b", b"%d" % qos, qos=qos)

    assert [max(qos for _, payload, qos in sub.messages if payload == b"%d" % sent) for sent in (0, 1, 2)] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("bits", [0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFC])
def test_the_upper_bits_of_a_requested_qos_are_reserved(bits: int) -> None:
    """Each closes the connection (section 3.8.3, [MQTT-4.8.0-1])."""
    house = House()
    client = house.connect("c", V311).send_bytes(b"\x82\x06\x00\x01\x00\x01a" + bytes((bits | 1,)))

    assert client.closed
    assert len(client.packets) == 1
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x02\x00\x01",
        b"\x82\x00",
        b"\x82\x01\x00",
        b"\x82\x05\x00\x01\x00\x01a",
        b"\x82\x06\x00\x01\x00\x01a\x03",
        b"\x82\x06\x00\x01\x00\x09a\x00",
        b"\x82\x07\x00\x01\x00\x01a\x00\x00",
        b"\x82\x0a\x00\x01\x00\x01a\x00\x00\x01b\x03",
    ],
    ids=[
        "no filter",
        "no identifier",
        "half an identifier",
        "no qos",
        "qos 3",
        "filter cut",
        "a byte behind",
        "qos 3 behind a good one",
    ],
)
def test_a_subscribe_against_the_rules(version: int, data: bytes) -> None:
    """It is not answered, subscribes to nothing, and closes the connection [MQTT-3.8.3-3, MQTT-4.8.0-1]."""
    house = House()
    client = house.connect("c", version).send_bytes(data)

    assert client.closed
    assert len(client.packets) == 1
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "filter", ["a/#/b", "a#", "#a", "a/b#", "##", "#/", "a/##", "+#", "a+", "+a", "a/b+/c", "++"]
)
def test_a_wildcard_has_a_level_of_its_own(version: int, filter: str) -> None:
    """And ``#`` the last: others are refused or close the connection [MQTT-4.7.1-2, MQTT-4.7.1-3]."""
    house = House()
    client = house.connect("c", version).subscribe(filter, qos=1)

    assert client.closed or client.granted == [0x80]
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "filter", ["#", "+", "/", "/#", "+/+", "+/#", "a/+/b", "/+", "+/", "//", "a/+/#", "$SYS/#", " "]
)
def test_good_filters_are_granted(version: int, filter: str) -> None:
    """Wildcards at every level, empty levels, spaces [MQTT-4.7.1-2, MQTT-4.7.1-3, MQTT-4.7.3-1]."""
    assert House().connect("c", version).subscribe(filter, qos=2).granted == [2]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    ("filter", "topics"),
    [
        (
            "sport/tennis/player1/#",
            ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/a/b"],
        ),
        (
            "sport/#",
            ["sport", "sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/a/b", "sport/"],
        ),
        ("sport/+", ["sport/"]),
        ("sport/tennis/+", ["sport/tennis/player1"]),
        ("+", ["sport"]),
        ("+/+", ["/finance", "sport/"]),
        ("/+", ["/finance"]),
    ],
)
def test_the_examples_of_the_specification(version: int, filter: str, topics: list[str]) -> None:
    """Sections 4.7.1.2 and 4.7.1.3, live and retained [MQTT-4.7.1-2, MQTT-4.7.1-3]."""
    house = House()
    sub = house.connect("s", version).subscribe(filter)
    pub = house.connect("p", version)

    for topic in (
        "sport",
        "sport/",
        "sport/tennis/player1",
        "sport/tennis/player1/ranking",
        "sport/tennis/player1/a/b",
        "/finance",
    ):
        pub.publish(topic, b"x", retain=True)
    late = house.connect("late", version).subscribe(filter)

    assert sorted(topic for topic, _, _ in sub.messages) == sorted(topics)
    assert sorted(topic for topic, _, _ in late.messages) == sorted(topics)


# UNSUBSCRIBE


@pytest.mark.parametrize("version", OLD)
def test_filters_are_given_up_as_they_were_written(version: int) -> None:
    """A filter that only matches, or looks alike, gives nothing up [MQTT-3.10.4-1]."""
    house = House()
    client = house.connect("c", version).subscribe("a/+").subscribe("A").subscribe("\u00e9")

    client.send(Unsubscribe(9, ("a/b", "#", "a", "a/#", "e\u0301", "+", "A/")))
    kept = {filter for filter, _ in house.broker.router.index.filters()}
    client.send(Unsubscribe(10, ("a/+",)))

    assert kept == {"a/+", "A", "\u00e9"}
    assert {filter for filter, _ in house.broker.router.index.filters()} == {"A", "\u00e9"}
    assert client.of(Unsuback) == [Unsuback(9), Unsuback(10)]


@pytest.mark.parametrize("version", OLD)
def test_several_filters_are_given_up_with_one_answer(version: int) -> None:
    """As in several UNSUBSCRIBE packets, those that were none among them [MQTT-3.10.4-6, MQTT-3.10.4-5]."""
    house = House()
    client = house.connect("c", version).subscribe("a").subscribe("b").subscribe("c")

    client.send(Unsubscribe(0xFFFF, ("a", "x", "b", "a")))
    house.connect("p").publish("a").publish("b").publish("c")

    assert client.of(Unsuback) == [Unsuback(0xFFFF)]
    assert [topic for topic, _, _ in client.messages] == ["c"]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_delivery_outlives_its_subscription(version: int, qos: int) -> None:
    """What was sent is completed, on the next connection too; nothing is added [MQTT-3.10.4-2, MQTT-3.10.4-3]."""
    house = House()
    first = house.connect("c", version, clean_start=False, silent=True).subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"1", qos=qos)

    first.unsubscribe("a")
    pub.publish("a", b"2", qos=qos)
    first.drop()
    pub.publish("a", b"3", qos=qos)
    again = house.connect("c", version, clean_start=False)

    assert first.of(Unsuback) != []
    assert payloads(first) == [b"1"]
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [(b"1", True)]
    assert len(again.of(Pubrel)) == qos - 1
    assert len(house.broker.sessions.by_id["c"].outgoing) == 0


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize(
    "data",
    [
        b"\xa2\x02\x00\x01",
        b"\xa2\x00",
        b"\xa2\x01\x00",
        b"\xa2\x06\x00\x01\x00\x01a\x00",
        b"\xa2\x06\x00\x01\x00\x09ab",
    ],
    ids=["no filter", "no identifier", "half an identifier", "half a length behind", "filter cut"],
)
def test_an_unsubscribe_against_the_rules(version: int, data: bytes) -> None:
    """It is not answered, gives nothing up, and closes the connection [MQTT-3.10.3-2, MQTT-3.10.3-1]."""
    house = House()
    client = house.connect("c", version, clean_start=False).subscribe("a")
    before = len(client.packets)

    client.send_bytes(data)

    assert client.closed
    assert len(client.packets) == before
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize("version", OLD)
def test_a_pingreq_is_answered(version: int) -> None:
    """With PINGRESP, each one, in its turn [MQTT-3.12.4-1]."""
    client = House().connect("c", version)
    heard = bytearray()
    client.link.write = heard.extend  # type: ignore[assignment, method-assign]

    client.send_bytes(b"\xc0\x00\xc0\x00").send_bytes(b"\xc0").send_bytes(b"\x00")

    assert heard == b"\xd0\x00" * 3


def test_3_1_repeats_with_dup() -> None:
    """MQTT 3.1 sends SUBSCRIBE, UNSUBSCRIBE and PUBREL again with DUP: each is answered anew (its section 4.2)."""
    client = House().connect("c", V31)

    client.send_bytes(b"\x8a\x06\x00\x01\x00\x01a\x01" * 2)
    client.send_bytes(b"\xaa\x05\x00\x02\x00\x01a" * 2)
    client.send_bytes(b"\x6a\x02\x00\x03")

    assert [p.packet_id for p in client.of(Suback)] == [1, 1]
    assert [p.packet_id for p in client.of(Unsuback)] == [2, 2]
    assert not client.closed
