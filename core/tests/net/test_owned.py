"""Sockets that the event loop owns: to Twisted's protocols a transport like any other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, IPushProducer, ITCPTransport, ITransport
from twisted.internet.protocol import Protocol
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from kinmqtt.net.owned import OwnedTcpTransport, OwnedTransport, log_errors, own_sockets, owning_loop

LIMIT_S = 10.0


class Recorder(Protocol):
    """A Twisted protocol that notes what it is told; as a producer, too."""

    def __init__(self) -> None:
        self.got = b""
        self.ended: list[type[object]] = []
        self.told: list[str] = []

    def dataReceived(self, data: bytes) -> None:
        self.got += data

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.ended.append(type(reason.value))

    def pauseProducing(self) -> None:
        self.told.append("pause")

    def resumeProducing(self) -> None:
        self.told.append("resume")

    def stopProducing(self) -> None:
        self.told.append("stop")


class Ends:
    """Both ends of a connection: ours with its protocol, and the peer's socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Any = ("192.0.2.1", 4711)) -> None:
        self.loop = loop
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.peer = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
        accepted.setblocking(False)
        self.peer.setblocking(False)
        self.protocol = Recorder()
        port = SimpleNamespace(getHost=lambda: IPv4Address("TCP", "127.0.0.1", 1883))
        self.transport = OwnedTcpTransport(loop, accepted, self.protocol, port, client)
        self.protocol.makeConnection(self.transport)  # type: ignore[no-untyped-call]

    def run(self, condition: Callable[[], object]) -> None:
        """Run the loop until something holds."""

        async def holds() -> None:
            while not condition():
                await asyncio.sleep(0)

        self.loop.run_until_complete(asyncio.wait_for(holds(), LIMIT_S))

    def read(self, size: int) -> bytes:
        """So many bytes as they come to the peer; fewer where the connection ends."""
        data = b""

        def more() -> bool:
            nonlocal data
            try:
                piece = self.peer.recv(65_536)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            data += piece
            return not piece or len(data) >= size

        self.run(more)
        return data


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop of either sort: the transport asks for nothing that only one has."""
    made = uvloop.new_event_loop() if request.param == "uvloop" else asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def ends(loop: asyncio.AbstractEventLoop) -> Iterator[Ends]:
    """A connection."""
    made = Ends(loop)
    yield made
    made.transport.abortConnection()
    made.run(lambda: made.protocol.ended)
    made.peer.close()


def test_it_is_a_transport_of_twisted(ends: Ends) -> None:
    """It has all that Twisted's interfaces ask for."""
    for interface in (ITCPTransport, ITransport, IConsumer, IPushProducer):
        assert verifyObject(interface, ends.transport)


def test_bytes_in_and_out(ends: Ends) -> None:
    """What is written before the loop has the socket comes first."""
    ends.transport.write(b"early ")
    ends.peer.send(b"in")
    ends.run(lambda: ends.protocol.got)
    ends.transport.write(b"late ")
    ends.transport.writeSequence([b"a", b"b"])

    assert ends.protocol.got == b"in"
    assert ends.read(13) == b"early late ab"


@pytest.mark.parametrize("early", [False, True])
def test_what_is_written_goes_out_before_the_close(ends: Ends, early: bool) -> None:
    """However much it is, and also where the connection is closed before the loop has the socket."""
    if not early:
        ends.peer.send(b"x")
        ends.run(lambda: ends.protocol.got)
    ends.transport.write(b"w" * 1_000_000)

    ends.transport.loseConnection()

    assert ends.read(2_000_000) == b"w" * 1_000_000
    ends.run(lambda: ends.protocol.ended)
    assert ends.protocol.ended == [ConnectionDone]


@pytest.mark.parametrize("early", [False, True])
def test_an_abort_waits_for_nothing(ends: Ends, early: bool) -> None:
    """The protocol is told in a later turn, as Twisted does, and once."""
    if not early:
        ends.peer.send(b"x")
        ends.run(lambda: ends.protocol.got)
    ends.transport.write(b"w" * 10_000_000)

    ends.transport.abortConnection()
    at_once = list(ends.protocol.ended)
    ends.transport.abortConnection()
    ends.run(lambda: ends.protocol.ended)

    assert (at_once, ends.protocol.ended) == ([], [ConnectionAborted])


def test_a_producer_hears_of_every_byte_that_the_socket_does_not_take(ends: Ends) -> None:
    """However few those are: what is not told would not be counted."""
    ends.peer.send(b"x")
    ends.run(lambda: ends.protocol.got)
    ends.transport.registerProducer(ends.protocol, True)
    size = waiting = 0
    while not waiting:
        assert ends.protocol.told == []
        ends.transport.write(b"w" * 16_384)
        size += 16_384
        waiting = ends.transport._transport.get_write_buffer_size()
    at_first = list(ends.protocol.told)

    ends.read(size)
    ends.run(lambda: len(ends.protocol.told) > 1)

    assert (at_first, ends.protocol.told) == (["pause"], ["pause", "resume"])


