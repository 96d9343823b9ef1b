"""What waits for clients' sockets: how much of it, and that it is not there once for each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness.house import House, Peer
from kinmqtt.broker.buffers import FLOOR_BYTES, MOST_AT_ONCE_BYTES
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket, Pingreq, Pingresp, Publish
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode

KIB = 1 << 10
MIB = 1 << 20


class Socket:
    """The socket of a harness's client, which takes a little at a time and notes down how it was written to."""

    def __init__(self, peer: Peer, takes: int = 0) -> None:
        self.writes: list[int] = []
        self.received = bytearray()
        self.takes = takes
        self._peer = peer
        self._write: Callable[[bytes], None] = peer.link.write
        peer.link.write = self.write  # type: ignore[method-assign]

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._write(data)
        self.takes -= len(data)
        if self.takes < 0:
            self._peer.link.ready = False

    def drain(self, takes: int = 1 << 60) -> None:
        """The socket has taken all that the transport had, and takes as much more."""
        self.takes = takes
        self._peer.link.ready = True
        self._peer.connection.drained()
        self._peer.harness.settle()


def stuck(house: House, number: int, version: int = V311, qos: int = 1, **more: object) -> list[tuple[Peer, Socket]]:
    """Subscribers of everything whose sockets take nothing more."""
    found = []
    for n in range(number):
        peer = house.connect(f"s{n}", version, **more).subscribe("#", qos=qos)  # type: ignore[arg-type]
        found.append((peer, Socket(peer)))
    return found


def held(house: House) -> int:
    """What the broker counts as waiting for sockets."""
    return house.broker.buffers.outbound


# What is counted


def test_what_the_transport_has_counts() -> None:
    """Until the socket has taken it: what is written and not taken is held all the same."""
    house = House()
    [(sub, socket)] = stuck(house, 1)
    house.connect("p").publish("t", bytes(1000), qos=1)
    transport = held(house)
    house.connect("q").publish("t", bytes(2000), qos=1)
    both = held(house)

    socket.drain()

    assert 1000 < transport < 1100
    assert 3000 < both < 3200
    assert held(house) == sub.connection.waiting_bytes == 0


def test_a_client_that_is_gone_holds_nothing() -> None:
    """However it goes."""
    house = House()
    subs = stuck(house, 3, V5)
    house.connect("p").publish("t", bytes(100_000), qos=1).publish("t", bytes(100_000), qos=1)
    subs[1][0].link.lingers = True

    subs[0][0].drop()
    house.broker.disconnect("s1", ReasonCode.ADMINISTRATIVE_ACTION, "go")
    house.settle()
    lingering = held(house)
    subs[1][0].drop()
    subs[2][0].connection.cut()
    house.settle()

    assert lingering > 0
    assert held(house) == 0
    assert house.broker.buffers.inflight == 0


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"version": V5},
        {"version": V5, "properties": Properties(topic_alias_maximum=5)},
        {"version": V5, "properties": Properties(maximum_packet_size=10 * MIB)},
    ],
    ids=["shared", "shared in 5", "aliases", "a largest packet"],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_to_many_is_there_once(qos: int, more: dict[str, object]) -> None:
    """Also where each client's packet is its own: its payload is everybody's."""
    house = House(outbound_buffer_bytes=64 * MIB)
    subs = stuck(house, 20, qos=1, **more)  # type: ignore[arg-type]
    pub = house.connect("p", V5)

    for _ in range(2):
        pub.publish("t", bytes(1 * MIB), qos=qos)
    waiting = [sub.connection.waiting_bytes for sub, _ in subs]
    for _, socket in subs:
        socket.drain()

    assert all(2 * MIB <= each < 2 * MIB + 200 for each in waiting)
    assert house.broker.buffers.peak < 20 * MOST_AT_ONCE_BYTES + 6 * MIB
    assert all([len(payload) for _, payload, _ in sub.messages] == [MIB] * 2 for sub, _ in subs)


