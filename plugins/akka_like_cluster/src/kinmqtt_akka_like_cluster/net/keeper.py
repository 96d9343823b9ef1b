"""Keeps one connection to another broker: dials, and dials again after each loss."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused
from kinmqtt_spi.services.plugin import Log

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 3.0
"""The pauses between two attempts: each is twice the one before."""

Dial = Callable[[], Awaitable[Established]]


class Keeper:
    """Keeps a connection until :meth:`stop`. It needs a running event loop."""

    def __init__(self, where: str, dial: Dial, on_established: Callable[[Established], object], log: Log) -> None:
        """``where`` names the other broker in the log; ``on_established`` sets what reads each new connection."""
        self.connection: Established | None = None
        """The present connection; ``None`` while there is none."""
        self._where = where
        self._dial = dial
        self._on_established = on_established
        self._log = log
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to dial."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def stop(self) -> None:
        """Close the connection, and dial no more."""
        if self._task is not None:
            self._task.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        is_failing = False
        while True:
            try:
                connection = await self._dial()
            except HandshakeRefused:
                pass  # It is logged where it was refused.
            except DialFailed as error:
                if not is_failing:
                    is_failing = True
                    text = "can't connect to {where}: {error}; it is tried again"
                    # The address is in both.
                    why = str(error).removeprefix(f"{self._where.rpartition(' ')[2]}: ")
                    self._log.info(text, where=self._where, error=why)
            except Exception as error:
                self._log.error("the connection to {where} failed: {error!r}", where=self._where, error=error)
            else:
                pause_s = FIRST_PAUSE_S
                is_failing = False
                await self._use(connection)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _use(self, connection: Established) -> None:
        """Wait for the end of a connection."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection = connection
        try:
            self._on_established(connection)
            report = connection.on_lost

            def lost() -> None:
                if report is not None:
                    report()
                if not ended.done():
                    ended.set_result(None)

            connection.on_lost = lost
            await ended
        finally:
            if self.connection is connection:
                self.connection = None
            connection.close()
