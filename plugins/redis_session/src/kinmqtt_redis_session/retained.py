"""The retain store. Topics are sorted, so that a match or an iteration continues after the last topic it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.batch_reader import BatchReader
from kinmqtt_redis_session.keys import RETAIN_PARTS, SHARDS, topic_shard
from kinmqtt_redis_session.matching import END, Pattern
from kinmqtt_redis_session.scripts import RETAIN_EXPIRE
from kinmqtt_redis_session.write_pipeline import WritePipeline
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.retain import RetainContents, RetainPage, RetainStore, RetainWrite
from kinmqtt_spi.values import Commit, Message

PAGE: Final = 200
"""Topics read in one step."""

STEPS: Final = 20
"""The most steps for one page of a match, whatever it finds."""

Look = Callable[[bytes], tuple[bool, bytes | None]]


class RedisRetainStore(RetainStore):
    """Retained messages in Redis."""

    is_shared = True

    def __init__(
        self, pipeline: WritePipeline, reader: BatchReader, *, now: Callable[[], float], remember_s: float
    ) -> None:
        self._pipeline = pipeline
        self._reader = reader
        self._keys = pipeline.keys
        self._remember_s = remember_s
        self._now = now

    @property
    def transaction(self) -> object:
        return self if self._pipeline.link.cluster else self._pipeline

    def commit(self) -> Commit:
        return self._pipeline.commit()

    def put(self, writes: Sequence[RetainWrite]) -> None:
        self._pipeline.gather_retained(writes)

    async def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
        wanted = codec.text(filter)
        if "+" not in filter and "#" not in filter:
            return RetainPage(tuple(write.message for write in await self._held(topic_shard(wanted), [wanted])))
        pattern = Pattern(wanted)
        shard, start = cursor if isinstance(cursor, tuple) else (0, None)
        last = SHARDS - 1
        if pattern.first_level is not None:
            shard = last = topic_shard(pattern.first_level)

        def look(topic: bytes) -> tuple[bool, bytes | None]:
            return (False, END) if pattern.is_over(topic) else pattern.look(topic)

        found, left = await self._walk((shard, start), last, b"[" + pattern.start, look, limit)
        return RetainPage(tuple(write.message for write in found), left)

    async def iterate(self, cursor: object = None, limit: int = 1000) -> RetainContents:
        place = cursor if isinstance(cursor, tuple) else (0, None)
        found, left = await self._walk(place, SHARDS - 1, b"-", lambda topic: (True, None), limit)
        return RetainContents(tuple(found), left)

    def count(self) -> int:
        """See :meth:`RetainStore.count`; writes in flight count, so that limits are not exceeded meanwhile."""
        return self._pipeline.counters.retained_count + self._pipeline.coming_retained[0]

    def size_bytes(self) -> int:
        return self._pipeline.counters.retained_bytes + self._pipeline.coming_retained[1]

    def newest(self) -> float:
        """See :meth:`RetainStore.newest`; a write's answer or a resync includes other brokers' messages."""
        return self._pipeline.counters.newest_retained

    async def expire(self, now: float, limit: int) -> Sequence[Message]:
        """See :meth:`RetainStore.expire`; while Redis is away nothing expires."""
        removed: list[Message] = []
        if self._reader.is_up and limit > 0:
            with suppress(ServiceUnavailable):
                await self._expire(now, limit, removed)
        return removed

    async def _expire(self, now: float, limit: int, removed: list[Message]) -> None:
        forgotten_at = repr(self._now() + self._remember_s)
        queries = [
            ("ZRANGE", key, "-inf", repr(now), "BYSCORE", "LIMIT", 0, 1)
            for shard in range(SHARDS)
            for key in self._keys.retained(shard, b"x", b"dx")
        ]
        due = await self._reader.execute(*queries)
        for shard in range(SHARDS):
            if not (due[2 * shard] or due[2 * shard + 1]) or len(removed) >= limit:
                continue
            script = RETAIN_EXPIRE(
                self._keys.retained(shard, *RETAIN_PARTS), repr(now), limit - len(removed), forgotten_at
            )
            ((blobs, count, size_bytes),) = await self._reader.execute(script)
            self._pipeline.counters.retained(shard, count, size_bytes)
            removed += [codec.retained_of(blob).message for blob in blobs]

    async def _walk(
        self, place: tuple[int, bytes | None], last: int, first: bytes, look: Look, limit: int
    ) -> tuple[list[RetainWrite], tuple[int, bytes | None] | None]:
        """Read topics in order until enough match or were read; returns the matches and the cursor to continue at."""
        shard, start = place
        found: list[RetainWrite] = []
        for _ in range(STEPS):
            if shard > last:
                return found, None
            if len(found) >= limit:
                break
            (index,) = self._keys.retained(shard, b"t")
            begin = start or first
            (topics,) = await self._reader.execute(("ZRANGE", index, begin, "+", "BYLEX", "LIMIT", 0, PAGE))
            matching, start = _choose(topics, begin, look, limit - len(found))
            found += await self._held(shard, matching)
            if start is None:
                shard += 1
        return found, (shard, start) if shard <= last else None

    async def _held(self, shard: int, topics: Sequence[bytes]) -> list[RetainWrite]:
        if not topics:
            return []
        (messages,) = self._keys.retained(shard, b"m")
        (blobs,) = await self._reader.execute(("HMGET", messages, *topics))
        return [codec.retained_of(blob) for blob in blobs if blob]


def _choose(topics: Sequence[bytes], begin: bytes, look: Look, limit: int) -> tuple[list[bytes], bytes | None]:
    """The matching topics of a page, and where to continue; ``None`` if there are no more."""
    matching: list[bytes] = []
    before = b""
    for topic in topics:
        if topic < before:
            continue
        if len(matching) >= limit:
            return matching, b"[" + topic
        fits, beyond = look(topic)
        if fits:
            matching.append(topic)
        if beyond is not None:
            before = beyond
    if len(topics) < PAGE or before == END:
        return matching, None
    return matching, b"[" + before if before > topics[-1] else b"(" + topics[-1]


def shard_counters(answers: Sequence[Any]) -> list[tuple[int, int, bytes | None]]:
    """Counts, bytes and newest versions of all shards from the answers to HMGET."""
    return [(int(count or 0), int(size_bytes or 0), newest) for count, size_bytes, newest in answers]
