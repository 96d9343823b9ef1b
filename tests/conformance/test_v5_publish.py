"""PUBLISH of MQTT 5.0 (section 3.3): what no other test shows."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, DisconnectPacket, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe
from kinmqtt.mqtt.packets import SubscribeRequest as Request
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode

EVERYTHING = Properties(
    payload_format_indicator=1,
    content_type="text/plain; grüße",
    response_topic="reply/to me",
    correlation_data=b"\x00\xff\x01",
    user_property=(("b", "2"), ("a", "1"), ("b", "2"), ("b", ""), ("", "x")),
)


def shown(peer: Peer) -> list[tuple[bytes, bool]]:
    """Payload and RETAIN of every PUBLISH that a client got."""
    return [(packet.payload, packet.retain) for packet in peer.of(Publish)]


def ended(peer: Peer) -> int:
    """The reason code with which the broker has ended a connection."""
    assert peer.closed
    [disconnect] = peer.of(DisconnectPacket)
    assert peer.packets[-1] is disconnect
    return int(disconnect.reason)


# DUP


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_the_receivers_affair(qos: int, granted: int) -> None:
    """A repeated PUBLISH goes out without DUP, in QoS 0 too [MQTT-3.3.1-2, MQTT-3.3.1-3, MQTT-4.3.1-1]."""
    house = House()
    sub = house.connect("s", V5).subscribe("a", qos=granted)

    house.connect("p", V5).publish("a", b"x", qos=qos, dup=True, retain=True)
    late = house.connect("l", V5).subscribe("a", qos=granted)

    assert [(p.dup, p.qos) for p in sub.of(Publish)] == [(False, min(qos, granted))]
    assert [(p.dup, p.qos) for p in late.of(Publish)] == [(False, min(qos, granted))]


# RETAIN


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_retained_message_counts(qos: int) -> None:
    """A retained message takes the place of the one before, whatever its QoS [MQTT-3.3.1-5]."""
    house = House()
    pub = house.connect("p", V5).publish("a", b"1", qos=1, retain=True).publish("b", b"other", retain=True)

    pub.publish("a", b"2", qos=qos, retain=True)

    assert shown(house.connect("s", V5).subscribe("a", qos=2)) == [(b"2", True)]
    assert house.connect("t", V5).subscribe("a", qos=2).of(Publish)[0].qos == qos


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_retained_message_clears_its_topic(qos: int) -> None:
    """It is delivered as any other, and nothing is kept afterwards [MQTT-3.3.1-6, MQTT-3.3.1-7]."""
    house = House()
    sub = house.connect("s", V5).subscribe("a", qos=2)
    pub = house.connect("p", V5).publish("a", b"1", retain=True)

    pub.publish("a", b"", qos=qos, retain=True)

    assert shown(sub) == [(b"1", False), (b"", False)]
    assert shown(house.connect("late", V5).subscribe("a")) == []


@pytest.mark.parametrize("payload", [b"new", b""])
def test_a_message_without_retain_leaves_what_is_kept(payload: bytes) -> None:
    """Neither stored, nor does it replace or remove anything, also where it is empty [MQTT-3.3.1-8]."""
    house = House()
    pub = house.connect("p", V5).publish("a", b"kept", retain=True)

    pub.publish("a", payload).publish("b", payload, qos=1)

    assert shown(house.connect("s", V5).subscribe("+")) == [(b"kept", True)]


@pytest.mark.parametrize(
    ("handling", "first", "second"),
    [(0, [b"1", b"2"], [b"1", b"2"]), (1, [b"1", b"2"], []), (2, [], [])],
)
def test_retain_handling(handling: int, first: list[bytes], second: list[bytes]) -> None:
    """0 sends all that match each time, 1 for a new subscription, 2 never [MQTT-3.3.1-9 to MQTT-3.3.1-11]."""
    house = House()
    house.connect("p", V5).publish("a/1", b"1", retain=True).publish("a/2", b"2", retain=True).publish(
        "b", retain=True
    )
    sub = house.connect("s", V5)

    sub.subscribe("a/+", retain_handling=handling)
    before = sorted(payload for payload, _ in shown(sub))
    sub.packets.clear()
    sub.subscribe("a/+", retain_handling=handling, qos=1)

    assert before == first
    assert sorted(payload for payload, _ in shown(sub)) == second


def test_a_subscription_that_was_given_up_is_new_again() -> None:
    """Retain Handling 1 sends after an UNSUBSCRIBE, and not in a session that was resumed [MQTT-3.3.1-10]."""
    house = House()
    house.connect("p", V5).publish("a", b"x", retain=True)
    sub = house.connect("s", V5, expiry_s=60).subscribe("a", retain_handling=1)
    sub.unsubscribe("a").subscribe("a", retain_handling=1)
    sub.drop()

    again = house.connect("s", V5, clean_start=False, expiry_s=60).subscribe("a", retain_handling=1)

    assert shown(sub) == [(b"x", True), (b"x", True)]
    assert shown(again) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("published", [False, True])
def test_retain_as_published(published: bool, qos: int) -> None:
    """The flag goes out as it came where that was asked for, else as 0 [MQTT-3.3.1-12, MQTT-3.3.1-13]."""
    house = House()
    plain = house.connect("s", V5).subscribe("a", qos=qos)
    asked = house.connect("t", V5).subscribe("a", qos=qos, retain_as_published=True)

    house.connect("p", V5).publish("a", b"x", qos=qos, retain=published)

    assert shown(plain) == [(b"x", False)]
    assert shown(asked) == [(b"x", published)]


@pytest.mark.parametrize("as_published", [False, True])
def test_what_was_kept_comes_with_retain(as_published: bool) -> None:
    """A message sent because of a subscription carries RETAIN, whatever Retain As Published says [MQTT-3.3.1-9]."""
    house = House()
    house.connect("p", V5).publish("a", b"x", retain=True)

    sub = house.connect("s", V5).subscribe("a", retain_as_published=as_published)

    assert shown(sub) == [(b"x", True)]


# Properties that go on


@pytest.mark.parametrize("identifier", [None, 7])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("way", ["live", "retained", "queued"])
def test_properties_of_a_message_are_unaltered(way: str, qos: int, identifier: int | None) -> None:
    """Each of them, user properties in their order, however it gets there.

    [MQTT-3.3.2-4, MQTT-3.3.2-15, MQTT-3.3.2-16, MQTT-3.3.2-17, MQTT-3.3.2-18, MQTT-3.3.2-20]
    """
    house = House()
    asked = Properties() if identifier is None else Properties(subscription_identifier=(identifier,))
    sub = house.connect("s", V5, expiry_s=60)
    if way != "retained":
        sub.subscribe("a", qos=2, properties=asked)
    if way == "queued":
        sub.drop()
    sent_with = max(qos, 1) if way == "queued" else qos

    house.connect("p", V5).publish("a", b"hi", qos=sent_with, retain=way == "retained", properties=EVERYTHING)
    if way == "queued":
        sub = house.connect("s", V5, clean_start=False, expiry_s=60)
    elif way == "retained":
        sub.subscribe("a", qos=2, properties=asked)

    [packet] = sub.of(Publish)
    expected = EVERYTHING if identifier is None else EVERYTHING.replace(subscription_identifier=(identifier,))
    assert packet.properties == expected
    assert packet.properties.user_property == EVERYTHING.user_property


def test_correlation_data_and_texts_may_be_empty() -> None:
    """What is there and empty is not what is absent [MQTT-3.3.2-16, MQTT-3.3.2-17, MQTT-3.3.2-20]."""
    house = House()
    sub = house.connect("s", V5).subscribe("a")
    properties = Properties(payload_format_indicator=0, correlation_data=b"", content_type="")

    house.connect("p", V5).publish("a", b"x", properties=properties)

    assert dict(sub.of(Publish)[0].properties.present) == dict(properties.present)


def test_a_retained_message_ages() -> None:
    """Its interval goes out as what is left of it, and behind that it is not sent [MQTT-3.3.2-5, MQTT-3.3.2-6]."""
    house = House()
    house.connect("p", V5).publish("a", b"x", retain=True, properties=Properties(message_expiry_interval=10))

    house.advance(4)
    early = house.connect("s", V5).subscribe("a", qos=1)
    house.advance(7)
    late = house.connect("t", V5).subscribe("a", qos=1)

    assert [p.properties.message_expiry_interval for p in early.of(Publish)] == [6]
    assert late.of(Publish) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("interval", [0, 1, 4_294_967_295])
def test_what_did_not_wait_goes_out_with_its_whole_interval(interval: int, qos: int) -> None:
    """The received value less nothing, in every QoS and with a subscription identifier too [MQTT-3.3.2-6]."""
    house = House()
    plain = house.connect("s", V5).subscribe("a", qos=2)
    particular = house.connect("t", V5).subscribe("a", qos=2, properties=Properties(subscription_identifier=(1,)))

    house.connect("p", V5).publish("a", b"x", qos=qos, properties=Properties(message_expiry_interval=interval))

    told = [p.properties.message_expiry_interval for peer in (plain, particular) for p in peer.of(Publish)]
    assert told == [interval, interval]


# Topic aliases of a client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_alias_up_to_the_maximum_is_taken(qos: int) -> None:
    """Each stands for the topic it was last given, and for that only; none reaches others [MQTT-3.3.2-12]."""
    house = House(topic_alias_maximum=3)
    sub = house.connect("s", V5).subscribe("#", qos=2)
    pub = house.connect("p", V5)

    for alias in (1, 2, 3):
        pub.publish(f"topic/{alias}", qos=qos, properties=Properties(topic_alias=alias))
    for alias in (3, 1, 2):
        pub.publish("", qos=qos, properties=Properties(topic_alias=alias))
    pub.publish("other", qos=qos, properties=Properties(topic_alias=2))
    pub.publish("", qos=qos, properties=Properties(topic_alias=2))

    assert pub.connack.properties.topic_alias_maximum == 3
    topics = ["topic/1", "topic/2", "topic/3", "topic/3", "topic/1", "topic/2", "other", "other"]
    assert [topic for topic, _, _ in sub.messages] == topics
    assert {packet.properties.topic_alias for packet in sub.of(Publish)} == {None}


@pytest.mark.parametrize("topic", ["a", ""])
@pytest.mark.parametrize(("maximum", "alias"), [(3, 4), (3, 65_535), (0, 1)])
def test_an_alias_above_the_maximum_is_an_error(maximum: int, alias: int, topic: str) -> None:
    """0x94, also where the broker takes none at all [MQTT-3.3.2-9]."""
    house = House(topic_alias_maximum=maximum)
    sub = house.connect("s", V5).subscribe("#")
    pub = house.connect("p", V5)

    pub.publish(topic, b"x", properties=Properties(topic_alias=alias))

    assert pub.connack.properties.topic_alias_maximum == (maximum or None)
    assert ended(pub) == 0x94
    assert sub.messages == []


@pytest.mark.parametrize("frame", ["3007 0001 61 03 230000", "3006 0000 03 230000"])
def test_an_alias_of_nought_is_an_error(frame: str) -> None:
    """0x94, with a topic and without [MQTT-3.3.2-8]."""
    assert ended(House().connect("p", V5).send_bytes(bytes.fromhex(frame))) == 0x94


def test_an_alias_that_was_not_given_a_topic_is_an_error() -> None:
    """0x82: no topic, and nothing to know it by (section 3.3.2.3.4)."""
    pub = House().connect("p", V5).publish("a", properties=Properties(topic_alias=1))

    pub.publish("", properties=Properties(topic_alias=2))

    assert ended(pub) == 0x82


def test_aliases_of_a_client_end_with_its_connection() -> None:
    """Though the session goes on, and though the client is the same [MQTT-3.3.2-7]."""
    house = House()
    house.connect("p", V5, expiry_s=60).publish("a", properties=Properties(topic_alias=1)).drop()
    again = house.connect("p", V5, clean_start=False, expiry_s=60)

    again.publish("", properties=Properties(topic_alias=1))

    assert again.connack.session_present
    assert ended(again) == 0x82


def test_aliases_belong_to_one_client_and_one_direction() -> None:
    """Neither another client's number nor the broker's own stands for anything [MQTT-3.3.2-7]."""
    house = House()
    other = house.connect("o", V5, properties=Properties(topic_alias_maximum=5)).subscribe("topic")
    house.connect("p", V5).publish("topic", properties=Properties(topic_alias=1))

    other.publish("", properties=Properties(topic_alias=1))

    assert other.of(Publish)[0].properties.topic_alias == 1
    assert ended(other) == 0x82


# What a client must not send


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("3006 0001 61 02 0b01", 0x82),
        ("3205 0001 61 0001", 0x81),
        ("3605 0001 61 0001 00", 0x81),
        ("3804 0001 61 00", 0x81),
        ("3906 0001 61 00 78 78", 0x81),
        ("3206 0001 61 0000 00", 0x82),
        ("3204 0000 0001", 0x81),
        ("3004 0001 2b 00", 0x90),
        ("3004 0001 23 00", 0x90),
        ("3006 0003 61 2f 23 00", 0x90),
        ("3008 0001 61 04 0101 0100", 0x82),
        ("3006 0001 61 02 0102", 0x82),
        ("3008 0001 61 04 08 0001 23", 0x82),
        ("3008 0001 61 04 08 0001 ff", 0x81),
        ("3008 0001 61 04 03 0001 ff", 0x81),
        ("3006 0001 61 02 2101", 0x81),
    ],
    ids=[
        "subscription identifier",
        "no property length",
        "QoS 3",
        "DUP of QoS 0",
        "DUP and RETAIN of QoS 0",
        "packet identifier 0",
        "too short",
        "topic +",
        "topic #",
        "topic with #",
        "payload format twice",
        "payload format 2",
        "response topic #",
        "response topic not UTF-8",
        "content type not UTF-8",
        "property cut short",
    ],
)
def test_a_publish_that_breaks_a_rule_is_told_so(frame: str, reason: int) -> None:
    """The reason goes out in a DISCONNECT, then the connection is closed; nobody gets the message.

    [MQTT-3.3.4-6, MQTT-3.3.1-2, MQTT-3.3.1-4, MQTT-3.3.2-1, MQTT-3.3.2-2, MQTT-3.3.2-13, MQTT-3.3.2-14,
    MQTT-3.3.2-19, MQTT-4.13.1-1, MQTT-4.7.0-1]
    """
    house = House()
    sub = house.connect("s", V5).subscribe("#")
    pub = house.connect("p", V5)

    pub.send_bytes(bytes.fromhex(frame))

    assert ended(pub) == reason
    assert sub.messages == []


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
def test_a_topic_that_is_not_accepted_is_refused_alone(qos: int, answer: type[Puback] | type[Pubrec]) -> None:
    """A topic name that is too deep for this broker gets 0x90 in its acknowledgement (section 3.4.2.1)."""
    house = House(max_topic_levels=2)
    pub = house.connect("p", V5)

    pub.publish("a/b/c", qos=qos, packet_id=3).publish("a/b/c")

    assert [(p.packet_id, int(p.reason)) for p in pub.of(answer)] == [(3, 0x90)]
    assert not pub.closed


# Subscriptions that overlap


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_overlapping_subscriptions_get_the_highest_qos_and_every_identifier(qos: int) -> None:
    """One copy with all identifiers [MQTT-3.3.4-2, MQTT-3.3.4-3, MQTT-3.3.4-4]; others get theirs [MQTT-3.3.4-5]."""
    house = House()
    sub = house.connect("s", V5)
    for number, (filter, granted) in enumerate([("a/b", 1), ("a/+", 2), ("#", 0), ("x", 2)], start=1):
        sub.subscribe(filter, qos=granted, properties=Properties(subscription_identifier=(number * 100,)))
    sub.subscribe("+/b")
    other = house.connect("o", V5).subscribe("a/#", properties=Properties(subscription_identifier=(268_435_455,)))

    house.connect("p", V5).publish("a/b", b"x", qos=qos)

    [packet] = sub.of(Publish)
    assert packet.qos == qos
    assert sorted(packet.properties.subscription_identifier) == [100, 200, 300]
    assert [p.properties.subscription_identifier for p in other.of(Publish)] == [(268_435_455,)]


def test_a_retained_message_comes_by_one_subscription() -> None:
    """It carries that one's identifier only, for it is sent because of that one [MQTT-3.3.4-3]."""
    house = House()
    house.connect("p", V5).publish("a", b"x", retain=True)
    sub = house.connect("s", V5).subscribe("#", properties=Properties(subscription_identifier=(1,)))

    sub.subscribe("a", properties=Properties(subscription_identifier=(2,)))

    assert [p.properties.subscription_identifier for p in sub.of(Publish)] == [(1,), (2,)]


