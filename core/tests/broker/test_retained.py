"""Retained messages: what is kept, and what a subscription gets of it (section 3.3.1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from core_harness.house import House, Peer
from core_harness.sliced import SlicedHouse
from core_harness.stores import Retaineds
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    V311,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import Properties, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message

VERSIONS = [V31, V311, V5]


def got(peer: Peer) -> list[tuple[str, bytes, bool]]:
    """Topic, payload and RETAIN of what a client got."""
    return [(p.topic, p.payload, p.retain) for p in peer.of(Publish)]


def topics(peer: Peer) -> list[str]:
    """The topics of what a client got, in order of their names."""
    return sorted(p.topic for p in peer.of(Publish))


# Keeping


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_waits_for_subscribers(version: int, qos: int) -> None:
    """The message is kept with its QoS and comes with RETAIN to a new subscription [MQTT-3.3.1-5, MQTT-3.3.1-9]."""
    house = House()
    house.connect("p", version).publish("a/b", b"x", qos=qos, retain=True).disconnect()

    sub = house.connect("s", version).subscribe("a/b", qos=2)
    low = house.connect("low", version).subscribe("a/b", qos=0)

    assert isinstance(sub.packets[1], Suback)
    assert (got(sub), sub.messages[0][2]) == ([("a/b", b"x", True)], qos)
    assert (got(low), low.messages[0][2]) == ([("a/b", b"x", True)], 0)


def test_the_last_retained_message_of_a_topic_counts() -> None:
    """A new one takes the place of the old, its properties and its QoS included [MQTT-3.3.1-5]."""
    house = House()
    old = Properties(content_type="old", user_property=(("k", "v"),), message_expiry_interval=10)
    pub = house.connect("p", V5).publish("a", b"1", qos=2, retain=True, properties=old)
    pub.publish("a", b"2", qos=1, retain=True, properties=Properties(content_type="new"))
    house.advance(20)

    sub = house.connect("s", V5).subscribe("a", qos=2)

    assert sub.messages == [("a", b"2", 1)]
    assert sub.of(Publish)[0].properties == Properties(content_type="new")
    assert house.broker.runtime.stores.retain.count() == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_without_the_flag_changes_nothing(version: int) -> None:
    """Neither a payload nor an empty one without RETAIN touches what is kept [MQTT-3.3.1-8]."""
    house = House()
    pub = house.connect("p", version).publish("a", b"kept", retain=True)

    pub.publish("a", b"passes").publish("a", b"")

    assert got(house.connect("s", version).subscribe("a")) == [("a", b"kept", True)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_payload_clears_its_topic(qos: int) -> None:
    """It is delivered as any message, and nothing is kept, itself not either [MQTT-3.3.1-6, MQTT-3.3.1-7]."""
    house = House()
    there = house.connect("there").subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"x", retain=True).publish("b", b"y", retain=True)

    pub.publish("a", b"", qos=qos, retain=True).publish("never", b"", qos=qos, retain=True)

    assert there.messages == [("a", b"x", 0), ("a", b"", qos)]
    assert topics(house.connect("s").subscribe("#")) == ["b"]
    assert house.broker.runtime.stores.retain.count() == 1


def test_the_flag_is_for_new_subscriptions() -> None:
    """Whoever has subscribed already gets RETAIN 0, among messages that never had it [MQTT-3.3.1-12]."""
    house = House()
    subs = [house.connect(f"s{version}", version).subscribe("a", qos=1) for version in VERSIONS]
    pub = house.connect("p", V5)

    for qos in (0, 1):
        pub.publish("a", b"1", qos=qos).publish("a", b"2", qos=qos, retain=True).publish("a", b"3", qos=qos)

    wanted = [("a", b"1", False), ("a", b"2", False), ("a", b"3", False)] * 2
    assert [got(sub) for sub in subs] == [wanted] * 3


@pytest.mark.parametrize("qos", [0, 1])
def test_retain_as_published_keeps_the_flag(qos: int) -> None:
    """The subscription gets the flag as the publisher set it, also later [MQTT-3.3.1-13]."""
    house = House()
    here = house.connect("here", V5).subscribe("a", qos=1, retain_as_published=True)
    away = house.connect("away", V5, expiry_s=60).subscribe("a", qos=1, retain_as_published=True).drop()

    house.connect("p").publish("a", b"1", qos=qos, retain=True).publish("a", b"2", qos=qos)
    again = house.connect("away", V5, clean_start=False, expiry_s=60)

    assert got(here) == [("a", b"1", True), ("a", b"2", False)]
    assert got(again) == ([("a", b"1", True), ("a", b"2", False)] if qos else [])
    assert got(away) == []


# Retain handling


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(handling: int, first: int, second: int) -> None:
    """0 sends at each SUBSCRIBE, 1 at the first, 2 at none [MQTT-3.3.1-9, MQTT-3.3.1-10, MQTT-3.3.1-11]."""
    house = House()
    house.connect("p").publish("a", b"x", retain=True)
    sub = house.connect("s", V5)

    counts = []
    for _ in range(2):
        before = len(sub.messages)
        sub.subscribe("a", retain_handling=handling)
        counts.append(len(sub.messages) - before)

    assert counts == [first, second]


def test_a_subscription_is_new_again_after_unsubscribe_or_a_clean_start() -> None:
    """Retain handling 1 looks at the session's subscriptions, also of an earlier connection [MQTT-3.3.1-10]."""
    house = House()
    house.connect("p").publish("a", b"x", retain=True)
    house.connect("s", V5, expiry_s=60).subscribe("a", retain_handling=1).drop()

    resumed = house.connect("s", V5, clean_start=False, expiry_s=60).subscribe("a", retain_handling=1)
    at_first = len(resumed.messages)
    resumed.unsubscribe("a").subscribe("a", retain_handling=1)
    clean = house.connect("s", V5).subscribe("a", retain_handling=1)

    assert (at_first, len(resumed.messages), len(clean.messages)) == (0, 1, 1)


