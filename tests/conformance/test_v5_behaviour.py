"""Operational behaviour of MQTT 5.0 (section 4): what no other test shows."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Puback, Pubcomp, Publish, Pubrec, Pubrel
from kinmqtt_spi import Properties, ReasonCode


def keeper(house: House, client_id: str = "s", **more: Any) -> Peer:
    """A silent client whose session outlives its connection."""
    return house.connect(client_id, V5, clean_start=False, expiry_s=60, silent=True, **more)


def seen(peer: Peer) -> list[tuple[bytes, int, bool]]:
    """Payload, packet identifier and DUP of every PUBLISH that a client got."""
    return [(p.payload, p.packet_id, p.dup) for p in peer.of(Publish)]


# Session state


def test_the_session_lasts_as_long_as_its_connection() -> None:
    """An expiry interval is counted from the end of the connection, so it can't pass before [MQTT-4.1.0-1]."""
    house = House()
    client = house.connect("c", V5, expiry_s=1).subscribe("a", qos=1)
    without = house.connect("d", V5).subscribe("a", qos=1)

    house.advance(100)
    house.connect("p", V5).publish("a", b"x", qos=1)

    assert client.messages == without.messages == [("a", b"x", 1)]


# Packet identifiers and acknowledgements


@pytest.mark.parametrize("qos", [1, 2])
def test_an_identifier_is_not_used_twice_at_one_time(qos: int) -> None:
    """Each new message has an identifier of its own, and DUP 0.

    [MQTT-4.3.2-1, MQTT-4.3.2-2, MQTT-4.3.3-1, MQTT-4.3.3-2]
    """
    house = House()
    sub = house.connect("s", V5, silent=True).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    for number in range(20):
        pub.publish("a", b"%d" % number, qos=qos)
        if number == 4:
            sub.send(Puback(3) if qos == 1 else Pubrec(3, ReasonCode.UNSPECIFIED_ERROR))

    unanswered = [p.packet_id for p in sub.of(Publish) if p.payload != b"2"]
    assert len(set(unanswered)) == 19
    assert 0 not in unanswered
    assert {p.dup for p in sub.of(Publish)} == {False}


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_sent_again_within_a_connection(qos: int) -> None:
    """However long the client does not answer; a new connection is the only reason [MQTT-4.4.0-1]."""
    house = House()
    sub = keeper(house).subscribe("a", qos=2)
    house.connect("p", V5).publish("a", b"x", qos=qos)
    if qos == 2:
        sub.send(Pubrec(1))

    house.advance(300)

    assert len(sub.of(Publish)) == 1
    assert len(sub.of(Pubrel)) == (qos == 2)


