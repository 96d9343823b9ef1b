"""The Twisted protocol: bytes in, bytes out, and when to stop reading or writing.

It asks little of its transport (write, loseConnection, abortConnection, peer, host, producers), so that a faster
transport can stand behind it. Where the transport can send at once (``writeSomeData``), output skips the trip
through the reactor as long as nothing is buffered; what the socket does not take is given to the transport, and
the broker is told when that has gone out. A transport that encrypts first says itself when it has enough.
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
"""How long a peer may take to read the last words written to it, before the connection is cut."""


FORGOTTEN_AT_ONCE_BYTES: Final = 64 << 10
"""What is read at once of a closed connection, and forgotten, before it is others' turn."""


@frozen(slots=True)
class SharedBounds:
    """What the listeners of a broker share: who waits to come in, and who has not quite left."""

    admission: Admission
    lingering: Lingering

    @classmethod
    def of(cls, clock: Clock) -> SharedBounds:
        """Bounds within which nobody is yet."""
        return cls(Admission(clock), Lingering(clock))


@implementer(IPullProducer, IPushProducer, IHandshakeListener)
class MqttProtocol(Protocol):
    """One network connection; implements :class:`kinmqtt.broker.connection.link.Link`.

    The broker meets it when it is known who is there: at once, behind a proxy with the first bytes after the proxy's
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
        """How much more is read and forgotten; ``None`` while the connection is not closed, or does not linger."""
        self._paused = False
        self._write_some: Callable[[bytes], Any] | None = None
        self._cut: Timer | None = None

    # From the transport

    def connectionMade(self) -> None:
        """The connection is open."""
        transport: Any = self.transport
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
        # A TLS transport is no socket: what it is given it must encrypt first.
        if hasattr(transport, "getHandle") and hasattr(transport.getHandle(), "fileno"):
            self._write_some = getattr(transport, "writeSomeData", None)
        self.ready = True
        # As a pull producer it is asked for more exactly when all that was written has gone out. To TLS that would
        # mean to be asked in every turn, for ever: there a push producer is told when to pause.
        transport.registerProducer(self, self._write_some is None)
        self._encrypts = hasattr(transport, "getPeerCertificate")
        if not self.has_place and self._bounds.admission.wait(self):
            self.pause_reading()
        else:
            self._arrive()

    @property
    def has_place(self) -> bool:
        """Whether one more connection may come in by this listener."""
        return not (self._broker.services.is_full or self.listener.is_full)

    def come_in(self) -> None:
        """A place is free, or none has become free for long enough."""
        # A transport that reads though it was paused may have brought the first bytes by now.
        if self.connection is None and not self._closing:
            self.resume_reading()
            self._arrive()

    def _arrive(self) -> None:
        """The broker meets the connection, or waits until it is known who is there."""
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
        """Why nobody more may come in, before it is known who; ``None`` where they may."""
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
        """Count, or count no longer, among those of whom it is not known yet who is there."""
        self._broker.services.arriving += by
        self.listener.arriving += by
        if by < 0:
            self._bounds.admission.place_is_free()

    def handshakeCompleted(self) -> None:
        """TLS stands, and a client's certificate is verified."""
        self._introduce()

    def dataReceived(self, data: bytes) -> None:
        """Bytes arrived."""
        connection = self.connection
        if connection is not None:
            connection.receive(data)
        elif self._left_bytes is not None:
            self.forget(data)
        else:
            self.introduced().receive(data)

    def forget(self, data: bytes) -> None:
        """Bytes arrived behind the end: as many as a packet may have, no more."""
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                log.debug("{address} was cut off: it did not stop sending", address=self.address)
                self.abort()
            elif len(data) >= FORGOTTEN_AT_ONCE_BYTES:
                # Others are read between: what is to be forgotten must not be read faster than what is not.
                transport: Any = self.transport
                transport.pauseProducing()
                self._broker.runtime.slices.later(self._forget_on)

    def _forget_on(self) -> None:
        if self._left_bytes is not None:
            self._broker.runtime.slices.count_resumed_read()
            transport: Any = self.transport
            transport.resumeProducing()

    def introduced(self) -> Connection:
        """The broker's side of this connection; who is there is known by now."""
        if self.connection is None and not self._closing:
            self._bounds.admission.leave(self)
            self._introduce()
        connection = self.connection
        if connection is None:
            raise LocalError("a connection has no broker")
        return connection

    def _introduce(self) -> None:
        """The broker meets the connection."""
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
            # CONNECT is refused for it: only then can the client be told.
            self.certificate_problem = f"the client's certificate {error}"

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """The connection is gone."""
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
        elif self._left_bytes is None:
            log.info(
                "a connection to {listener} ended before it was known who is there: {why}",
                listener=self.listener.name,
                why=self._why_lost(reason),
            )
        self._left_bytes = None

    def _why_lost(self, reason: Failure) -> str:
        """Why the connection ended, in words; a TLS handshake that failed says what the peer did wrong."""
        if self._settings.tls is None:
            return reason.getErrorMessage()
        from kinmqtt.net.tls import handshake_failure

        return handshake_failure(reason.value)

    def _finish(self, why: str = "the broker closed it") -> None:
        """The broker has done with the connection, whether the transport has or not."""
        # Each holds the other, and a circle of references stays in memory for long.
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.lost(why)
            self._bounds.admission.place_is_free()

    def resumeProducing(self) -> None:
        """Everything written has gone out."""
        if not self.ready and not self._closing:
            self.ready = True
            if self.connection is not None:
                self.connection.drained()

    def pauseProducing(self) -> None:
        """The transport has enough to send for now."""
        self.ready = False

    def stopProducing(self) -> None:
        """The transport wants nothing more; ``connectionLost`` follows."""
        self.ready = False

    # From the broker

    def write(self, data: bytes) -> None:
        """Send bytes, at once if the socket takes them."""
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
        """Read nothing more until told."""
        if not self._paused and not self._closing:
            self._paused = True
            transport: Any = self.transport
            transport.pauseProducing()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused and not self._closing:
            self._paused = False
            transport: Any = self.transport
            transport.resumeProducing()

    def close(self, linger: bool = False) -> None:
        """Close when everything written has gone out, or when that takes too long.

        A connection that lingers is read from until the client has closed, too; the broker has done with it. TLS ends
        in an exchange, so that there every connection lingers.
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
            # Who does not read never learns that the client has closed.
            transport.resumeProducing()
        transport.loseConnection()
        if not self.ready or self._write_some is None:
            self._cut = self._broker.runtime.clock.later(CLOSE_LIMIT_S, self.abort)

    def _linger(self, transport: Any) -> None:
        """End the sending side, behind what is written; read on."""
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
        """Close now."""
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
        """``bounds`` are shared with the broker's other listeners; ``None`` for bounds of its own."""
        self._broker = broker
        self._listener = listener
        self.settings = settings
        self._bounds = bounds or SharedBounds.of(broker.runtime.clock)
        self.rate = AcceptRate(settings.limits.connections_per_s, broker.runtime.clock)

    def stopFactory(self) -> None:
        """The listener is closed."""
        self.rate.stop()

    def buildProtocol(self, addr: IAddress | None) -> MqttProtocol:
        """A new connection."""
        self.rate.count()
        return self.protocol_class(self._broker, self._listener, self.settings, self._bounds)

    def refuse(self, who: str) -> None:
        """A connection is closed before anything is read from it; ``who`` says why, for the log."""
        self.rate.count()
        self._broker.runtime.statistics.connections_refused.value += 1
        log.info("a connection to {listener} is refused: it comes from {who}", listener=self._listener.name, who=who)


def _address(peer: Any) -> Address:
    if isinstance(peer, IPv4Address | IPv6Address):
        return Address(peer.host, peer.port)
    return Address(str(getattr(peer, "name", None) or "local"))
