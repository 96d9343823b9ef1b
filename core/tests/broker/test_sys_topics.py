"""The broker's own ``$SYS`` topics, as a subscriber reads them."""

from __future__ import annotations

import pytest

from core_harness.house import House
from kinmqtt.broker.sys_topics import SysPublisher, own_topics
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Publish
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import Message
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.queue import Entry

EVERY_10_S = BrokerSettings(sys_interval_s=10)


def numbers(house: House) -> dict[str, str]:
    """Every topic of the broker's own with what it says now."""
    return {topic.topic: topic.read() for topic in own_topics(house.broker.services, "1.2")}


def test_topics_are_published_retained() -> None:
    """A client that comes later finds them all, with the broker's version among them."""
    house = House(settings=EVERY_10_S)
    house.advance(1)

    found = {topic: payload for topic, payload, _ in house.connect("late").subscribe("$SYS/#").messages}

    assert found.keys() == numbers(house).keys()
    assert found["$SYS/broker/version"] == b"kinmqtt version test"


def test_topics_are_published_at_each_interval() -> None:
    """Uptime comes each time, the version once: it does not change."""
    house = House(settings=EVERY_10_S)
    sub = house.connect("sub").subscribe("$SYS/broker/uptime").subscribe("$SYS/broker/version")

    house.advance(25)

    payloads = [payload for _, payload, _ in sub.messages]
    assert payloads == [b"kinmqtt version test", b"1 seconds", b"11 seconds", b"21 seconds"]


def test_an_interval_of_nought_is_never() -> None:
    """Nothing is published where nobody wants it."""
    house = House(settings=BrokerSettings(sys_interval_s=0))
    sub = house.connect("sub").subscribe("$SYS/#")

    house.advance(60)

    assert sub.messages == []


def test_a_wildcard_does_not_reach_them() -> None:
    """A filter that begins with a wildcard matches no topic that begins with ``$`` (MQTT-4.7.2-1)."""
    house = House(settings=EVERY_10_S)
    sub = house.connect("sub").subscribe("#").subscribe("+/broker/uptime")

    house.advance(15)

    assert sub.messages == []


def test_clients_are_counted() -> None:
    """Connected, away with a session, and expired."""
    house = House()
    house.connect("a")
    house.connect("b", clean_start=False).drop()
    house.connect("c", 5, expiry_s=1).drop()
    house.advance(5)

    said = numbers(house)

    assert said["$SYS/client/connected"] == said["$SYS/broker/clients/connected"] == "1"
    assert said["$SYS/client/disconnected"] == said["$SYS/broker/clients/disconnected"] == "1"
    assert said["$SYS/broker/clients/total"] == "2"
    assert said["$SYS/broker/clients/expired"] == "1"


def test_messages_are_counted() -> None:
    """Received, sent, retained, dropped."""
    house = House()
    house.connect("a").subscribe("t", 1)
    house.connect("b").subscribe("t")
    house.connect("away", clean_start=False).subscribe("t").drop()

    house.connect("pub").publish("t", b"x", retain=True).publish("t", b"y")

    said = numbers(house)
    assert said["$SYS/received/count"] == said["$SYS/broker/publish/messages/received"] == "2"
    assert said["$SYS/sent/count"] == said["$SYS/broker/publish/messages/sent"] == "4"
    assert said["$SYS/broker/publish/messages/dropped"] == "2"
    assert said["$SYS/retain/count"] == said["$SYS/broker/retained messages/count"] == "1"
    assert said["$SYS/broker/subscriptions/count"] == "3"


