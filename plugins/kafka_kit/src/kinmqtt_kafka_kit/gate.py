"""What a consumer does while Kafka divides the partitions of its group anew."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka import ConsumerRebalanceListener

REVOKE_LIMIT_S: Final = 5.0
"""How long a rebalance waits for the batch in hand. Kafka waits for the group's members twice as long."""


class Gate(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's classes have no types
    """Keeps new batches from beginning while the partitions are divided anew, which waits for the one in hand."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._division = 0
        self._entered = 0

    async def opened(self) -> None:
        """Wait until partitions are assigned."""
        await self._open.wait()

    def enter(self) -> bool:
        """Begin with a batch, unless the partitions are being divided."""
        if not self._open.is_set():
            return False
        self._entered = self._division
        self._idle.clear()
        return True

    def enter_again(self) -> bool:
        """Go on with a batch after a pause, unless the partitions were divided since :meth:`enter`."""
        if not self._open.is_set() or self._entered != self._division:
            return False
        self._idle.clear()
        return True

    def leave(self) -> None:
        """End a batch, or pause."""
        self._idle.set()

    async def on_partitions_revoked(self, revoked: object) -> None:
        """Wait for the batch in hand, for a while."""
        self._division += 1
        self._open.clear()
        try:
            async with asyncio.timeout(REVOKE_LIMIT_S):
                await self._idle.wait()
        except TimeoutError:
            pass  # It can't be committed any more: somebody gets it again.

    async def on_partitions_assigned(self, assigned: object) -> None:
        """Let batches begin."""
        self._open.set()
