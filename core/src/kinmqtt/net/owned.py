"""Connections whose sockets uvloop owns, with the interface of a Twisted transport.

Twisted accepts the connections, so endpoints, rates and limits are the same. Then libuv reads and writes, at a third
of the cost of Twisted's loop over file descriptors. Without uvloop, connections stay Twisted's, because this class on
asyncio's own loop would be slower.
"""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop, BaseTransport, Future, Protocol, Task, Transport
from collections.abc import Callable, Iterable
from typing import Any, cast

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, IPushProducer, ITCPTransport, ITransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

log = Logger("kinmqtt.net")


def owning_loop(reactor: Any) -> AbstractEventLoop | None:
    """Return the reactor's event loop if it is uvloop's."""
    loop = getattr(reactor, "_asyncioEventloop", None)
    return loop if type(loop).__module__.partition(".")[0] == "uvloop" else None


def log_errors(loop: AbstractEventLoop) -> None:
    """Log errors in the loop's own calls with everything else."""
    loop.set_exception_handler(lambda loop, context: _log(context))


def _log(context: dict[str, Any]) -> None:
    error = context.get("exception")
    message = context.get("message", "an error")
    if error is None:
        log.error("the event loop: {message}", message=message)
    elif isinstance(error, OSError) and _is_nobodys(context.get("future")):
        # A TLS handshake failed just as its connection was given up: uvloop has a future for it that nobody awaits.
        log.info("the event loop: a connection that was given up failed: {error!r}", error=error)
    else:
        log.failure("the event loop: {message}", Failure(error), message=message)


def _is_nobodys(future: object) -> bool:
    """Tell whether an error is that of a future that is no task."""
    return isinstance(future, Future) and not isinstance(future, Task)


def own_sockets(port: Any, loop: AbstractEventLoop) -> None:
    """Let the loop own the connections that a listening port accepts from now on.

    A port that is not Twisted's own, as a plugin's endpoint may open, stays unchanged.
    """
    listening = getattr(port, "socket", None)
    if not isinstance(listening, socket.socket) or not hasattr(port, "transport"):
        return
    made = OwnedTransport if listening.family == socket.AF_UNIX else OwnedTcpTransport

    def transport(
        accepted: socket.socket, protocol: Any, client: Any, server: Any, number: int, reactor: Any
    ) -> OwnedTransport:
        return made(loop, accepted, protocol, server, client)

    port.transport = transport


