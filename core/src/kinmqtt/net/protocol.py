"""The Twisted protocol of a connection: passes bytes in and out, and controls reading and writing.

It needs little of its transport (write, loseConnection, abortConnection, peer, host, producers), so that a faster
transport can take its place. If the transport can send immediately (``writeSomeData``), output skips the reactor
while nothing is buffered; data that the socket does not take is given to the transport, which reports when it has
been sent. A transport that encrypts reports itself when its buffer is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHandshakeListener, IPullProducer, IPushProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kinmqtt.mqtt.errors import LocalError
from kinmqtt.net.admission import Admission
from kinmqtt.net.lingering import LINGER_LIMIT_S, Lingering
from kinmqtt.net.rate import AcceptRate
from kinmqtt_spi.values import Address

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from kinmqtt.broker.broker import Broker
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.connection.listener import Listener
    from kinmqtt.settings import ListenerSettings
    from kinmqtt_spi.services.plugin import Clock, Timer

log = Logger("kinmqtt.net")

CLOSE_LIMIT_S: Final = 10.0
"""How long a peer may take to read the last data before the connection is aborted."""


FORGOTTEN_AT_ONCE_BYTES: Final = 64 << 10
"""Data of a closed connection that is read and dropped at once, before other connections are served."""


@frozen(slots=True)
class SharedBounds:
    """Bounds shared by a broker's listeners: waiting and lingering connections."""

    admission: Admission
    lingering: Lingering

    @classmethod
    def of(cls, clock: Clock) -> SharedBounds:
        """Return new bounds."""
        return cls(Admission(clock), Lingering(clock))


