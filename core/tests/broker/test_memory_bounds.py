"""Bounds of what long topics and properties take in memory."""

from __future__ import annotations

import pytest

from core_harness.house import House, back, payloads
from kinmqtt.broker.handlers import incoming_publish
from kinmqtt.broker.routing.fanouts import CACHED_TARGETS
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import Properties
from kinmqtt_spi.properties import text_bytes


@pytest.mark.parametrize("properties", [Properties(), Properties(content_type="x")], ids=["plain", "with properties"])
def test_a_connection_does_not_remember_long_topics(properties: Properties) -> None:
    """One client could have the broker remember tens of megabytes of them otherwise."""
    house = House()
    pub = house.connect("pub", V5)
    longest = "x" * incoming_publish.LONGEST_CACHED_BYTES

    for topic in ("t", longest, longest + "x"):
        pub.publish(topic, b"", properties=properties)

    assert set(pub.connection.routes or {}) == {b"t", longest.encode()}


def test_properties_count_where_queues_are_bounded() -> None:
    """A queue is full of messages of one byte when their properties are large."""
    house = House(max_queued_bytes=100_000)
    house.connect("s", V5, expiry_s=600).subscribe("t", qos=1).drop()
    large = Properties(user_property=(("k", "x" * 30_000),))
    pub = house.connect("pub", V5)

    for _ in range(10):
        pub.publish("t", b"x", qos=1, properties=large)

    assert 1 <= len(payloads(back(house, "s"))) <= 4


def test_long_topics_take_the_place_of_many() -> None:
    """The router's cache is bounded by what its topics take, not by their number alone."""
    house = House(max_topic_bytes=65_535)
    pub = house.connect("pub", V5)
    held = []

    for letter in ("x", "\u4e2d"):
        for number in range(400):
            pub.publish(f"{number:05}".ljust(20_000, letter), b"")
        held.append(sum(map(text_bytes, house.broker.fanouts.cached)))

    assert 0 < min(held) <= max(held) <= 100 * CACHED_TARGETS + 80_000