def test_bytes_and_packets_are_counted() -> None:
    """Every packet of every type counts, in both directions."""
    house = House()
    before = numbers(house)

    house.connect("c").publish("t", b"x", 1)

    after = numbers(house)
    # CONNECT of 13 bytes and PUBLISH of 8; CONNACK of 4 and PUBACK of 4.
    moved = {
        topic: int(after[topic]) - int(before[topic])
        for topic in before
        if "version" not in topic and "upt" not in topic
    }
    assert moved["$SYS/broker/bytes/received"] == moved["$SYS/received/bytes"] == 23
    assert moved["$SYS/broker/bytes/sent"] == moved["$SYS/sent/bytes"] == 8
    assert moved["$SYS/broker/messages/received"] == 2
    assert moved["$SYS/broker/messages/sent"] == 2


def test_what_waits_and_what_is_in_flight_is_counted() -> None:
    """Of all clients together."""
    house = House(max_inflight=1)
    house.connect("away", clean_start=False).subscribe("t", 1).drop()
    house.connect("busy", silent=True).subscribe("t", 1)

    house.connect("pub").publish("t", b"x", 1).publish("t", b"y", 1)

    said = numbers(house)
    assert (said["$SYS/queued/count"], said["$SYS/inflight/count"]) == ("3", "1")
    stored = str(2 * Entry(1, Message("t", b"x"), 1).size_bytes)
    assert (said["$SYS/broker/store/messages/count"], said["$SYS/broker/store/messages/bytes"]) == ("2", stored)


# SysPublisher


def published(*topics: SysTopic, times: int = 1) -> list[tuple[str, bytes, bool]]:
    """What a publisher publishes of some topics."""
    messages: list[Message] = []
    publisher = SysPublisher(messages.append, topics)
    for _ in range(times):
        publisher.publish()
    return [(message.topic, message.payload, message.retain) for message in messages]


def test_of_two_topics_of_one_name_the_first_is_kept() -> None:
    """A plugin can't talk over the broker, nor over a plugin before it."""
    topics = [SysTopic("$SYS/a", lambda: "first"), SysTopic("$SYS/a", lambda: "second")]

    assert published(*topics) == [("$SYS/a", b"first", True)]


def test_a_topic_outside_of_sys_is_left_out() -> None:
    """``$SYS`` itself is not below it either."""
    topics = [SysTopic(name, lambda: "x") for name in ("a", "$SYS", "$SYSTEM/a", "$SYS/a")]

    assert published(*topics) == [("$SYS/a", b"x", True)]


def test_a_topic_that_can_not_be_read_is_left_out_this_time() -> None:
    """The others are published, and this one when it can be read again."""
    answers = iter(["x"])
    topics = [SysTopic("$SYS/once", lambda: next(answers)), SysTopic("$SYS/always", lambda: "y")]

    assert published(*topics, times=2) == [
        ("$SYS/once", b"x", True),
        ("$SYS/always", b"y", True),
        ("$SYS/always", b"y", True),
    ]


@pytest.mark.parametrize(("on_change_only", "payloads"), [(True, [b"1", b"2"]), (False, [b"1", b"1", b"2"])])
def test_a_topic_may_be_published_on_change_only(on_change_only: bool, payloads: list[bytes]) -> None:
    """What says so is compared with what was published last."""
    answers = iter(["1", "1", "2"])
    topic = SysTopic("$SYS/a", lambda: next(answers), on_change_only)

    assert [payload for _, payload, _ in published(topic, times=3)] == payloads


def test_what_a_turn_discards_is_counted_before_its_end() -> None:
    """A counter never goes down, though a timer comes between a read and the end of its turn."""
    house = House(sys_interval_s=1)
    for number in range(10):
        house.connect(f"away{number}", V5, expiry_s=3600).subscribe("t").drop()
    watch = house.connect("watch").subscribe("$SYS/sent/count")
    pub = house.connect("pub")
    house.advance(1)

    pub.connection.receive(encode(Publish.build("t", b"x"), 4))
    house.clock.advance(1)
    house.settle()
    house.advance(1)

    counts = [int(payload) for topic, payload, *_ in watch.messages if topic == "$SYS/sent/count"]
    assert counts == sorted(counts)
    assert house.broker.runtime.statistics.dropped["offline"].value == 10