@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_are_kept_with_a_message_that_waits(qos: int) -> None:
    """What waits for an absent client has the identifiers of the subscriptions it came by [MQTT-3.3.4-3]."""
    house = House()
    sub = house.connect("s", V5, expiry_s=60)
    sub.subscribe("a", qos=2, properties=Properties(subscription_identifier=(1,)))
    sub.subscribe("+", qos=2, properties=Properties(subscription_identifier=(2,)))
    sub.drop()

    house.connect("p", V5).publish("a", b"x", qos=qos)
    again = house.connect("s", V5, clean_start=False, expiry_s=60)

    assert [sorted(p.properties.subscription_identifier) for p in again.of(Publish)] == [[1, 2]]


def test_a_message_of_ones_own_comes_by_the_other_subscriptions_only() -> None:
    """What No Local keeps out lends neither QoS, identifier nor Retain As Published to a copy by another filter.

    [MQTT-3.8.3-3, MQTT-3.3.4-2, MQTT-3.3.4-4]
    """
    house = House()
    client = house.connect("c", V5)
    own = Properties(subscription_identifier=(1,))
    client.subscribe("a", qos=2, no_local=True, retain_as_published=True, properties=own)
    client.subscribe("+", qos=1, properties=Properties(subscription_identifier=(2,)))

    client.publish("a", b"mine", qos=2, retain=True)
    house.connect("p", V5).publish("a", b"another's", qos=2, retain=True)

    mine, anothers = client.of(Publish)
    assert (mine.qos, mine.retain, mine.properties.subscription_identifier) == (1, False, (2,))
    assert (anothers.qos, anothers.retain) == (2, True)
    assert sorted(anothers.properties.subscription_identifier) == [1, 2]


