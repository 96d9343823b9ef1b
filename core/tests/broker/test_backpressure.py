"""Clients that take too little, and clients that send too much (section 4.9, and docs/limits.md)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer
from core_harness.stores import Retaineds, SlowQueues
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket, Pingreq, Pingresp, Puback, Publish
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.values import ALLOW

BOUND = 1024
"""Bytes that may wait for a socket in these tests."""

BODY = b"x" * 100


def blocked(house: House, version: int = V311, **more: Any) -> Peer:
    """A subscriber whose socket takes nothing, with something written to it already."""
    sub = house.connect("s", version, **more).subscribe("#", qos=2)
    sub.link.blocked = True
    sub.send(Pingreq())
    return sub


def dropped(house: House, why: str = "outbound_buffer_full") -> int:
    """How many messages were dropped for that reason."""
    return house.broker.runtime.statistics.dropped[why].value


def numbers(peer: Peer, qos: int | None = None) -> list[int]:
    """The numbers at the beginning of the payloads, of one QoS or of all."""
    return [int(payload[:4]) for _, payload, level in peer.messages if qos in (None, level)]


def flood(pub: Peer, count: int, qos: int = 0, first: int = 0) -> None:
    """Publish numbered messages, each in its own read."""
    for number in range(first, first + count):
        pub.publish("t", b"%04d" % number + BODY, qos=qos)


# A subscriber that takes nothing


@pytest.mark.parametrize("version", [V311, V5])
def test_qos_0_is_dropped_beyond_the_bound(version: int) -> None:
    """What waits for a socket is bounded; QoS 0 beyond that is dropped, counted, and not counted as sent."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house, version)
    statistics = house.broker.runtime.statistics
    before = statistics.messages_sent.value

    flood(house.connect("p"), 100)
    waits = sub.connection.waiting_bytes
    sub.unblock()

    received = numbers(sub)
    assert BOUND < waits < BOUND + 150
    assert received == list(range(len(received)))
    assert dropped(house) == 100 - len(received)
    assert statistics.messages_sent.value - before == len(received)


@pytest.mark.parametrize("particular", [True, False])
def test_qos_0_comes_again_when_the_socket_does(particular: bool) -> None:
    """After the congestion QoS 0 goes out as before, in packets of the client's own too."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house, V5).subscribe("#", qos=0, retain_as_published=particular)
    pub = house.connect("p", V5)
    flood(pub, 50)
    lost = dropped(house)
    sub.unblock()

    flood(pub, 3, first=50)

    assert lost > 0
    assert numbers(sub)[-3:] == [50, 51, 52]
    assert dropped(house) == lost


def test_others_lose_nothing() -> None:
    """A slow subscriber costs nobody else a message."""
    house = House(outbound_buffer_bytes=BOUND)
    blocked(house)
    other = house.connect("o").subscribe("t", qos=1)
    pub = house.connect("p")

    flood(pub, 50)
    flood(pub, 50, qos=1, first=50)

    assert numbers(other) == list(range(100))
    assert not pub.closed


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_wait_in_order(qos: int, kept: bool) -> None:
    """What may not be lost waits in the queue, and goes out in order once the socket takes it [MQTT-4.6.0-5]."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house, clean_start=not kept)

    flood(house.connect("p"), 100, qos)
    backlog = house.broker.sessions.by_id["s"].queue.count
    waits = sub.connection.waiting_bytes
    sub.unblock()

    assert backlog > 80
    assert waits < BOUND + 150
    assert numbers(sub) == list(range(100))
    assert not any(packet.dup for packet in sub.of(Publish))
    assert dropped(house) == 0


@pytest.mark.parametrize("kept", [True, False])
def test_what_waits_needs_nobody_to_ask_for_it(kept: bool) -> None:
    """Where only QoS 0 waits for the socket, no acknowledgement comes: the queue goes out all the same."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house, clean_start=not kept)
    pub = house.connect("p")
    flood(pub, 30)

    flood(pub, 3, qos=1, first=30)
    sub.unblock()

    assert numbers(sub, qos=1) == [30, 31, 32]


@pytest.mark.parametrize("kept", [True, False])
def test_a_queue_fills_up_behind_a_socket(kept: bool) -> None:
    """The limits of the queue hold for a connected client too, and what was kept is delivered."""
    house = House(outbound_buffer_bytes=BOUND, max_queued_messages=10)
    sub = blocked(house, clean_start=not kept)

    flood(house.connect("p"), 100, qos=1)
    sub.unblock()

    received = numbers(sub)
    assert received == list(range(len(received)))
    assert dropped(house, "queue_full") == 100 - len(received)


def test_acknowledgements_go_on_while_the_client_is_slow() -> None:
    """A publisher has its PUBACK though a subscriber takes nothing, and need not wait for it."""
    house = House(outbound_buffer_bytes=BOUND)
    blocked(house)
    pub = house.connect("p", V5)

    flood(pub, 50, qos=1)

    assert len(pub.of(Puback)) == 50


@pytest.mark.parametrize("qos", [1, 2])
def test_a_slow_client_that_is_lost_gets_all_of_it_later(qos: int) -> None:
    """What was written and what waited goes to the next connection in order, DUP where it had gone [MQTT-4.4.0-1]."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house, clean_start=False, silent=True)
    flood(house.connect("p"), 40, qos)

    sub.drop()
    again = house.connect("s", clean_start=False)

    assert numbers(again) == list(range(40))
    dups = [packet.dup for packet in again.of(Publish)]
    assert dups == sorted(dups, reverse=True)
    assert 0 < sum(dups) < 20


