"""MQTT 3.1 and 3.1.1: messages, their flags, retained ones, quality of service and order (3.3 to 3.7, 4.3 to 4.6)."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V31, V311, Puback, Pubcomp, Publish, Pubrec, Pubrel
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.values import ALLOW, deny

OLD = [V31, V311]


def payloads(peer: Peer) -> list[bytes]:
    """The payloads of what a client got."""
    return [payload for _, payload, _ in peer.messages]


def got(peer: Peer) -> list[tuple[bytes, int, bool, bool]]:
    """Payload, QoS, RETAIN and DUP of what a client got."""
    return [(p.payload, p.qos, p.retain, p.dup) for p in peer.of(Publish)]


def answers(peer: Peer) -> list[tuple[str, int]]:
    """What a client got of acknowledgements, by name and identifier, in order."""
    acknowledgements = [p for p in peer.packets if isinstance(p, Puback | Pubrec | Pubrel | Pubcomp)]
    return [(type(p).__name__, p.packet_id) for p in acknowledgements]


# DUP and RETAIN


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_flags_of_a_publisher_are_not_passed_on(version: int, retain: bool, qos: int) -> None:
    """An established subscription gets DUP 0 and RETAIN 0, now and later [MQTT-3.3.1-3, MQTT-3.3.1-9]."""
    house = House()
    here = house.connect("here", version).subscribe("a", qos=2)
    low = house.connect("low", version).subscribe("a", qos=0)
    house.connect("away", version, clean_start=False).subscribe("a", qos=2).drop()

    house.connect("p", version).publish("a", b"x", qos=qos, retain=retain, dup=True)
    away = house.connect("away", version, clean_start=False)

    assert got(here) == got(away) == [(b"x", qos, False, False)]
    assert got(low) == [(b"x", 0, False, False)]


@pytest.mark.parametrize("version", OLD)
def test_qos_0_never_has_dup(version: int) -> None:
    """Neither live nor retained, whatever DUP its publisher sent [MQTT-3.3.1-2, MQTT-4.3.1-1]."""
    house = House()
    sub = house.connect("s", version).subscribe("a", qos=0)
    house.connect("p", version).publish("a", b"x", qos=1, retain=True, dup=True).publish("a", b"y", retain=True)

    sub.subscribe("a", qos=0)

    assert got(sub) == [(b"x", 0, False, False), (b"y", 0, False, False), (b"y", 0, True, False)]


@pytest.mark.parametrize("version", OLD)
def test_a_retained_message_is_new_to_its_subscriber(version: int) -> None:
    """It comes with RETAIN and without DUP; where it was not acknowledged, with both [MQTT-3.3.1-8, MQTT-3.3.1-1]."""
    house = House()
    house.connect("p", version).publish("a", b"x", qos=1, retain=True, dup=True)
    first = house.connect("s", version, clean_start=False, silent=True).subscribe("a", qos=1)

    again = house.connect("s", version, clean_start=False)

    assert got(first) == [(b"x", 1, True, False)]
    assert got(again) == [(b"x", 1, True, True)]


# Retained messages


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_subscribe_brings_the_retained_messages(version: int, qos: int) -> None:
    """A filter that is subscribed to again brings them again, with the lower QoS [MQTT-3.8.4-3, MQTT-3.3.1-6]."""
    house = House()
    house.connect("p", version).publish("a/1", b"1", qos=2, retain=True).publish("a/2", b"2", qos=1, retain=True)
    sub = house.connect("s", version)

    for _ in range(2):
        sub.subscribe("a/+", qos=qos)

    assert sorted(got(sub)) == sorted([(b"1", min(2, qos), True, False), (b"2", min(1, qos), True, False)] * 2)


@pytest.mark.parametrize("version", OLD)
def test_a_retained_qos_0_message_takes_the_place(version: int) -> None:
    """The message of QoS 2 that was kept is not sent any more [MQTT-3.3.1-7, MQTT-3.3.1-5]."""
    house = House()
    house.connect("p", version).publish("a", b"old", qos=2, retain=True).publish("a", b"new", retain=True)

    assert got(house.connect("s", version).subscribe("a", qos=2)) == [(b"new", 0, True, False)]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_retained_message_is_sent_and_not_kept(version: int, qos: int) -> None:
    """Subscribers get it as any message; later ones get nothing [MQTT-3.3.1-10, MQTT-3.3.1-11]."""
    house = House()
    here = house.connect("here", version).subscribe("a", qos=2)
    pub = house.connect("p", version).publish("a", b"x", qos=2, retain=True)

    pub.publish("a", b"", qos=qos, retain=True).publish("b", b"", qos=qos, retain=True)

    assert got(here) == [(b"x", 2, False, False), (b"", qos, False, False)]
    assert house.connect("late", version).subscribe("#", qos=2).messages == []


@pytest.mark.parametrize("version", OLD)
def test_retained_messages_belong_to_no_session(version: int) -> None:
    """They outlive the session of whoever published them (section 3.1.2.4)."""
    house = House()
    house.connect("p", version).publish("a", b"x", retain=True).drop()
    house.connect("p", version).disconnect()
    house.advance(100_000)

    assert payloads(house.connect("s", version).subscribe("a")) == [b"x"]


# Who gets what


@pytest.mark.parametrize("version", OLD)
def test_every_session_with_a_fitting_filter_gets_it(version: int) -> None:
    """Connected or not, the publisher itself too, and nobody else [MQTT-4.5.0-1, MQTT-3.3.2-3]."""
    house = House()
    fitting = ["#", "+/+", "a/+", "a/b", "a/#", "a/b/#"]
    other = ["a", "a/b/c", "b/#", "+", "+/c", "/a/b", "$SYS/#"]
    subs = {each: house.connect(each, version).subscribe(each, qos=1) for each in fitting + other}
    house.connect("away", version, clean_start=False).subscribe("+/b", qos=1).drop()
    pub = house.connect("p", version).subscribe("a/b", qos=1)

    pub.publish("a/b", b"x", qos=1)
    away = house.connect("away", version, clean_start=False)

    assert {each for each in subs if subs[each].messages} == set(fitting)
    assert [len(subs[each].messages) for each in fitting] == [1] * len(fitting)
    assert payloads(pub) == payloads(away) == [b"x"]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("filter", ["#", "+", "+/monitor", "+/#"])
def test_a_leading_wildcard_leaves_dollar_topics_alone(version: int, filter: str) -> None:
    """Live and retained messages below ``$`` come to filters that say so only [MQTT-4.7.2-1]."""
    house = House()
    sub = house.connect("s", version).subscribe(filter)
    said = house.connect("said", version).subscribe("$box/#").subscribe("$box")
    pub = house.connect("p", version)

    pub.publish("$box", b"1", retain=True).publish("$box/monitor", b"2", retain=True).publish("x$/monitor", b"3")
    late = house.connect("late", version).subscribe(filter)

    assert [topic for topic, _, _ in sub.messages + late.messages if topic.startswith("$")] == []
    assert payloads(said) == [b"1", b"2"]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_that_is_not_allowed_is_acknowledged_or_closed(version: int, qos: int) -> None:
    """There is no way to refuse it: it is answered as ever, and reaches nobody [MQTT-3.3.5-2]."""

    class Authorizer:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Decision:
            return deny() if request.action is Action.PUBLISH else ALLOW

    house = House(plugins={"authorizer": Authorizer()})
    sub = house.connect("s", version).subscribe("#", qos=2)
    pub = house.connect("p", version).publish("a", b"x", qos=qos, retain=True, packet_id=3 if qos else 0)
    late = house.connect("late", version).subscribe("#", qos=2)

    assert pub.closed or answers(pub) == {0: [], 1: [("Puback", 3)], 2: [("Pubrec", 3), ("Pubcomp", 3)]}[qos]
    assert (sub.messages, late.messages) == ([], [])


# Quality of service


@pytest.mark.parametrize("version", OLD)
def test_an_identifier_of_qos_1_is_new_behind_its_puback(version: int) -> None:
    """Each PUBLISH is a publication, DUP or not, and each has its PUBACK [MQTT-4.3.2-2, MQTT-3.3.4-1]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=1)
    pub = house.connect("p", version)

    for number in range(3):
        pub.publish("a", b"%d" % number, qos=1, packet_id=5, dup=bool(number))

    assert payloads(sub) == [b"0", b"1", b"2"]
    assert answers(pub) == [("Puback", 5)] * 3


