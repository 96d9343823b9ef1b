"""What is held of packets that have not arrived in full, and of those that wait behind an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer
from kinmqtt.broker.buffers import ARRIVING_FLOOR_BYTES, FLOOR_BYTES, PROGRESS_BYTES
from kinmqtt.broker.connection.read_gate import FRAME_BYTES
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Connect, DisconnectPacket, Pingreq, Pingresp, Puback, Publish
from kinmqtt.settings import ListenerLimitSettings, ListenerSettings
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import ALLOW

KIB = 1 << 10
MIB = 1 << 20
PACKET = encode(Publish.build("t", bytes(MIB - 100), qos=1, packet_id=1), V5)
"""A packet of nearly a mebibyte."""


def house_with(bound: int = MIB, **more: Any) -> House:
    """A broker that holds so much of what comes in, and takes packets of a mebibyte."""
    more.setdefault("max_packet_bytes", MIB)
    return House(max_all_inbound_bytes=bound, **more)


def held(house: House) -> int:
    """What the broker counts as held of what came in."""
    return house.broker.buffers.inbound


def hoarders(house: House, number: int, size: int) -> list[Peer]:
    """Clients that have sent so much of a large packet, and send no more."""
    return [house.connect(f"h{n}", V5).send_bytes(PACKET[:size]) for n in range(number)]


def is_over(peer: Peer) -> bool:
    """Whether a client holds more than its share: it is not read from, or only to finish its packet."""
    return not peer.link.reading or peer.connection in peer.harness.broker.buffers.granted


# How much may be held


def test_what_is_held_is_counted_until_the_packet_is_there() -> None:
    """A packet counts with the bytes that have come, and not at all when it is complete."""
    house = house_with()
    client = house.connect("c", V5)
    counted = []

    for part in (PACKET[:1], PACKET[1:1000], PACKET[1000:]):
        client.send_bytes(part)
        counted.append(held(house))

    assert counted == [1, 1000, 0]
    assert len(client.of(Puback)) == 1


def test_a_floor_is_always_free() -> None:
    """However much others hold, a client is read from while it holds 64 KiB at most."""
    house = house_with(bound=1024)
    hoarders(house, 3, FLOOR_BYTES)
    client = house.connect("c", V5)

    client.send_bytes(PACKET[:FLOOR_BYTES])

    assert client.link.reading


def test_above_the_floor_a_client_may_hold_what_is_free() -> None:
    """One that holds more than is left of the bound is not read from."""
    house = house_with(bound=1 * MIB)
    client = house.connect("c", V5)

    client.send_bytes(PACKET[: 400 * KIB])
    below = is_over(client)
    hoarders(house, 1, 300 * KIB)
    client.send_bytes(PACKET[400 * KIB : 401 * KIB])

    assert (below, is_over(client)) == (False, True)


def test_the_more_others_hold_the_less_one_may() -> None:
    """With many that hold something each is stopped earlier, and something is left for whoever comes next."""
    stopped_at = []
    for others in (0, 4, 12):
        house = house_with(bound=1 * MIB)
        hoarders(house, others, 62 * KIB)
        client = house.connect("c", V5)
        sent = 0
        while not is_over(client):
            client.send_bytes(PACKET[sent : sent + 8 * KIB])
            sent += 8 * KIB
        stopped_at.append(sent)

    assert stopped_at == sorted(stopped_at, reverse=True)
    assert stopped_at[0] > 500 * KIB
    assert stopped_at[-1] > FLOOR_BYTES


def test_a_client_is_read_from_again_when_there_is_capacity() -> None:
    """When another's packet is complete, or the other is gone, those that wait go on."""
    house = house_with(bound=1 * MIB)
    first, second, third = hoarders(house, 3, 400 * KIB)
    before = [is_over(peer) for peer in (first, second, third)]

    first.drop()
    second.drop()

    assert before == [False, True, True]
    assert third.link.reading
    assert not house.broker.buffers.waiting


def test_packets_behind_an_answer_are_counted() -> None:
    """The packet that is answered and those behind it count, with what each takes besides its bytes."""
    guard = Guard()
    house = house_with(plugins={"guard": guard})
    client = house.connect("c")
    waiting = encode(Publish.build("guarded/1", b"0" * 500), V311)
    ping = encode(Pingreq(), V311)

    client.send_bytes(waiting + ping * 10)
    counted = held(house)
    guard.answers.pop().callback(ALLOW)
    house.settle()

    assert counted == len(waiting) + 10 * (len(ping) + FRAME_BYTES)
    assert held(house) == 0
    assert len(client.of(Pingresp)) == 10


