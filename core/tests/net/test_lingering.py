"""After an error a connection lingers: who is still writing can read why it is closed."""

from __future__ import annotations

import socket
import ssl
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.certificates import Authority
from core_harness.house import House
from core_harness.transports import CONNECT, BufferTransport, EncryptingTransport, HalfClosingTransport
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import V5, Connack, Connect, DisconnectPacket, Packet
from kinmqtt.net.admission import Admission
from kinmqtt.net.lingering import LINGER_LIMIT_S, Lingering
from kinmqtt.net.protocol import CLOSE_LIMIT_S, FORGOTTEN_AT_ONCE_BYTES, MqttFactory, MqttProtocol, SharedBounds
from kinmqtt.settings import ListenerSettings
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.processes import environment, free_port

PLAIN = ListenerSettings(endpoint="1883")

BROKEN = b"\x00"
"""No packet begins with it."""


# By itself


class Site:
    """A broker in memory with one listener's protocols."""

    def __init__(self, most: int = 1_000, **limits: Any) -> None:
        self.house = House(**limits)
        clock = self.house.clock
        self.bounds = SharedBounds(Admission(clock), Lingering(clock, most))
        listener = self.house.broker.listeners["tcp:1883"]
        self._factory = MqttFactory(self.house.broker, listener, PLAIN, self.bounds)

    def join(self, transport: BufferTransport | None = None) -> tuple[MqttProtocol, BufferTransport]:
        """A client that has connected."""
        transport = transport or HalfClosingTransport()
        protocol = self._factory.buildProtocol(None)
        protocol.makeConnection(transport)  # type: ignore[no-untyped-call]
        protocol.dataReceived(CONNECT)
        self.house.settle()
        del transport.calls[:]
        return protocol, transport

    def fail(self, transport: BufferTransport | None = None) -> tuple[MqttProtocol, BufferTransport]:
        """A client that has broken a rule."""
        protocol, transport = self.join(transport)
        protocol.dataReceived(BROKEN)
        return protocol, transport


@pytest.mark.parametrize(
    ("make", "ends"), [(HalfClosingTransport, "end"), (EncryptingTransport, "close"), (BufferTransport, "close")]
)
def test_the_sending_side_is_ended_and_nothing_else(make: Callable[[], BufferTransport], ends: str) -> None:
    """By half a close, by TLS's own exchange, or, where a transport has neither, by a close."""
    _, transport = Site().fail(make())

    assert transport.calls == ["no producer", ends]


def test_the_broker_has_done_with_it_at_once() -> None:
    """Session, limits and counts know nothing of a connection that lingers."""
    site = Site(max_connections=1)
    site.fail()
    site.house.settle()

    assert site.house.broker.connections == set()
    assert site.house.broker.listeners["tcp:1883"].connections == 0
    assert len(site.bounds.lingering) == 1
    _, other = site.join()
    assert other.written[:2] == b"\x20\x02"


def test_the_client_closes_too() -> None:
    """Then it is over, and nobody hears of it again."""
    site = Site()
    protocol, transport = site.fail()
    site.house.settle()

    protocol.connectionLost(Failure(ConnectionDone()))
    site.house.advance(CLOSE_LIMIT_S + 1)

    assert len(site.bounds.lingering) == 0
    assert transport.calls == ["no producer", "end"]


def test_a_client_that_does_not_close_is_cut_off() -> None:
    """After a moment, whatever it does."""
    site = Site()
    _, transport = site.fail()

    site.house.advance(LINGER_LIMIT_S - 0.1)
    before = list(transport.calls)
    site.house.advance(0.2)

    assert before == ["no producer", "end"]
    assert transport.calls[-1] == "abort"


def test_a_client_that_reads_slowly_has_the_time_it_always_had() -> None:
    """What is written must go out before it can be read."""
    site = Site()
    protocol, transport = site.join()
    protocol.pauseProducing()
    protocol.dataReceived(BROKEN)

    site.house.advance(CLOSE_LIMIT_S - 0.1)
    before = list(transport.calls)
    site.house.advance(0.2)

    assert "abort" not in before
    assert transport.calls[-1] == "abort"


def test_a_client_that_never_stops_writing_is_cut_off() -> None:
    """At as much as its largest packet might have: nobody can hold the broker so."""
    site = Site(max_packet_bytes=1000)
    protocol, transport = site.fail()
    site.house.settle()

    protocol.dataReceived(bytes(1000))
    before = list(transport.calls)
    protocol.dataReceived(b"x")

    assert "abort" not in before
    assert transport.calls[-1] == "abort"


