"""The queue store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.asking import Asker
from kinmqtt_redis_session.keys import SHARDS, decoded, encoded
from kinmqtt_redis_session.scripts import EXPIRE, LOAD, READ, Command
from kinmqtt_redis_session.turn import Ledger
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.queue import (
    Entry,
    InflightEntry,
    QueueSizes,
    QueueState,
    QueueStore,
    QueueWrite,
    Stage,
)
from kinmqtt_spi.values import Commit

PAGE: Final = 100
"""Queues looked at in one step for what has expired."""


class RedisQueueStore(QueueStore):
    """Queues in Redis."""

    def __init__(self, ledger: Ledger, asker: Asker, uid: int) -> None:
        """``uid`` is this node's: what waits for a client that another node has claimed is its to expire."""
        self._ledger = ledger
        self._asker = asker
        self._keys = ledger.keys
        self._uid = uid
        self._passed: dict[bytes, int] = {}
        """Of indexes in which more is due than is looked at in one go: how much of others is not looked at again."""

    @property
    def transaction(self) -> object:
        return self if self._ledger.link.cluster else self._ledger

    def commit(self) -> Commit:
        return self._ledger.commit()

    def apply(self, writes: Sequence[QueueWrite]) -> None:
        self._ledger.gather(writes)

    async def load(self, client_id: str) -> QueueState:
        keys = self._keys.client(encoded(client_id), b"s", b"q", b"d", b"i", b"p", b"r")
        ((last, size_bytes, queued, flying, inbound),) = await self._asker.ask(LOAD(keys))
        inflight = tuple(
            InflightEntry(
                int(sequence),
                int(packet_id),
                Stage.SENT if blob else Stage.RELEASED,
                codec.entry_of(blob) if blob else None,
            )
            for sequence, packet_id, blob in flying
        )
        return QueueState(
            inflight,
            frozenset(int(each) for each in inbound),
            int(last),
            QueueSizes(queued, int(size_bytes), len(inflight), len(inbound)),
        )

    async def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
        if limit <= 0:
            return ()
        (blobs,) = await self._asker.ask(READ(self._keys.client(encoded(client_id), b"q", b"d"), after, limit))
        return tuple(codec.entry_of(blob) for blob in blobs)

    def sizes(self, client_id: str) -> QueueSizes:
        return self._ledger.mirror.sizes(client_id)

    def totals(self) -> QueueSizes:
        return self._ledger.mirror.totals()

    async def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
        """See :meth:`QueueStore.expire`; while Redis is away nothing expires."""
        removed: list[tuple[str, Entry]] = []
        if self._asker.is_up:
            with suppress(ServiceUnavailable):
                await self._expire(now, limit, removed)
        return removed

    async def _expire(self, now: float, limit: int, removed: list[tuple[str, Entry]]) -> None:
        indexes = [self._keys.index(shard, b"q") for shard in range(SHARDS)]
        # More than is asked for, so that what has its home elsewhere, and stays, takes no place of what is here.
        most = limit + PAGE
        ask = [
            ("ZRANGE", index, "-inf", repr(now), "BYSCORE", "LIMIT", self._passed.get(index, 0), most)
            for index in indexes
        ]
        passed = self._passed
        for index, names in zip(indexes, await self._asker.ask(*ask), strict=True):
            left = list(names)
            while left and len(removed) < limit:
                # As many as there is room for, whatever each of them holds.
                room = min(PAGE, limit - len(removed))
                several, left = left[:room], left[room:]
                share = max(1, (limit - len(removed)) // len(several))
                # The next look goes on behind those that stay, and after the last the one behind it begins anew.
                passed[index] = passed.get(index, 0) + await self._expired(index, several, now, share, removed)
            if left:
                return
            if len(names) < most:
                passed[index] = 0
            if len(removed) >= limit:
                return

    async def _expired(
        self, index: bytes, names: Sequence[bytes], now: float, limit: int, removed: list[tuple[str, Entry]]
    ) -> int:
        """Remove what has expired in some queues; answers how many of them are left alone."""
        # The index first: what is appended meanwhile is seen by the script, or puts its own mark down again.
        await self._asker.ask(("ZREM", index, *names))
        scripts = [
            EXPIRE(self._keys.client(name, b"s", b"q", b"d", b"i", b"r", b"x"), repr(now), limit, str(self._uid))
            for name in names
        ]
        back: list[Command] = []
        stay = 0
        answers = await self._asker.ask(*scripts)
        for name, (blobs, first, *sizes) in zip(names, answers, strict=True):
            client_id = decoded(name)
            if blobs:
                self._ledger.mirror.client(client_id, sizes)
            removed += [(client_id, codec.entry_of(blob)) for blob in blobs]
            if first:
                back.append(("ZADD", index, "LT", first, name))
                stay += not blobs and float(first) <= now
        # What is gone is told in any case. What lost its mark gets it back from the next refresh, too.
        with suppress(ServiceUnavailable):
            await self._asker.ask(*back)
        return stay