@implementer(IPullProducer, IPushProducer, IHandshakeListener)
class MqttProtocol(Protocol):
    """One network connection; implements :class:`kinmqtt.broker.connection.link.Link`.

    The broker gets the connection when the client is identified: immediately, behind a proxy after the proxy's
    header, with TLS after the handshake.
    """

    connection: Connection | None = None

    def __init__(self, broker: Broker, listener: Listener, settings: ListenerSettings, bounds: SharedBounds) -> None:
        self._broker = broker
        self._settings = settings
        self._bounds = bounds
        self.listener = listener
        self.address = Address("")
        self.certificate_subject: str | None = None
        self.certificate_username: str | None = None
        self.certificate_problem: str | None = None
        self.ready = False
        self._patience: Timer | None = None
        self._closing = False
        self._encrypts = False
        self._left_bytes: int | None = None
        """How much more is read and dropped; ``None`` unless the connection is closed and lingers."""
        self._paused = False
        self._write_some: Callable[[bytes], Any] | None = None
        self._cut: Timer | None = None

    # Called by the transport

    def connectionMade(self) -> None:
        """Start: the connection is open."""
        transport: Any = self.transport
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
        # A TLS transport must encrypt first, so it can't send immediately like a socket.
        if hasattr(transport, "getHandle") and hasattr(transport.getHandle(), "fileno"):
            self._write_some = getattr(transport, "writeSomeData", None)
        self.ready = True
        # A pull producer is asked for more exactly when all written data has been sent. TLS would ask it in every
        # turn without end; it tells a push producer when to pause.
        transport.registerProducer(self, self._write_some is None)
        self._encrypts = hasattr(transport, "getPeerCertificate")
        if not self.has_place and self._bounds.admission.wait(self):
            self.pause_reading()
        else:
            self._arrive()

    @property
    def has_place(self) -> bool:
        """Tell whether this listener can take one more connection."""
        return not (self._broker.services.is_full or self.listener.is_full)

    def come_in(self) -> None:
        """Start, or be refused: a place is free, or the wait is over."""
        # A transport that reads although it is paused may have received the first bytes by now.
        if self.connection is None and not self._closing:
            self.resume_reading()
            self._arrive()

    def _arrive(self) -> None:
        """Pass the connection to the broker, or wait until the client is identified."""
        if self._settings.tls is None and not self._settings.proxy_protocol:
            self._introduce()
        elif (why := self._why_not()) is not None:
            log.info("a connection to {listener} is refused: {why}", listener=self.listener.name, why=why)
            self.abort()
        else:
            self._arrives(1)
            limit_s = self.listener.limits.connect_time_limit_s
            self._patience = self._broker.runtime.clock.later(limit_s, self.abort)

    def _why_not(self) -> str | None:
        """Return why no further connection is accepted before identification; ``None`` if one is."""
        broker = self._broker
        if broker.overload.refuses:
            why = "memory is short"
            broker.runtime.statistics.overload_refused["connection"].value += 1
        elif broker.services.is_full or self.listener.is_full:
            why = "there are too many connections"
        else:
            return None
        broker.runtime.statistics.connections_refused.value += 1
        return why

    def _arrives(self, by: int) -> None:
        """Change the number of connections whose client is not identified yet."""
        self._broker.services.arriving += by
        self.listener.arriving += by
        if by < 0:
            self._bounds.admission.place_is_free()

    def handshakeCompleted(self) -> None:
        """Continue after the TLS handshake; a client's certificate is verified."""
        self._introduce()

    def dataReceived(self, data: bytes) -> None:
        """Pass received data to the broker."""
        connection = self.connection
        if connection is not None:
            connection.receive(data)
        elif self._left_bytes is not None:
            self.forget(data)
        else:
            self.introduced().receive(data)

    def forget(self, data: bytes) -> None:
        """Drop data received after the close, up to the size of a packet."""
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                log.debug("{address} is aborted: it did not stop sending", address=self.address)
                self.abort()
            elif len(data) >= FORGOTTEN_AT_ONCE_BYTES:
                # Let other connections read between: dropping data must not be faster than handling it.
                transport: Any = self.transport
                transport.pauseProducing()
                self._broker.runtime.slices.later(self._forget_on)

    def _forget_on(self) -> None:
        if self._left_bytes is not None:
            self._broker.runtime.slices.count_resumed_read()
            transport: Any = self.transport
            transport.resumeProducing()

    def introduced(self) -> Connection:
        """Return the broker's side of this connection, after identification."""
        if self.connection is None and not self._closing:
            self._bounds.admission.leave(self)
            self._introduce()
        connection = self.connection
        if connection is None:
            raise LocalError("the connection was not passed to the broker")
        return connection

    def _introduce(self) -> None:
        """Pass the connection to the broker."""
        transport: Any = self.transport
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._arrives(-1)
        self.address = _address(transport.getPeer())
        tls = self._settings.tls
        if tls is not None and tls.client_certificates != "none":
            self._identify(transport, tls.username_from)
        self.connection = self._broker.accept(self)

    def _identify(self, transport: Any, username_from: str | None) -> None:
        from kinmqtt.net.tls import client_certificate, subject, user_name

        try:
            certificate = client_certificate(transport)
            if certificate is not None:
                self.certificate_subject = subject(certificate)
                if username_from is not None:
                    self.certificate_username = user_name(certificate, username_from)
        except ValueError as error:
            # CONNECT is refused for it, because before CONNECT there is no packet to report it.
            self.certificate_problem = f"the client's certificate {error}"

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Clean up after the connection has ended."""
        self.ready = False
        self._closing = True
        self._write_some = None
        bounds = self._bounds
        bounds.admission.leave(self)
        bounds.lingering.leave(self)
        if self._cut is not None:
            self._cut.cancel()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._arrives(-1)
        if self.connection is not None:
            self._finish(reason.getErrorMessage())
        elif self._left_bytes is None and not getattr(self.transport, "is_health_check", False):
            log.info(
                "a connection to {listener} ended before the client was identified: {why}",
                listener=self.listener.name,
                why=self._why_lost(reason),
            )
        self._left_bytes = None

    def _why_lost(self, reason: Failure) -> str:
        """Describe why the connection ended; for a failed TLS handshake, say what the peer did wrong."""
        if self._settings.tls is None:
            return reason.getErrorMessage()
        from kinmqtt.net.tls import handshake_failure

        return handshake_failure(reason.value)

    def _finish(self, why: str = "the broker closed it") -> None:
        """Detach the connection from the broker, whether the transport has ended or not."""
        # Break the reference cycle, which would stay in memory for long.
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.lost(why)
            self._bounds.admission.place_is_free()

    def resumeProducing(self) -> None:
        """Tell the broker that all written data has been sent."""
        if not self.ready and not self._closing:
            self.ready = True
            if self.connection is not None:
                self.connection.drained()

    def pauseProducing(self) -> None:
        """Tell the broker that the transport's buffer is full."""
        self.ready = False

    def stopProducing(self) -> None:
        """Do nothing: ``connectionLost`` follows."""
        self.ready = False

    # Called by the broker

    def write(self, data: bytes) -> None:
        """Send data, immediately if the socket takes it."""
        if self._closing:
            return
        transport: Any = self.transport
        if self.ready and self._write_some is not None:
            sent = self._write_some(data)
            while isinstance(sent, int) and 0 < sent < len(data):
                data = data[sent:]
                sent = self._write_some(data)
            if not isinstance(sent, int):
                transport.abortConnection()
                return
            if sent == len(data):
                return
            self.ready = False
        transport.write(data)

    def pause_reading(self) -> None:
        """Stop reading until resumed."""
        if not self._paused and not self._closing:
            self._paused = True
            transport: Any = self.transport
            transport.pauseProducing()

    def resume_reading(self) -> None:
        """Continue to read."""
        if self._paused and not self._closing:
            self._paused = False
            transport: Any = self.transport
            transport.resumeProducing()

    def close(self, linger: bool = False) -> None:
        """Close when all written data has been sent, or after a time limit.

        A lingering connection is read from until the client has closed it too, but is detached from the broker. TLS
        ends with an exchange, so TLS connections always linger.
        """
        if self._closing:
            return
        self._closing = True
        transport: Any = self.transport
        transport.unregisterProducer()
        may_linger = self._encrypts or (linger and hasattr(transport, "loseWriteConnection"))
        if may_linger and self._bounds.lingering.has_capacity:
            self._linger(transport)
            return
        if self._paused and self._encrypts:
            # Without reading, the client's close would go unnoticed.
            transport.resumeProducing()
        transport.loseConnection()
        if not self.ready or self._write_some is None:
            self._cut = self._broker.runtime.clock.later(CLOSE_LIMIT_S, self.abort)

    def _linger(self, transport: Any) -> None:
        """Close the sending side after the written data, and continue to read."""
        connection = self.connection
        self._left_bytes = 0 if connection is None else connection.framer.max_packet_bytes
        if self._paused:
            transport.resumeProducing()
        if self._encrypts:
            transport.loseConnection()
        else:
            transport.loseWriteConnection()
        self._bounds.lingering.begin(self, LINGER_LIMIT_S if self.ready else CLOSE_LIMIT_S)
        self._broker.runtime.clock.later(0, self._finish)

    def abort(self) -> None:
        """Close immediately."""
        self._closing = True
        transport: Any = self.transport
        transport.abortConnection()