def test_a_slow_client_that_is_sent_away_may_read_on() -> None:
    """Closing hands the socket all that was accepted for it, then DISCONNECT, then nothing."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house, V5)
    flood(house.connect("p"), 40)
    sent = 40 - dropped(house)

    house.broker.disconnect("s", ReasonCode.ADMINISTRATIVE_ACTION, "go")
    house.settle()

    assert sub.closed
    assert numbers(sub) == list(range(sent))
    assert isinstance(sub.packets[-1], DisconnectPacket)
    assert dropped(house) == 40 - sent


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_come_no_faster_than_they_are_taken(qos: int) -> None:
    """Retained messages are read from their store page by page, the next when the socket has taken the last."""
    store = Retaineds()
    house = House(plugins={"retaineds": store})
    pub = house.connect("p")
    for number in range(250):
        pub.publish(f"r/{number:03}", b"%04d" % number, qos=qos, retain=True)
    sub = house.connect("s")
    sub.link.blocked = True
    sub.send(Pingreq())

    before = store.pages
    sub.subscribe("r/#", qos=1)
    first = store.pages - before
    sub.unblock()

    assert first == 1
    assert store.pages - before == 3
    assert sorted(numbers(sub)) == list(range(250))


# A client that is not read from


def test_a_client_that_takes_nothing_is_not_read_from() -> None:
    """Who does not take its answers may not ask for more, until it has taken them."""
    house = House(outbound_buffer_bytes=BOUND)
    sub = blocked(house)
    flood(house.connect("p"), 20)
    before = sub.link.reading

    sub.unblock()

    assert (before, sub.link.reading) == (False, True)


class Guard:
    """Answers whether a client may publish to a topic below ``guarded`` when the test says so."""

    def __init__(self) -> None:
        self.answers: list[Deferred[Decision]] = []

    @hookimpl
    def authorize(self, request: Any) -> Any:
        if not request.topic.startswith("guarded/"):
            return ALLOW
        self.answers.append(Deferred())
        return self.answers[-1]


def test_a_publisher_is_read_from_when_its_answer_is_there() -> None:
    """While a plugin thinks nothing is read, what was read waits, and all of it goes on in order."""
    guard = Guard()
    house = House(plugins={"guard": guard})
    sub = house.connect("s").subscribe("#")
    pub = house.connect("p")
    topics = ["a", "guarded/1", "b", "guarded/2", "c"]

    pub.send_bytes(b"".join(encode(Publish.build(topic, b"0"), V311) for topic in topics)).send(Pingreq())
    seen = [(pub.link.reading, len(sub.messages))]
    for _ in range(2):
        guard.answers.pop().callback(ALLOW)
        house.settle()
        seen.append((pub.link.reading, len(sub.messages)))

    assert [topic for topic, _, _ in sub.messages] == topics
    assert seen == [(False, 1), (False, 3), (True, 5)]
    assert len(pub.of(Pingresp)) == 1


class Brake:
    """Lets publishers wait two seconds."""

    @hookimpl
    def acquire(self, resource: Resource) -> LimitDecision | None:
        delays = resource.kind is ResourceKind.PUBLISH
        return LimitDecision(LimitVerdict.DELAY, "brake", 2.0) if delays else None


def test_every_reason_to_pause_must_be_gone() -> None:
    """A client that is delayed and slow is read from when the delay is over and its socket takes something."""
    house = House(plugins={"brake": Brake()}, outbound_buffer_bytes=BOUND)
    client = blocked(house)
    seen = []
    for _ in range(3):
        client.publish("t", BODY * 6)
        seen.append(client.link.reading)
    congested = client.connection.congested

    house.advance(3)
    seen.append(client.link.reading)
    client.unblock()
    seen.append(client.link.reading)

    assert congested
    assert seen == [False] * 4 + [True]


def test_a_delay_outlasts_the_congestion() -> None:
    """Of the two the socket may be ready first: the delay goes on to its end."""
    house = House(plugins={"brake": Brake()}, outbound_buffer_bytes=BOUND)
    client = blocked(house)
    for _ in range(3):
        client.publish("t", BODY * 6)

    client.unblock()
    before = client.link.reading
    house.advance(3)

    assert (before, client.link.reading) == (False, True)


def test_a_closed_connection_is_not_read_from_again() -> None:
    """A delay that ends after the connection changes nothing."""
    house = House(plugins={"brake": Brake()})
    client = house.connect("c").publish("t")

    client.disconnect()
    house.advance(3)

    assert client.closed
    assert not client.link.reading


def test_a_slow_store_does_not_lose_the_place_of_a_slow_client() -> None:
    """A queue that is read late goes on in order after the socket took what was written meanwhile."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues}, outbound_buffer_bytes=BOUND)
    sub = blocked(house, clean_start=False)
    pub = house.connect("p")
    flood(pub, 40, qos=1)
    queues.reads.slow = True

    sub.unblock()
    flood(pub, 10, qos=1, first=40)
    early = len(sub.messages)
    queues.reads.answer_all()
    house.settle()

    assert early < 40
    assert numbers(sub) == list(range(50))