def test_each_filter_of_a_subscribe_brings_its_own() -> None:
    """Several filters bring what each matches, by its own options; what is refused brings nothing [MQTT-3.8.4-5]."""
    house = House(max_topic_levels=3)
    pub = house.connect("p")
    for topic in ("a/1", "a/2", "b"):
        pub.publish(topic, b"x", qos=1, retain=True)
    requests = (
        SubscribeRequest("a/+", 1),
        SubscribeRequest("a/1", 0),
        SubscribeRequest("b", 0, retain_handling=2),
        SubscribeRequest("a/1/+/#", 0),
    )

    sub = house.connect("s", V5).send(Subscribe(1, requests, Properties(subscription_identifier=(7,))))

    assert sorted((topic, qos) for topic, _, qos in sub.messages) == [("a/1", 0), ("a/1", 1), ("a/2", 1)]
    assert {p.properties.subscription_identifier for p in sub.of(Publish)} == {(7,)}
    assert sub.granted == [1, 0, 0, 0x8F]


def test_a_session_that_comes_back_gets_no_retained_messages() -> None:
    """Only SUBSCRIBE brings them, not the resumption of a session [MQTT-3.3.1-9]."""
    house = House()
    house.connect("s", clean_start=False).subscribe("a", qos=1).drop()
    house.connect("p").publish("b", b"x", qos=1, retain=True)
    house.connect("s", clean_start=False).subscribe("b", qos=1).drop()

    again = house.connect("s", clean_start=False)

    assert again.messages == []


