"""The Twisted protocol: by itself before a transport of the test's making, and over loopback in a running broker."""

from __future__ import annotations

import gc
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.house import House
from core_harness.transports import CONNACK, CONNECT, PING, PONG, BufferTransport, SocketTransport
from core_harness.wire import Wire, wire
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.connection.output import ConnectionBuffer
from kinmqtt.broker.session.memory_queue import MemoryQueue
from kinmqtt.broker.session.session import Session
from kinmqtt.broker.session.stored_queue import StoredQueue
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt.net.admission import PATIENCE_S
from kinmqtt.net.protocol import CLOSE_LIMIT_S, MqttFactory, MqttProtocol
from kinmqtt.net.proxy import ProxyFactory
from kinmqtt.settings import ListenerLimitSettings, ListenerSettings, TlsSettings
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.processes import environment

PLAIN = ListenerSettings(endpoint="1883")


def joined(house: House, transport: BufferTransport, *, talk: bool = True) -> MqttProtocol:
    """A protocol on its transport, with a client that has connected."""
    protocol = MqttFactory(house.broker, house.broker.listeners["tcp:1883"], PLAIN).buildProtocol(None)
    protocol.makeConnection(transport)  # type: ignore[no-untyped-call]
    if talk:
        protocol.dataReceived(CONNECT)
        house.settle()
    return protocol


def test_what_the_socket_takes_is_sent_at_once() -> None:
    """Output skips the transport's buffer where nothing waits in it, however little each call sends."""
    house = House()
    transport = SocketTransport(step=3)

    joined(house, transport).dataReceived(PING)
    house.settle()

    assert transport.sent == CONNACK + PONG
    assert transport.written == b""


@pytest.mark.parametrize("kept", [False, True])
def test_a_connection_that_is_gone_leaves_no_circle(kept: bool) -> None:
    """Nothing of it waits for the garbage collector, which looks at what is old only once in many minutes."""
    house = House()
    sorts = (MqttProtocol, BufferTransport, Connection, Session, ConnectionBuffer, MemoryQueue, StoredQueue)
    gone = ConnectionLost()

    def come_and_go(name: str) -> None:
        transport = SocketTransport()
        protocol = joined(house, transport, talk=False)
        properties = Properties(session_expiry_interval=1 if kept else 0)
        protocol.dataReceived(encode(Connect(V5, name, True, 0, None, None, None, properties), V5))
        protocol.dataReceived(encode(Subscribe(1, (SubscribeRequest("t", 1),)), V5))
        protocol.dataReceived(encode(Publish.build("t", b"x", 1, packet_id=1), V5))
        house.settle()
        protocol.connectionLost(Failure(gone))
        house.settle()

    come_and_go("first")
    house.advance(5)
    gc.collect()
    gc.disable()
    try:
        # Held, so that what is new can't be taken for one of them; other tests' may still go.
        before = {id(each): each for each in gc.get_objects() if isinstance(each, sorts)}
        come_and_go("second")
        house.advance(5)
        left = [each for each in gc.get_objects() if isinstance(each, sorts) and id(each) not in before]
    finally:
        gc.enable()

    assert not left
    assert not house.broker.sessions.by_id


def test_what_the_socket_does_not_take_waits_in_order() -> None:
    """What doesn't fit goes to the transport, and what follows waits until all of that has gone out."""
    house = House()
    transport = SocketTransport(room=3)
    protocol = joined(house, transport)
    assert (transport.sent, transport.written) == (CONNACK[:3], CONNACK[3:])
    assert not protocol.ready

    protocol.dataReceived(PING + PING)
    house.settle()
    assert (transport.sent, transport.written) == (CONNACK[:3], CONNACK[3:])

    transport.room = 100
    protocol.resumeProducing()
    house.settle()
    assert transport.sent == CONNACK[:3] + PONG + PONG
    assert protocol.ready


def test_a_socket_that_takes_nothing() -> None:
    """Where the socket takes nothing at all the transport gets everything."""
    transport = SocketTransport(room=0)

    joined(House(), transport)

    assert (transport.sent, transport.written) == (b"", CONNACK)


def test_a_broken_socket_is_given_up() -> None:
    """A socket that breaks while it is written to is aborted, and its end is told by the transport."""
    house = House()
    transport = SocketTransport(room=-1)

    protocol = joined(house, transport)
    assert transport.calls[-1] == "abort"

    protocol.connectionLost(Failure(ConnectionLost()))
    assert house.broker.connections == set()


