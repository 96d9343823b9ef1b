"""Answers what other nodes ask about the retained messages of this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kinmqtt.broker.retained_sync.exchange import DIGEST, FETCH, LIST
from kinmqtt.broker.retained_sync.index import VersionIndex, root_of
from kinmqtt.broker.retained_sync.intake import Intake
from kinmqtt.broker.retained_sync.loading import Loading
from kinmqtt.broker.retained_sync.pages import (
    read_request,
    read_root,
    read_topics,
    read_writes,
    write_answer,
    write_list,
    write_table,
)
from kinmqtt.broker.retained_sync.source import Source
from kinmqtt.broker.retained_sync.spreading import WRITES
from kinmqtt.hooks.awaitables import run
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.values import Maybe, NodeIdentity


class Answers:
    """Answers the questions of exchanges, and takes what other nodes spread."""

    def __init__(self, index: VersionIndex, source: Source, intake: Intake, clock: Clock, loading: Loading) -> None:
        self._index = index
        self._source = source
        self._intake = intake
        self._clock = clock
        self._loading = loading
        self.by_question: Mapping[str, Callable[[NodeIdentity, bytes], Maybe[bytes]]] = {
            DIGEST: lambda origin, data: run(self._digest(data)),
            LIST: lambda origin, data: run(self._list(data)),
            FETCH: lambda origin, data: run(self._fetch(data)),
            WRITES: lambda origin, data: run(self._accept(data)),
        }
        """What answers the questions of other nodes, by name."""

    async def _digest(self, data: bytes) -> bytes:
        root = read_root(data)
        await self._loading.done()
        self._index.forget_old(self._clock.now())
        table = self._index.table()
        return b"" if root_of(table) == root else write_table(table)

    async def _list(self, data: bytes) -> bytes:
        await self._loading.done()
        return write_list(self._index, *read_request(data))

    async def _fetch(self, data: bytes) -> bytes:
        await self._loading.done()
        return write_answer(*await self._source.page(read_topics(data)))

    async def _accept(self, data: bytes) -> bytes:
        await self._loading.done()
        refused = await self._intake.accept(read_writes(data, self._clock.now()))
        return refused.to_bytes(4, "big")