class MqttFactory(Factory):
    """Makes a protocol for each connection of one listener."""

    noisy = False

    protocol_class: type[MqttProtocol] = MqttProtocol

    def __init__(
        self, broker: Broker, listener: Listener, settings: ListenerSettings, bounds: SharedBounds | None = None
    ) -> None:
        """``bounds`` are shared with the broker's other listeners; with ``None`` the factory has its own."""
        self._broker = broker
        self._listener = listener
        self.settings = settings
        self._bounds = bounds or SharedBounds.of(broker.runtime.clock)
        self.rate = AcceptRate(settings.limits.connections_per_s, broker.runtime.clock)

    def stopFactory(self) -> None:
        """Stop accepting: the listener is closed."""
        self.rate.stop()

    def buildProtocol(self, addr: IAddress | None) -> MqttProtocol:
        """Return a protocol for a new connection."""
        self.rate.count()
        return self.protocol_class(self._broker, self._listener, self.settings, self._bounds)

    def refuse(self, who: str) -> None:
        """Log that a connection is closed before anything is read; ``who`` gives the reason."""
        self.rate.count()
        self._broker.runtime.statistics.connections_refused.value += 1
        log.info("a connection to {listener} is refused: it comes from {who}", listener=self._listener.name, who=who)


def _address(peer: Any) -> Address:
    if isinstance(peer, IPv4Address | IPv6Address):
        return Address(peer.host, peer.port)
    return Address(str(getattr(peer, "name", None) or "local"))