def test_subscription_identifiers_copy_no_payload() -> None:
    """They are a client's own, and stand before the payload."""
    house = House(outbound_buffer_bytes=64 * MIB)
    subs = [house.connect(f"s{n}", V5) for n in range(20)]
    for number, sub in enumerate(subs):
        sub.subscribe("#", qos=1, properties=Properties(subscription_identifier=(number + 1,)))
    sockets = [Socket(sub) for sub in subs]

    house.connect("p", V5).publish("t", bytes(1 * MIB), qos=1)
    together = held(house)
    for socket in sockets:
        socket.drain()

    assert together < 20 * MOST_AT_ONCE_BYTES + 2 * MIB
    assert [sub.of(Publish)[0].properties.subscription_identifier for sub in subs] == [(n + 1,) for n in range(20)]
    assert all(sub.of(Publish)[0].payload == bytes(1 * MIB) for sub in subs)


# How it goes out


def test_a_large_message_goes_out_a_little_at_a_time() -> None:
    """A transport holds little of it, and every byte arrives in order."""
    house = House()
    [(sub, socket)] = stuck(house, 1)
    payload = bytes(range(256)) * 12_000

    house.connect("p").publish("t", payload, qos=1)
    for _ in range(20):
        socket.drain(takes=0)

    assert max(socket.writes) <= MOST_AT_ONCE_BYTES
    assert sub.messages == [("t", payload, 1)]


def test_less_goes_to_each_transport_the_less_is_free() -> None:
    """What a transport has is its own, so where many wait each has little."""
    house = House(max_all_outbound_bytes=1 * MIB)
    subs = stuck(house, 30)
    largest = []

    for _ in range(3):
        house.connect("p").publish("t", bytes(400 * KIB), qos=1)
        largest.append(max(socket.writes[-1] for _, socket in subs))
    transports = sum(sub.connection.handed_bytes for sub, _ in subs)

    assert transports < 2 * MIB
    assert held(house) < 4 * MIB


def test_a_client_that_reads_gets_large_messages_as_ever() -> None:
    """Where the socket takes everything nothing waits, and nobody counts as slow."""
    house = House(max_all_outbound_bytes=64 * KIB)
    sub = house.connect("s").subscribe("#", qos=1)

    house.connect("p").publish("t", bytes(3 * MIB), qos=1).publish("t", b"small")

    assert [len(payload) for _, payload, _ in sub.messages] == [3 * MIB, 5]
    assert not sub.connection.congested
    assert held(house) == 0


# Who is congested


def test_the_more_waits_for_others_the_less_may_wait_for_one() -> None:
    """Beyond what is free a client is congested, however little waits for it compared to its own limit."""
    house = House(max_all_outbound_bytes=1 * MIB, outbound_buffer_bytes=8 * MIB)
    [(alone, _)] = stuck(house, 1)
    pub = house.connect("p")
    while not alone.connection.congested:
        pub.publish("t", bytes(10_000), qos=0)
    most = alone.connection.waiting_bytes
    other = house.connect("other").subscribe("#")
    Socket(other)

    while not other.connection.congested:
        pub.publish("t", bytes(10_000), qos=0)

    assert 400 * KIB < most < 600 * KIB
    assert other.connection.waiting_bytes < most


def test_a_floor_may_always_wait() -> None:
    """Though nothing is free: a client is not congested by what others do not read."""
    house = House(max_all_outbound_bytes=1024)
    stuck(house, 3)
    pub = house.connect("p").publish("t", bytes(100_000), qos=1)
    [late] = [house.connect("late").subscribe("late", qos=1)]
    Socket(late)

    pub.publish("late", bytes(FLOOR_BYTES - 1000))

    assert not late.connection.congested
    assert late.connection.waiting_bytes > FLOOR_BYTES - 1000