def test_small_packets_are_not_held_back() -> None:
    """TCP is told to send small packets at once, and the protocol is asked for more only when all has gone out."""
    transport = SocketTransport()

    joined(House(), transport, talk=False)

    assert transport.calls == ["no delay: True", "pull producer"]


def test_a_transport_that_encrypts_says_itself_when_it_has_enough() -> None:
    """Over TLS the protocol is a push producer: a pull producer would be asked in every turn, for ever."""
    house = House()
    transport = BufferTransport()
    protocol = joined(house, transport)
    assert transport.calls == ["push producer"]
    assert transport.written == CONNACK

    protocol.pauseProducing()
    protocol.dataReceived(PING)
    house.settle()
    assert transport.written == CONNACK

    protocol.resumeProducing()
    assert transport.written == CONNACK + PONG


@pytest.mark.parametrize("make", [lambda: SocketTransport(room=3), BufferTransport])
def test_a_peer_that_never_reads_is_cut_off(make: Any) -> None:
    """A connection that the broker closes is cut where the peer doesn't take the last words in time."""
    house = House()
    transport = make()
    protocol = joined(house, transport)
    protocol.pauseProducing()

    protocol.close()
    house.advance(CLOSE_LIMIT_S - 1)
    assert transport.calls[-2:] == ["no producer", "close"]

    house.advance(2)
    assert transport.calls[-1] == "abort"


def test_a_peer_that_reads_is_not_cut_off() -> None:
    """A connection that has closed in time is not cut afterwards."""
    house = House()
    transport = SocketTransport(room=3)
    protocol = joined(house, transport)
    protocol.close()
    protocol.connectionLost(Failure(ConnectionLost()))

    house.advance(2 * CLOSE_LIMIT_S)

    assert transport.calls[-1] == "close"


def test_closing_happens_once() -> None:
    """A connection is closed once, and neither paused nor resumed afterwards."""
    transport = SocketTransport()
    protocol = joined(House(), transport)
    del transport.calls[:]

    protocol.close()
    protocol.close()
    protocol.pause_reading()
    protocol.resume_reading()

    assert transport.calls == ["no producer", "close"]


def test_reading_is_paused_and_resumed_once() -> None:
    """The transport hears of a pause and of its end only where something changes."""
    transport = SocketTransport()
    protocol = joined(House(), transport)
    del transport.calls[:]

    protocol.resume_reading()
    protocol.pause_reading()
    protocol.pause_reading()
    protocol.resume_reading()
    protocol.resume_reading()

    assert transport.calls == ["pause", "resume"]


def test_a_transport_that_goes_by_itself() -> None:
    """A transport that wants nothing more gets nothing more, and tells the broker that the client is gone."""
    house = House()
    transport = SocketTransport()
    protocol = joined(house, transport)

    protocol.stopProducing()
    protocol.connectionLost(Failure(ConnectionLost()))
    protocol.resumeProducing()

    assert not protocol.ready
    assert house.broker.connections == set()


@pytest.mark.parametrize(
    ("peer", "host", "port"),
    [
        (IPv4Address("TCP", "192.0.2.7", 4711), "192.0.2.7", 4711),
        (IPv6Address("TCP", "2001:db8::7", 4711), "2001:db8::7", 4711),
        (UNIXAddress(None), "local", None),
    ],
)
def test_where_a_client_comes_from(peer: Any, host: str, port: int | None) -> None:
    """A connection knows the host and port of its peer, and says `local` for a nameless local socket."""
    transport = BufferTransport()
    transport.peer = peer

    protocol = joined(House(), transport, talk=False)

    assert (protocol.address.host, protocol.address.port) == (host, port)


# Who is not known yet

HEADER = b"PROXY TCP4 198.51.100.22 203.0.113.7 35646 1883\r\n"


