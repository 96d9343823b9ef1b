"""Subscriptions: what they match, how several come together, and how they end (sections 3.8 to 3.11 and 4.7)."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    V311,
    DisconnectPacket,
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
from kinmqtt_spi.reasons import ReasonCode

VERSIONS = [V31, V311, V5]
INDEXES = ["trie", "hash"]


def house_with(index: str, **more: Any) -> House:
    """A broker with that subscription index."""
    return House(services={"subscription": index}, **more)


def numbered(identifier: int) -> Properties:
    """The properties of a SUBSCRIBE with a subscription identifier."""
    return Properties(subscription_identifier=(identifier,))


def identifiers(peer: Peer) -> list[tuple[int, ...]]:
    """The subscription identifiers of each message, in order of their numbers."""
    return [tuple(sorted(p.properties.subscription_identifier or ())) for p in peer.of(Publish)]


# Matching


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("a/b", ["a/b"]),
        ("A/b", []),
        ("a/+", ["a/", "a/b"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c"]),
        ("+", ["a"]),
        ("/+", ["/", "/a"]),
        ("+/+", ["/", "/a", "a/", "a/b"]),
        ("+/b/#", ["a/b", "a/b/c"]),
        ("#", ["/", "/a", "a", "a/", "a/b", "a/b/c"]),
        ("+/monitor", []),
        ("$X/+", ["$X/monitor"]),
        ("$X/#", ["$X", "$X/monitor"]),
        ("$X/monitor", ["$X/monitor"]),
    ],
)
def test_filters_match_topics(filter: str, expected: list[str]) -> None:
    """Level by level, with empty levels and parents; wildcards leave $-topics alone [MQTT-4.7.2-1, MQTT-4.7.3-4]."""
    house = House()
    sub = house.connect("s").subscribe(filter)
    pub = house.connect("p")

    for topic in ("a", "a/", "a/b", "a/b/c", "/", "/a", "$X", "$X/monitor"):
        pub.publish(topic)

    assert sorted(topic for topic, _, _ in sub.messages) == expected


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("qos", [0, 1])
def test_indexes_follow_each_change(index: str, qos: int) -> None:
    """A subscription counts from the next message on, and no longer once it is gone, cached topics included."""
    house = house_with(index)
    pub = house.connect("p").publish("a", b"0", qos=qos)
    one = house.connect("one").subscribe("a", qos=1)
    pub.publish("a", b"1", qos=qos)
    two = house.connect("two", V5).subscribe("a", qos=1)
    pub.publish("a", b"2", qos=qos)
    one.unsubscribe("a")
    pub.publish("a", b"3", qos=qos)
    two.drop()
    pub.publish("a", b"4", qos=qos)

    assert [payload for _, payload, _ in one.messages] == [b"1", b"2"]
    assert [payload for _, payload, _ in two.messages] == [b"2", b"3"]
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("index", INDEXES)
def test_indexes_keep_clients_apart(index: str) -> None:
    """One client's UNSUBSCRIBE or end does not touch another's subscription to the same filter."""
    house = house_with(index)
    clients = [house.connect(f"s{n}", V5).subscribe("a", qos=n).subscribe("$share/g/a", qos=2) for n in range(3)]

    clients[0].unsubscribe("a")
    clients[1].drop()
    house.connect("p").publish("a", b"x", qos=2)

    assert ("a", b"x", 2) in clients[2].messages
    assert sum(len(client.messages) for client in clients) == 2
    assert house.broker.router.index.count() == 3


# Several of one client


@pytest.mark.parametrize("version", VERSIONS)
def test_overlapping_subscriptions_bring_one_message(version: int) -> None:
    """A message that several filters match comes once, with the highest QoS among them [MQTT-3.3.4-2]."""
    house = House()
    sub = house.connect("s", version).subscribe("a/+", qos=1).subscribe("a/b", qos=2).subscribe("#", qos=0)
    pub = house.connect("p")

    for qos in (0, 1, 2):
        pub.publish("a/b", b"%d" % qos, qos=qos)
    pub.publish("a/c", b"c", qos=2).publish("b", b"b", qos=2)

    assert sub.messages == [
        ("a/b", b"0", 0),
        ("a/b", b"1", 1),
        ("a/b", b"2", 2),
        ("a/c", b"c", 1),
        ("b", b"b", 0),
    ]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_carries_the_identifiers_of_all_its_subscriptions(qos: int) -> None:
    """One delivery has every identifier of the filters that match, and no other [MQTT-3.3.4-3, MQTT-3.3.4-4]."""
    house = House()
    sub = house.connect("s", V5)
    sub.subscribe("a/+", 1, numbered(1)).subscribe("a/#", 0, numbered(268_435_455)).subscribe("a/b", 1)
    sub.subscribe("b", 1, numbered(3)).subscribe("a/b/#", 1, numbered(1))
    other = house.connect("other", V5).subscribe("a/b", 1, numbered(9))
    old = house.connect("old").subscribe("a/b", 1)

    house.connect("p", V5).publish("a/b", b"x", qos=qos).publish("b", qos=qos).publish("a", qos=qos)

    assert identifiers(sub) == [(1, 1, 268_435_455), (3,), (268_435_455,)]
    assert identifiers(other) == [(9,)]
    assert identifiers(old) == [()]


def test_identifiers_are_kept_with_what_waits() -> None:
    """A message of a session whose client is away comes with the identifiers it had [MQTT-3.3.4-3]."""
    house = House()
    house.connect("s", V5, expiry_s=60).subscribe("a/+", 1, numbered(1)).subscribe("a/b", 1, numbered(2)).drop()
    house.connect("p").publish("a/b", b"x", qos=1)

    again = house.connect("s", V5, clean_start=False, expiry_s=60).subscribe("a/c", 1, numbered(3))

    assert identifiers(again) == [(1, 2)]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_filter_replaces_the_subscription(index: str, version: int) -> None:
    """The same filter again is the same subscription with another QoS; nothing comes twice [MQTT-3.8.4-3]."""
    house = house_with(index)
    sub = house.connect("s", version).subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"1", qos=2)

    sub.subscribe("a", qos=0)
    pub.publish("a", b"2", qos=2)

    assert sub.messages == [("a", b"1", 2), ("a", b"2", 0)]
    assert sub.granted == [0]
    assert house.broker.router.index.count() == 1


def test_a_replacement_replaces_every_option() -> None:
    """No Local, Retain As Published and the identifier are those of the last SUBSCRIBE [MQTT-3.8.4-3]."""
    house = House()
    client = house.connect("c", V5)
    client.subscribe("a", 1, numbered(1), no_local=True, retain_as_published=True)
    client.publish("a", b"1", retain=True)

    client.subscribe("a", 1, numbered(2), retain_handling=2).publish("a", b"2", retain=True)
    client.subscribe("a", 1, retain_handling=2).publish("a", b"3", retain=True)

    assert [(p.payload, p.retain) for p in client.of(Publish)] == [(b"2", False), (b"3", False)]
    assert identifiers(client) == [(2,), ()]


def test_a_replacement_is_kept_with_the_session() -> None:
    """After the client has come back the replaced options hold still."""
    house = House()
    client = house.connect("c", V5, expiry_s=60).subscribe("a", 0, numbered(1)).subscribe("a", 1, numbered(2))
    client.drop()

    again = house.connect("c", V5, clean_start=False, expiry_s=60)
    house.connect("p").publish("a", b"x", qos=1)

    assert [p.qos for p in again.of(Publish)] == [1]
    assert identifiers(again) == [(2,)]


# No Local


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_keeps_a_clients_own_messages_away(qos: int) -> None:
    """With No Local a client's messages go to all others, and not to itself [MQTT-3.8.3-3]."""
    house = House()
    a = house.connect("a", V5).subscribe("t", 2, no_local=True)
    b = house.connect("b", V5).subscribe("t", 2, no_local=True)
    both = house.connect("c", V5).subscribe("t", 2)

    for client in (a, b, both):
        client.publish("t", client.connection.session.client_id.encode(), qos=qos)  # type: ignore[union-attr]

    assert [payload for _, payload, _ in a.messages] == [b"b", b"c"]
    assert [payload for _, payload, _ in b.messages] == [b"a", b"c"]
    assert [payload for _, payload, _ in both.messages] == [b"a", b"b", b"c"]