@pytest.mark.parametrize("version", OLD)
def test_a_qos_2_exchange_from_end_to_end(version: int) -> None:
    """Repeats before PUBREL get PUBREC, PUBREL gets PUBCOMP each time, then it is new [MQTT-4.3.3-2]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    pub = house.connect("p", version, silent=True)

    pub.publish("a", b"1", qos=2, packet_id=5).publish("a", b"1", qos=2, packet_id=5, dup=True)
    pub.send(Pubrel(5)).send(Pubrel(5)).publish("a", b"2", qos=2, packet_id=5, dup=True)

    assert payloads(sub) == [b"1", b"2"]
    assert answers(pub) == [("Pubrec", 5), ("Pubrec", 5), ("Pubcomp", 5), ("Pubcomp", 5), ("Pubrec", 5)]


@pytest.mark.parametrize("version", OLD)
def test_a_repeat_within_one_read_is_a_repeat(version: int) -> None:
    """QoS 2 sent twice in one write is delivered once and answered twice [MQTT-4.3.3-2]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    pub = house.connect("p", version, silent=True)
    message = [encode(Publish.build("a", b"x", 2, packet_id=5, dup=dup), version) for dup in (False, True)]

    pub.send_bytes(message[0] + message[1] + encode(Pubrel(5), version) + message[0])

    assert payloads(sub) == [b"x", b"x"]
    assert answers(pub) == [("Pubrec", 5), ("Pubrec", 5), ("Pubcomp", 5), ("Pubrec", 5)]