def test_shared_subscriptions_get_none() -> None:
    """No retained messages are sent to a Shared Subscription [section 4.8.2], its new members neither."""
    house = House()
    house.connect("p").publish("a", b"x", qos=1, retain=True)

    members = [house.connect(f"s{n}", V5).subscribe("$share/g/a", qos=1) for n in range(2)]
    house.connect("q").publish("a", b"live", qos=1, retain=True)

    assert [message for member in members for message in got(member)] == [("a", b"live", False)]


# Matching


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("#", ["/", "a", "a/", "a/b", "a/b/c"]),
        ("+", ["a"]),
        ("+/+", ["/", "a/", "a/b"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c"]),
        ("a/+", ["a/", "a/b"]),
        ("+/b/#", ["a/b", "a/b/c"]),
        ("+/monitor", []),
        ("$X/#", ["$X", "$X/monitor"]),
        ("$X/+", ["$X/monitor"]),
        ("a/b/c", ["a/b/c"]),
        ("a/b/c/d", []),
    ],
)
def test_filters_find_retained_messages(filter: str, expected: list[str]) -> None:
    """As live messages do: with their parents, and not from wildcards to $-topics [MQTT-4.7.2-1, MQTT-4.7.1-1]."""
    house = House()
    pub = house.connect("p")
    for topic in ("a", "a/b", "a/b/c", "a/", "/", "$X", "$X/monitor"):
        pub.publish(topic, b"x", retain=True)

    assert topics(house.connect("s").subscribe(filter)) == expected


# Expiry


def test_a_retained_message_tells_what_is_left_of_its_time() -> None:
    """The message expiry interval goes out less the time it has waited [MQTT-3.3.2-6]."""
    house = House()
    properties = Properties(message_expiry_interval=30)
    house.connect("p", V5).publish("a", b"x", qos=1, retain=True, properties=properties)

    house.advance(10)
    early = house.connect("s1", V5).subscribe("a", qos=1)
    house.advance(15)
    late = house.connect("s2", V5).subscribe("a")

    assert [p.properties.message_expiry_interval for p in early.of(Publish)] == [20]
    assert [p.properties.message_expiry_interval for p in late.of(Publish)] == [5]


def test_a_retained_message_that_has_expired_is_not_sent() -> None:
    """Not even before the housekeeping has removed it; then it is gone [MQTT-3.3.2-5]."""
    house = House()
    house.advance(0.5)
    properties = Properties(message_expiry_interval=10)
    pub = house.connect("p", V5).publish("a", b"x", retain=True, properties=properties)
    pub.publish("b", b"y", retain=True)

    house.advance(10.25)
    kept = house.broker.runtime.stores.retain.count()
    sub = house.connect("s", V5).subscribe("#")
    house.advance(2)

    assert kept == 2
    assert topics(sub) == ["b"]
    assert house.broker.runtime.stores.retain.count() == 1


def test_an_expiry_does_not_touch_what_has_replaced_it() -> None:
    """The deadline belongs to a message, not to its topic."""
    house = House()
    pub = house.connect("p", V5)
    pub.publish("a", b"1", retain=True, properties=Properties(message_expiry_interval=5))
    house.advance(2)

    pub.publish("a", b"2", retain=True, properties=Properties(message_expiry_interval=60))
    house.advance(10)

    assert got(house.connect("s").subscribe("a")) == [("a", b"2", True)]


# Many


def filled(number: int, qos: int = 0, **more: Any) -> tuple[House, Retaineds]:
    """A broker that has kept so many messages."""
    store = Retaineds()
    house = House(plugins={"retaineds": store}, **more)
    pub = house.connect("p")
    for n in range(number):
        pub.publish(f"t/{n:04}", b"x" * 10, qos=qos, retain=True)
    return house, store


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_matches_all_come(qos: int) -> None:
    """All of several pages come, each once."""
    house, store = filled(350, qos)

    sub = house.connect("s").subscribe("t/+", qos=2)

    assert topics(sub) == [f"t/{n:04}" for n in range(350)]
    assert store.pages >= 4


