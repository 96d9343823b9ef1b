"""What waits for a client: how much, in which order, and for how long (section 4.4, message expiry in 3.3.2.3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from core_harness.house import House, Peer
from core_harness.stores import SlowQueues, SlowSessions
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Puback, Publish, Pubrec
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.queue import OverflowPolicy

KEPT = pytest.mark.parametrize("kept", [True, False], ids=["kept", "on_commit_failed"])

STOPPER = "stopper"
"""The topic of a message that fills the window of a client, so that others wait behind it."""


def burst(peer: Peer, messages: Sequence[tuple[str, bytes]], qos: int = 1) -> Peer:
    """Publish all of it in one read."""
    packets = [Publish.build(topic, payload, qos, packet_id=next(peer.packet_ids)) for topic, payload in messages]
    return peer.send_bytes(b"".join(encode(packet, peer.version) for packet in packets))


def waiter(house: House, kept: bool) -> Peer:
    """A client for whom everything waits, in a house with ``max_inflight=1``: away, or with its window full."""
    if kept:
        return house.connect("s", V5, expiry_s=1000).subscribe("#", qos=2).drop()
    sub = house.connect("s", V5, silent=True).subscribe("#", qos=2)
    house.connect("stopper").publish(STOPPER, qos=1)
    return sub


def taken(house: House, sub: Peer) -> list[Publish]:
    """What waited for the client, now that it takes everything."""
    if sub.closed:
        sub = house.connect("s", V5, clean_start=False, expiry_s=1000)
    else:
        sub.silent = False
        sub.send(Puback(1))
    return [packet for packet in sub.of(Publish) if packet.topic != STOPPER]


def dropped(house: House, why: str = "queue_full") -> int:
    """How many messages were dropped for that reason."""
    return house.broker.runtime.statistics.dropped[why].value


# Order


@KEPT
def test_what_waits_goes_out_in_order(kept: bool) -> None:
    """QoS 1 and 2 wait in one line, and leave it in the order in which they came [MQTT-4.6.0-5]."""
    house = House(max_inflight=1)
    sub = waiter(house, kept)
    pub = house.connect("p")
    for number in range(20):
        pub.publish("t", b"%d" % number, qos=1 + number % 2)

    packets = taken(house, sub)

    assert [(int(p.payload), p.qos, p.dup) for p in packets] == [(n, 1 + n % 2, False) for n in range(20)]


def test_a_long_queue_is_read_in_parts() -> None:
    """More than the store is asked for in one read comes whole, in order and once."""
    house = House()
    sub = waiter(house, True)
    pub = house.connect("p")
    for start in range(0, 500, 50):
        burst(pub, [("t", b"%d" % number) for number in range(start, start + 50)])

    packets = taken(house, sub)

    assert [int(packet.payload) for packet in packets] == list(range(500))
    assert house.broker.sessions.by_id["s"].queue.count == 0


@KEPT
def test_nothing_overtakes_what_waits(kept: bool) -> None:
    """A message that comes while others wait stands behind them, though the window has room by then."""
    house = House(max_inflight=1)
    sub = waiter(house, kept)
    pub = house.connect("p")
    burst(pub, [("t", b"0"), ("t", b"1")])
    if kept:
        sub = house.connect("s", V5, clean_start=False, expiry_s=1000, silent=True)

    answer = encode(Puback(1), V5)
    sub.connection.receive(answer)  # No turn has ended: the place is free, and nobody has taken it.
    pub.publish("t", b"2", qos=1)
    sub.silent = False
    sub.send(Puback(2))

    assert [p.payload for p in sub.of(Publish) if p.topic == "t"] == [b"0", b"1", b"2"]


def test_what_waits_survives_the_broker() -> None:
    """With stores that last, a new broker sends what was in flight again, then what waited [MQTT-4.4.0-1]."""
    queues, sessions = SlowQueues(), SlowSessions()
    before = House(plugins={"queues": queues, "sessions": sessions}, max_inflight=2)
    sub = before.connect("s", V5, expiry_s=1000, silent=True).subscribe("t", qos=2)
    burst(before.connect("p"), [("t", b"%d" % number) for number in range(4)], qos=2)
    sub.send(Pubrec(1))

    after = House(plugins={"queues": queues, "sessions": sessions}, max_inflight=2, clock=before.clock)
    again = after.connect("s", V5, clean_start=False, expiry_s=1000)
    after.connect("p").publish("t", b"4", qos=2)

    assert [(p.payload, p.dup) for p in again.of(Publish)] == [
        (b"1", True),
        (b"2", False),
        (b"3", False),
        (b"4", False),
    ]


@pytest.mark.parametrize("how", ["clean start", "expired"])
def test_a_queue_ends_with_its_session(how: str) -> None:
    """Nothing is left of what waited, neither for the client nor in the store [MQTT-3.1.2-4]."""
    house = House()
    house.connect("s", V5, expiry_s=10).subscribe("t", qos=1).drop()
    house.connect("p").publish("t", b"old", qos=1)

    if how == "expired":
        house.advance(12)
    again = house.connect("s", V5, clean_start=how == "clean start", expiry_s=10).subscribe("t", qos=1)
    house.connect("p").publish("t", b"new", qos=1)

    assert not again.connack.session_present
    assert again.messages == [("t", b"new", 1)]
    assert house.broker.runtime.stores.queue.totals().queued == 0


@pytest.mark.parametrize("how", ["taken over", "start_disconnect"])
def test_a_session_shortened_to_its_connection_ends_with_it(how: str) -> None:
    """A kept session resumed with an expiry of 0 is over with that connection, though much waits [MQTT-3.1.2-23]."""
    house = House()
    house.connect("s", V5, expiry_s=100).subscribe("t", qos=1).drop()
    narrow = Properties(receive_maximum=1)
    sub = house.connect("s", V5, clean_start=False, expiry_s=0, properties=narrow, silent=True)
    burst(house.connect("p"), [("t", b"%d" % number) for number in range(3)])

    if how == "start_disconnect":
        sub.disconnect()
    again = house.connect("s", V5, clean_start=False, expiry_s=100)

    assert not again.connack.session_present
    assert again.messages == []
    assert house.broker.runtime.stores.queue.totals().queued == 0


# Limits


@KEPT
@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (OverflowPolicy.DROP_NEWEST, [b"0", b"1"]),
        (OverflowPolicy.DROP_OLDEST, [b"3", b"4"]),
        (OverflowPolicy.KEEP_LATEST, [b"1", b"4"]),
        (OverflowPolicy.REFUSE, [b"0", b"1"]),
    ],
)
def test_the_limit_holds_within_one_read(policy: OverflowPolicy, left: list[bytes], kept: bool) -> None:
    """Messages that come together find the queue as those before them left it, not as the turn began."""
    house = House(max_inflight=1, max_queued_messages=2, queue_full=policy)
    sub = waiter(house, kept)
    pub = house.connect("p", V5).publish("a", b"0", qos=1).publish("b", b"1", qos=1)

    burst(pub, [("c", b"2"), ("c", b"3"), ("c", b"4")])

    session = house.broker.sessions.by_id["s"]
    sizes = house.broker.runtime.stores.queue.sizes("s")
    assert session.queue.count == 2
    assert not kept or sizes.queued == 2
    assert dropped(house) == 3
    assert [packet.payload for packet in taken(house, sub)] == left


@KEPT
def test_a_place_is_free_when_its_message_is_sent(kept: bool) -> None:
    """The limit counts what waits now: messages in flight, and those gone, take no place."""
    house = House(max_inflight=1, max_queued_messages=2)
    sub = waiter(house, kept)
    pub = house.connect("p")
    pub.publish("t", b"0", qos=1).publish("t", b"1", qos=1)
    if kept:
        sub = house.connect("s", V5, clean_start=False, expiry_s=1000, silent=True)
    else:
        sub.send(Puback(1))

    pub.publish("t", b"2", qos=1).publish("t", b"3", qos=1)
    sub.silent = False
    sub.send(Puback(sub.of(Publish)[-1].packet_id))

    assert [p.payload for p in sub.of(Publish) if p.topic == "t"] == [b"0", b"1", b"2"]
    assert dropped(house) == 1


@KEPT
def test_bytes_are_limited_too(kept: bool) -> None:
    """A queue that has reached its bytes is full, however few messages it holds."""
    house = House(max_inflight=1, max_queued_bytes=1200)
    sub = waiter(house, kept)
    pub = house.connect("p")

    for number in range(4):
        pub.publish(f"t/{number}", b"x" * 600, qos=1)

    assert [packet.topic for packet in taken(house, sub)] == ["t/0", "t/1"]
    assert dropped(house) == 2


@KEPT
def test_bytes_of_a_topic_are_counted_as_sent(kept: bool) -> None:
    """A topic counts with its bytes in UTF-8, for whomever the message waits."""
    house = House(max_inflight=1, max_queued_bytes=1024)
    sub = waiter(house, kept)
    topic = "é" * 600

    house.connect("p").publish(topic, b"", qos=1).publish("t", b"", qos=1)

    assert [packet.topic for packet in taken(house, sub)] == [topic]


@KEPT
def test_as_many_give_way_as_it_takes(kept: bool) -> None:
    """A large message takes the place of several small ones: the bytes that wait stay near their limit."""
    house = House(max_inflight=1, max_queued_bytes=1024, queue_full=OverflowPolicy.DROP_OLDEST)
    sub = waiter(house, kept)
    pub = house.connect("p")
    for _ in range(20):
        pub.publish("small", b"x" * 50, qos=1)

    for number in range(20):
        pub.publish("large", b"%04d" % number * 250, qos=1)

    assert house.broker.sessions.by_id["s"].queue.size_bytes < 1024 + 1005
    assert taken(house, sub)[-1].payload[:4] == b"0019"


@KEPT
def test_a_queue_at_its_limit_takes_and_sends_again(kept: bool) -> None:
    """Once the client has taken what waited, all is as it was: order, counts and the way past the queue."""
    house = House(max_inflight=1, max_queued_messages=3, queue_full=OverflowPolicy.DROP_OLDEST)
    sub = waiter(house, kept)
    pub = house.connect("p")
    for number in range(3):
        pub.publish("t", b"%d" % number, qos=1)
    burst(pub, [("t", b"%d" % number) for number in range(3, 8)])
    taken(house, sub)
    sub = house.peers[-1] if kept else sub
    before = len(sub.of(Publish))

    burst(pub, [("t", b"a"), ("t", b"b")])

    assert sub.of(Publish)[before - 1].payload == b"7"
    assert [packet.payload for packet in sub.of(Publish)[before:]] == [b"a", b"b"]
    assert house.broker.runtime.stores.queue.totals().queued == 0
    assert house.broker.sessions.by_id["s"].sizes.queued_bytes == 0


# Refusal


@pytest.mark.parametrize(("version", "reason"), [(V311, ReasonCode.SUCCESS), (V5, ReasonCode.QUOTA_EXCEEDED)])
def test_a_full_queue_may_refuse(version: int, reason: ReasonCode) -> None:
    """The publisher is told 0x97 where its version can; other subscribers have the message all the same."""
    house = House(max_inflight=1, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    waiter(house, True)
    other = house.connect("o").subscribe("t", qos=1)
    pub = house.connect("p", version).publish("t", b"0", qos=1)

    pub.publish("t", b"1", qos=1).publish("t", b"2", qos=2)

    assert [packet.reason for packet in pub.of(Puback)] == [ReasonCode.SUCCESS, reason]
    assert [packet.reason for packet in pub.of(Pubrec)] == [reason]
    assert len(other.messages) == 3
    assert not pub.closed


def test_a_refused_identifier_is_free() -> None:
    """After a PUBREC with 0x97 the same packet identifier is a new message [MQTT-4.3.3-9]."""
    house = House(max_inflight=1, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    sub = waiter(house, True)
    pub = house.connect("p", V5).publish("t", b"0", qos=2).publish("t", b"1", qos=2, packet_id=9)
    first = taken(house, sub)

    pub.publish("t", b"2", qos=2, packet_id=9)

    assert [packet.payload for packet in first] == [b"0"]
    assert [payload for _, payload, _ in house.peers[-1].messages] == [b"0", b"2"]


def test_a_refused_identifier_is_not_kept() -> None:
    """The store does not hold a refused identifier either, or a new broker would take its next use for a repeat."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues}, max_inflight=1, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    waiter(house, True)
    pub = house.connect("p", V5, expiry_s=100).publish("t", b"0", qos=2)

    pub.publish("t", b"1", qos=2, packet_id=9)

    assert [packet.reason for packet in pub.of(Pubrec)] == [ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED]
    assert queues.load("p").inbound == frozenset()