def test_the_peer_closes(ends: Ends) -> None:
    """In good order, behind what it has sent."""
    ends.peer.send(b"last")
    ends.peer.close()

    ends.run(lambda: ends.protocol.ended)

    assert (ends.protocol.got, ends.protocol.ended) == (b"last", [ConnectionDone])


def test_the_peer_resets(ends: Ends) -> None:
    """That is no good order."""
    ends.peer.send(b"x")
    ends.run(lambda: ends.protocol.got)
    ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    ends.peer.close()

    ends.run(lambda: ends.protocol.ended)

    assert ends.protocol.ended == [ConnectionLost]


@pytest.mark.parametrize("early", [False, True])
def test_reading_pauses(ends: Ends, early: bool) -> None:
    """Nothing comes while it does, and all of it comes afterwards."""
    if not early:
        ends.transport.write(b"x")
        ends.read(1)
    ends.transport.pauseProducing()
    ends.transport.write(b"y")
    ends.read(1)
    ends.peer.send(b"in")
    ends.transport.write(b"z")
    ends.read(1)
    paused = ends.protocol.got

    ends.transport.resumeProducing()
    ends.run(lambda: ends.protocol.got)

    assert (paused, ends.protocol.got) == (b"", b"in")


def test_a_producer_is_told_when_to_pause(ends: Ends) -> None:
    """When more is written than the socket takes, and again when nearly all has gone out."""
    ends.transport.registerProducer(ends.protocol, True)
    ends.transport.write(b"early")
    ends.read(5)
    few = list(ends.protocol.told)

    ends.transport.write(b"w" * 20_000_000)
    many = list(ends.protocol.told)
    ends.read(20_000_000)
    ends.run(lambda: "resume" in ends.protocol.told)

    assert (few, many, ends.protocol.told) == ([], ["pause"], ["pause", "resume"])


def test_who_is_asked_for_more_is_refused(ends: Ends) -> None:
    """A pull producer would wait for ever."""
    with pytest.raises(ValueError, match="pull producers are not supported"):
        ends.transport.registerProducer(ends.protocol, False)


def test_what_is_done_when_it_is_over_does_nothing(ends: Ends) -> None:
    """Nothing of it raises: whoever does it can't know yet."""
    ends.peer.close()
    ends.run(lambda: ends.protocol.ended)

    ends.transport.write(b"x")
    ends.transport.pauseProducing()
    ends.transport.resumeProducing()
    ends.transport.loseWriteConnection()
    ends.transport.unregisterProducer()
    ends.transport.stopProducing()
    ends.transport.loseConnection()
    ends.transport.abortConnection()

    assert ends.protocol.ended == [ConnectionDone]


def test_half_closed(ends: Ends) -> None:
    """The peer sees the end, and may still send."""
    ends.transport.write(b"x")
    ends.read(1)

    ends.transport.loseWriteConnection()
    end = ends.read(1)
    ends.peer.send(b"more")
    ends.run(lambda: ends.protocol.got)

    assert (end, ends.protocol.got) == (b"", b"more")


@pytest.mark.parametrize("paused", [False, True])
def test_half_closed_early(ends: Ends, paused: bool) -> None:
    """Before the loop has the socket: what was written comes first, and nothing comes behind it."""
    if paused:
        ends.transport.pauseProducing()
    ends.transport.write(b"last words")
    ends.transport.loseWriteConnection()
    ends.transport.write(b"forgotten")
    ends.transport.loseWriteConnection()

    assert ends.read(100) == b"last words"
    assert ends.protocol.ended == []


def test_what_is_written_behind_the_end_is_forgotten(ends: Ends) -> None:
    """It is no error of the protocol's, which may not know yet."""
    ends.transport.write(b"x")
    ends.read(1)

    ends.transport.loseWriteConnection()
    ends.transport.write(b"y")

    assert ends.read(1) == b""


@pytest.mark.parametrize("begin", ["resumeProducing", "loseConnection", "abortConnection", "loseWriteConnection"])
def test_a_socket_that_is_paused_from_the_beginning_is_left_alone(ends: Ends, begin: str) -> None:
    """Until something is wanted of it: the loop reads a piece of any socket that it is given."""
    ends.transport.pauseProducing()
    ends.peer.send(b"in")
    turns = iter(range(10))
    ends.run(lambda: next(turns) == 9)
    before = (ends.transport._transport, ends.protocol.got)

    getattr(ends.transport, begin)()

    if begin == "loseWriteConnection":
        ends.transport.resumeProducing()
    ends.run(lambda: ends.protocol.ended or ends.protocol.got)
    assert before == (None, b"")
    assert bool(ends.protocol.ended) == (begin in ("loseConnection", "abortConnection"))


def test_options_of_tcp(ends: Ends) -> None:
    """Are those of the socket."""
    for enabled in (True, False):
        ends.transport.setTcpNoDelay(enabled)
        ends.transport.setTcpKeepAlive(enabled)
        assert ends.transport.getTcpNoDelay() is enabled
        assert ends.transport.getTcpKeepAlive() is enabled