def test_a_client_that_is_gone_holds_nothing() -> None:
    """However it goes: by itself, sent away, or in the middle of a packet behind an answer."""
    guard = Guard()
    house = house_with(plugins={"guard": guard})
    lost, failed, waiting = (house.connect(name, V5) for name in ("lost", "failed", "waiting"))
    for client in (lost, failed):
        client.send_bytes(PACKET[:1000])
    waiting.publish("guarded/1").send_bytes(PACKET[:1000])

    lost.drop()
    failed.link.lingers = True
    house.broker.disconnect("failed", ReasonCode.ADMINISTRATIVE_ACTION, "go")
    waiting.drop()
    house.settle()

    assert held(house) == 0
    assert house.broker.buffers.arriving == 0


# Clients that are not accepted yet


class Slow:
    """Authenticates when the test says so."""

    def __init__(self) -> None:
        self.answers: list[Deferred[Decision]] = []

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Any:
        self.answers.append(Deferred())
        return self.answers[-1]


def connect_of(size: int) -> bytes:
    """A CONNECT of about that size."""
    return encode(Connect(V5, "c", True, 0, "u", bytes(size)), V5)


def test_clients_that_are_not_accepted_share_a_quarter() -> None:
    """They can't take what clients share: beyond a quarter each may hold an ordinary CONNECT and no more."""
    house = house_with(bound=256 * KIB)
    peers = [house.open(V5).send_bytes(connect_of(20_000)[:-1]) for _ in range(4)]

    assert [peer.link.reading for peer in peers] == [True, True, False, False]
    assert house.connect("c", V5).send_bytes(PACKET[: 100 * KIB]).link.reading


def test_an_ordinary_connect_passes_a_flood_of_unfinished_ones() -> None:
    """Who sends a small CONNECT is served while others hold all that there is for clients that are not accepted."""
    house = house_with(bound=256 * KIB)
    for _ in range(10):
        house.open(V5).send_bytes(connect_of(16_000)[:-1])
    client = house.open(V5)
    whole = connect_of(ARRIVING_FLOOR_BYTES - 100)

    client.send_bytes(whole[:1000]).send_bytes(whole[1000:-1])
    reading = client.link.reading
    client.send_bytes(whole[-1:])

    assert reading
    assert client.connack.reason is ReasonCode.SUCCESS


def test_what_reads_bring_beyond_the_quarter_is_cut() -> None:
    """A read may bring more than may be held: then those that hold most are disconnected."""
    house = house_with(bound=256 * KIB)

    peers = [house.open(V5).send_bytes(connect_of(40_000)[:-1]) for _ in range(5)]

    assert any(peer.closed for peer in peers)
    assert house.broker.buffers.arriving <= 96 * KIB
    assert house.broker.runtime.statistics.connections_cut.value > 0


def test_who_is_accepted_counts_among_the_clients() -> None:
    """What came behind CONNECT counts in the quarter until the CONNACK, and not afterwards."""
    slow = Slow()
    house = house_with(bound=1 * MIB, plugins={"slow": slow})
    client = house.open(V5).send_bytes(connect_of(100) + PACKET[:30_000])
    before = (house.broker.buffers.arriving, held(house))

    slow.answers.pop().callback(ALLOW)
    house.settle()

    assert before[0] == before[1] > 30_000
    assert (house.broker.buffers.arriving, held(house)) == (0, 30_000)
    assert client.link.reading


def test_a_first_packet_that_is_too_large_is_held_and_counted() -> None:
    """One that came behind CONNECT waits until its client is accepted, when larger ones are taken."""
    slow = Slow()
    house = house_with(bound=1 * MIB, plugins={"slow": slow}, max_connect_bytes=1024)
    client = house.open(V5).send_bytes(connect_of(100) + encode(Publish.build("t", bytes(5000)), V5))
    before = held(house)

    slow.answers.pop().callback(ALLOW)
    house.settle()

    assert before > 5000
    assert held(house) == 0
    assert not client.closed


# That somebody can always finish