def test_a_client_that_goes_on_writing_much_is_read_in_turns() -> None:
    """What is to be forgotten is not read faster than what is not; a connection that has ended is left alone."""
    site = Site()
    protocol, transport = site.fail()
    site.house.settle()
    del transport.calls[:]

    protocol.dataReceived(bytes(FORGOTTEN_AT_ONCE_BYTES))
    paused = list(transport.calls)
    site.house.settle()
    read_on = list(transport.calls)
    protocol.dataReceived(bytes(FORGOTTEN_AT_ONCE_BYTES))
    protocol.connectionLost(Failure(ConnectionDone()))
    site.house.settle()

    assert paused == ["pause"]
    assert read_on == ["pause", "resume"]
    assert transport.calls == ["pause", "resume", "pause"]


def test_only_so_many_linger() -> None:
    """Those above the bound are closed at once, as if there were no lingering."""
    site = Site(most=1)
    first, one = site.fail()
    _, two = site.fail()
    first.connectionLost(Failure(ConnectionDone()))
    _, three = site.fail()

    assert [transport.calls[-1] for transport in (one, two, three)] == ["end", "close", "end"]


@pytest.mark.parametrize("make", [HalfClosingTransport, EncryptingTransport])
def test_a_connection_that_is_not_read_is_read_again(make: Callable[[], BufferTransport]) -> None:
    """Or its end would never be noticed."""
    protocol, transport = Site().join(make())
    protocol.pause_reading()

    protocol.dataReceived(BROKEN)

    assert transport.calls[:3] == ["pause", "no producer", "resume"]


@pytest.mark.parametrize("last", [b"\xe0\x00", b""])
def test_who_has_said_goodbye_is_closed_at_once(last: bytes) -> None:
    """It sends nothing more; nor does a connection linger of which no CONNECT has come."""
    site = Site()
    protocol, transport = site.join() if last else (site._factory.buildProtocol(None), HalfClosingTransport())
    if not last:
        protocol.makeConnection(transport)  # type: ignore[no-untyped-call]

    protocol.dataReceived(last or BROKEN)
    site.house.settle()

    assert transport.calls[-1] == "close"


def test_a_client_of_tls_that_has_said_goodbye_gives_its_place_back() -> None:
    """TLS ends in an exchange, for which the socket is read again; the broker does not wait for that."""
    site = Site()
    protocol, transport = site.join(EncryptingTransport())

    protocol.dataReceived(b"\xe0\x00")
    site.house.settle()

    assert transport.calls == ["pause", "no producer", "resume", "close"]
    assert site.house.broker.connections == set()


def test_the_brokers_stop_waits_for_nobody_who_lingers() -> None:
    """Who lingers is cut off, and who is closed from then on does not."""
    site = Site()
    _, lingering = site.fail()
    _, late = site.join()
    site.house.settle()

    site.bounds.lingering.stop()
    site.house.broker.connections.copy().pop().fail(ReasonCode.SERVER_SHUTTING_DOWN, "the broker stops")

    assert lingering.calls[-1] == "abort"
    assert late.calls[-1] == "close"


def test_nothing_is_written_behind_the_end() -> None:
    """A transport whose sending side is ended may raise at that."""
    protocol, transport = Site().fail()
    before = transport.written

    protocol.write(b"late")

    assert transport.written == before


# Over real sockets

TOO_LARGE = b"\x30\xff\xff\xff\x7f"
"""The header of a PUBLISH that is far too large."""

CONNECT_5 = encode(Connect(V5, "c"), V5)

SETTINGS = """\
[broker]
allow_anonymous = true
event_loop = "{loop}"
sys_interval_s = 0

[limits]
max_packet_bytes = "1 MiB"

[listeners.plain]
endpoint = "tcp:{port}:interface=127.0.0.1"

[listeners.local]
endpoint = "unix:mqtt.sock"

[listeners.web]
endpoint = "tcp:{websocket}:interface=127.0.0.1"
websocket = {{}}

[listeners.proxied]
endpoint = "tcp:{proxied}:interface=127.0.0.1"
proxy_protocol = true

[listeners.secure]
endpoint = "tcp:{tls}:interface=127.0.0.1"
tls = {{ certificate = "localhost.pem", private_key = "localhost.key" }}
"""