@pytest.mark.parametrize(
    ("client", "peer"),
    [
        (("192.0.2.1", 1), IPv4Address("TCP", "192.0.2.1", 1)),
        (("::1", 1, 0, 0), IPv6Address("TCP", "::1", 1, 0, 0)),
        (b"", UNIXAddress(None)),
    ],
    ids=["IPv4", "IPv6", "Unix"],
)
def test_who_is_at_the_other_end(loop: asyncio.AbstractEventLoop, client: Any, peer: Any) -> None:
    """An address of Twisted's."""
    ends = Ends(loop, client)
    ends.transport.abortConnection()
    ends.run(lambda: ends.protocol.ended)
    ends.peer.close()

    assert ends.transport.getPeer() == peer
    assert ends.transport.getHost() == IPv4Address("TCP", "127.0.0.1", 1883)


def test_a_socket_that_the_loop_can_not_take(loop: asyncio.AbstractEventLoop) -> None:
    """The protocol is told that the connection is gone."""

    class Failing:
        create_task = loop.create_task
        run_until_complete = loop.run_until_complete

        async def connect_accepted_socket(self, *_: Any) -> Any:
            raise OSError("no more descriptors")

    ends = Ends(Failing())  # type: ignore[arg-type]
    ends.run(lambda: ends.protocol.ended)
    ends.peer.close()

    assert ends.protocol.ended == [ConnectionLost]


def test_an_error_in_the_protocol_is_logged_and_ends_the_connection(ends: Ends) -> None:
    """As with Twisted's own transports: nothing else of the broker suffers."""
    events: list[Any] = []
    observe: Any = events.append
    globalLogPublisher.addObserver(observe)
    log_errors(ends.loop)

    def fail(data: bytes) -> None:
        raise RuntimeError("not this packet")

    ends.protocol.dataReceived = fail  # type: ignore[method-assign]
    ends.transport.data_received = fail
    ends.peer.send(b"x")
    try:
        ends.run(lambda: ends.protocol.ended)
    finally:
        globalLogPublisher.removeObserver(observe)

    assert ends.protocol.ended == [ConnectionLost]
    assert any("not this packet" in str(event.get("log_failure")) for event in events)


def test_what_is_amiss_in_the_loop_without_an_exception_is_logged_too(loop: asyncio.AbstractEventLoop) -> None:
    """A library may tell the loop of something that was left open: that is no error of the handler's."""
    events: list[Any] = []
    observe: Any = events.append
    globalLogPublisher.addObserver(observe)
    log_errors(loop)

    try:
        loop.call_exception_handler({"message": "left open"})
    finally:
        globalLogPublisher.removeObserver(observe)

    assert [event["message"] for event in events] == ["left open"]


@pytest.mark.parametrize(
    ("error", "is_failure"), [(ConnectionResetError("reset"), False), (RuntimeError("a mistake"), True)]
)
def test_a_handshake_that_fails_when_nobody_waits_any_more_is_no_failure(
    loop: asyncio.AbstractEventLoop, error: Exception, is_failure: bool
) -> None:
    """Who dialled may give up in the very turn in which the peer ends the TLS handshake."""
    events: list[Any] = []
    observe: Any = events.append
    globalLogPublisher.addObserver(observe)
    log_errors(loop)

    try:
        future = loop.create_future()
        future.set_exception(error)
        del future
    finally:
        globalLogPublisher.removeObserver(observe)

    assert ["log_failure" in event for event in events] == [is_failure]
    assert str(error) in str(events[0].get("log_failure", events[0].get("error")))


# Ports


@pytest.mark.parametrize(("family", "made"), [(socket.AF_INET, OwnedTcpTransport), (socket.AF_UNIX, OwnedTransport)])
def test_a_port_of_twisted_hands_its_sockets_over(
    loop: asyncio.AbstractEventLoop, family: socket.AddressFamily, made: type[OwnedTransport]
) -> None:
    """What it makes for a socket that it accepts is the loop's."""
    with socket.socket(family) as listening:
        port = SimpleNamespace(socket=listening, transport=None)
        own_sockets(port, loop)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        protocol = Recorder()
        transport = port.transport(ours, protocol, b"", port, 0, None)
        transport.abortConnection()

        async def over() -> None:
            while not protocol.ended:
                await asyncio.sleep(0)

        loop.run_until_complete(asyncio.wait_for(over(), LIMIT_S))
        theirs.close()

    assert type(transport) is made


def test_another_sort_of_port_stays_as_it_is(loop: asyncio.AbstractEventLoop) -> None:
    """An endpoint may be of a plugin's making, and open what it likes."""
    port = SimpleNamespace(transport="its own")

    own_sockets(port, loop)

    assert port.transport == "its own"


def test_only_uvloop_owns_sockets(loop: asyncio.AbstractEventLoop) -> None:
    """asyncio's own loop would be slower than Twisted's."""
    reactor = SimpleNamespace(_asyncioEventloop=loop)

    assert owning_loop(reactor) is (loop if type(loop) is uvloop.Loop else None)
    assert owning_loop(SimpleNamespace()) is None