def test_a_filter_that_finds_nothing_leaves_others_their_turns() -> None:
    """Pages that are empty come one in a turn of the event loop, and what is behind them is sent."""
    store = Retaineds()
    store.put([RetainWrite(Message(f"t/{n}", b"x", retain=True), RetainVersion(1.0, 0, n)) for n in range(2500)])
    store.put([RetainWrite(Message("t/last/x", b"x", retain=True), RetainVersion(1.0, 0, 2500))])
    house = SlicedHouse(plugins={"retaineds": store})
    sub = house.connect("s")
    before = store.pages
    pages = [before]

    def noted() -> bool:
        pages.append(store.pages)
        return bool(sub.collect() or sub.messages)

    house.hand_over(sub, encode(Subscribe(1, (SubscribeRequest("t/+/x"),)), V311))
    house.steps_until(noted)

    assert topics(sub) == ["t/last/x"]
    assert store.pages - before > 2
    assert {after - earlier for earlier, after in pairwise(pages)} == {0, 1}


def test_filters_that_find_nothing_leave_others_their_turns() -> None:
    """A client is served while another's thousand filters are looked up one after the other."""
    store = Retaineds()
    store.put([RetainWrite(Message(f"t/{n}", b"x", retain=True), RetainVersion(1.0, 0, n)) for n in range(10)])
    house = SlicedHouse(plugins={"retaineds": store})
    greedy, modest = house.connect("greedy"), house.connect("modest")
    many = tuple(SubscribeRequest(f"none/{number}") for number in range(500))
    before = store.pages

    house.hand_over(greedy, encode(Subscribe(1, many), V311))
    house.steps_until(lambda: store.pages > before)
    house.hand_over(modest, encode(Subscribe(1, (SubscribeRequest("t/#"),)), V311))
    house.steps_until(lambda: modest.collect() or len(modest.messages) == 10)
    then = store.pages - before
    house.settle()

    assert then < 100
    assert store.pages - before == 501


def test_what_was_given_up_meanwhile_brings_no_retained_messages() -> None:
    """Filters whose turn comes when they are unsubscribed from find nobody who wants what they match."""
    store = Retaineds()
    store.put([RetainWrite(Message("last", b"x", retain=True), RetainVersion(1.0, 0, 1))])
    house = SlicedHouse(plugins={"retaineds": store})
    sub = house.connect("s")
    filters = [*(f"none/{number}" for number in range(50)), "last"]
    before = store.pages

    house.hand_over(sub, encode(Subscribe(1, tuple(map(SubscribeRequest, filters))), V311))
    house.steps_until(lambda: store.pages > before)
    house.hand_over(sub, encode(Unsubscribe(2, ("last",)), V311))
    house.settle()

    assert sub.messages == []
    assert len(sub.of(Unsuback)) == 1


def test_a_socket_that_takes_nothing_holds_up_the_pages() -> None:
    """Retained messages are read from the store as the socket takes them, and none is lost."""
    house, store = filled(1000, outbound_buffer_bytes=8 << 10)
    sub = house.connect("s")
    sub.link.blocked = True

    sub.subscribe("#")
    held = store.pages
    sub.unblock()

    assert held <= 3
    assert len(sub.messages) == 1000
    assert store.pages >= 10


@pytest.mark.parametrize("qos", [1, 2])
def test_a_slow_client_holds_up_the_pages(qos: int) -> None:
    """Pages are read as messages are acknowledged: the queue never holds more than a few, and none is dropped."""
    house, store = filled(1000, qos, max_inflight=1, max_queued_messages=300)
    sub = house.connect("s", silent=True).subscribe("#", qos=qos)
    held = store.pages
    session = house.broker.sessions.by_id["s"]
    most = session.queue.count
    sub.silent = False

    for answer in sub._answer(sub.of(Publish)[0]):
        sub.send(answer)
    most = max(most, session.queue.count)

    assert held <= 3
    assert len(sub.messages) == 1000
    assert sum(counter.value for counter in house.broker.runtime.statistics.dropped.values()) == 0