class Running:
    """A running broker, and ways to connect to it."""

    def __init__(self, process: BrokerProcess, folder: Path, ports: dict[str, int]) -> None:
        self._folder = folder
        self._ports = {"tcp": process.port, **ports}

    def open(self, kind: str) -> socket.socket:
        """A connection."""
        if kind == "unix":
            local = socket.socket(socket.AF_UNIX)
            local.settimeout(20)
            local.connect(str(self._folder / "mqtt.sock"))
            return local
        plain = socket.create_connection(("127.0.0.1", self._ports[kind]), 20)
        if kind == "proxied":
            plain.sendall(b"PROXY TCP4 198.51.100.22 203.0.113.7 35646 1883\r\n")
        if kind == "tls":
            context = ssl.create_default_context(cafile=str(self._folder / "authority.pem"))
            return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
        if kind == "websocket":
            key = b64encode(bytes(16))
            plain.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
                b"\r\nSec-WebSocket-Key: " + key + b"\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
            )
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += plain.recv(1)
        return plain


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A broker with listeners of all kinds, with sockets of either sort."""
    folder = tmp_path_factory.mktemp("lingering")
    Authority(folder).issue("localhost")
    ports = {kind: free_port() for kind in ("websocket", "tls", "proxied")}

    def command(port: int, *arguments: str) -> list[str]:
        text = SETTINGS.format(loop=request.param, port=port, **ports)
        (folder / "kinmqtt.toml").write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml"]

    with running_broker(command=command, cwd=folder, env=environment()) as process:
        yield Running(process, folder, ports)


@contextmanager
def opened(site: Running, kind: str) -> Iterator[socket.socket]:
    """A connection that is closed at the end."""
    peer = site.open(kind)
    try:
        yield peer
    finally:
        peer.close()


def framed(kind: str, data: bytes) -> bytes:
    """MQTT as it goes over that kind of connection; the mask of a WebSocket frame is 0."""
    if kind != "websocket":
        return data
    size = len(data)
    length = bytes((0x80 | size,)) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return b"\x82" + length + bytes(4) + data


def packets(kind: str, data: bytes) -> list[Packet]:
    """What the broker has sent."""
    if kind == "websocket":
        payload = b""
        while data:
            size = data[1]
            if data[0] == 0x82:
                payload += data[2 : 2 + size]
            data = data[2 + size :]
        data = payload
    return [decode(frame, body, V5) for frame, body in Framer().feed(data)]


def rest(peer: socket.socket) -> bytes:
    """All that comes until the broker has ended its side; a reset is an error."""
    data = b""
    while piece := peer.recv(65_536):
        data += piece
    return data


KINDS = ["tcp", "unix", "proxied", "websocket", "tls"]


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_still_writing_can_read_why(site: Running, kind: str) -> None:
    """Half a megabyte behind an error can be sent, and the DISCONNECT be read (section 4.13.2)."""
    with opened(site, kind) as peer:
        peer.sendall(framed(kind, CONNECT_5))
        first = peer.recv(1)

        peer.sendall(framed(kind, TOO_LARGE))
        for _ in range(8):
            peer.sendall(framed(kind, bytes(65_536)))
        connack, last = packets(kind, first + rest(peer))

    assert isinstance(connack, Connack)
    assert isinstance(last, DisconnectPacket)
    assert last.reason is ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_read_why_may_still_be_writing(site: Running, kind: str) -> None:
    """One part of a client reads the DISCONNECT while another goes on: that is no error yet."""
    with opened(site, kind) as peer:
        peer.sendall(framed(kind, CONNECT_5))
        peer.recv(1)
        peer.sendall(framed(kind, TOO_LARGE))

        rest(peer)

        for _ in range(8):
            peer.sendall(framed(kind, bytes(65_536)))


@pytest.mark.parametrize("kind", KINDS)
def test_who_never_stops_writing_is_cut_off(site: Running, kind: str) -> None:
    """Nobody can have the broker read for ever."""
    with opened(site, kind) as peer:
        peer.sendall(framed(kind, CONNECT_5))
        peer.recv(1)

        with pytest.raises(OSError, match=r"[Rr]eset|[Pp]ipe|EOF|violation"):
            for _ in range(10_000):
                peer.sendall(framed(kind, TOO_LARGE + bytes(65_000)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_client_can_read_why(site: Running, kind: str) -> None:
    """Also where it sends its first packets without waiting for the CONNACK [MQTT-3.1.4-2]."""
    bad = encode(Connect(V5, "c\x07"), V5)
    with opened(site, kind) as peer:
        peer.sendall(framed(kind, bad))
        for _ in range(2):
            peer.sendall(framed(kind, b"\x30\x04\x00\x01ax" * 5_000))
        [connack] = packets(kind, rest(peer))

    assert isinstance(connack, Connack)
    assert connack.reason is ReasonCode.MALFORMED_PACKET