def test_one_turns_output_does_not_jump_over_the_limit() -> None:
    """QoS 0 of one turn that is far more than may wait is dropped, counted, and what was assured goes out."""
    house = House(outbound_buffer_bytes=100_000)
    [(sub, socket)] = stuck(house, 1)
    sub.send(Pingreq())
    turn = b"".join(
        encode(
            Publish.build(
                "t", b"%05d" % n + bytes(1000), qos=n % 50 == 0, packet_id=n // 50 + 1 if n % 50 == 0 else 0
            ),
            V311,
        )
        for n in range(1000)
    )
    statistics = house.broker.runtime.statistics
    before = statistics.messages_sent.value

    house.connect("p").send_bytes(turn)
    waiting = sub.connection.waiting_bytes
    socket.drain()

    assert waiting < 130_000
    numbers = [int(payload[:5]) for _, payload, _ in sub.messages]
    assert numbers == list(range(0, 1000, 50))
    assert statistics.dropped["outbound_buffer_full"].value == 980
    assert statistics.messages_sent.value - before == 20


def test_congestion_ends_when_little_enough_waits() -> None:
    """Not before: what was given to the transport when it drained still waits."""
    house = House(outbound_buffer_bytes=200_000)
    [(sub, socket)] = stuck(house, 1)
    pub = house.connect("p")
    pub.publish("t", bytes(10_000), qos=1).publish("t", bytes(300_000), qos=1)

    socket.drain(takes=0)
    still = sub.connection.congested
    socket.drain()

    assert (still, sub.connection.congested, sub.link.reading) == (True, False, True)


# Clients that ask and do not read


def test_answers_that_nobody_reads_are_bounded() -> None:
    """A flood of the smallest packets is answered in few pieces, and the client is not read from."""
    house = House(outbound_buffer_bytes=10_000)
    client = house.connect("c")
    Socket(client)

    client.send_bytes(encode(Pingreq(), V311) * 40_000)

    assert client.connection.congested
    assert not client.link.reading
    assert held(house) == 2 * 40_000


def test_a_flood_of_small_packets_is_answered_in_order() -> None:
    """Answers that go out before the turn's end are those that come first."""
    house = House()
    client = house.connect("c", V5)

    client.send_bytes((encode(Pingreq(), V5) * 20_000 + encode(Publish.build("t", b"", qos=1, packet_id=9), V5)) * 2)

    assert len(client.of(Pingresp)) == 40_000


# Clients that are cut


def test_who_is_cut_with_nothing_unsent_is_told_why() -> None:
    """An MQTT 5 client reads 0x97 where its socket takes that."""
    house = House()
    client = house.connect("c", V5).send_bytes(encode(Publish.build("t", bytes(1000)), V5)[:-1])

    client.connection.cut()
    house.settle()

    assert [int(packet.reason) for packet in client.of(DisconnectPacket)] == [0x97]
    assert client.closed


def test_who_is_cut_in_the_middle_of_a_packet_is_told_nothing() -> None:
    """There is no place for a DISCONNECT within a packet; what waits is forgotten at once."""
    house = House()
    [(sub, socket)] = stuck(house, 1, V5)
    house.connect("p").publish("t", bytes(3 * MIB), qos=1)
    written = len(socket.writes)

    sub.connection.cut()
    house.settle()

    assert sub.closed
    assert len(socket.writes) == written
    assert held(house) == 0


def test_who_lingers_can_be_cut() -> None:
    """One that is closed already, and does not read the last words, is cut off."""
    house = House()
    [(sub, _)] = stuck(house, 1, V5)
    sub.link.lingers = True
    house.connect("p").publish("t", bytes(3 * MIB), qos=1)
    house.broker.disconnect("s0", ReasonCode.ADMINISTRATIVE_ACTION, "go")
    house.settle()
    before = held(house)
    aborted: list[bool] = []
    sub.link.abort = lambda: aborted.append(True)  # type: ignore[method-assign]

    sub.connection.cut()

    assert before >= 3 * MIB
    assert aborted == [True]
    assert held(house) < 1 * MIB
