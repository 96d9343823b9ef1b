"""Sends the writes of this node to another one, soon after their commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.retained_sync.pages import TOPICS_AT_ONCE, write_writes
from kinmqtt.broker.retained_sync.source import Source
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.values import NodeIdentity

log = Logger("kinmqtt.retained")

WRITES: Final = "retained_writes"
"""The question that brings writes; the answer says how many messages the node refuses."""

ANSWER_LIMIT_S: Final = 5.0
"""How long a node may take to commit a page, or to answer one. A later exchange brings what it did not get."""

MAX_WAITING: Final = 20_000
"""The most topics that wait for one node; more are left to an exchange."""

MAX_WAITING_BYTES: Final = 4 << 20
"""The limit of the sizes of their names."""


class Spreading:
    """The topics that one node is to get. Of a topic that is written again meanwhile, the newest message is sent."""

    def __init__(
        self, node: NodeIdentity, backend: ClusterBackend, source: Source, behind: Callable[[NodeIdentity], object]
    ) -> None:
        """``behind`` is called when the node may lack some of it: then an exchange must bring it."""
        self._node = node
        self._backend = backend
        self._source = source
        self._behind = behind
        self._waiting: dict[str, None] = {}
        self._waiting_bytes = 0
        self._is_sending = False

    def add(self, topics: Iterable[str]) -> None:
        """Send the newest writes of some topics."""
        for topic in topics:
            if topic in self._waiting:
                continue
            size_bytes = text_bytes(topic)
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
                self._give_up()
                return
            self._waiting[topic] = None
            self._waiting_bytes += size_bytes
        if self._waiting and not self._is_sending:
            self._is_sending = True
            run(self._send()).addErrback(
                lambda failure: log.failure("{node} gets no retained messages", failure, node=self._node.name)
            )

    def _give_up(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._behind(self._node)

    def _taken(self) -> list[str]:
        """Take topics out of those that wait. Before they are read: one that is written then must come again."""
        topics = list(islice(self._waiting, TOPICS_AT_ONCE))
        for topic in topics:
            del self._waiting[topic]
            self._waiting_bytes -= text_bytes(topic)
        return topics

    def _put_back(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic not in self._waiting:
                self._waiting[topic] = None
                self._waiting_bytes += text_bytes(topic)

    async def _send(self) -> None:
        try:
            while self._waiting:
                topics = self._taken()
                handled, writes = await self._source.page(topics)
                if writes:
                    await send_writes(self._backend, self._node, writes)
                self._put_back(topics[handled:])
        except NodeGone:
            self._waiting.clear()
            self._waiting_bytes = 0
        except ServiceUnavailable as error:
            log.debug("node {node} did not take retained messages: {error}", node=self._node.name, error=error)
            self._give_up()
        finally:
            self._is_sending = False


async def send_writes(backend: ClusterBackend, node: NodeIdentity, writes: list[bytes]) -> int:
    """Send a page of writes; returns how many messages the node refuses, when it has committed the others.

    Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` and :class:`~kinmqtt_spi.errors.NodeGone`.
    """
    answer = await resolve(backend.ask(node, WRITES, write_writes(writes), ANSWER_LIMIT_S))
    return int.from_bytes(answer[:4], "big")
