"""An exchange: two nodes bring each other to the newest versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt.broker.retained_sync.comparison import compare, next_request
from kinmqtt.broker.retained_sync.index import VersionIndex
from kinmqtt.broker.retained_sync.intake import Intake
from kinmqtt.broker.retained_sync.pages import (
    TOPICS_AT_ONCE,
    Section,
    deletion,
    read_answer,
    read_list,
    read_table,
    write_request,
    write_root,
    write_topics,
)
from kinmqtt.broker.retained_sync.source import Source
from kinmqtt.broker.retained_sync.spreading import ANSWER_LIMIT_S, send_writes
from kinmqtt.hooks.awaitables import resolve
from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.values import NodeIdentity

DIGEST: Final = "retained_digest"
LIST: Final = "retained_list"
FETCH: Final = "retained_fetch"
"""The questions of an exchange."""


class Exchange:
    """One exchange with one node. It asks for the other's digest, and for lists of the buckets that differ.

    Then it fetches what is newer there, and sends what is newer here.
    """

    def __init__(
        self,
        backend: ClusterBackend,
        node: NodeIdentity,
        index: VersionIndex,
        source: Source,
        intake: Intake,
        clock: Clock,
    ) -> None:
        self._backend = backend
        self._node = node
        self._index = index
        self._source = source
        self._intake = intake
        self._clock = clock
        self.refused = 0
        """Messages that the limits of one of the nodes forbid: it has no more than it can hold."""
        self._is_full_here = False
        self._is_full_there = False

    async def run(self) -> bool:
        """Exchange everything; returns whether there was anything to exchange.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if one of the nodes can't go on,
        :class:`~kinmqtt_spi.errors.NodeGone`, and :class:`~kinmqtt_spi.errors.MalformedBatch` for a wrong answer.
        """
        answer = await self._ask(DIGEST, write_root(self._index.root()))
        if not answer:
            return False
        buckets: Sequence[int] = self._index.differing(read_table(answer))
        after = ""
        while buckets:
            sections = read_list(await self._ask(LIST, write_request(buckets, after)))
            begins = after
            buckets, after = next_request(buckets, after, sections)
            await self._settle(sections, begins)
        return True

    async def _settle(self, sections: Sequence[Section], after: str) -> None:
        """Fetch and send what differs in some sections; the first one begins behind the topic ``after``."""
        wanted: list[str] = []
        offered: list[str] = []
        now = self._clock.now()
        for section in sections:
            found = compare(self._index, section, after, now)
            after = ""
            if found.deleted:
                await self._intake.accept([deletion(each.topic, each.version, now) for each in found.deleted])
            wanted += found.wanted
            offered += found.offered
        await self._fetch(wanted)
        await self._send(offered)

    async def _fetch(self, topics: list[str]) -> None:
        at = 0
        while at < len(topics) and not self._is_full_here:
            asked = topics[at : at + TOPICS_AT_ONCE]
            answer = await self._ask(FETCH, write_topics(asked))
            handled, writes = read_answer(answer, self._clock.now())
            if not 0 < handled <= len(asked):
                raise MalformedBatch(f"an answer that deals with {handled} of {len(asked)} topics")
            at += handled
            refused = await self._intake.accept(writes)
            if refused:
                self.refused += refused
                self._is_full_here = True

    async def _send(self, topics: list[str]) -> None:
        at = 0
        while at < len(topics):
            handled, writes = await self._source.page(topics[at : at + TOPICS_AT_ONCE])
            at += handled
            if not writes or (self._is_full_there and not self._has_deletion(topics[at - handled : at])):
                continue
            refused = await send_writes(self._backend, self._node, writes)
            if refused:
                self.refused += refused
                self._is_full_there = True

    def _has_deletion(self, topics: Sequence[str]) -> bool:
        return any(self._index.is_deleted(topic) for topic in topics)

    async def _ask(self, question: str, data: bytes) -> bytes:
        return await resolve(self._backend.ask(self._node, question, data, ANSWER_LIMIT_S))