class Door:
    """A listener whose clients are known only after TLS's handshake or a proxy's header, and who comes to it."""

    def __init__(self, kind: str, whose: str) -> None:
        limits = ListenerLimitSettings(connect_time_limit_s=5, max_connections=2 if whose == "listener" else None)
        tls = TlsSettings(certificate=Path("none.pem"), private_key=Path("none.pem")) if kind == "TLS" else None
        settings = ListenerSettings(
            endpoint="1883",
            proxy_protocol=kind == "PROXY",
            proxy_trusted=("192.0.2.0/24",) if kind == "PROXY" else None,
            tls=tls,
            limits=limits,
        )
        more: dict[str, Any] = {"max_connections": 2} if whose == "broker" else {}
        self.house = House(listeners={"door": settings}, **more)
        self.listener = self.house.broker.listeners["door"]
        factory = MqttFactory(self.house.broker, self.listener, settings)
        self._factory: Any = ProxyFactory(factory, factory) if kind == "PROXY" else factory
        self._kind = kind

    def come(self) -> tuple[Any, BufferTransport]:
        """Somebody who has said nothing yet, and who waits no longer for a place."""
        transport = BufferTransport()
        protocol = self._factory.buildProtocol(transport.peer)
        protocol.makeConnection(transport)
        self.house.advance(PATIENCE_S)
        return protocol, transport

    def introduce(self, protocol: Any, client_id: bytes = b"c") -> None:
        """It becomes known who is there."""
        if self._kind == "TLS":
            protocol.handshakeCompleted()
        connect = CONNECT[:-1] + client_id
        protocol.dataReceived(connect if self._kind == "TLS" else HEADER + connect)
        self.house.settle()

    def lose(self, protocol: Any) -> None:
        """The transport tells that a connection is gone."""
        protocol.connectionLost(Failure(ConnectionLost()))
        self.house.settle()

    @property
    def counted(self) -> tuple[int, int, int]:
        """Connections of the listener, and those of whom it is not known yet who is there: its, and the broker's."""
        return self.listener.connections, self.listener.arriving, self.house.broker.services.arriving


def is_let_in(come: tuple[Any, BufferTransport]) -> bool:
    """Whether a connection was not closed at once."""
    return "abort" not in come[1].calls


@pytest.fixture(params=[(kind, whose) for kind in ("TLS", "PROXY") for whose in ("listener", "broker")], ids=" ".join)
def door(request: pytest.FixtureRequest) -> Door:
    """A door for two."""
    return Door(*request.param)


def test_connections_count_before_it_is_known_who_is_there(door: Door) -> None:
    """Where two may come, the third is closed, however little the others have said."""
    comers = [door.come() for _ in range(3)]

    assert [is_let_in(comer) for comer in comers] == [True, True, False]
    assert comers[2][1].written == b""
    assert door.counted == (0, 2, 2)
    assert door.house.broker.runtime.statistics.connections_refused.value == 1


def test_who_is_known_counts_once(door: Door) -> None:
    """Two that have connected take both places, and one that has does not keep the other out."""
    comers = [door.come() for _ in range(2)]
    for (protocol, _), client_id in zip(comers, (b"a", b"b"), strict=True):
        door.introduce(protocol, client_id)
    third = door.come()

    assert [transport.written for _, transport in comers] == [CONNACK] * 2
    assert door.counted == (2, 0, 0)
    assert not is_let_in(third)


def test_who_is_known_and_who_is_not_count_together(door: Door) -> None:
    """One of each fill a listener for two."""
    first, _ = door.come()
    door.introduce(first)
    second = door.come()

    third = door.come()

    assert door.counted == (1, 1, 1)
    assert (is_let_in(second), is_let_in(third)) == (True, False)


@pytest.mark.parametrize("known", [False, True])
def test_a_place_is_free_again_when_a_connection_ends(door: Door, known: bool) -> None:
    """Before or after it was known whose it is; one that was refused gives back no place."""
    first, _ = door.come()
    door.come()
    refused, _ = door.come()
    if known:
        door.introduce(first)
    door.lose(refused)
    still_full = door.come()

    door.lose(first)

    assert not is_let_in(still_full)
    assert is_let_in(door.come())
    assert not is_let_in(door.come())


def test_a_place_is_free_again_when_patience_is_over(door: Door) -> None:
    """Who does not say in time who is there is cut off, and counts no longer."""
    comers = [door.come() for _ in range(2)]
    door.house.advance(5)
    cut_off = [not is_let_in(comer) for comer in comers]

    for protocol, _ in comers:
        door.lose(protocol)

    assert cut_off == [True, True]
    assert door.counted == (0, 0, 0)
    assert is_let_in(door.come())


