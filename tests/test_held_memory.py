"""What is counted is about what is held: compared with what tracemalloc sees, never with a clock."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from kinmqtt.broker.message.message_ids import MessageIds
from kinmqtt.broker.message.publication import Publication
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.packets import V5, Publish, Subscribe, SubscribeRequest
from kinmqtt.settings import BrokerSettings
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import Message, Properties
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.services.event import Event, EventKind, EventVersion
from kinmqtt_spi.services.metric import GaugeSample
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import MessageId, Publisher

CLOSE: Final = 1.5
"""By what factor the two may differ, either way."""
ABOUT: Final = 2.0
"""The same for filters that are long, or have very many levels: what others share of them is not looked for."""
DEEP: Final = 2.5
"""The same for retained messages: most share the levels of their topics, and must not count for much more."""

NONE: Final = Properties()

PUBLISHER: Final = Publisher("client", "user")
_number: Final = count(1_000_000).__next__
_IDS: Final = MessageIds(2**63 + 5)


def traced(work: Callable[[], object]) -> int:
    """How much more memory is held after some work, whose answer is held too."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = work()
        gc.collect()
        more = tracemalloc.get_traced_memory()[0] - before
        del held
        return more
    finally:
        tracemalloc.stop()


def agree(counted: int, held: int, factor: float) -> None:
    """Fail where one is more than so many times the other."""
    assert held / factor <= counted <= held * factor, f"counted {counted}, held {held}: {counted / held:.2f}"


def received(topic: str, payload: bytes = b"", properties: Properties = NONE) -> Message:
    """A message as it comes to be stored: decoded from a packet of its own."""
    packet = encode(Publish.build(topic, payload, qos=1, packet_id=1, properties=properties), V5)
    body = 1
    while packet[body] & 0x80:
        body += 1
    publish = decode(packet, body + 1, V5)
    assert isinstance(publish, Publish)
    at = 1.7e9 + _number() / 1000
    return Publication(publish, V5, PUBLISHER, at, _IDS).stored


# Messages


@pytest.mark.parametrize(
    ("pair", "number"),
    [(("", ""), 5000), (("k", "v"), 5000), (("key", "some value"), 2000), (("k", "x" * 100), 1000)],
)
def test_messages_with_many_user_properties(pair: tuple[str, str], number: int) -> None:
    """Empty ones too: each is a pair of texts, however short."""
    properties = Properties(user_property=(pair,) * number)
    messages: list[Message] = []

    held = traced(lambda: messages.extend(received("t", b"", properties) for _ in range(10)))

    agree(sum(each.size_bytes for each in messages), held, CLOSE)


@pytest.mark.parametrize(
    "properties",
    [
        Properties(),
        Properties(message_expiry_interval=100_000),
        Properties(content_type="application/json", response_topic="a/b/c", correlation_data=b"12345678"),
    ],
    ids=["none", "a number", "texts"],
)
@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"x" * 5000])
def test_messages(properties: Properties, payload: bytes) -> None:
    """To a topic that the decoder knows already."""
    messages = [received("t", payload, properties)]

    held = traced(lambda: messages.extend(received("t", payload, properties) for _ in range(500)))
    del messages[0]

    agree(sum(each.size_bytes for each in messages), held, CLOSE)


def retained(topic_of: Callable[[int], str], number: int) -> tuple[int, int]:
    """What so many retained messages count for, and what they hold."""
    store = MemoryRetainStore()

    def fill() -> None:
        for each in range(number):
            # Not decoded: the decoder remembers topics, too, as far as it has room for them.
            at = 1.7e9 + _number() / 1000
            message_id = MessageId(2**63 + 5, _number())
            message = Message(topic_of(each), b"x", 1, True, NONE, PUBLISHER, message_id, at)
            store.put([RetainWrite(message, RetainVersion(at, *message_id))])

    return traced(fill), store.size_bytes()


@pytest.mark.parametrize("topic", ["{:06}", "{:06}/state", "building/{:06}", "a/b/{:06}", "site/{:06}/up"])
def test_retained_messages(topic: str) -> None:
    """With a payload of a byte, below short topics."""
    held, counted = retained(topic.format, 3000)

    agree(counted, held, CLOSE)


@pytest.mark.parametrize("levels", [20, 200])
def test_retained_messages_of_many_levels(levels: int) -> None:
    """Each level that no other topic has takes memory of its own."""
    held, counted = retained(lambda each: "/".join(f"{each}{level}" for level in range(levels)), 50)

    agree(counted, held, DEEP)


# Queues


@pytest.fixture(params=["memory", "embedded"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerHarness]:
    """A broker with either of the built-in stores."""
    embedded = request.param == "embedded"
    data = str(tmp_path / "data") if embedded else "memory"
    made = BrokerHarness(
        settings=BrokerSettings(sys_interval_s=0, data=data), max_queued_messages=100_000, max_subscriptions=100_000
    )
    yield made
    if embedded:
        plugin: Any = made.assembly.manager._pm.get_plugin("embedded")
        plugin._journal.abandon()
        plugin._directory.close()


def publish(house: BrokerHarness, topic: str, payload: bytes, number: int) -> Callable[[], None]:
    """Publishes so many messages with QoS 1; what the test's own clients remember is no part of it."""
    publisher = house.connect("p")

    def work() -> None:
        for _ in range(number):
            publisher.publish(topic, payload, qos=1)
            publisher.packets.clear()

    work()
    return work


@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"x" * 3000])
def test_messages_that_wait_for_a_client_that_is_away(house: BrokerHarness, payload: bytes) -> None:
    """In the queue store."""
    house.connect("s", V5, expiry_s=600).subscribe("t", 1).drop()
    work = publish(house, "t", payload, 500)
    before = house.broker.runtime.stores.queue.totals().queued_bytes

    held = traced(work)

    agree(house.broker.runtime.stores.queue.totals().queued_bytes - before, held, CLOSE)
    assert house.broker.runtime.queued.size_bytes == house.broker.runtime.stores.queue.totals().queued_bytes


