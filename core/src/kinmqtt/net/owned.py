"""Connections whose sockets uvloop owns, behind the face of a Twisted transport.

Twisted accepts, as it does everywhere: endpoints, rates and limits are the same. Then libuv reads and writes, which
costs a third of what Twisted's own loop over file descriptors does. Where the event loop is not uvloop's, connections
stay Twisted's: this face on asyncio's own loop would be slower.
"""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop, BaseTransport, Future, Protocol, Transport
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
    """The reactor's event loop, if it is uvloop's."""
    loop = getattr(reactor, "_asyncioEventloop", None)
    return loop if type(loop).__module__.partition(".")[0] == "uvloop" else None


def log_errors(loop: AbstractEventLoop) -> None:
    """Have what goes wrong in a call of the loop's own be logged with everything else."""
    loop.set_exception_handler(lambda loop, context: _log(context))


def _log(context: dict[str, Any]) -> None:
    error = context.get("exception")
    message = context.get("message", "an error")
    if error is None:
        log.error("the event loop: {message}", message=message)
    else:
        log.failure("the event loop: {message}", Failure(error), message=message)


def own_sockets(port: Any, loop: AbstractEventLoop) -> None:
    """Have the connections that a listening port accepts be the loop's from now on.

    A port that is not Twisted's own, which an endpoint of a plugin may have opened, goes on as it is.
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
    """One connection: to Twisted's protocol a transport, to the loop's transport a protocol."""

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
        """``port`` has accepted the socket, from ``client``, for a ``protocol`` that is about to meet it."""
        self._protocol = protocol
        self._port = port
        self._client = client
        self._socket = accepted
        self._transport: Any = None
        self._producer: Any = None
        self._early: list[bytes] | None = None
        """What was written before the loop had the socket."""
        self._wanted: Future[None] | None = None
        """Fires when the loop must have the socket, where it need not have it yet."""
        self._paused = False
        self._ended = False
        """Whether nothing more is sent."""
        self._aborted = False
        self.disconnecting = False
        # The loop looks this up once: no call of ours stands between it and the protocol.
        self.data_received: Callable[[bytes], None] = protocol.dataReceived  # type: ignore[assignment]
        loop.create_task(self._hand_over(loop))

    async def _hand_over(self, loop: AbstractEventLoop) -> None:
        while self._is_left_alone():
            # It may not come in yet, or not at all: until then not a byte is read.
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
        # Not earlier: uvloop begins to read behind connection_made, whatever was asked for there.
        if self._paused and not transport.is_closing():
            transport.pause_reading()

    def _is_left_alone(self) -> bool:
        """Whether the protocol has paused the socket, and wants nothing of it so far."""
        return self._paused and self._early is None and not self._ended and not self.disconnecting

    def _want(self) -> None:
        """Have the loop take the socket, should it have been left alone."""
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    # From the loop

    def connection_made(self, transport: BaseTransport) -> None:
        """The loop has the socket."""
        owned = self._transport = cast("Transport", transport)
        # Whatever the socket does not take counts among what waits for it.
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
        """The socket is closed."""
        protocol, self._protocol = self._protocol, None
        # Each holds the other, and a circle of references stays in memory for long.
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
        """The socket takes less than is written."""
        if self._producer is not None:
            self._producer.pauseProducing()

    def resume_writing(self) -> None:
        """All has gone out."""
        if self._producer is not None:
            self._producer.resumeProducing()

    # From the protocol

    def write(self, data: bytes) -> None:
        """Send bytes; what comes behind the end is forgotten."""
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
        """Send bytes that lie in pieces."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close when everything written has gone out."""
        self.disconnecting = True
        self._want()
        if self._transport is not None:
            self._transport.close()

    def loseWriteConnection(self) -> None:
        """Send nothing more than what is written, and read on."""
        if self._ended:
            return
        self._ended = True
        self._want()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def abortConnection(self) -> None:
        """Close now."""
        self.disconnecting = self._aborted = True
        self._want()
        if self._transport is not None:
            self._transport.abort()

    def pauseProducing(self) -> None:
        """Read nothing more until told."""
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resumeProducing(self) -> None:
        """Read on."""
        self._paused = False
        self._want()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def stopProducing(self) -> None:
        """Nobody wants what is read."""
        self.loseConnection()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Tell somebody when to write less; only of the sort that is told so, not of the sort that is asked."""
        if not streaming:
            raise ValueError("a pull producer; sockets of the event loop serve push producers only")
        self._producer = producer

    def unregisterProducer(self) -> None:
        """Nobody wants to be told."""
        self._producer = None

    def getPeer(self) -> Any:
        """Who is at the other end."""
        client = self._client
        if not isinstance(client, tuple):
            return UNIXAddress(client or None)
        return IPv4Address("TCP", *client) if len(client) == 2 else IPv6Address("TCP", *client)

    def getHost(self) -> Any:
        """Where the port listens."""
        return self._port.getHost()


@implementer(ITCPTransport)
class OwnedTcpTransport(OwnedTransport):
    """One connection over TCP."""

    __slots__ = ()

    def getTcpNoDelay(self) -> bool:
        """Whether small packets are sent at once."""
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Send small packets at once."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)

    def getTcpKeepAlive(self) -> bool:
        """Whether TCP asks a silent peer whether it is there."""
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Have TCP ask a silent peer whether it is there."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)


def _forget(data: bytes) -> None:
    """Take bytes that have nowhere to go."""