# Expiry


@KEPT
@pytest.mark.parametrize("qos", [1, 2])
def test_the_interval_is_what_is_left(kept: bool, qos: int) -> None:
    """A message that has waited goes out with the rest of its expiry interval [MQTT-3.3.2-6]."""
    house = House(max_inflight=1)
    sub = waiter(house, kept)
    pub = house.connect("p", V5)
    for interval in (60, 30):
        pub.publish("t", qos=qos, properties=Properties(message_expiry_interval=interval))
    pub.publish("t", qos=qos)

    house.advance(20)
    packets = taken(house, sub)

    assert [p.properties.message_expiry_interval for p in packets] == [40, 10, None]


@KEPT
def test_an_expired_message_is_not_sent(kept: bool) -> None:
    """A message whose interval has passed while it waited is dropped, and those around it are not [MQTT-3.3.2-5]."""
    house = House(max_inflight=1)
    sub = waiter(house, kept)
    pub = house.connect("p", V5).publish("t", b"0", qos=1)
    pub.publish("t", b"1", qos=1, properties=Properties(message_expiry_interval=10)).publish("t", b"2", qos=1)

    house.advance(10)
    packets = taken(house, sub)

    assert [packet.payload for packet in packets] == [b"0", b"2"]
    assert dropped(house, "expired") == 1


