"""Bounds of the broker as a whole, each with its policy and its counter (docs/limits.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.broker.session.session import FLIGHT_BYTES
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Connack, ConnectWill, Puback, Publish, Pubrec, Suback
from kinmqtt_spi import Message, Properties, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.queue import Entry, OverflowPolicy


def dropped(house: House, why: str) -> int:
    """How many messages were dropped for that reason."""
    return house.broker.runtime.statistics.dropped[why].value


def retained(house: House, filter: str = "#") -> dict[str, bytes]:
    """What a new subscriber gets."""
    return {topic: payload for topic, payload, _ in house.connect("", V5).subscribe(filter).messages}


# Retained messages


def test_one_topic_too_many_is_refused() -> None:
    """The message is nobody's: neither retained nor delivered, and its publisher is told 0x97."""
    house = House(max_retained_messages=2)
    sub = house.connect("s").subscribe("#")
    pub = house.connect("p", V5)

    for topic in "abc":
        pub.publish(topic, b"x", qos=1, retain=True)

    assert [int(answer.reason) for answer in pub.of(Puback)] == [0, 0, 0x97]
    assert [topic for topic, _, _ in sub.messages] == ["a", "b"]
    assert retained(house) == {"a": b"x", "b": b"x"}
    assert dropped(house, "retained_full") == 1


def test_a_topic_that_has_one_may_get_another() -> None:
    """Where all places are taken a message may take another's place, or give its own back."""
    house = House(max_retained_messages=1)
    pub = house.connect("p", V5)

    pub.publish("a", b"1", qos=1, retain=True).publish("a", b"2", qos=1, retain=True)
    pub.publish("b", b"1", qos=1, retain=True).publish("a", b"", qos=1, retain=True)
    pub.publish("b", b"2", qos=2, retain=True)

    assert [int(answer.reason) for answer in pub.of(Puback)] == [0x10, 0x10, 0x97, 0x10]
    assert [int(answer.reason) for answer in pub.of(Pubrec)] == [0x10]
    assert retained(house) == {"b": b"2"}


def test_bytes_are_bounded_too() -> None:
    """One that grows beyond the bytes there are is refused, one that does not is taken."""
    house = House(max_retained_bytes=600)
    pub = house.connect("p", V5)

    for payload in (b"x" * 90, b"x" * 50, b"x" * 60, b"x" * 150):
        pub.publish("a", payload, qos=1, retain=True)

    assert [int(answer.reason) for answer in pub.of(Puback)] == [0x10, 0x10, 0x97, 0x97]
    assert retained(house) == {"a": b"x" * 50}


def test_properties_count_where_retained_messages_are_bounded() -> None:
    """Retained messages of one byte are as many as their properties let them be."""
    house = House(max_retained_bytes=100_000)
    pub = house.connect("pub", V5)

    for number in range(10):
        pub.publish(
            f"r/{number}", b"x", qos=1, retain=True, properties=Properties(user_property=(("k", "x" * 30_000),))
        )

    assert 1 <= house.broker.runtime.stores.retain.count() <= 3


def test_one_read_can_not_step_over_the_bound() -> None:
    """What comes in one turn counts before the store has it."""
    house = House(max_retained_messages=3)
    pub = house.connect("p", V5)

    packets = [Publish.build(topic, b"x", qos=0, retain=True) for topic in "abcdef"]
    pub.send_bytes(b"".join(encode(packet, V5) for packet in packets))

    assert len(retained(house)) == 3


def test_a_will_that_finds_no_place_is_dropped() -> None:
    """Nobody can be told; it is counted."""
    house = House(max_retained_messages=0)

    house.connect("w", V5, will=ConnectWill("gone", b"x", 1, True)).drop()

    assert retained(house) == {}
    assert dropped(house, "retained_full") == 1


# Sessions


