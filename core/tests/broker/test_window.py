"""What is in flight, in bytes."""

from __future__ import annotations

from core_harness.house import House, Peer
from kinmqtt.broker.buffers import FLOOR_BYTES
from kinmqtt.mqtt.packets import V5, Puback, Publish
from kinmqtt_spi.properties import Properties

KIB = 1 << 10
MIB = 1 << 20


def in_flight(house: House) -> int:
    """What the broker counts as sent and not acknowledged."""
    return house.broker.buffers.inflight


def silent(house: House, name: str = "s", **more: object) -> Peer:
    """A subscriber that reads everything and acknowledges nothing."""
    return house.connect(name, V5, silent=True, **more).subscribe("#", qos=1)  # type: ignore[arg-type]


def test_a_client_that_acknowledges_nothing_is_sent_a_bounded_number_of_bytes() -> None:
    """What it has not acknowledged is held for it: messages beyond that wait in its queue, and are bounded there."""
    house = House(max_all_outbound_bytes=4 * MIB)
    sub = silent(house)
    pub = house.connect("p")

    for _ in range(20):
        pub.publish("t", bytes(1 * MIB), qos=1)

    assert len(sub.of(Publish)) == 2
    assert in_flight(house) < 3 * MIB
    assert house.broker.sessions.by_id["s"].queue.count == 18


def test_the_more_others_have_in_flight_the_less_may_one() -> None:
    """But 64 KiB may always be, and one message."""
    house = House(max_all_outbound_bytes=1 * MIB)
    first = silent(house)
    pub = house.connect("p")
    for _ in range(5):
        pub.publish("t", bytes(300 * KIB), qos=1)
    late = silent(house, "late")

    for _ in range(40):
        pub.publish("t", bytes(10 * KIB), qos=1)

    assert len(first.of(Publish)) == 2
    assert FLOOR_BYTES // (10 * KIB) <= len(late.of(Publish)) < 40


def test_acknowledgements_let_the_next_ones_go() -> None:
    """In order, until everything is delivered (MQTT-4.6.0-5)."""
    house = House(max_all_outbound_bytes=2 * MIB)
    sub = silent(house)
    pub = house.connect("p")
    for number in range(12):
        pub.publish("t", b"%02d" % number + bytes(400 * KIB), qos=1)

    acknowledged = 0
    while acknowledged < 12:
        sent = sub.of(Publish)
        assert len(sent) > acknowledged
        for packet in sent[acknowledged:]:
            sub.send(Puback(packet.packet_id))
        acknowledged = len(sent)

    assert [int(packet.payload[:2]) for packet in sub.of(Publish)] == list(range(12))
    assert in_flight(house) == 0


def test_a_persistent_queue_is_read_as_far_as_it_may_be_sent() -> None:
    """No more is taken out of a store than there is room for; the rest comes with the acknowledgements."""
    house = House(max_all_outbound_bytes=2 * MIB)
    silent(house, clean_start=False, expiry_s=1000).drop()
    pub = house.connect("p")
    for number in range(12):
        pub.publish("t", b"%02d" % number + bytes(400 * KIB), qos=1)

    sub = house.connect("s", V5, clean_start=False, expiry_s=1000)

    assert [int(payload[:2]) for _, payload, _ in sub.messages] == list(range(12))
    assert in_flight(house) == 0


def test_what_is_in_flight_to_many_counts_once() -> None:
    """And until the last of them has acknowledged it."""
    house = House()
    subs = [silent(house, f"s{n}") for n in range(5)]
    house.connect("p").publish("t", bytes(100_000), qos=1)
    together = in_flight(house)

    for sub in subs[:4]:
        sub.send(Puback(sub.of(Publish)[0].packet_id))
    one = in_flight(house)
    subs[4].drop()

    assert 100_000 < together < 100_100
    assert one == together
    assert in_flight(house) == 0


def test_what_is_in_flight_to_those_who_are_away_does_not_count() -> None:
    """It counts among what waits for them; when they come back it counts here again."""
    house = House()
    sub = silent(house, expiry_s=1000)
    house.connect("p").publish("t", bytes(100_000), qos=1)

    sub.drop()
    away = (in_flight(house), house.broker.runtime.queued.size_bytes)
    again = house.connect("s", V5, clean_start=False, expiry_s=1000, silent=True)

    assert away[0] == 0
    assert away[1] > 100_000
    assert in_flight(house) > 100_000
    assert len(again.of(Publish)) == 1


def test_a_message_of_qos_2_is_held_until_it_is_over() -> None:
    """To its PUBCOMP; afterwards nothing is left."""
    house = House()
    sub = house.connect("s", V5, silent=True).subscribe("#", qos=2)
    house.connect("p").publish("t", bytes(1000), qos=2)
    before = in_flight(house)

    sub.silent = False
    sub.drop()
    other = house.connect("o").subscribe("#", qos=2)
    house.connect("p").publish("t", bytes(1000), qos=2)

    assert before > 1000
    assert len(other.messages) == 1
    assert in_flight(house) == 0


def test_what_is_too_large_for_a_client_is_not_in_flight() -> None:
    """It is treated as if it had been acknowledged (MQTT-3.1.2-25)."""
    house = House()
    sub = silent(house, properties=Properties(maximum_packet_size=1000))

    house.connect("p").publish("t", bytes(5000), qos=1)

    assert sub.of(Publish) == []
    assert in_flight(house) == 0
