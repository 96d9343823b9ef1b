"""Attempts to establish a connection, each with a time limit."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TypeVar

from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.handshake import Handshake, Role
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.opening import DialFailed, HandshakeExpired, Opening, OpeningParts, words
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_akka_like_cluster.net.tls import Tls, tls_failure
from kinmqtt_akka_like_cluster.settings import SECTION
from kinmqtt_spi.services.plugin import Clock, Log

T = TypeVar("T")


class Attempts:
    """The attempts in progress, and the connections that came of earlier ones."""

    def __init__(
        self, config: NetworkConfig, own: PeerInfo, log: Log, clock: Clock, nonce: Callable[[], bytes]
    ) -> None:
        """Raises ``ValueError`` for a cookie below 32 bytes, and for names that HELLO can't carry."""
        self.tls = config.tls
        """What new connections use."""
        self.connections: set[Established] = set()
        """The established ones that have not ended."""
        self.changed = asyncio.Event()
        """Set when a connection has ended, or is no longer half-open."""
        self._config = config
        self._own = own
        self._clock = clock
        self._nonce = nonce
        buffers = {
            ConnectionKind.CONTROL: config.control_buffer_bytes,
            ConnectionKind.BULK: config.bulk_buffer_bytes,
        }
        self._parts = OpeningParts(log, clock, buffers, self.connections.add, self._ended)
        self._tasks: set[asyncio.Task[Established]] = set()
        self._handshake(Role.ACCEPTOR, None, None, self.tls, b"")

    def opening(self, where: str, kind: ConnectionKind | None, expected_uid: int | None, tls: Tls | None) -> Opening:
        """Return the protocol of a new connection; ``kind`` is ``None`` for an accepted one."""
        role = Role.ACCEPTOR if kind is None else Role.DIALLER
        make = partial(self._handshake, role, kind, expected_uid, tls)
        return Opening(self._parts, where, None if tls is None else tls.names, make)

    async def run(self, opening: Opening, connect: Callable[[], Awaitable[object]]) -> Established:
        """Connect by ``connect``, and return the connection once both sides have proved who they are.

        Raises :class:`HandshakeRefused`, :class:`HandshakeExpired` and other :class:`DialFailed`.
        """
        task = start(_open(opening, connect), self._tasks)

        def expire() -> None:
            opening.expired = True
            task.cancel()

        timer = self._clock.later(self._config.handshake_s, expire)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or not current.cancelling():
                raise self._why_cancelled(opening) from None
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().abort()  # It was established in the same moment.
            raise
        finally:
            timer.cancel()

    async def cancel(self) -> None:
        """End all attempts."""
        await cancel_all(self._tasks)

    def _why_cancelled(self, opening: Opening) -> HandshakeRefused | DialFailed:
        if opening.refused is not None:
            return opening.refused
        if opening.expired:
            limit_s = self._config.handshake_s
            return HandshakeExpired(f"{opening.where}: the handshake was not done within {limit_s:g} s")
        return DialFailed(f"{opening.where}: the network was closed")

    def _handshake(
        self, role: Role, kind: ConnectionKind | None, expected_uid: int | None, tls: Tls | None, peer: bytes
    ) -> Handshake:
        """Return a handshake with a peer that has shown a certificate, empty without TLS."""
        config = self._config
        return Handshake(
            role,
            kind,
            self._own,
            cluster=config.cluster,
            cookie=config.cookie,
            digest=config.digest,
            nonce=self._nonce(),
            versions=config.versions,
            features=config.features,
            own_certificate=b"" if tls is None else tls.certificate,
            peer_certificate=peer,
            expected_uid=expected_uid,
        )

    def _ended(self, established: Established) -> None:
        self.connections.discard(established)
        self.changed.set()


def start(coroutine: Coroutine[object, object, T], tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Run a coroutine as a task that is among ``tasks`` until it ends."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def cancel_all(tasks: set[asyncio.Task[T]]) -> None:
    """Cancel tasks, and wait for their end."""
    waited = list(tasks)
    for task in waited:
        task.cancel()
    await asyncio.gather(*waited, return_exceptions=True)


async def _open(opening: Opening, connect: Callable[[], Awaitable[object]]) -> Established:
    try:
        await connect()
        return await opening.result
    except ssl.SSLError as error:
        raise HandshakeRefused(Refusal.TLS, tls_failure(error)) from None
    except OSError as error:
        in_tls = opening.expects_tls and isinstance(error, ConnectionResetError | ConnectionAbortedError)
        hint = f" in the TLS handshake; perhaps it has no [{SECTION}.tls], or its log says why" if in_tls else ""
        raise DialFailed(f"{opening.where}: {words(error)}{hint}") from None
    except asyncio.CancelledError:
        opening.abort()
        raise