@pytest.mark.parametrize(("version", "reason"), [(V5, 0x97), (V311, 0x88)])
def test_one_session_too_many_is_refused(version: int, reason: int) -> None:
    """Who wants a session that outlives its connection is told; others are let in, and so is who has one."""
    house = House(max_sessions=1)
    house.connect("a", V5, expiry_s=60).drop()

    refused = _try(house, "b", version)
    plain = house.connect("c", V5)
    again = house.connect("a", V5, clean_start=False, expiry_s=60)

    assert refused.of(Connack)[0].reason == reason
    assert refused.closed
    assert plain.connack.reason is ReasonCode.SUCCESS
    assert again.connack.session_present
    assert set(house.broker.sessions.by_id) == {"a", "c"}


def test_a_place_that_is_given_back_is_taken() -> None:
    """When a session ends there is room for another, and who was refused left nothing behind."""
    house = House(max_sessions=1)
    house.connect("a", V5, expiry_s=1).drop()
    _try(house, "b", V5)
    house.advance(3)

    assert house.connect("b", V5, expiry_s=60).connack.reason is ReasonCode.SUCCESS
    assert house.broker.runtime.stores.session.count() == 1


def _try(house: House, client_id: str, version: int) -> Peer:
    expiry = {"expiry_s": 60} if version == V5 else {"clean_start": False}
    return house.connect(client_id, version, **expiry)


# All queues together


def test_all_queues_together_are_bounded() -> None:
    """Where they hold as much as may be, each counts as full."""
    house = House(max_all_queued_bytes=4000, user_share=1, queue_full=OverflowPolicy.REFUSE)
    for name in "abc":
        house.connect(name, clean_start=False).subscribe(name, qos=1).drop()
    pub = house.connect("p", V5)

    for name in "abcabc":
        pub.publish(name, b"x" * 600, qos=1)

    reasons = [int(answer.reason) for answer in pub.of(Puback)]
    assert reasons == [0, 0, 0, 0, 0x97, 0x97]
    assert house.broker.runtime.queued.messages == 4


@pytest.mark.parametrize("there", [False, True])
def test_a_session_that_is_another_s_counts_no_more(there: bool) -> None:
    """What was in flight to a client that a newer owner has now is not this broker's to hold."""
    house = House()
    peer = house.connect("c", V5, expiry_s=600, silent=True).subscribe("t", qos=1)
    house.connect("p").publish("t", b"x", qos=1)
    if not there:
        peer.drop()

    house.broker.sessions.fenced("c", house.broker.sessions.by_id["c"].epoch)
    house.settle()

    assert (house.broker.runtime.queued.messages, house.broker.runtime.queued.size_bytes) == (0, 0)
    assert peer.closed


def test_what_is_in_flight_to_clients_that_are_away_counts() -> None:
    """One who reads and never acknowledges, under one client id after the other, fills no memory without end."""
    one_bytes = Entry(1, Message("t", b"x" * 99), 1).size_bytes + FLIGHT_BYTES
    house = House(max_all_queued_bytes=50 * one_bytes, user_share=1, max_inflight=10)
    pub = house.connect("p", V5)
    waiting = house.broker.runtime.queued
    for number in range(20):
        name = f"c{number}"
        peer = house.connect(name, V5, expiry_s=600, silent=True).subscribe("t", qos=1)
        for _ in range(10):
            pub.publish("t", b"x" * 99, qos=1)
        peer.unsubscribe("t").drop()
    held = sum(len(session.outgoing) for session in house.broker.sessions.by_id.values())
    counted = waiting.size_bytes

    back = house.connect("c0", V5, clean_start=False, expiry_s=600)
    for number in range(1, 20):
        house.connect(f"c{number}", V5).disconnect()

    assert len(back.of(Publish)) == 10
    assert (counted, held) == (50 * one_bytes, 50)
    assert dropped(house, "queue_full") == 150
    assert waiting.size_bytes == 0


@pytest.mark.parametrize("policy", [OverflowPolicy.DROP_OLDEST, OverflowPolicy.KEEP_LATEST])
def test_only_its_own_gives_way(policy: OverflowPolicy) -> None:
    """A queue that has something makes room of that; one that has nothing drops the newcomer."""
    house = House(max_all_queued_bytes=2000, user_share=1, queue_full=policy)
    for name in "ab":
        house.connect(name, clean_start=False).subscribe(name, qos=1).drop()
    pub = house.connect("p")

    for size in (600, 600, 2500):
        pub.publish("a", b"x" * size, qos=1)
    pub.publish("b", b"x", qos=1)
    pub.publish("a", b"x" * 10, qos=1)

    assert dropped(house, "queue_full") == 4
    assert house.connect("b", clean_start=False).messages == []
    assert [len(payload) for _, payload, _ in house.connect("a", clean_start=False).messages] == [10]
    assert (house.broker.runtime.queued.messages, house.broker.runtime.queued.size_bytes) == (0, 0)