@pytest.mark.parametrize("step", ["publish", "release"])
def test_each_step_is_open_until_it_is_answered(step: str) -> None:
    """PUBLISH until PUBREC, PUBREL until PUBCOMP: over as many connections as it takes.

    [MQTT-4.3.2-3, MQTT-4.3.3-3, MQTT-4.3.3-5, MQTT-4.4.0-1]
    """
    house = House()
    sub = keeper(house).subscribe("a", qos=2)
    house.connect("p", V5).publish("a", b"1", qos=1).publish("a", b"2", qos=2)
    if step == "release":
        sub.send(Pubrec(2))
    for _ in range(3):
        sub.drop()
        sub = keeper(house)
        assert seen(sub) == [(b"1", 1, True)] + ([(b"2", 2, True)] if step == "publish" else [])
        assert [p.packet_id for p in sub.of(Pubrel)] == ([2] if step == "release" else [])

    if step == "publish":
        sub.send(Pubrec(2))
    sub.send(Puback(1)).send(Pubcomp(2)).drop()

    assert [type(packet).__name__ for packet in keeper(house).packets] == ["Connack"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_clean_start_sends_nothing_again(qos: int) -> None:
    """What was unacknowledged ends with its session [MQTT-4.4.0-1]."""
    house = House()
    sub = keeper(house).subscribe("a", qos=2)
    house.connect("p", V5).publish("a", b"x", qos=qos)
    sub.drop()

    again = house.connect("s", V5, clean_start=True)

    assert [type(packet).__name__ for packet in again.packets] == ["Connack"]


def test_a_qos_2_message_that_expires_is_answered_to_the_end() -> None:
    """PUBREL gets its PUBCOMP of success though the message is no longer good [MQTT-4.3.3-13]."""
    house = House()
    sub = keeper(house).subscribe("a", qos=2)
    sub.drop()
    expiring = Properties(message_expiry_interval=1)
    pub = house.connect("p", V5, silent=True).publish("a", b"x", qos=2, packet_id=9, properties=expiring)

    house.advance(10)
    pub.publish("a", b"x", qos=2, packet_id=9, dup=True, properties=expiring).send(Pubrel(9))

    assert [(p.packet_id, int(p.reason)) for p in pub.of(Pubrec)] == [(9, 0), (9, 0)]
    assert [(p.packet_id, int(p.reason)) for p in pub.of(Pubcomp)] == [(9, 0)]
    assert keeper(house).messages == []


def test_an_exchange_to_a_client_goes_on_though_the_message_expires() -> None:
    """PUBREC is answered with PUBREL, and PUBCOMP frees the identifier [MQTT-4.3.3-13, MQTT-4.3.3-7]."""
    house = House()
    sub = keeper(house, properties=Properties(receive_maximum=1)).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    pub.publish("a", b"1", qos=2, properties=Properties(message_expiry_interval=1)).publish("a", b"2", qos=2)

    house.advance(10)
    sub.send(Pubrec(1)).send(Pubcomp(1))

    assert [p.packet_id for p in sub.of(Pubrel)] == [1]
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_is_not_sent_again(qos: int) -> None:
    """An answer of 0x80 and above ends it, over the next connection too [MQTT-4.4.0-2]."""
    house = House()
    sub = keeper(house).subscribe("a", qos=2)
    house.connect("p", V5).publish("a", b"x", qos=qos)
    failing = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR

    sub.send(Puback(1, failing) if qos == 1 else Pubrec(1, failing)).drop()

    assert [type(packet).__name__ for packet in keeper(house).packets] == ["Connack"]


def test_a_message_is_for_all_sessions_that_match() -> None:
    """Of those whose client is away too; a PUBACK says that the broker has it [MQTT-4.5.0-1]."""
    house = House()
    for client_id in ("one", "two"):
        keeper(house, client_id).subscribe("a/+", qos=1).drop()
    here = house.connect("three", V5).subscribe("#", qos=1)
    keeper(house, "four").subscribe("b", qos=1).drop()

    pub = house.connect("p", V5).publish("a/b", b"x", qos=1).drop()

    assert len(pub.of(Puback)) == len(here.messages) == 1
    counts = {name: len(keeper(house, name).messages) for name in ("one", "two", "four")}
    assert counts == {"one": 1, "two": 1, "four": 0}


# Order


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("filter", ["a", "+", "$share/g/a"])
def test_messages_keep_their_order(filter: str, qos: int) -> None:
    """Of one client, for one topic and QoS, over a window that fills up [MQTT-4.6.0-5, MQTT-4.6.0-6]."""
    house = House()
    sub = house.connect("s", V5, properties=Properties(receive_maximum=2)).subscribe(filter, qos=qos)
    pub = house.connect("p", V5)
    packets = [Publish.build("a", b"%d" % n, qos=qos, packet_id=n if qos else 0) for n in range(1, 30)]

    pub.send_bytes(b"".join(encode(packet, V5) for packet in packets))

    assert [payload for _, payload, _ in sub.messages] == [b"%d" % n for n in range(1, 30)]


def test_what_is_sent_again_keeps_its_order() -> None:
    """First what was in flight in the order of its sending, then what waited, then what is new.

    [MQTT-4.6.0-1, MQTT-4.6.0-5]
    """
    house = House()
    sub = keeper(house, properties=Properties(receive_maximum=4)).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    for number in range(1, 7):
        pub.publish("a", b"%d" % number, qos=1 + number % 2)
    sub.send(Puback(2)).drop()
    pub.publish("a", b"7", qos=1)

    again = keeper(house)
    pub.publish("a", b"8", qos=1)

    assert seen(again)[:4] == [(b"1", 1, True), (b"3", 3, True), (b"4", 4, True), (b"5", 5, True)]
    assert [payload for payload, _, _ in seen(again)[4:]] == [b"6", b"7", b"8"]


def test_releases_go_out_in_the_order_of_the_receipts() -> None:
    """PUBRELs answer PUBRECs in the order in which these came [MQTT-4.6.0-4]."""
    house = House()
    sub = house.connect("s", V5, silent=True).subscribe("a", qos=2)
    pub = house.connect("p", V5)
    for _ in range(3):
        pub.publish("a", qos=2)

    sub.send_bytes(b"".join(encode(Pubrec(number), V5) for number in (2, 3, 1)))

    assert [p.packet_id for p in sub.of(Pubrel)] == [2, 3, 1]


# Topics


@pytest.mark.parametrize(
    ("filter", "matching", "other"),
    [
        ("a/#", ["a", "a/", "a/b", "a/b/c"], ["A/b", "ab", "/a", "b/a"]),
        ("a/+", ["a/b", "a/"], ["a", "a/b/c", "A/b"]),
        ("+", ["a", " "], ["/a", "a/b"]),
        ("+/+", ["/finance", "a/b", "/"], ["a", "a/b/c"]),
        ("/+", ["/finance", "/"], ["finance", "a/b"]),
        ("#", ["a", "/", "a/b/c"], ["$x", "$x/a"]),
        ("+/a/#", ["b/a", "b/a/c"], ["$x/a", "$x/a/c"]),
        ("$x/#", ["$x", "$x/a"], ["x/a", "a/$x"]),
        ("caf\u00e9", ["caf\u00e9"], ["cafe\u0301", "CAF\u00c9", "cafe"]),
        ("a b//c", ["a b//c"], ["a b/c", "a  b//c", "a%20b//c"]),
        ("\ufeffa", ["\ufeffa"], ["a"]),
    ],
)
def test_a_topic_is_matched_as_it_is(filter: str, matching: list[str], other: list[str]) -> None:
    """Character by character, and topics that begin with $ by no leading wildcard.

    [MQTT-4.7.1-1, MQTT-4.7.1-2, MQTT-4.7.2-1, MQTT-4.7.3-4, MQTT-3.3.2-3]
    """
    house = House()
    sub = house.connect("s", V5).subscribe(filter)
    pub = house.connect("p", V5)

    for topic in (*matching, *other):
        pub.publish(topic, b"x")

    assert [topic for topic, _, _ in sub.messages] == matching


@pytest.mark.parametrize("filter", ["#", "+", "+/a"])
def test_retained_messages_are_matched_likewise(filter: str) -> None:
    """What is kept under $ does not come for a leading wildcard either [MQTT-4.7.2-1]."""
    house = House()
    house.connect("p", V5).publish("$x", b"1", retain=True).publish("$x/a", b"2", retain=True)

    assert house.connect("s", V5).subscribe(filter).messages == []


def test_the_longest_topic_is_a_topic() -> None:
    """65535 bytes, in a PUBLISH, a SUBSCRIBE and an UNSUBSCRIBE, where the limits allow it [MQTT-4.7.3-3]."""
    house = House(max_topic_bytes=65_535)
    topic = "é" * 32_767 + "x"
    sub = house.connect("s", V5).subscribe(topic)

    house.connect("p", V5).publish(topic, b"x")
    sub.unsubscribe(topic)

    assert (sub.granted, sub.given_up) == ([0x00], [0x00])
    assert [name for name, _, _ in sub.messages] == [topic]


# Shared subscriptions


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_member_has_the_qos_it_was_granted(qos: int) -> None:
    """The lower of the message's and the member's [MQTT-4.8.2-3]; each message goes to one of them."""
    house = House()
    members = [house.connect(f"m{granted}", V5).subscribe("$share/g/a", qos=granted) for granted in (0, 1, 2)]
    pub = house.connect("p", V5)

    for number in range(6):
        pub.publish("a", b"%d" % number, qos=qos)

    for granted, member in enumerate(members):
        assert {level for _, _, level in member.messages} <= {min(granted, qos)}
    assert sorted(payload for m in members for _, payload, _ in m.messages) == [b"%d" % n for n in range(6)]


def test_two_groups_and_a_plain_subscriber_each_get_their_copy() -> None:
    """Share names tell groups apart, and the filter behind them decides what matches [MQTT-4.8.2-1, MQTT-4.8.2-2]."""
    house = House()
    filters = ["$share/g/a/#", "$share/h/a/#", "$share/g/a/b", "a/b"]
    members = [house.connect(f"m{n}", V5).subscribe(filter) for n, filter in enumerate(filters)]

    house.connect("p", V5).publish("a/b", b"x").publish("$share/g/a/b", b"not this")

    assert [m.messages for m in members] == [[("a/b", b"x", 0)]] * 4


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reason", [0x80, 0x83, 0x97])
def test_what_a_member_refuses_is_gone(qos: int, reason: int) -> None:
    """It goes to nobody else, neither now nor when the member is lost [MQTT-4.8.2-6]."""
    house = House()
    answer = Puback if qos == 1 else Pubrec
    members = [house.connect(name, V5, silent=True).subscribe("$share/g/a", qos=2) for name in ("one", "two")]
    house.connect("p", V5).publish("a", b"x", qos=qos)
    [taker] = [member for member in members if member.messages]

    taker.send(answer(1, ReasonCode(reason))).drop()

    assert sum(len(member.messages) for member in members) == 1