def test_no_local_holds_for_its_own_subscription_only() -> None:
    """An overlapping filter without it brings the client's own messages, by its options alone [MQTT-3.8.3-3]."""
    house = House()
    client = house.connect("c", V5).subscribe("a/+", 2, numbered(1), no_local=True, retain_as_published=True)
    client.subscribe("a/b", 1, numbered(2))

    client.publish("a/b", b"own", qos=2, retain=True).publish("a/c", b"own", qos=2)
    house.connect("p").publish("a/b", b"other", qos=2)

    assert client.messages == [("a/b", b"own", 1), ("a/b", b"other", 2)]
    assert identifiers(client) == [(2,), (1, 2)]
    assert [p.retain for p in client.of(Publish)] == [False, False]


def test_no_local_is_about_the_client_id() -> None:
    """A client's message of an earlier connection is its own still, retained ones included [MQTT-3.8.3-3]."""
    house = House()
    house.connect("c", V5).publish("a", b"mine", retain=True).disconnect()
    house.connect("d", V5).publish("b", b"not mine", retain=True)

    client = house.connect("c", V5).subscribe("+", no_local=True)

    assert client.messages == [("b", b"not mine", 0)]


# SUBSCRIBE and its answer


def test_each_filter_has_a_reason_in_order() -> None:
    """SUBACK answers every filter of one SUBSCRIBE, in order and with its identifier [MQTT-3.8.4-2, MQTT-3.8.4-6]."""
    house = House(max_topic_levels=3)
    requests = [("a", 1), ("b/#/c", 2), ("c", 0), ("a", 2), ("1/2/3/4", 1), ("$share/g/d", 2)]

    client = house.connect("c", V5)
    client.send(Subscribe(77, tuple(SubscribeRequest(filter, qos) for filter, qos in requests)))
    house.connect("p").publish("a", qos=2).publish("d", qos=2)

    assert [(p.packet_id, [int(r) for r in p.reasons]) for p in client.of(Suback)] == [(77, [1, 0x8F, 0, 2, 0x8F, 2])]
    assert client.messages == [("a", b"", 2), ("d", b"", 2)]
    assert house.broker.router.index.count() == 3


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "filter", ["a/#/b", "a#", "#a", "a+", "+a/b", "a/b+/c", "##", "$share/g", "$share/g/", "$share//a", "$share/+/a"]
)
def test_invalid_filters(version: int, filter: str) -> None:
    """MQTT 5 is told 0x8F for the filter; for older versions it is a violation [MQTT-4.7.1-1, MQTT-4.8.2-2]."""
    house = House()

    client = house.connect("c", version).subscribe(filter)

    assert house.broker.router.index.count() == 0
    assert client.closed is (version != V5)
    if version == V5:
        assert client.granted == [ReasonCode.TOPIC_FILTER_INVALID]


