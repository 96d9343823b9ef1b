"""Accepts connections of other brokers; the number of those that have not proved who they are is bounded."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable
from functools import partial
from typing import Final

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.attempts import Attempts, cancel_all, start
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.listening import ListeningSockets, listen_on
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.opening import DialFailed, HandshakeExpired, words
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal, Refusals
from kinmqtt_akka_like_cluster.net.tls import Tls
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.plugin import Clock, Log

ACCEPT_PAUSE_S: Final = 1.0
"""How long to wait after the system refused to accept, as without free file descriptors."""
LOG_EVERY_S: Final = 60.0


class Acceptor:
    """The listening side of a network."""

    def __init__(
        self,
        config: NetworkConfig,
        attempts: Attempts,
        refusals: Refusals,
        on_connection: Callable[[Established], object],
        log: Log,
        clock: Clock,
    ) -> None:
        self._config = config
        self._attempts = attempts
        self._refusals = refusals
        self._on_connection = on_connection
        self._log = log
        self._clock = clock
        self._sockets: ListeningSockets | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._by_age: dict[asyncio.Task[None], str] = {}
        """Where those come from that are half-open, the oldest first; without those that had to make way."""
        self._full = Pace(clock, LOG_EVERY_S)
        self._failing = Pace(clock, LOG_EVERY_S)

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses that it listens on."""
        return [] if self._sockets is None else self._sockets.endpoints

    @property
    def half_open(self) -> int:
        """Accepted connections whose peers have not proved who they are."""
        return len(self._by_age)

    async def listen(self) -> None:
        """Listen. Raises :class:`~kinmqtt_spi.errors.AssemblyError` if the address can't be used."""
        self._sockets = await listen_on(self._config.listen, local_only=self._attempts.tls is None)
        for each in self._sockets.sockets:
            start(self._accept(each), self._accepting)

    async def close(self) -> None:
        """Stop listening, and end the connections that are half-open."""
        await cancel_all(self._accepting)
        await cancel_all(self._serving)
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room()
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                if self._failing.due() is not None:
                    self._log.error("can't accept connections of other brokers: {error}", error=words(error))
                await self._pause(ACCEPT_PAUSE_S)
                continue
            if len(self._by_age) >= self._config.max_half_open:
                self._make_way()
            # The task that uses the socket takes it out; if it never runs, the socket is closed.
            box = [accepted]
            where = str(address[0]) if isinstance(address, tuple) else "a Unix socket"
            task = start(self._serve(box, where), self._serving)
            self._by_age[task] = where
            task.add_done_callback(partial(self._served, box))

    async def _room(self) -> None:
        """Wait until one more connection may be accepted."""
        attempts = self._attempts
        while True:
            half_open, established = len(self._by_age), len(attempts.connections)
            if half_open + established < self._config.max_connections:
                return
            self._warn("others wait")
            attempts.changed.clear()
            await attempts.changed.wait()

    def _warn(self, what: str) -> None:
        if self._full.due() is not None:
            text = "{half_open} connections have not proved who they are, {established} have: {what}"
            half_open, established = len(self._by_age), len(self._attempts.connections)
            self._log.warn(text, half_open=half_open, established=established, what=what)

    def _make_way(self) -> None:
        """End the oldest connection that is half-open.

        A broker proves who it is within some round trips, and others must not keep brokers away by saying nothing.
        """
        self._warn("the oldest of the former make way")
        task, where = next(iter(self._by_age.items()))
        del self._by_age[task]
        self._refusals.report(HandshakeRefused(Refusal.TIMEOUT, "it was the oldest of too many"), where)
        task.cancel()

    async def _pause(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self._clock.later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    async def _serve(self, box: list[socket.socket], where: str) -> None:
        tls = self._attempts.tls
        opening = self._attempts.opening(where, None, None, tls)
        try:
            established = await self._attempts.run(opening, lambda: _connect(box.pop(), opening, tls))
        except HandshakeRefused as refused:
            self._refusals.report(refused, where, opening.claimed)
        except HandshakeExpired as error:
            self._refusals.report(HandshakeRefused(Refusal.TIMEOUT, str(error)), where, opening.claimed)
        except DialFailed as error:
            # A port scanner, or a health check: nobody was refused.
            self._log.debug("a connection of another broker was not finished: {error}", error=error)
        else:
            self._introduce(established)

    def _served(self, box: list[socket.socket], task: asyncio.Task[None]) -> None:
        for accepted in box:
            accepted.close()
        self._by_age.pop(task, None)
        self._attempts.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed("an accepted connection failed", error)

    def _introduce(self, established: Established) -> None:
        try:
            self._on_connection(established)
        except Exception as error:
            self._failed(f"a connection of {established.peer.name} could not be used", error)
            established.abort()

    def _failed(self, what: str, error: BaseException) -> None:
        self._log.error("{what}:\n{trace}", what=what, trace="".join(traceback.format_exception(error)))


async def _connect(accepted: socket.socket, opening: asyncio.Protocol, tls: Tls | None) -> None:
    context = None if tls is None else tls.server
    await asyncio.get_running_loop().connect_accepted_socket(lambda: opening, accepted, ssl=context)
