"""Memory watermarks, with a memory that the test sets."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from core_harness.house import House, Peer
from kinmqtt.broker.buffers import FLOOR_BYTES
from kinmqtt.broker.overload import SLOW_BYTES_PER_S, Level, resident_bytes
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode

MIB = 1 << 20
PACKET = encode(Publish.build("t", bytes(MIB - 100), qos=1, packet_id=1), V311)
"""A packet of nearly a mebibyte."""

WATERMARKS: dict[str, Any] = {"memory_slow_bytes": 100, "memory_drop_bytes": 200, "memory_refuse_bytes": 300}


def _at(house: House, memory: int | None) -> Level:
    house.memory_bytes = memory
    house.advance(1)
    return house.broker.overload.level


def test_each_watermark_brings_its_level() -> None:
    """And falling memory brings back what was, a little below the watermark."""
    house = House(**WATERMARKS)

    levels = [_at(house, memory) for memory in (99, 100, 199, 200, 300, 271, 269, 181, 179, 91, 89)]

    assert levels == [0, 1, 1, 2, 3, 3, 2, 2, 1, 1, 0]


def test_publishers_are_slowed() -> None:
    """One that publishes much is not read from for a while, as long as that was much; one that does not is."""
    house = House(**WATERMARKS)
    pub, little, sub = house.connect("pub"), house.connect("little"), house.connect("sub").subscribe("#")
    _at(house, 100)

    pub.publish("t", bytes(SLOW_BYTES_PER_S // 10))
    little.publish("u", b"1")
    reading = (pub.link.reading, little.link.reading, sub.link.reading)
    house.advance(0.2)

    assert reading == (False, True, True)
    assert pub.link.reading
    assert [topic for topic, _, _ in sub.messages] == ["t", "u"]


def test_clients_with_unfinished_packets_are_slowed() -> None:
    """They fill memory as those do that publish."""
    house = House(**WATERMARKS)
    client = house.connect("c")
    _at(house, 100)

    client.send_bytes(PACKET[: SLOW_BYTES_PER_S // 10])
    reading = client.link.reading
    house.advance(0.2)

    assert (reading, client.link.reading) == (False, True)


def test_qos_0_is_dropped_and_counted() -> None:
    """QoS 1 goes its way, and when memory has recovered QoS 0 does too, by whatever shortcut."""
    house = House(**WATERMARKS)
    sub = house.connect("sub").subscribe("t", qos=1)
    pub = house.connect("pub", V5).publish("t", b"before")

    _at(house, 200)
    for _ in range(3):
        pub.publish("t", b"dropped")
    pub.publish("t", b"assured", qos=1)
    house.advance(1)
    _at(house, 0)
    pub.publish("t", b"after")

    assert [payload for _, payload, _ in sub.messages] == [b"before", b"assured", b"after"]
    assert house.broker.runtime.statistics.dropped["overload"].value == 3
    assert len(pub.of(Puback)) == 1


def test_nobody_more_is_let_in() -> None:
    """Those who are in stay."""
    house = House(**WATERMARKS)
    inside = house.connect("a")
    _at(house, 300)

    outside = house.open()
    _at(house, 0)

    assert (outside.closed, inside.closed, house.open().closed) == (True, False, False)


def test_one_watermark_alone() -> None:
    """The others are never reached."""
    house = House(memory_refuse_bytes=300, memory_slow_bytes=0, memory_drop_bytes=0)

    assert [_at(house, memory) for memory in (299, 300)] == [0, 3]


def test_a_system_that_does_not_tell() -> None:
    """The level stays."""
    house = House(**WATERMARKS)

    assert [_at(house, memory) for memory in (200, None)] == [2, 2]


def test_watermarks_must_rise() -> None:
    """A mistake in the settings."""
    with pytest.raises(ValueError, match="the watermarks must rise"):
        LimitSettings(memory_slow_bytes=2, memory_drop_bytes=1)


def test_the_memory_of_this_process_is_known() -> None:
    """On Linux, where the tests run."""
    memory = resident_bytes()

    assert memory is not None
    assert memory > 1 << 20


def test_a_change_is_told_and_what_is_remembered_forgotten() -> None:
    """A topic that was used before finds no way around the watermark, and the operator reads of it."""
    house = House(**WATERMARKS)
    sub = house.connect("sub").subscribe("t")
    pub = house.connect("pub").publish("t", b"1").publish("t", b"2")

    with capturedLogs() as told:
        _at(house, 250)
    pub.publish("t", b"3")

    assert [formatEvent(event) for event in told] == ["memory is at 250 bytes: drop"]
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


# The third watermark


def test_no_new_subscription_is_taken() -> None:
    """0x97 in the SUBACK, 0x80 before MQTT 5; one that is there may be made anew, and everything else goes on."""
    house = House(**WATERMARKS)
    five, four = house.connect("5", V5).subscribe("old", qos=1), house.connect("4").subscribe("old")
    _at(house, 300)

    requests = (SubscribeRequest("old", 1), SubscribeRequest("new", 1))
    five.send(Subscribe(7, requests))
    four.subscribe("new")
    five.publish("old", b"x", qos=1)

    assert [[int(reason) for reason in packet.reasons] for packet in five.of(Suback)[-1:]] == [[1, 0x97]]
    assert four.granted == [0x80]
    assert [topic for topic, _, _ in five.messages] == ["old"]
    assert house.broker.runtime.statistics.overload_refused["subscription"].value == 2


def test_no_new_persistent_session_is_made() -> None:
    """Of connections that are there: 0x89 (return code 3 before MQTT 5); other sessions are no matter of memory."""
    house = House(**WATERMARKS)
    house.connect("old", V5, expiry_s=100).drop()
    peers = [house.open(version) for version in (V5, V311, V5, V5)]
    _at(house, 300)

    persistent = Properties(session_expiry_interval=100)
    for peer, connect in zip(
        peers,
        [
            Connect(V5, "new5", True, properties=persistent),
            Connect(V311, "new4", False),
            Connect(V5, "old", False, properties=persistent),
            Connect(V5, "passing", True),
        ],
        strict=True,
    ):
        peer.send(connect)

    codes = [[int(packet.reason) for packet in peer.of(Connack)] for peer in peers]
    assert codes == [[ReasonCode.SERVER_BUSY], [ReasonCode.SERVER_UNAVAILABLE], [0], [0]]
    assert house.broker.runtime.statistics.overload_refused["session"].value == 2


def _hoarding(house: House, size: int, name: str) -> Peer:
    """A client that has sent so much of a packet, and sends no more."""
    return house.connect(name).send_bytes(PACKET[:size])


def test_those_that_hold_most_are_disconnected_until_memory_is_well_below() -> None:
    """The largest first, and no more of them than it takes."""
    house = House(memory_refuse_bytes=10 * MIB, memory_slow_bytes=0, memory_drop_bytes=0)
    sizes = [900_000, 500_000, 800_000, 700_000, 600_000, 400_000]
    peers = [_hoarding(house, size, str(size)) for size in sizes]

    _at(house, 10 * MIB + 600_000)

    assert sorted(size for size, peer in zip(sizes, peers, strict=True) if peer.closed) == [800_000, 900_000]
    assert house.broker.runtime.statistics.connections_cut.value == 2


def test_those_that_hold_next_to_nothing_stay() -> None:
    """However short memory is: to disconnect them would bring nothing."""
    house = House(memory_refuse_bytes=10 * MIB, memory_slow_bytes=0, memory_drop_bytes=0)
    small = [_hoarding(house, FLOOR_BYTES, f"s{n}") for n in range(30)]
    large = _hoarding(house, 900_000, "l")

    _at(house, 50 * MIB)

    assert large.closed
    assert not any(peer.closed for peer in small)


def test_nobody_is_disconnected_where_that_would_not_help() -> None:
    """Memory is held by something else: clients go on, and large packets are taken one after the other."""
    house = House(**MARKS_100_MIB, max_packet_bytes=MIB)
    peers = [house.connect(str(n), V5) for n in range(4)]
    subscriber = house.connect("s").subscribe("#", qos=1)
    _at(house, 500 * MIB)

    for start in range(0, len(PACKET), 50_000):
        for peer in peers:
            if peer.link.reading:
                peer.send_bytes(PACKET[start : start + 50_000])
    for _ in range(4):
        house.advance(1)
        for peer in peers:
            held = peer.connection.inbound_bytes
            while peer.link.reading and 0 < held < len(PACKET):
                peer.send_bytes(PACKET[held : held + 50_000])
                held += 50_000
                house.advance(0.1)

    assert not any(peer.closed for peer in peers)
    assert len(subscriber.messages) == 4


MARKS_100_MIB: dict[str, Any] = {
    "memory_slow_bytes": 60 * MIB,
    "memory_drop_bytes": 75 * MIB,
    "memory_refuse_bytes": 100 * MIB,
}


def test_what_is_cut_is_counted_once() -> None:
    """Until what was let go is free nobody else is disconnected for the same memory."""
    house = House(memory_refuse_bytes=10 * MIB, memory_slow_bytes=0, memory_drop_bytes=0)
    peers = [_hoarding(house, 600_000, str(n)) for n in range(7)]
    house.memory_bytes = 10 * MIB

    house.advance(1)
    at_first = sum(peer.closed for peer in peers)
    for _ in range(5):
        house.broker.overload.look_soon()
        house.settle()
    before_it_settled = sum(peer.closed for peer in peers)
    house.memory_bytes = 8 * MIB
    house.advance(5)

    assert at_first == before_it_settled == sum(peer.closed for peer in peers) == 2
    assert house.broker.overload.level is Level.NORMAL


# How often memory is looked at


def test_memory_is_looked_at_as_often_as_much_has_come() -> None:
    """Not once a second only: that is long for a client that sends a hundred megabytes."""
    house = House(**MARKS_100_MIB)
    client = house.connect("c")
    house.advance(1)
    house.memory_bytes = 80 * MIB

    for _ in range(8):
        client.send_bytes(PACKET)

    assert house.broker.overload.level is Level.DROP


def test_memory_is_looked_at_when_much_is_held() -> None:
    """What is sent may be many times what has come."""
    house = House(**MARKS_100_MIB, outbound_buffer_bytes=100 * MIB)
    pub = house.connect("p")
    subs = [house.connect(f"s{n}").subscribe("#") for n in range(40)]
    for sub in subs:
        sub.link.blocked = True
    house.advance(1)
    house.memory_bytes = 80 * MIB

    for _ in range(20):
        pub.publish("t", bytes(10_000))

    assert house.broker.overload.level is Level.DROP


def test_what_is_left_below_the_highest_watermark_bounds_what_is_held() -> None:
    """Between two looks what connections hold is all that grows: it may not grow beyond that."""
    house = House(memory_refuse_bytes=100 * MIB, memory_slow_bytes=0, memory_drop_bytes=0)
    house.memory_bytes = 99 * MIB
    house.advance(1)

    peers = [_hoarding(house, 300_000, f"{n}") for n in range(3)]

    over = [not peer.link.reading or peer.connection in house.broker.buffers.granted for peer in peers]
    assert over == [False, False, True]


def test_without_watermarks_memory_is_not_looked_at() -> None:
    """Nobody asks the system for what nobody wants to know."""
    house = House()
    house.memory_bytes = None
    client = house.connect("c")

    for _ in range(3):
        client.send_bytes(PACKET)
        house.advance(1)

    assert house.broker.overload.level is Level.NORMAL
    assert client.link.reading


# Memory that is free


def test_free_memory_is_given_back_after_much_was_held() -> None:
    """The system has it again soon after those who held it are gone; not every second, and not for little."""
    house = House()
    peers = [house.connect(str(n)).send_bytes(PACKET[:-1]) for n in range(10)]
    house.advance(10)
    while_held = house.trims

    for peer in peers:
        peer.drop()
    house.advance(10)
    after = house.trims
    house.advance(100)

    assert (while_held, after, house.trims) == (0, 1, 1)


def test_free_memory_is_given_back_while_memory_is_short() -> None:
    """What is free and not given back may be all that keeps the broker above a watermark."""
    house = House(**WATERMARKS)
    _at(house, 300)

    house.advance(60)

    assert 5 <= house.trims <= 7


def test_free_memory_is_given_back_when_the_level_falls() -> None:
    """Once."""
    house = House(**WATERMARKS)
    _at(house, 300)
    house.advance(5)

    _at(house, 0)
    house.advance(100)

    assert house.trims == 1