# Receive maximum


def test_the_quota_begins_anew_with_each_connection() -> None:
    """An exchange of the connection before does not let one message more in: 0x93 [MQTT-3.3.4-7, MQTT-4.9.0-1].

    A PUBCOMP cannot raise the quota above the receive maximum (section 4.9).
    """
    house = House(receive_maximum=2)
    house.connect("p", V5, expiry_s=60, silent=True).publish("a", qos=2, packet_id=1).drop()
    again = house.connect("p", V5, clean_start=False, expiry_s=60, silent=True)

    again.send(Pubrel(1))
    for packet_id in (11, 12):
        again.publish("a", qos=2, packet_id=packet_id)
    before = again.closed
    again.publish("a", qos=2, packet_id=13)

    assert [p.packet_id for p in again.of(Pubcomp)] == [1]
    assert not before
    assert ended(again) == 0x93


@pytest.mark.parametrize("qos", [1, 2])
def test_too_many_in_one_read_are_too_many(qos: int) -> None:
    """What has not been answered yet counts, though all of it comes at once [MQTT-3.3.4-7]; QoS 0 does not."""
    house = House(receive_maximum=3)
    pub = house.connect("p", V5, silent=True)

    many = [encode(Publish.build("a", b"", qos=qos, packet_id=number), V5) for number in range(1, 5)]
    pub.send_bytes(encode(Publish.build("a", b""), V5) * 9 + b"".join(many))

    assert ended(pub) == 0x93


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_window_delays_nothing_else(qos: int) -> None:
    """SUBACK, PUBACK, PUBREC, PUBCOMP, PINGRESP and QoS 0 still go [MQTT-3.3.4-10, MQTT-4.9.0-3]."""
    house = House()
    sub = house.connect("s", V5, properties=Properties(receive_maximum=1), silent=True).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    for number in range(3):
        pub.publish("a", b"%d" % number, qos=qos)
    sub.packets.clear()

    sub.send(Subscribe(50, (Request("b", 1),))).publish("b", b"own", qos=0)
    sub.publish("x", qos=1, packet_id=51).publish("x", qos=2, packet_id=52).send(Pubrel(52)).send_bytes(b"\xc0\x00")

    kinds = [type(packet).__name__ for packet in sub.packets]
    assert kinds == ["Suback", "Publish", "Puback", "Pubrec", "Pubcomp", "Pingresp"]
    assert sub.messages == [("b", b"own", 0)]
    assert sub.of(Suback)[0].packet_id == 50


@pytest.mark.parametrize("qos", [1, 2])
def test_a_failing_acknowledgement_makes_room(qos: int) -> None:
    """PUBACK and PUBREC of 0x80 and above give a place back, PUBREC of success does not [MQTT-3.3.4-9]."""
    house = House()
    sub = house.connect("s", V5, properties=Properties(receive_maximum=1), silent=True).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    for number in range(2):
        pub.publish("a", b"%d" % number, qos=qos)
    if qos == 2:
        sub.send(Pubrec(1))
        assert len(sub.messages) == 1
        sub.send(Pubcomp(1))
    else:
        sub.send(Puback(1, ReasonCode.QUOTA_EXCEEDED))

    assert [payload for _, payload, _ in sub.messages] == [b"0", b"1"]


def test_the_default_window_is_that_of_the_protocol() -> None:
    """A client that names no receive maximum may get 65535, so what bounds it is the broker [MQTT-4.9.0-1]."""
    house = House(max_inflight=5)
    sub = house.connect("s", V5, silent=True).subscribe("a", qos=1)
    pub = house.connect("p", V5)

    for number in range(7):
        pub.publish("a", b"%d" % number, qos=1)
    sub.send(Puback(1))

    assert len(sub.messages) == 6