@KEPT
def test_expired_messages_make_room(kept: bool) -> None:
    """What has expired takes no place from what is still good [MQTT-3.3.2-5]."""
    house = House(max_inflight=1, max_queued_messages=2)
    sub = waiter(house, kept)
    pub = house.connect("p", V5)
    for _ in range(2):
        pub.publish("t", b"old", qos=1, properties=Properties(message_expiry_interval=10))

    house.advance(12)
    pub.publish("t", b"new", qos=1)

    assert [packet.payload for packet in taken(house, sub)] == [b"new"]
    assert (dropped(house, "expired"), dropped(house)) == (2, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_does_not_expire(qos: int) -> None:
    """A message in flight is sent again though its interval has passed: delivery had begun [MQTT-4.3.3-7]."""
    house = House()
    sub = house.connect("s", V5, expiry_s=1000, silent=True).subscribe("t", qos=2)
    house.connect("p", V5).publish("t", b"x", qos=qos, properties=Properties(message_expiry_interval=5))

    sub.drop()
    house.advance(20)
    again = house.connect("s", V5, clean_start=False, expiry_s=1000)

    assert [(packet.payload, packet.dup) for packet in again.of(Publish)] == [(b"x", True)]


@pytest.mark.parametrize("expiry_s", [60, None], ids=["kept", "clean"])
def test_one_event_tells_of_all_that_give_way_in_a_turn(expiry_s: int | None) -> None:
    """A flood into a full queue is no flood of events; each message that gave way is counted."""
    house = House(max_queued_messages=2, max_inflight=1)
    house.connect("full", V5, expiry_s=expiry_s, silent=True).subscribe("t", qos=1)
    pub = house.connect("pub", V5)
    log = house.broker.assembly.stores.event

    for number in range(9):
        pub.connection.receive(encode(Publish.build("t", b"%d" % number, qos=1, packet_id=number + 1), V5))
    house.settle()

    recorded: Any = log.read(-1, 1000)
    told = [r.event.data for r in recorded if r.event.kind is EventKind.QUEUE_DROP]
    assert told == [{"topic": "t", "messages": 6}]
    assert house.broker.runtime.statistics.dropped["queue_full"].value == 6