@implementer(ITransport, IConsumer, IPushProducer)
class OwnedTransport(Protocol):
    """One connection: a transport for Twisted's protocol, and a protocol for the loop's transport."""

    __slots__ = (
        "_aborted",
        "_client",
        "_early",
        "_ended",
        "_paused",
        "_port",
        "_producer",
        "_protocol",
        "_socket",
        "_transport",
        "_wanted",
        "data_received",
        "disconnecting",
    )

    def __init__(
        self, loop: AbstractEventLoop, accepted: socket.socket, protocol: Any, port: Any, client: Any
    ) -> None:
        """``port`` has accepted the socket from ``client``; ``protocol`` is not connected yet."""
        self._protocol = protocol
        self._port = port
        self._client = client
        self._socket = accepted
        self._transport: Any = None
        self._producer: Any = None
        self._early: list[bytes] | None = None
        """Data written before the loop has the socket."""
        self._wanted: Future[None] | None = None
        """Fires when the loop must take the socket that it was not given so far."""
        self._paused = False
        self._ended = False
        """Whether the sending side is closed."""
        self._aborted = False
        self.disconnecting = False
        # The loop looks this up once and then calls the protocol directly.
        self.data_received: Callable[[bytes], None] = protocol.dataReceived  # type: ignore[assignment]
        loop.create_task(self._hand_over(loop))

    async def _hand_over(self, loop: AbstractEventLoop) -> None:
        while self._is_left_alone():
            # The protocol has not accepted it yet, and may refuse it: until then no byte is read.
            self._wanted = loop.create_future()
            await self._wanted
        if self._aborted:
            self._socket.close()
            self.connection_lost(None)
            return
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: self, self._socket)
        except OSError as error:
            self._socket.close()
            self.connection_lost(error)
            return
        # Not earlier: uvloop begins to read after connection_made, even if paused there.
        if self._paused and not transport.is_closing():
            transport.pause_reading()

    def _is_left_alone(self) -> bool:
        """Tell whether the protocol has paused the socket and not used it so far."""
        return self._paused and self._early is None and not self._ended and not self.disconnecting

    def _want(self) -> None:
        """Make the loop take the socket, if it has not."""
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    # Called by the loop

    def connection_made(self, transport: BaseTransport) -> None:
        """Take the loop's transport."""
        owned = self._transport = cast("Transport", transport)
        # All data that the socket does not take counts as buffered.
        owned.set_write_buffer_limits(0)
        early, self._early = self._early, None
        if self._aborted:
            owned.abort()
            return
        if early:
            owned.write(b"".join(early))
        if self._ended:
            owned.write_eof()
        if self.disconnecting:
            owned.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the protocol that the socket is closed."""
        protocol, self._protocol = self._protocol, None
        # Break the reference cycle, which would stay in memory for long.
        self._transport = None
        self._producer = None
        self.data_received = _forget
        self._early = None
        if self._aborted:
            why: Exception = ConnectionAborted()
        elif error is None:
            why = ConnectionDone()
        else:
            why = ConnectionLost(str(error))
        protocol.connectionLost(Failure(why))

    def pause_writing(self) -> None:
        """Pause the producer: data is buffered."""
        if self._producer is not None:
            self._producer.pauseProducing()

    def resume_writing(self) -> None:
        """Resume the producer: all data has been sent."""
        if self._producer is not None:
            self._producer.resumeProducing()

    # Called by the protocol

    def write(self, data: bytes) -> None:
        """Send data; ignored after the sending side is closed."""
        if self._ended:
            return
        if self._transport is not None:
            self._transport.write(data)
        elif self._protocol is not None and not self._aborted:
            if self._early is None:
                self._early = []
            self._early.append(data)
            self._want()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send several pieces of data."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close when all written data has been sent."""
        self.disconnecting = True
        self._want()
        if self._transport is not None:
            self._transport.close()

    def loseWriteConnection(self) -> None:
        """Close the sending side after the written data, and continue to read."""
        if self._ended:
            return
        self._ended = True
        self._want()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def abortConnection(self) -> None:
        """Close immediately."""
        self.disconnecting = self._aborted = True
        self._want()
        if self._transport is not None:
            self._transport.abort()

    def pauseProducing(self) -> None:
        """Stop reading until resumed."""
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resumeProducing(self) -> None:
        """Continue to read."""
        self._paused = False
        self._want()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def stopProducing(self) -> None:
        """Close the connection."""
        self.loseConnection()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Register a push producer; pull producers are not supported."""
        if not streaming:
            raise ValueError("pull producers are not supported by the event loop's sockets")
        self._producer = producer

    def unregisterProducer(self) -> None:
        """Remove the producer."""
        self._producer = None

    def getPeer(self) -> Any:
        """Return the remote address."""
        client = self._client
        if not isinstance(client, tuple):
            return UNIXAddress(client or None)
        return IPv4Address("TCP", *client) if len(client) == 2 else IPv6Address("TCP", *client)

    def getHost(self) -> Any:
        """Return the local address."""
        return self._port.getHost()


@implementer(ITCPTransport)
class OwnedTcpTransport(OwnedTransport):
    """One connection over TCP."""

    __slots__ = ()

    def getTcpNoDelay(self) -> bool:
        """Tell whether small packets are sent immediately."""
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Set whether small packets are sent immediately."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)

    def getTcpKeepAlive(self) -> bool:
        """Tell whether TCP probes a silent peer."""
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Set whether TCP probes a silent peer."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)


def _forget(data: bytes) -> None:
    """Drop data without a receiver."""