@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"x" * 3000])
def test_messages_that_wait_for_a_client_that_is_there(house: BrokerHarness, payload: bytes) -> None:
    """In the session, which ends with its connection: the packet is held as it came, and nothing is made of it."""
    house.connect("s", V5, silent=True, properties=Properties(receive_maximum=1)).subscribe("t", 1)
    work = publish(house, "t", payload, 500)
    before = house.broker.runtime.queued.size_bytes

    held = traced(work)

    agree(house.broker.runtime.queued.size_bytes - before, held, CLOSE)


@pytest.mark.parametrize("payload", [b"", b"x" * 1000])
def test_messages_in_flight_to_a_client_that_is_away(house: BrokerHarness, payload: bytes) -> None:
    """Known to the session and to the queue store, and each held once."""
    subscribers = [
        house.connect(f"s{each}", V5, expiry_s=600, silent=True).subscribe(f"{each}", 1) for each in (0, 1)
    ]

    def fill(each: int) -> None:
        work = publish(house, f"{each}", payload, 250)
        work()
        subscribers[each].drop()
        subscribers[each].packets.clear()

    fill(0)
    before = house.broker.runtime.queued.size_bytes
    held = traced(lambda: fill(1))

    agree(house.broker.runtime.queued.size_bytes - before, held, CLOSE)


# Subscriptions


def subscribe(house: BrokerHarness, filter_of: Callable[[int], str], number: int) -> tuple[int, int]:
    """What so many subscriptions count for, and what they hold."""
    client = house.connect("c", V5, expiry_s=600).subscribe("another/one")
    everybody = house.broker.runtime.accounts.all
    before = everybody.subscription_bytes
    log: Any = house.broker.runtime.stores.event

    def work() -> None:
        for first in range(0, number, 100):
            requests = tuple(SubscribeRequest(filter_of(each), 1) for each in range(first, min(number, first + 100)))
            client.send(Subscribe(1, requests))
        client.packets.clear()
        log.restore([], {})

    held = traced(work)
    return held, everybody.subscription_bytes - before


@pytest.mark.parametrize(
    "filter",
    [
        "{:06}",
        "a/b/{:06}",
        "site/{:06}/up",
        "site/{:06}/#",
        "site/{:06}/+/up",
        "$share/group/{:06}",
        "{:06}" + "x" * 300,
    ],
)
def test_subscriptions(house: BrokerHarness, filter: str) -> None:
    """In the session, the stores and the index."""
    held, counted = subscribe(house, filter.format, 2000)

    agree(counted, held, CLOSE)


@pytest.mark.parametrize(
    "filter_of",
    [
        lambda each: "/".join(f"{each}{level}" for level in range(200)),
        lambda each: f"{each}/" + "/".join("a" * 199),
        lambda each: f"{each}/" + "/".join("+" * 199),
        lambda each: f"{each}".rjust(4096, "x"),
        lambda each: f"$share/{each:04}" + "g" * 2000 + "/t",
    ],
    ids=["levels of its own", "short levels", "wildcards", "a long level", "a long group"],
)
def test_subscriptions_to_unusual_filters(house: BrokerHarness, filter_of: Callable[[int], str]) -> None:
    """Two hundred levels that no other filter has are two hundred places in the index."""
    held, counted = subscribe(house, filter_of, 100)

    agree(counted, held, ABOUT)


# Events


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (
            EventKind.CONNECT,
            {
                "address": "192.0.2.1:{}",
                "clean_start": True,
                "version": 5,
                "username": "user{}",
                "listener": "tcp",
                "expiry_s": 3600,
                "keep_alive_s": 60,
                "session_present": False,
                "created_at": 1_700_000_000.5,
            },
        ),
        (EventKind.DISCONNECT, {"by": "client", "reason": 0, "expires_at": 1_700_000_000.5}),
        (
            EventKind.SUBSCRIBE,
            {
                "filter": "a/b/{}",
                "qos": 1,
                "no_local": False,
                "retain_as_published": False,
                "retain_handling": 0,
                "identifier": None,
            },
        ),
        (EventKind.UNSUBSCRIBE, {"filter": "{:04000}"}),
    ],
)
def test_events(kind: EventKind, data: dict[str, Any]) -> None:
    """Each is a handful of objects, whatever little is in it."""
    log = MemoryEventLog(lambda delay_s, call: None)

    def fill() -> None:
        for _ in range(2000):
            number = _number()
            told = {key: value.format(number) if isinstance(value, str) else value for key, value in data.items()}
            log.append([Event(kind, f"client{number}", EventVersion(number, number), number / 7, told)])

    held = traced(fill)

    agree(log.size_bytes, held, CLOSE)


# Delayed messages


@pytest.mark.parametrize("payload", [b"", b"x" * 1000])
def test_delayed_messages(house: BrokerHarness, payload: bytes) -> None:
    """Each is held as it will be published, and with the retained messages as it is kept."""

    def size_bytes() -> int:
        samples = house.assembly.metrics.snapshot(0.0, "n").samples
        mine = [each for each in samples if each.labels.get("plugin") == "delayed" and each.name == "size"]
        [value] = [each.value for each in mine if isinstance(each, GaugeSample)]
        return int(value)

    work = publish(house, "$delayed/1000/t", payload, 300)
    before = size_bytes()

    held = traced(work)

    agree(size_bytes() - before, held, CLOSE)
