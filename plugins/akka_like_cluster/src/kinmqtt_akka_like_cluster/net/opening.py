"""A connection while both sides prove who they are."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from attrs import frozen

from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.handshake import Handshake
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_akka_like_cluster.net.tls import PeerNames, names_in, tls_failure
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.services.plugin import Clock, Log

MAX_DISCARDED_BYTES: Final = 64 << 10
"""What is read, and forgotten, of a peer that was refused and has not closed yet."""
MAX_NAMES_SHOWN: Final = 300

_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A host that has vanished is noticed within a minute. Heartbeats notice it earlier."""


class DialFailed(SpiError):
    """A broker could not be reached, or has not answered."""


class HandshakeExpired(DialFailed):
    """The handshake was not done within its time."""


@frozen(slots=True)
class OpeningParts:
    """What all connections of a network share."""

    log: Log
    clock: Clock
    buffer_bytes: Mapping[ConnectionKind, int]
    on_established: Callable[[Established], object]
    on_ended: Callable[[Established], object]


class Opening(asyncio.Protocol):
    """The protocol of one connection. :attr:`result` is set when both sides have proved who they are, or it fails."""

    def __init__(
        self,
        parts: OpeningParts,
        where: str,
        names: PeerNames | None,
        make_handshake: Callable[[bytes], Handshake],
    ) -> None:
        """``names`` are the accepted ones, ``None`` without TLS. ``make_handshake`` gets the peer's certificate."""
        self.result: asyncio.Future[Established] = asyncio.get_running_loop().create_future()
        # Nobody asks for it if its time is up in the same moment; asyncio would complain.
        self.result.add_done_callback(lambda result: result.cancelled() or result.exception())
        self.where = where
        self.expired = False
        """Whether its time was up."""
        self.refused: HandshakeRefused | None = None
        self._parts = parts
        self._names = names
        self._make_handshake = make_handshake
        self._handshake: Handshake | None = None
        self._transport: asyncio.Transport | None = None
        self._established: Established | None = None
        self._discarded_bytes = 0

    @property
    def expects_tls(self) -> bool:
        """Whether the connection begins with TLS."""
        return self._names is not None

    @property
    def claimed(self) -> str | None:
        """The name that the other side has given, before any proof."""
        claimed = None if self._handshake is None else self._handshake.claimed
        return None if claimed is None else claimed.name

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop, which must see no exception

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; with TLS, that of TLS is done."""
        made = self._transport = cast(asyncio.Transport, transport)
        try:
            _tune(made.get_extra_info("socket"))
            session = made.get_extra_info("ssl_object")
            certificate = b"" if session is None else session.getpeercert(binary_form=True) or b""
            handshake = self._handshake = self._make_handshake(certificate)
            if self._names is not None:
                self._check_names(handshake, session)
            self._flush(handshake)
        except Exception as error:
            self._failed(error)

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, or pass bytes to the owner."""
        if self._established is not None:
            self._established.received(data)
            return
        try:
            self._advance(data)
        except Exception as error:
            self._failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, for whatever reason."""
        if self._established is not None:
            self._established.lost(None if exc is None else words(exc))
            self._parts.on_ended(self._established)
        elif not self.result.done():
            if self.refused is not None:
                self.result.set_exception(self.refused)
            elif isinstance(exc, ssl.SSLError):
                self.result.set_exception(HandshakeRefused(Refusal.TLS, tls_failure(exc)))
            else:
                why = "" if exc is None else f": {words(exc)}"
                text = f"{self.where}: the connection was closed in the handshake{why}; its log may say why"
                self.result.set_exception(DialFailed(text))

    def _check_names(self, handshake: Handshake, session: Any) -> None:
        assert self._names is not None
        names = names_in(None if session is None else session.getpeercert())
        if not self._names.accept(names):
            shown = ", ".join(names)[:MAX_NAMES_SHOWN] or "no name"
            # The other side is told as well: its operator knows the certificate.
            self.refused = handshake.refuse(
                Refusal.CERTIFICATE, f"the certificate is for {shown}, which tls.peers does not name"
            )

    def _advance(self, data: bytes) -> None:
        handshake = self._handshake
        if handshake is None or self.refused is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self.abort()
            return
        try:
            rest = handshake.feed(data)
        except HandshakeRefused as refused:
            self.refused = refused
            self._flush(handshake)
            return
        self._flush(handshake)
        if handshake.peer is not None:
            self._finish(handshake, rest)

    def _flush(self, handshake: Handshake) -> None:
        """Send what the handshake has. A refused peer may read why before it closes; the time limit ends it."""
        transport = self._transport
        assert transport is not None
        data = handshake.data_to_send()
        if data:
            transport.write(data)
        if self.refused is not None:
            if self.refused.by_peer or not data:
                transport.abort()
            elif transport.can_write_eof():
                transport.write_eof()

    def _finish(self, handshake: Handshake, rest: bytes) -> None:
        assert handshake.peer is not None and handshake.kind is not None and self._transport is not None
        if self.result.done():
            self._transport.abort()  # Its time was up a moment ago.
            return
        parts = self._parts
        self._established = Established(
            self._transport,
            handshake.peer,
            handshake.kind,
            self.where,
            rest,
            version=handshake.version,
            features=handshake.features,
            log=parts.log,
            clock=parts.clock,
            buffer_bytes=parts.buffer_bytes[handshake.kind],
        )
        parts.on_established(self._established)
        self.result.set_result(self._established)

    def _failed(self, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        self._parts.log.error("the handshake with {peer} failed:\n{trace}", peer=self.where, trace=trace)
        self.abort()


def words(error: BaseException) -> str:
    """Describe an error of the system."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own words name the address, which the caller names too.
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tune(connection: Any) -> None:
    """Send at once, and notice a host that has vanished."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    try:
        # A copy, because sockets of uvloop's transports have no options.
        with connection.dup() as own:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                option = getattr(socket, name, None)
                if option is not None:
                    own.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        pass  # It is lost already, which the transport reports.