def test_what_ends_counts_no_more() -> None:
    """The queue of a session that expires, is discarded or ends with its connection is taken off."""
    house = House()
    for name, expiry_s in (("a", 1), ("b", 60), ("c", 60)):
        house.connect(name, V5, expiry_s=expiry_s).subscribe("t", qos=1).drop()
    here = house.connect("d", V5, properties=Properties(receive_maximum=1), silent=True).subscribe("t", qos=1)
    house.connect("p").publish("t", b"1", qos=1).publish("t", b"2", qos=1)
    held = house.broker.runtime.queued.messages

    house.advance(3)
    house.connect("b", V5)
    here.drop()

    assert held == 7
    assert house.broker.runtime.queued.messages == 2


# Topics


@pytest.mark.parametrize("version", [V311, V5])
def test_long_topics_are_refused(version: int) -> None:
    """A topic, filter or will beyond `max_topic_bytes` is refused as one with too many levels is."""
    house = House(max_topic_bytes=10)
    long, wide = "x" * 11, "\u00e4" * 6
    client = house.connect("c", V5)

    client.publish(long, b"", qos=1).publish(wide, b"", qos=1).publish("x" * 10, b"", qos=1)
    client.subscribe(long).subscribe("y" * 10)
    refused = house.connect("w", V5, will=ConnectWill(long, b"x", 0, False))

    assert [int(answer.reason) for answer in client.of(Puback)] == [0x90, 0x90, 0x10]
    assert [int(answer.reasons[0]) for answer in client.of(Suback)] == [0x8F, 0]
    assert refused.connack.reason is ReasonCode.TOPIC_NAME_INVALID


# What plugins keep


class Keeper:
    """A plugin that keeps a value."""

    context: Context

    @hookimpl
    def configure(self, context: Context) -> None:
        self.context = context


async def kept(keeper: Keeper) -> Mapping[str, bytes]:
    """All that a plugin keeps."""
    return await keeper.context.persisted()


def test_a_plugin_keeps_values_of_its_own() -> None:
    """They come back by their keys; another plugin's do not, and one that is forgotten is gone."""
    one, other = Keeper(), Keeper()
    house = House(plugins={"one": one, "other": other})

    one.context.persist("a/b", b"1")
    one.context.persist("c", b"2")
    other.context.persist("c", b"3")
    one.context.persist("a/b", b"4")
    one.context.persist("c", None)
    house.settle()

    assert house.result(kept(one)) == {"a/b": b"4"}
    assert house.result(kept(other)) == {"c": b"3"}


@pytest.mark.parametrize(("key", "value"), [("", b"x"), ("a+", b"x"), ("#", b"x"), ("a\0", b"x"), ("a", b"")])
def test_what_can_not_be_kept_is_refused(key: str, value: Any) -> None:
    """A key must be a part of a topic, a value must not be empty."""
    keeper = Keeper()
    House(plugins={"keeper": keeper})

    with pytest.raises(ValueError, match="must be"):
        keeper.context.persist(key, value)


def test_clients_have_no_part_in_it() -> None:
    """Nobody is sent what a plugin keeps, and nobody can publish there."""
    keeper = Keeper()
    house = House(plugins={"keeper": keeper})
    keeper.context.persist("a", b"secret")
    house.settle()
    client = house.connect("c", V5).subscribe("$plugin/#")

    client.publish("$plugin/keeper/a", b"mine", qos=1, retain=True)
    client.subscribe("$plugin/keeper/a")

    assert client.messages == []
    assert client.of(Puback)[0].reason is ReasonCode.TOPIC_NAME_INVALID
    assert house.result(kept(keeper)) == {"a": b"secret"}
