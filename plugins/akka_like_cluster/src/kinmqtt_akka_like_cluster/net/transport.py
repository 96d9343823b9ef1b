"""Connections between brokers: dialled and accepted, authenticated, and bounded in number and time.

Whether and when to dial is the owner's decision. Without TLS only loopback addresses and Unix sockets are used.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial

from kinmqtt_akka_like_cluster.net.acceptor import Acceptor
from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.attempts import Attempts
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import NONCE_BYTES, ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal, Refusals
from kinmqtt_akka_like_cluster.net.tls import Tls
from kinmqtt_akka_like_cluster.settings import SECTION
from kinmqtt_spi.services.plugin import Clock, Log

__all__ = [
    "ConnectionKind",
    "DialFailed",
    "Established",
    "HandshakeRefused",
    "Network",
    "NetworkConfig",
    "PeerInfo",
    "Refusal",
    "random_nonce",
]


def random_nonce() -> bytes:
    """Return a nonce that nobody can guess."""
    return secrets.token_bytes(NONCE_BYTES)


class Network:
    """The connections of one broker. It is used on one event loop, of asyncio or uvloop."""

    def __init__(
        self,
        config: NetworkConfig,
        own: PeerInfo,
        log: Log,
        clock: Clock,
        nonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        """``own`` is what others are told about this broker; ``nonce`` returns 32 random bytes, others each time.

        Raises ``ValueError`` for a cookie below 32 bytes, and for names that are too long.
        """
        self.own = own
        self._config = config
        self._log = log
        self._clock = clock
        self._refusals = Refusals(log, clock)
        self._attempts = Attempts(config, own, log, clock, nonce)
        self._acceptor: Acceptor | None = None
        self._closed = False

    @property
    def listening(self) -> list[Endpoint]:
        """The addresses that it listens on, empty before :meth:`start_listening`."""
        return [] if self._acceptor is None else self._acceptor.endpoints

    @property
    def half_open(self) -> int:
        """Accepted connections whose peers have not proved who they are."""
        return 0 if self._acceptor is None else self._acceptor.half_open

    @property
    def connections(self) -> int:
        """Established connections."""
        return len(self._attempts.connections)

    @property
    def refused(self) -> int:
        """How many connections were refused, by either side."""
        return self._refusals.counts.total()

    @property
    def refusals(self) -> dict[Refusal, int]:
        """How many connections were refused, by reason."""
        return dict(self._refusals.counts)

    def use_tls(self, tls: Tls) -> None:
        """Use other certificates for new connections. A network without TLS stays without."""
        if self._attempts.tls is not None:
            self._attempts.tls = tls

    async def start_listening(self, on_connection: Callable[[Established], object]) -> None:
        """Listen, and pass on each accepted connection whose peer has proved who it is.

        ``on_connection`` sets the callbacks of the connection; if it raises, that is logged and the connection ends.
        Raises :class:`~kinmqtt_spi.errors.AssemblyError` if the address can't be used.
        """
        acceptor = Acceptor(self._config, self._attempts, self._refusals, on_connection, self._log, self._clock)
        await acceptor.listen()
        self._acceptor = acceptor

    async def dial(self, address: str, kind: ConnectionKind, expected_uid: int | None = None) -> Established:
        """Connect to a broker, and return the connection when both sides have proved who they are.

        Raises :class:`HandshakeRefused` if either side refuses the other, which is logged here, and
        :class:`DialFailed` if it can't be reached or is not done within 5 s.
        """
        endpoint = self._dialable(address)
        tls = self._attempts.tls
        opening = self._attempts.opening(str(endpoint), kind, expected_uid, tls)
        try:
            return await self._attempts.run(opening, partial(self._connect, endpoint, opening, tls))
        except HandshakeRefused as refused:
            self._refusals.report(refused, opening.where, opening.claimed)
            raise

    def abort(self) -> None:
        """End all connections at once; what is unsent is lost."""
        for connection in list(self._attempts.connections):
            connection.abort()

    async def close(self) -> None:
        """Stop listening, and close all connections; what was written before is sent, for at most 5 s."""
        self._closed = True
        if self._acceptor is not None:
            await self._acceptor.close()
        await self._attempts.cancel()
        for connection in list(self._attempts.connections):
            connection.close()
        while self._attempts.connections:
            self._attempts.changed.clear()
            await self._attempts.changed.wait()

    def _dialable(self, address: str) -> Endpoint:
        if self._closed:
            raise DialFailed(f"{address}: the network was closed")
        try:
            endpoint = Endpoint.parse(address)
        except ValueError as error:
            raise DialFailed(str(error)) from None
        if self._attempts.tls is None and not endpoint.is_local:
            raise DialFailed(f"{address}: is no loopback address, and [{SECTION}.tls] is missing")
        return endpoint

    async def _connect(self, endpoint: Endpoint, opening: asyncio.Protocol, tls: Tls | None) -> None:
        """Let ``opening`` have a connection to an address. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        context = None if tls is None else tls.client
        if endpoint.is_unix:
            name = None if tls is None else ""
            await loop.create_unix_connection(lambda: opening, endpoint.path, ssl=context, server_hostname=name)
        else:
            await loop.create_connection(lambda: opening, endpoint.host, endpoint.port, ssl=context)