def test_packets_are_finished_though_nothing_is_free() -> None:
    """Where all hold so much that none could go on, they finish one after the other."""
    house = house_with(bound=512 * KIB)
    peers = [house.connect(f"c{n}", V5) for n in range(6)]
    streams = [Sending(peer, PACKET) for peer in peers]

    for _ in range(200):
        for stream in streams:
            stream.go_on()
        house.settle()

    assert [len(peer.of(Puback)) for peer in peers] == [1] * 6
    assert held(house) == 0


def test_the_packet_with_the_least_missing_goes_first() -> None:
    """Who needs little to finish does not wait for those who need much."""
    house = house_with(bound=256 * KIB)
    hoarders(house, 3, 100 * KIB)
    small = encode(Publish.build("t", bytes(200 * KIB), qos=1, packet_id=1), V5)
    client = house.connect("c", V5)
    stream = Sending(client, small)

    for _ in range(2):
        for _ in range(10):
            stream.go_on()
        house.advance(1)

    assert len(client.of(Puback)) == 1


def test_who_stalls_gives_way_to_others() -> None:
    """A grant to finish passes on, second by second, from packets that do not come."""
    house = house_with(bound=256 * KIB)
    hoarders(house, 4, 900 * KIB)
    client = house.connect("c", V5)
    stream = Sending(client, PACKET)

    for _ in range(8):
        for _ in range(40):
            stream.go_on()
        house.advance(1)

    assert len(client.of(Puback)) == 1


def test_a_grant_stays_with_a_packet_that_comes() -> None:
    """However slowly, as long as it is not next to nothing."""
    house = house_with(bound=64 * KIB)
    hoarders(house, 2, 100 * KIB)
    granted = next(iter(house.broker.buffers.granted))
    [peer] = [peer for peer in house.peers if peer.connection is granted]
    sent = 100 * KIB
    still = []

    for _ in range(3):
        peer.send_bytes(PACKET[sent : sent + PROGRESS_BYTES])
        sent += PROGRESS_BYTES
        house.advance(1)
        still.append(granted in house.broker.buffers.granted)

    assert still == [True] * 3


def test_reads_that_bring_far_more_than_may_be_held_are_cut() -> None:
    """Those that hold most are disconnected with 0x97 until the bound holds; what clients need to finish stays."""
    house = house_with(bound=1 * MIB)

    peers = hoarders(house, 12, 400 * KIB)

    gone = [peer for peer in peers if peer.closed]
    assert gone
    assert held(house) <= 2 * MIB
    assert all(peer.of(DisconnectPacket)[0].reason is ReasonCode.QUOTA_EXCEEDED for peer in gone)
    assert house.broker.runtime.statistics.connections_cut.value == len(gone)


# How long a packet may take


def test_a_packet_that_does_not_come_ends_the_connection() -> None:
    """Counted from its first byte, whatever the client did before (0x97)."""
    house = house_with(packet_time_limit_s=5)
    client = house.connect("c", V5)
    house.advance(100)
    client.send_bytes(PACKET[:1000])

    house.advance(5)
    early = client.closed
    house.advance(2)

    assert (early, client.closed) == (False, True)
    assert client.of(DisconnectPacket)[0].reason is ReasonCode.QUOTA_EXCEEDED


def test_bytes_that_trickle_do_not_help() -> None:
    """A byte now and then is no packet that comes."""
    house = house_with(packet_time_limit_s=5)
    client = house.connect("c", V5)

    for byte in PACKET[:10]:
        client.send_bytes(bytes((byte,)))
        house.advance(1)

    assert client.closed


def test_a_large_packet_over_a_slow_link_may_take_longer() -> None:
    """For as long as 64 KiB of it come in each such time."""
    house = house_with(packet_time_limit_s=5)
    client = house.connect("c", V5)

    for start in range(0, len(PACKET), 16 * KIB):
        client.send_bytes(PACKET[start : start + 16 * KIB])
        house.advance(1)

    assert not client.closed
    assert len(client.of(Puback)) == 1


def test_many_packets_in_a_row_are_no_packet_that_takes_long() -> None:
    """A stream whose reads always end within a packet has a new one each time."""
    house = house_with(packet_time_limit_s=5)
    client = house.connect("c", V5)
    packet = encode(Publish.build("t", bytes(1000)), V5)

    client.send_bytes(packet[:500])
    for _ in range(30):
        client.send_bytes(packet[500:] + packet[:500])
        house.advance(1)

    assert not client.closed