@pytest.mark.parametrize(("version", "told"), [(V31, 0x80), (V311, 0x80), (V5, 0x97)])
def test_a_client_has_a_number_of_subscriptions(version: int, told: int) -> None:
    """One more than the limit is refused; replacing one goes on, and giving one up makes room."""
    house = House(max_subscriptions=2)
    client = house.connect("c", version).subscribe("a").subscribe("$share/g/a")

    answers = [client.subscribe(filter, qos=1).granted for filter in ("b", "a", "$share/g/a")]
    client.unsubscribe("a")

    assert answers == [[told], [1], [1]]
    assert client.subscribe("b").granted == [0]
    assert house.connect("d", version).subscribe("b").granted == [0]


@pytest.mark.parametrize("index", INDEXES)
def test_subscriptions_of_a_kept_session_come_back(index: str) -> None:
    """They stand while the client is away, and end with the session [MQTT-3.1.2-5]."""
    house = house_with(index)
    house.connect("c", V5, expiry_s=10).subscribe("a", qos=1).subscribe("b", qos=1).unsubscribe("b").drop()
    house.connect("p").publish("a", b"1", qos=1).publish("b", b"2", qos=1)

    again = house.connect("c", V5, clean_start=False, expiry_s=10)
    again.drop()
    house.advance(12)

    assert again.messages == [("a", b"1", 1)]
    assert house.broker.router.index.count() == 0


# UNSUBSCRIBE and its answer


def test_unsubscribe_answers_each_filter() -> None:
    """UNSUBACK has a reason for each filter in order, compared as it was written [MQTT-3.10.4-1, MQTT-3.11.3-2]."""
    house = House()
    client = house.connect("c", V5).subscribe("a/+").subscribe("b").subscribe("$share/g/b").subscribe("B")
    filters = ("a/+", "a/b", "b", "b", "$share/h/b", "$share/g/b", "a/#/b", "a/+")

    client.send(Unsubscribe(99, filters))

    assert client.of(Unsuback)[-1].packet_id == 99
    assert client.given_up == [0, 0x11, 0, 0x11, 0x11, 0, 0x8F, 0x11]
    assert [filter for filter, _ in house.broker.router.index.filters()] == ["B"]