def test_each_acknowledgement_does_not_bring_another_page() -> None:
    """While the queue is as long as a page nothing more is read from the store."""
    house, store = filled(2000, 1, max_inflight=1)
    sub = house.connect("s", silent=True).subscribe("#", qos=1)
    held = store.pages

    for packet in range(50):
        sub.send(Puback(sub.of(Publish)[packet].packet_id))

    assert store.pages - held <= 1
    assert house.broker.sessions.by_id["s"].queue.count <= 200


def test_pages_end_with_the_connection() -> None:
    """A client that goes in the middle gets no more of them, neither then nor when it comes back."""
    house, store = filled(1000)
    sub = house.connect("s", clean_start=False)
    sub.link.blocked = True
    sub.subscribe("#")

    sub.drop()
    held = store.pages
    house.advance(5)
    again = house.connect("s", clean_start=False)

    assert store.pages == held
    assert again.messages == []
    assert house.broker.sessions.by_id["s"].queue.count == 0


def test_live_messages_come_between_the_pages() -> None:
    """What is published while retained messages are being sent is not lost, and others are served."""
    house, _ = filled(500)
    slow = house.connect("slow")
    slow.link.blocked = True
    slow.subscribe("#", qos=1)
    quick = house.connect("quick").subscribe("t/0000", qos=1)

    house.connect("q").publish("t/0000", b"live", qos=1)
    slow.unblock()

    assert quick.messages == [("t/0000", b"x" * 10, 0), ("t/0000", b"live", 1)]
    assert len(slow.messages) == 501
    assert ("t/0000", b"live", 1) in slow.messages


def test_retained_messages_outlive_the_broker_with_their_store() -> None:
    """A broker that starts with a filled store sends what is in it, and replaces it."""
    first, store = filled(3)
    second = House(plugins={"retaineds": store}, clock=TurnableClock(first.clock.now() + 10))

    second.connect("p").publish("t/0000", b"new", retain=True).publish("t/0001", b"", retain=True)

    sub = second.connect("s").subscribe("#")
    assert sorted((topic, payload) for topic, payload, _ in sub.messages) == [
        ("t/0000", b"new"),
        ("t/0002", b"x" * 10),
    ]


class _Ahead(Retaineds):
    """A store to which a broker writes whose clock is ahead."""

    def newest(self) -> float:
        return 2e9


def test_what_is_retained_is_newer_than_anything_its_store_knows() -> None:
    """A deletion that another broker made, or this one before its clock was set back, does not win over it."""
    store = _Ahead()
    store.put([RetainWrite(Message("t"), RetainVersion(2e9, 9, 9))])
    house = House(plugins={"retaineds": store})

    house.connect("p").publish("t", b"new", retain=True)

    assert house.connect("s").subscribe("t").messages == [("t", b"new", 0)]


class Written(MemoryRetainStore):
    """A retain store that remembers what it was asked to write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[RetainWrite] = []

    def put(self, writes: Sequence[RetainWrite]) -> None:
        self.writes += writes
        super().put(writes)

    @hookimpl
    def retain_store(self) -> Written:
        return self


def test_a_retained_message_says_in_which_epoch_its_publisher_was_here() -> None:
    """A shared store refuses it by that if the session has moved; what no client sends here has none."""
    store = Written()
    house = House(plugins={"stores": store}, services={"retain": "stores"})
    house.connect("p").publish("a", b"1", qos=0, retain=True).publish("a", b"2", qos=1, retain=True)
    epoch = house.broker.sessions.by_id["p"].epoch
    house.broker.publish(Message("own", b"3", 1, True))
    house.settle()

    found = [(each.message.topic, each.publisher_epoch) for each in store.writes]
    assert found == [("a", epoch), ("a", epoch), ("own", 0)]
    assert epoch > 0