def test_a_packet_after_a_pause_has_its_time_in_full() -> None:
    """What came before, and was complete, does not count."""
    house = house_with(packet_time_limit_s=5)
    client = house.connect("c", V5)
    client.send_bytes(PACKET[:1000]).send_bytes(PACKET[1000:])
    house.advance(4)
    client.send_bytes(PACKET[:1000])

    house.advance(4)
    client.send_bytes(PACKET[1000:])

    assert not client.closed
    assert len(client.of(Puback)) == 2


def test_a_client_that_the_broker_does_not_read_is_not_to_blame() -> None:
    """While an answer is pending nothing is read, and no packet can arrive."""
    guard = Guard()
    house = house_with(packet_time_limit_s=5, plugins={"guard": guard})
    client = house.connect("c", V5)
    client.send_bytes(encode(Publish.build("guarded/1", b""), V5) + PACKET[:1000])

    house.advance(9)
    guard.answers.pop().callback(ALLOW)
    house.advance(4)
    client.send_bytes(PACKET[1000:])

    assert not client.closed
    assert len(client.of(Puback)) == 1


def test_one_that_waits_for_capacity_has_no_more_time_than_others() -> None:
    """Else those that hoard would be waited for."""
    house = house_with(bound=64 * KIB, packet_time_limit_s=5)
    peers = hoarders(house, 3, 100 * KIB)

    house.advance(20)

    assert [peer.closed for peer in peers] == [True] * 3
    assert held(house) == 0


def test_keep_alive_goes_on_beside_it() -> None:
    """A packet that comes slowly is no sign of life [MQTT-3.1.2-22]."""
    house = house_with(packet_time_limit_s=60)
    client = house.connect("c", V5, keep_alive=10)
    client.send_bytes(PACKET[:1000])

    house.advance(18)

    assert client.of(DisconnectPacket)[0].reason is ReasonCode.KEEP_ALIVE_TIMEOUT


def test_a_listener_may_give_more_time() -> None:
    """Where clients come by slow links."""
    listener = ListenerSettings(endpoint="1883", limits=ListenerLimitSettings(packet_time_limit_s=50))
    house = House(listeners={"tcp:1883": listener}, packet_time_limit_s=5)
    client = house.connect("c", V5).send_bytes(PACKET[:10])

    house.advance(20)
    early = client.closed
    house.advance(40)

    assert (early, client.closed) == (False, True)


def test_a_connection_that_waits_for_a_packet_takes_one_place_on_the_wheel() -> None:
    """And gives it back: no timer for each packet."""
    house = house_with(packet_time_limit_s=5)
    client = house.connect("c", V5, keep_alive=60)
    for _ in range(10):
        client.send_bytes(PACKET[:1000]).send_bytes(PACKET[1000:])
    places = len(house.broker.wheel)

    client.send_bytes(PACKET[:1000]).drop()

    assert (places, len(house.broker.wheel)) == (1, 0)


class Guard:
    """Answers whether a client may publish below ``guarded`` when the test says so."""

    def __init__(self) -> None:
        self.answers: list[Deferred[Decision]] = []

    @hookimpl
    def authorize(self, request: Any) -> Any:
        if not request.topic.startswith("guarded/"):
            return ALLOW
        self.answers.append(Deferred())
        return self.answers[-1]


class Sending:
    """A client that sends as long as it is read from, in pieces as a socket gives them."""

    def __init__(self, peer: Peer, data: bytes, piece: int = 32 * KIB) -> None:
        self._peer = peer
        self._parts: Iterator[bytes] = (data[at : at + piece] for at in range(0, len(data), piece))

    def go_on(self) -> None:
        """Send the next piece, if somebody reads it."""
        if self._peer.link.reading and not self._peer.closed:
            part = next(self._parts, None)
            if part is not None:
                self._peer.send_bytes(part)


@pytest.mark.parametrize("size", [64 * KIB, 64 * KIB + 1])
def test_the_first_packet_may_have_64_kib(size: int) -> None:
    """By default; one that is larger is refused as soon as its length is known."""
    house = House()
    peer = house.open(V5)
    header = b"\x10" + bytes(((size - 4) & 0x7F | 0x80, (size - 4) >> 7 & 0x7F | 0x80, (size - 4) >> 14))

    peer.send_bytes(header + b"\0\4MQTT")

    assert peer.closed is (size > 64 * KIB)
