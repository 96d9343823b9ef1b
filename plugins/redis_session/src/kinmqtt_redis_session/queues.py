"""The queue store."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.batch_reader import BatchReader
from kinmqtt_redis_session.keys import SHARDS, decoded, encoded
from kinmqtt_redis_session.scripts import EXPIRE, KNOWN, LOAD, READ, Command
from kinmqtt_redis_session.write_pipeline import WritePipeline
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
from kinmqtt_spi.values import Commit, MessageId

PAGE: Final = 100
"""Queues checked for expired entries in one step."""


class RedisQueueStore(QueueStore):
    """Queues in Redis."""

    is_shared = True

    def __init__(self, pipeline: WritePipeline, reader: BatchReader, uid: int) -> None:
        """``uid`` is this node's. Queues of clients that another node has claimed are left to that node."""
        self._pipeline = pipeline
        self._reader = reader
        self._keys = pipeline.keys
        self._uid = uid
        self._passed: dict[bytes, int] = {}
        """By index with more due entries than one call reads: how many entries of other nodes to skip."""

    @property
    def transaction(self) -> object:
        return self if self._pipeline.link.cluster else self._pipeline

    def commit(self) -> Commit:
        return self._pipeline.commit()

    def apply(self, writes: Sequence[QueueWrite]) -> None:
        self._pipeline.gather(writes)

    async def load(self, client_id: str) -> QueueState:
        keys = self._keys.client(encoded(client_id), b"s", b"q", b"d", b"i", b"p", b"r")
        ((last, size_bytes, queued, flying, inbound, pending),) = await self._reader.execute(LOAD(keys))
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
            QueueSizes(queued, int(size_bytes), len(inflight), len(inbound) + len(pending)),
            {int(packet_id): codec.message_id_of(message) for packet_id, message in pending},
        )

    async def known(self, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
        keys = self._keys.client(encoded(client_id), b"d", b"k")
        (found,) = await self._reader.execute(KNOWN(keys, *(codec.message_id(id) for id in ids)))
        return {codec.message_id_of(each) for each in found}

    async def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
        if limit <= 0:
            return ()
        (blobs,) = await self._reader.execute(READ(self._keys.client(encoded(client_id), b"q", b"d"), after, limit))
        return tuple(codec.entry_of(blob) for blob in blobs)

    def sizes(self, client_id: str) -> QueueSizes:
        return self._pipeline.counters.sizes(client_id)

    def totals(self) -> QueueSizes:
        return self._pipeline.counters.totals()

    async def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
        """See :meth:`QueueStore.expire`; while Redis is away nothing expires."""
        removed: list[tuple[str, Entry]] = []
        if self._reader.is_up:
            with suppress(ServiceUnavailable):
                await self._expire(now, limit, removed)
        return removed

    async def _expire(self, now: float, limit: int, removed: list[tuple[str, Entry]]) -> None:
        indexes = [self._keys.index(shard, b"q") for shard in range(SHARDS)]
        # Read more than asked for, because other nodes' entries stay and must not hide this node's.
        most = limit + PAGE
        queries = [
            ("ZRANGE", index, "-inf", repr(now), "BYSCORE", "LIMIT", self._passed.get(index, 0), most)
            for index in indexes
        ]
        passed = self._passed
        for index, names in zip(indexes, await self._reader.execute(*queries), strict=True):
            left = list(names)
            while left and len(removed) < limit:
                # Each queue may yield at least one entry.
                room = min(PAGE, limit - len(removed))
                several, left = left[:room], left[room:]
                share = max(1, (limit - len(removed)) // len(several))
                # The next call continues after the entries that stay; after the last one it starts over.
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
        """Remove expired entries from some queues; returns how many queues were left to other nodes."""
        # Update the index first: the script sees concurrent appends, or they add their own index entry again.
        await self._reader.execute(("ZREM", index, *names))
        scripts = [
            EXPIRE(self._keys.client(name, b"s", b"q", b"d", b"i", b"r", b"x"), repr(now), limit, str(self._uid))
            for name in names
        ]
        back: list[Command] = []
        stay = 0
        answers = await self._reader.execute(*scripts)
        for name, (blobs, first, *sizes) in zip(names, answers, strict=True):
            client_id = decoded(name)
            if blobs:
                self._pipeline.counters.client(client_id, sizes)
            removed += [(client_id, codec.entry_of(blob)) for blob in blobs]
            if first:
                back.append(("ZADD", index, "LT", first, name))
                stay += not blobs and float(first) <= now
        # Report removed entries even if this fails. The next resync also restores lost index entries.
        with suppress(ServiceUnavailable):
            await self._reader.execute(*back)
        return stay