def test_nobody_comes_before_it_is_known_who_while_memory_is_short() -> None:
    """A connection is closed before a byte of a TLS handshake or of a PROXY header is read."""
    settings = ListenerSettings(endpoint="1883", proxy_protocol=True)
    house = House(listeners={"door": settings}, memory_refuse_bytes=100, memory_slow_bytes=0, memory_drop_bytes=0)
    plain = MqttFactory(house.broker, house.broker.listeners["door"], settings)
    factory: Any = ProxyFactory(plain, plain)
    transports = [BufferTransport(), BufferTransport()]

    for transport, memory in zip(transports, (100, 0), strict=True):
        house.memory_bytes = memory
        house.advance(1)
        factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 4711)).makeConnection(transport)

    assert ["abort" in transport.calls for transport in transports] == [True, False]
    assert house.broker.runtime.statistics.overload_refused["connection"].value == 1


def test_what_the_socket_does_not_take_counts() -> None:
    """All that was handed to the transport, until it has gone out."""
    house = House()
    transport = SocketTransport(room=len(CONNACK))
    protocol = joined(house, transport)

    protocol.dataReceived(PING * 10)
    house.settle()
    waiting = house.broker.buffers.outbound
    transport.room = 100
    protocol.resumeProducing()

    assert waiting == len(PONG) * 10
    assert house.broker.buffers.outbound == 0


# Over real sockets

