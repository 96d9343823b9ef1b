"""What is counted is what is held, whatever clients do: a broker beside a model that adds up what there is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer
from kinmqtt.broker.buffers import SHARED_BYTES
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.connection.read_gate import CAPACITY, FRAME_BYTES
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.connection_state import State
from kinmqtt.mqtt.framing import PIECE_BYTES
from kinmqtt.mqtt.packets import V5, Connect, Pingreq, Puback, Publish, Subscribe, SubscribeRequest
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import ALLOW
from spi_harness.examples import examples

KIB = 1 << 10


class Late:
    """Authenticates, and authorizes what lies below ``guarded``, when the test says so."""

    def __init__(self) -> None:
        self.answers: list[Deferred[Decision]] = []

    def _later(self) -> Deferred[Decision]:
        self.answers.append(Deferred())
        return self.answers[-1]

    @hookimpl
    def authenticate(self, request: Any) -> Any:
        return self._later() if request.client_id.startswith("late") else ALLOW

    @hookimpl
    def authorize(self, request: Any) -> Any:
        return self._later() if request.topic.startswith("guarded") else ALLOW


def connections_of(house: House) -> set[Connection]:
    """The connections that a broker has, which it knows as peers only."""
    connections: Any = house.broker.connections
    found: set[Connection] = connections
    return found


def frames_of(connection: Connection) -> list[bytes]:
    """Packets that wait behind an answer."""
    gate = connection.gate
    rest = gate.rest
    lists = (gate.held, gate.beyond, None if rest is None else rest.frames)
    return [frame for frames in lists for frame, _ in frames or ()]


def held_of(connection: Connection) -> int:
    """What a connection holds of what came in, added up anew."""
    if connection.state is State.CLOSED:
        return 0
    framer, frames = connection.framer, frames_of(connection)
    raw = len(framer._held or b"") + len(framer._beyond or b"") + len(framer._uncut or b"")
    raw += sum(len(piece) + PIECE_BYTES for piece in framer._later or ())
    waiting = sum(map(len, frames)) + FRAME_BYTES * len(frames)
    return raw + waiting + connection.gate.pending_bytes + connection.beneath_bytes


class Clients(RuleBasedStateMachine):
    """A few clients that do anything, in small pieces, with small bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.late = Late()
        self.house = House(
            plugins={"late": self.late},
            max_all_inbound_bytes=256 * KIB,
            max_all_outbound_bytes=256 * KIB,
            max_packet_bytes=200 * KIB,
            max_connect_bytes=20 * KIB,
            outbound_buffer_bytes=100 * KIB,
            packet_time_limit_s=5,
            max_queued_bytes=300 * KIB,
        )
        self.peers: list[Peer] = []
        self.unsent: list[bytes] = []

        for name in ("s", "kept", "p", "q", "r"):
            expiry_s = 100 if name == "kept" else 0
            peer = self.house.connect(name, V5, silent=True, clean_start=not expiry_s, expiry_s=expiry_s)
            self.peers.append(peer if name in ("p", "q", "r") else peer.subscribe("#", qos=1))
            self.unsent.append(b"")

    # What clients do

    @rule(
        number=st.integers(0, 7),
        qos=st.integers(0, 1),
        size=st.sampled_from([10, 300, 20_000, 60_000]),
        times=st.integers(1, 8),
    )
    def publish_now(self, number: int, qos: int, size: int, times: int) -> None:
        """Messages arrive in one read, where the broker reads and nothing stands before them."""
        if self.peers:
            number %= len(self.peers)
            peer = self.peers[number]
            if peer.link.reading and not peer.closed and not self.unsent[number] and peer.connection.accepted:
                packet = encode(Publish.build("t", bytes(size), qos=qos, packet_id=9 if qos else 0), V5)
                peer.send_bytes(packet * times)

    @rule(number=st.integers(0, 7), size=st.sampled_from([1, 100_000, 140_000]))
    def begin(self, number: int, size: int) -> None:
        """A large packet begins to arrive; the rest is to be sent."""
        if self.peers:
            number %= len(self.peers)
            peer = self.peers[number]
            if peer.link.reading and not peer.closed and not self.unsent[number] and peer.connection.accepted:
                packet = encode(Publish.build("t", bytes(150_000), qos=1, packet_id=9), V5)
                peer.send_bytes(packet[:size])
                self.unsent[number] = packet[size:]

    @precondition(lambda self: len(self.peers) < 8)
    @rule(name=st.sampled_from(["a", "b", "late-a", "late-b"]), persistent=st.booleans(), size=st.integers(1, 18_000))
    def connect(self, name: str, persistent: bool, size: int) -> None:
        """Somebody comes; its CONNECT arrives when it is sent."""
        properties = Properties(session_expiry_interval=100 if persistent else 0)
        connect = Connect(V5, name, not persistent, username="u", password=bytes(size), properties=properties)
        peer = self.house.open(V5)
        peer.silent = True
        self.peers.append(peer)
        self.unsent.append(encode(connect, V5) + encode(Subscribe(1, (SubscribeRequest("#", 1),)), V5))

    def _with(self, number: int, data: bytes) -> None:
        if self.peers:
            self.unsent[number % len(self.peers)] += data

    @rule(
        number=st.integers(0, 7),
        topic=st.sampled_from(["t", "guarded"]),
        qos=st.integers(0, 2),
        size=st.sampled_from([0, 10, 1000, 20_000, 150_000]),
    )
    def publish(self, number: int, topic: str, qos: int, size: int) -> None:
        """A message is to be sent."""
        self._with(number, encode(Publish.build(topic, bytes(size), qos=qos, packet_id=5 if qos else 0), V5))

    @rule(number=st.integers(0, 7), times=st.integers(1, 50))
    def ping(self, number: int, times: int) -> None:
        """Small packets are to be sent."""
        self._with(number, encode(Pingreq(), V5) * times)

    @rule(number=st.integers(0, 7), size=st.integers(1, 100_000))
    def send(self, number: int, size: int) -> None:
        """Some bytes arrive, where the broker reads."""
        if not self.peers:
            return
        number %= len(self.peers)
        peer = self.peers[number]
        if peer.link.reading and not peer.closed and self.unsent[number]:
            data, self.unsent[number] = self.unsent[number][:size], self.unsent[number][size:]
            peer.send_bytes(data)

    @rule(number=st.integers(0, 7))
    def acknowledge(self, number: int) -> None:
        """A client acknowledges what it has."""
        if self.peers:
            peer = self.peers[number % len(self.peers)]
            for packet in peer.of(Publish):
                if packet.qos == 1 and not self.unsent[number % len(self.peers)]:
                    peer.send(Puback(packet.packet_id))
            peer.packets.clear()

    @rule(number=st.integers(0, 7), blocked=st.booleans())
    def socket(self, number: int, blocked: bool) -> None:
        """A socket takes nothing more, or all that waits."""
        if self.peers:
            peer = self.peers[number % len(self.peers)]
            if blocked:
                peer.link.blocked = True
            elif not peer.closed:
                peer.unblock()

    @rule(allowed=st.booleans())
    def answer(self, allowed: bool) -> None:
        """A plugin answers."""
        if self.late.answers:
            answer = self.late.answers.pop(0)
            if not answer.called:
                answer.callback(ALLOW) if allowed else answer.errback(RuntimeError("no"))
            self.house.settle()

    @rule(number=st.integers(0, 7), how=st.sampled_from(["lose", "cut"]))
    def end(self, number: int, how: str) -> None:
        """A connection ends, by itself or for the sake of memory."""
        if self.peers:
            number %= len(self.peers)
            peer = self.peers.pop(number)
            self.unsent.pop(number)
            if not peer.closed and how == "cut":
                peer.connection.cut()
            if peer.connection in self.house.broker.connections:
                peer.drop()
            self.house.settle()

    @rule(seconds=st.integers(1, 4))
    def time(self, seconds: int) -> None:
        """Time passes."""
        self.house.advance(seconds)

    # What is counted

    @invariant()
    def inbound_is_what_is_held(self) -> None:
        """Each connection's count, and the sums."""
        open_now = connections_of(self.house)
        buffers = self.house.broker.buffers
        assert {c: c.inbound_bytes for c in open_now} == {c: held_of(c) for c in open_now}
        assert buffers.inbound == sum(map(held_of, open_now))
        assert buffers.arriving == sum(held_of(c) for c in open_now if not c.accepted)

    @invariant()
    def outbound_is_what_is_held(self) -> None:
        """What transports have, and every piece that waits, once."""
        open_now = connections_of(self.house)
        waiting = [piece for c in open_now if c._unsent is not None for piece in c._unsent._pieces]
        shared = {id(piece): len(piece) for piece in waiting if len(piece) >= SHARED_BYTES}
        own = sum(len(piece) for piece in waiting if len(piece) < SHARED_BYTES)
        handed = sum(c.handed_bytes for c in open_now)
        assert self.house.broker.buffers.outbound == sum(shared.values()) + own + handed

    @invariant()
    def in_flight_is_what_is_held(self) -> None:
        """Every message that is in flight to somebody who is there, once."""
        sessions = self.house.broker.sessions.by_id.values()
        there = [flight for s in sessions if s.connection is not None for _, flight in s.outgoing]
        publications = {id(flight.publication): flight.publication for flight in there}
        sizes = [publication.packet_bytes for publication in publications.values()]
        assert self.house.broker.buffers.inflight == sum(sizes)
        assert all(s.outgoing.size_bytes == sum(f.publication.packet_bytes for _, f in s.outgoing) for s in sessions)

    @invariant()
    def who_waits_is_not_read_from(self) -> None:
        """Nobody is forgotten among those that wait, nor kept there after the end."""
        buffers = self.house.broker.buffers
        assert all(c in self.house.broker.connections for c in (*buffers.waiting, *buffers.granted))
        waiting: Iterable[Any] = buffers.waiting
        assert all(c.gate.reasons & CAPACITY for c in waiting)
        for connection in connections_of(self.house):
            if connection.gate.reasons & CAPACITY and connection.state is not State.CLOSED:
                assert connection in buffers.waiting

    def teardown(self) -> None:
        """When everybody is gone nothing is held."""
        for peer in self.peers:
            if peer.connection in self.house.broker.connections:
                peer.drop()
        self.house.advance(200)
        buffers = self.house.broker.buffers
        assert (buffers.inbound, buffers.arriving, buffers.outbound, buffers.inflight) == (0, 0, 0, 0)
        assert not (buffers.waiting or buffers.granted or buffers._pieces)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)


@pytest.mark.soak
def test_clients_for_long() -> None:
    """The same, very many times."""
    Clients.TestCase.settings = settings(max_examples=5000, stateful_step_count=200, deadline=None)
    Clients.TestCase("runTest").runTest()