@pytest.mark.parametrize("version", OLD)
def test_a_message_is_unacknowledged_until_it_is_answered(version: int) -> None:
    """Its identifier is in use until PUBACK or PUBCOMP; PUBREL answers PUBREC [MQTT-4.3.2-1, MQTT-4.3.3-1]."""
    house = House()
    sub = house.connect("s", version, silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"1", qos=1).publish("a", b"2", qos=2)
    outgoing = house.broker.sessions.by_id["s"].outgoing
    one, two = (p.packet_id for p in sub.of(Publish))
    steps: list[Any] = [Pubrec(two), Puback(one), Pubcomp(two)]
    in_use = [len(outgoing)]

    for packet in steps:
        sub.send(packet)
        in_use.append(len(outgoing))

    assert in_use == [2, 2, 1, 0]
    assert answers(sub) == [("Pubrel", two)]
    assert got(sub) == [(b"1", 1, False, False), (b"2", 2, False, False)]


# Order


@pytest.mark.parametrize("version", OLD)
def test_releases_come_in_the_order_of_their_pubrecs(version: int) -> None:
    """However the client answers, PUBREL follows its order, in one read too [MQTT-4.6.0-4]."""
    house = House()
    sub = house.connect("s", version, silent=True).subscribe("a", qos=2)
    pub = house.connect("p")
    for number in range(4):
        pub.publish("a", b"%d" % number, qos=2)
    ids = [p.packet_id for p in sub.of(Publish)]
    order = [ids[2], ids[0], ids[3], ids[1]]

    sub.send_bytes(b"".join(encode(Pubrec(each), version) for each in order[:3])).send(Pubrec(order[3]))

    assert answers(sub) == [("Pubrel", each) for each in order]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("window", [1, 3, 1024])
def test_messages_of_a_topic_keep_their_order(version: int, qos: int, window: int) -> None:
    """Every subscriber gets each publisher's messages as they came, whatever is in flight [MQTT-4.6.0-6]."""
    house = House(max_inflight=window)
    subs = [house.connect(f"s{granted}", version).subscribe("a", qos=granted) for granted in (0, 1, 2)]
    pubs = [house.connect(f"p{number}", version) for number in range(2)]

    for number in range(20):
        for pub, name in zip(pubs, (b"x", b"y"), strict=True):
            pub.publish("a", name + b"%d" % number, qos=qos)

    for sub in subs:
        for name in (b"x", b"y"):
            assert [p for p in payloads(sub) if p.startswith(name)] == [name + b"%d" % n for n in range(20)]


@pytest.mark.parametrize("version", OLD)
def test_order_holds_over_topics_of_one_read(version: int) -> None:
    """What was published in one write goes out in that order, by default for every topic [MQTT-4.6.0-5]."""
    house = House()
    sub = house.connect("s", version).subscribe("#", qos=1)
    topics = ["a", "b", "a", "c", "b", "a"] * 5
    messages = [Publish.build(topic, b"%d" % n, 1, packet_id=n + 1) for n, topic in enumerate(topics)]

    house.connect("p", version).send_bytes(b"".join(encode(message, version) for message in messages))

    assert [(topic, payload) for topic, payload, _ in sub.messages] == [
        (topic, b"%d" % n) for n, topic in enumerate(topics)
    ]