SETTINGS = """
[broker]
sys_interval_s = 0
[limits]
connect_time_limit_s = 1.0
outbound_buffer_bytes = 200_000
"""


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker that soon loses patience, with sockets of either sort."""
    settings: Path = tmp_path_factory.mktemp("protocol") / "kinmqtt.toml"
    settings.write_text(SETTINGS)
    with running_broker("-c", str(settings), env=environment(KINMQTT__BROKER__EVENT_LOOP=request.param)) as process:
        yield process


def blocked(client: Wire) -> bool:
    """Whether the broker, or the network before it, takes nothing more from a client."""
    return not select.select([], [client.socket], [], 0)[1]


def test_byte_by_byte(broker: BrokerProcess) -> None:
    """A client that sends one byte at a time gets the same answers."""
    subscribe = encode(Subscribe(1, (SubscribeRequest("byte/+", 1),)), V311)
    publish = encode(Publish.build("byte/a", b"x" * 200, qos=1, packet_id=2), V311)
    with wire(broker.port) as client:
        client.version = V311

        for byte in CONNECT + subscribe + publish + PING:
            client.send_bytes(bytes([byte]))

        packets = [client.receive() for _ in range(5)]
    assert sorted(type(packet).__name__ for packet in packets) == [
        "Connack",
        "Pingresp",
        "Puback",
        "Publish",
        "Suback",
    ]


def test_everything_in_one_write(broker: BrokerProcess) -> None:
    """A client may send its packets without waiting for answers; after its DISCONNECT the broker closes."""
    subscribe = encode(Subscribe(1, (SubscribeRequest("one/write"),)), V311)
    publish = encode(Publish.build("one/write", b"x"), V311)
    with wire(broker.port) as client:
        client.version = V311

        client.send_bytes(CONNECT + subscribe + PING + publish + PING)

        packets = [client.receive() for _ in range(5)]
        assert isinstance(packets[0], Connack)
        names = sorted(type(packet).__name__ for packet in packets[1:])
        assert names == ["Pingresp", "Pingresp", "Publish", "Suback"]
        client.send(DisconnectPacket())
        assert client.rest() == []


def test_a_reader_that_stops_loses_only_what_may_be_lost(broker: BrokerProcess) -> None:
    """To a client that reads nothing QoS 0 is dropped beyond the bound; others miss nothing, and it may go on."""
    payload = bytes(50_000)
    with (
        wire(broker.port, "stopped", receive_buffer=4096) as stopped,
        wire(broker.port, "healthy") as healthy,
        wire(broker.port, "pub") as pub,
    ):
        stopped.subscribe("flood/#")
        healthy.subscribe("flood/#")

        for number in range(400):
            pub.publish(f"flood/{number}", payload)
            assert healthy.expect(Publish).topic == f"flood/{number}"

        pub.publish("flood/last", b"", qos=1, packet_id=1).expect(Puback)
        arrived = topics_until_silence(stopped)
        assert 0 < len(arrived) < 400
        assert arrived == [f"flood/{number}" for number in range(len(arrived))]
        pub.publish("flood/again", b"")
        assert stopped.expect(Publish).topic == "flood/again"


def topics_until_silence(client: Wire) -> list[str]:
    """The topics of everything that waits for a client, which then is answered a PINGREQ."""
    topics: list[str] = []
    client.send(Pingreq())
    while isinstance(packet := client.receive(), Publish):
        topics.append(packet.topic)
    assert isinstance(packet, Pingresp)
    return topics


def test_a_reader_that_stops_loses_no_qos_1(broker: BrokerProcess) -> None:
    """QoS 1 messages wait, in order, until a client that read nothing reads again."""
    payload = bytes(20_000)
    with wire(broker.port, "late", receive_buffer=4096) as late, wire(broker.port, "pub") as pub:
        late.subscribe("kept/#", qos=1)

        for number in range(1, 301):
            pub.publish(f"kept/{number}", payload, qos=1, packet_id=number).expect(Puback)

        for number in range(1, 301):
            message = late.expect(Publish)
            assert message.topic == f"kept/{number}"
            late.send(Puback(message.packet_id))


def test_a_flood_is_slowed_down_to_what_its_author_reads(broker: BrokerProcess) -> None:
    """A client that sends and never reads its answers is not read from for ever, so nothing grows without end."""
    pings = Pingreq()
    burst = encode(pings, V5) * 100_000
    with wire(broker.port, "chatter", receive_buffer=4096) as chatter, wire(broker.port, "other") as other:
        chatter.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            for _ in range(500):
                chatter.socket.sendall(burst)
        assert blocked(chatter)

        other.ping()


def test_a_client_that_falls_silent_is_given_up(broker: BrokerProcess) -> None:
    """A half-open connection ends after one and a half times its keep alive, and its will is published."""
    will = ConnectWill("silent/will", b"gone", 0, False)
    with wire(broker.port, "watcher") as watcher, wire(broker.port, "alive", keep_alive=1) as alive:
        watcher.subscribe("silent/#")
        with wire(broker.port, "silent", keep_alive=1, will=will) as silent:
            while not select.select([silent.socket], [], [], 0.5)[0]:
                alive.ping()

            assert silent.expect(DisconnectPacket).reason is ReasonCode.KEEP_ALIVE_TIMEOUT
            assert silent.receive() is None
        assert watcher.expect(Publish).payload == b"gone"
        alive.ping()


@pytest.mark.parametrize("first", [b"", CONNECT[:-1]])
def test_a_connection_that_never_connects_is_closed(broker: BrokerProcess, first: bytes) -> None:
    """A connection whose CONNECT does not come, or not in whole, is closed when its time is over."""
    with wire(broker.port) as client:
        client.send_bytes(first)

        assert client.receive() is None


def test_a_reset_is_a_lost_connection(broker: BrokerProcess) -> None:
    """A client whose connection is reset in the middle of a packet leaves its will, and harms nobody."""
    will = ConnectWill("reset/will", b"gone", 0, False)
    with wire(broker.port, "watcher") as watcher:
        watcher.subscribe("reset/#")
        client = Wire(broker.port, V5)
        client.connect("reset", will=will)

        client.send_bytes(encode(Publish.build("reset/x", bytes(1000)), V5)[:-1])
        client.reset()

        assert watcher.expect(Publish).payload == b"gone"
        watcher.ping()


def test_a_reset_before_anything_was_said(broker: BrokerProcess) -> None:
    """Connections that are reset at once leave nothing behind and stop nobody."""
    for _ in range(50):
        Wire(broker.port).reset()

    with wire(broker.port, "next") as client:
        client.ping()


def test_many_connections_at_once(broker: BrokerProcess) -> None:
    """Three hundred clients that connect together are all let in."""
    clients = [Wire(broker.port, V311) for _ in range(300)]
    try:
        for number, client in enumerate(clients):
            client.send(
                Connect(
                    version=V311,
                    client_id=f"many-{number}",
                    clean_start=True,
                    keep_alive=0,
                    will=None,
                    username=None,
                    password=None,
                )
            )
        assert {client.expect(Connack).reason for client in clients} == {ReasonCode.SUCCESS}
    finally:
        for client in clients:
            client.close()