@pytest.mark.parametrize("version", [V31, V311])
def test_unsubscribe_is_always_answered(version: int) -> None:
    """Older versions get an UNSUBACK also where there was nothing to give up [MQTT-3.10.4-5]."""
    client = House().connect("c", version).send(Unsubscribe(5, ("a", "b")))

    assert client.of(Unsuback) == [Unsuback(5)]


def test_what_was_begun_is_completed() -> None:
    """UNSUBSCRIBE adds nothing more; a delivery under way goes on to its end [MQTT-3.10.4-2, MQTT-3.10.4-3]."""
    house = House()
    client = house.connect("c", silent=True).subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"1", qos=2)

    client.unsubscribe("a")
    pub.publish("a", b"2", qos=2)
    client.send(Pubrec(1))

    assert [payload for _, payload, _ in client.messages] == [b"1"]
    assert [p.packet_id for p in client.of(Pubrel)] == [1]


def test_subscribe_publish_unsubscribe_of_one_read() -> None:
    """What comes in one read is carried out in order: in between the client gets its own message [MQTT-4.6.0-5]."""
    client = House().connect("c", V5)
    packets: list[Any] = [
        Publish.build("a", b"before"),
        Subscribe(1, (SubscribeRequest("a", 0),)),
        Publish.build("a", b"between"),
        Unsubscribe(2, ("a",)),
        Publish.build("a", b"after"),
    ]

    client.send_bytes(b"".join(encode(packet, V5) for packet in packets))

    assert [payload for _, payload, _ in client.messages] == [b"between"]
    assert {type(packet) for packet in client.packets[1:]} == {Suback, Publish, Unsuback}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x82\x06\x00\x01\x00\x00\x01a", ReasonCode.MALFORMED_PACKET),
        (b"\x82\x03\x00\x01\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\x82\x07\x00\x01\x00\x00\x01a\x03", ReasonCode.PROTOCOL_ERROR),
        (b"\x82\x07\x00\x01\x00\x00\x01a\x40", ReasonCode.MALFORMED_PACKET),
        (b"\x82\x09\x00\x01\x02\x0b\x00\x00\x01a\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\xa2\x03\x00\x01\x00", ReasonCode.PROTOCOL_ERROR),
    ],
    ids=["cut", "no filter", "qos 3", "reserved bits", "identifier 0", "unsubscribe without filter"],
)
def test_packets_that_are_none_make_no_subscription(data: bytes, reason: ReasonCode) -> None:
    """A SUBSCRIBE or UNSUBSCRIBE against the rules closes the connection, with its reason [MQTT-4.13.1-1]."""
    house = House()

    client = house.connect("c", V5).send_bytes(data)

    assert [p.reason for p in client.of(DisconnectPacket)] == [reason]
    assert house.broker.router.index.count() == 0


# Bridges of MQTT 3.1.1

BRIDGE = b"\x10\x0d\x00\x04MQTT\x84\x00\x00\x00\x00\x01b"
"""CONNECT of the client `b`, with the bit of bridges and a persistent session."""


def test_a_bridge_of_311_does_not_get_its_own_messages() -> None:
    """The highest bit of the level stands for No Local and Retain As Published, now and after it has come again."""
    house = House()
    bridge = house.open(V311).send_bytes(BRIDGE).subscribe("a/#", 1)
    bridge.publish("a/own", b"own", qos=1)
    bridge.drop()
    house.connect("p").publish("a/1", b"other", qos=1, retain=True)

    again = house.open(V311).send_bytes(BRIDGE).publish("a/own", b"own", qos=1)

    assert bridge.connack.reason is ReasonCode.SUCCESS
    assert bridge.of(Publish) == []
    assert [(each.payload, each.retain) for each in again.of(Publish)] == [(b"other", True)]


def test_a_bridge_may_have_shared_subscriptions() -> None:
    """No Local does not go with them, so they are as others'."""
    house = House()
    bridge = house.open(V311).send_bytes(BRIDGE).subscribe("$share/g/a/#", 1)

    bridge.publish("a/own", b"own", qos=1)

    assert bridge.granted == [1]
    assert [each.payload for each in bridge.of(Publish)] == [b"own"]
