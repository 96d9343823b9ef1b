"""Micro-benchmarks of codec, framer and subscription indexes: `python -m pytest benchmarks/test_micro.py`.

They assert what is answered, never how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from kinmqtt.builtins.hash import HashIndex
from kinmqtt.builtins.trie import TrieIndex
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import V5, V311, Connect, ConnectWill, Packet, Puback, Publish, Subscribe, SubscribeRequest
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.services.subscription import SubscriptionIndex
from kinmqtt_spi.values import Subscription

TOPIC = "fleet/12/1234/temperature"
PAYLOAD = bytes(64)
SUBSCRIPTIONS = 10_000


def packets(version: int) -> dict[str, Packet]:
    """One of each packet that is measured; those of MQTT 5 with the properties that clients use."""
    will = ConnectWill("fleet/12/1234/state", b"lost", 1, True)
    of_connect = of_publish = NO_PROPERTIES
    if version == V5:
        of_connect = Properties(session_expiry_interval=3600, receive_maximum=100)
        of_publish = Properties(message_expiry_interval=60, content_type="text/plain")
    requests = (SubscribeRequest("fleet/12/+/state", 1), SubscribeRequest("fleet/12/1234/#", 1))
    return {
        "connect": Connect(version, "client-1234", True, 60, "user", b"password", will, of_connect),
        "publish-qos0": Publish.build(TOPIC, PAYLOAD, properties=of_publish),
        "publish-qos1": Publish.build(TOPIC, PAYLOAD, qos=1, packet_id=7, properties=of_publish),
        "puback": Puback(7),
        "subscribe": Subscribe(7, requests),
    }


CASES = [
    pytest.param(packet, version, id=f"{name}-{'5' if version == V5 else '3.1.1'}")
    for version in (V311, V5)
    for name, packet in packets(version).items()
]
each_packet = pytest.mark.parametrize(("packet", "version"), CASES)
each_index = pytest.mark.parametrize("make", [TrieIndex, HashIndex], ids=["trie", "hash"])


@pytest.mark.benchmark(group="decode")
@each_packet
def test_decode(benchmark: Any, packet: Packet, version: int) -> None:
    """A whole packet, as the framer cuts it."""
    [(frame, body)] = Framer().feed(encode(packet, version))

    decoded = benchmark(decode, frame, body, version)

    assert decoded == packet


@pytest.mark.benchmark(group="encode")
@each_packet
def test_encode(benchmark: Any, packet: Packet, version: int) -> None:
    """A packet that was made here."""
    encoded = benchmark(encode, packet, version)

    assert decode(encoded, 2, version) == packet


@pytest.mark.benchmark(group="framing")
def test_framing_of_a_read_of_100_packets(benchmark: Any) -> None:
    """All that one read brought is cut at once."""
    frame = encode(Publish.build(TOPIC, PAYLOAD, qos=1, packet_id=7), V311)
    framer = Framer()

    frames = benchmark(framer.feed, frame * 100)

    assert frames == [(frame, 2)] * 100


@pytest.mark.benchmark(group="framing")
def test_framing_of_a_packet_in_two_reads(benchmark: Any) -> None:
    """The first half is held."""
    frame = encode(Publish.build(TOPIC, PAYLOAD, qos=1, packet_id=7), V311)
    framer = Framer()

    def feed() -> list[tuple[bytes, int]]:
        framer.feed(frame[:40])
        return framer.feed(frame[40:])

    assert benchmark(feed) == [(frame, 2)]


@pytest.mark.benchmark(group="index: subscribe")
@each_index
def test_subscribe(benchmark: Any, make: Callable[[], SubscriptionIndex]) -> None:
    """A new filter beside ten thousand others."""
    index = filled(make)
    numbers = count(SUBSCRIPTIONS)

    def prepare() -> tuple[tuple[str, Subscription], dict[str, Any]]:
        number = next(numbers)
        return (f"client-{number}", Subscription(filter_of(number, make), 1)), {}

    assert benchmark.pedantic(index.add, setup=prepare, rounds=2_000)


@pytest.mark.benchmark(group="index: unsubscribe")
@each_index
def test_unsubscribe(benchmark: Any, make: Callable[[], SubscriptionIndex]) -> None:
    """The only subscription of its filter, beside thousands of others."""
    index = filled(make)
    numbers = count()

    def prepare() -> tuple[tuple[str, str], dict[str, Any]]:
        number = next(numbers)
        return (f"client-{number}", filter_of(number, make)), {}

    assert benchmark.pedantic(index.remove, setup=prepare, rounds=2_000)


@pytest.mark.benchmark(group="index: match")
@each_index
def test_match(benchmark: Any, make: Callable[[], SubscriptionIndex]) -> None:
    """A topic that few of ten thousand subscriptions match."""
    index = filled(make)

    matches = benchmark(index.match, "fleet/1/100/temperature")

    assert len(matches.subscribers) == (3 if make is TrieIndex else 1)


def filled(make: Callable[[], SubscriptionIndex]) -> SubscriptionIndex:
    """An index with ten thousand filters of one client each."""
    index = make()
    for number in range(SUBSCRIPTIONS):
        index.add(f"client-{number}", Subscription(filter_of(number, make), 1))
    return index


def filter_of(number: int, make: Callable[[], SubscriptionIndex]) -> str:
    """Five filters for each device, three of them exact; all are in an index that takes no wildcards."""
    device, sort = divmod(number, 5)
    depot = device // 100
    last = ("temperature", "pressure", "state", "+", "#")[sort]
    if make is HashIndex:
        last = last.replace("+", "speed").replace("#", "current")
    return f"fleet/{depot}/{device}/{last}"
