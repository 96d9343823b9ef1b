"""Reads from this node's store what other nodes are to get."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.logger import Logger

from kinmqtt.broker.retained_sync.index import VersionIndex
from kinmqtt.broker.retained_sync.pages import MAX_MESSAGE_BYTES, PAGE_BYTES, write_write
from kinmqtt.broker.runtime import Runtime
from kinmqtt.hooks.awaitables import resolve
from kinmqtt_spi.services.retain import RetainVersion
from kinmqtt_spi.values import Message

log = Logger("kinmqtt.retained")


class Source:
    """Writes pages of this node's retained messages and deletions."""

    def __init__(self, runtime: Runtime, index: VersionIndex) -> None:
        self._runtime = runtime
        self._index = index

    async def page(self, topics: Sequence[str]) -> tuple[int, list[bytes]]:
        """Return how many of the topics, from the first on, are dealt with, and the writes of these for a page.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store can't be read.
        """
        writes: list[bytes] = []
        size_bytes = 0
        slices = self._runtime.slices
        handled = 0
        for topic in topics:
            if slices.is_over():
                await slices.turn()
            write = await self._write(topic)
            if write is not None and len(write) <= MAX_MESSAGE_BYTES:
                if writes and size_bytes + len(write) > PAGE_BYTES:
                    break
                writes.append(write)
                size_bytes += len(write)
            handled += 1
        return handled, writes

    async def _write(self, topic: str) -> bytes | None:
        """Return the newest write of a topic; ``None`` if it is being changed, or there is none."""
        version = self._index.version_of(topic)
        if version is None:
            return None
        now = self._runtime.clock.now()
        if self._index.is_deleted(topic):
            return write_write(None, topic, version, now)
        message = await self.stored(topic)
        if message is None or not is_of(message, version):
            return None  # Its writer sends it when it is committed.
        if message.has_expired(now):
            return write_write(None, topic, version, now)
        try:
            return write_write(message, topic, version, now)
        except Exception:
            # A plugin may have made it: one that can't be written must not hold up all others.
            log.failure("the retained message of {topic!r} can't be sent to other nodes", topic=topic)
            return None

    async def stored(self, topic: str) -> Message | None:
        """Return the message that the store has for a topic."""
        page = await resolve(self._runtime.stores.retain.match(topic, None, 1))
        return page.messages[0] if page.messages else None


def is_of(message: Message, version: RetainVersion) -> bool:
    """Whether a message is that of a version: a version has its message's id."""
    return (message.id.node, message.id.counter) == (version.node, version.counter)
