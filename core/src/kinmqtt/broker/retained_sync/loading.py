"""Reads the versions of everything that this node's store has, once there is another node to compare them with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.retained_sync.index import VersionIndex
from kinmqtt.broker.runtime import Runtime
from kinmqtt.hooks.awaitables import pause, resolve, run
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.retain import RetainContents
from kinmqtt_spi.values import Maybe

if TYPE_CHECKING:
    from kinmqtt.broker.routing.retained import Retained

log = Logger("kinmqtt.retained")

RETRY_S: Final = 2.0
"""The pause after the store could not be read."""


class Loading:
    """Loads the index. Writes that come meanwhile are noted beside it: of two versions the newer one stays."""

    def __init__(self, runtime: Runtime, retained: Retained, index: VersionIndex) -> None:
        self._runtime = runtime
        self._retained = retained
        self._index = index
        self._has_begun = False
        self._is_done = False
        self._is_stopped = False
        self._waiting: list[Deferred[None]] = []

    @property
    def has_begun(self) -> bool:
        """Whether there has been another node to compare with."""
        return self._has_begun

    def begin(self) -> None:
        """Begin to read the store."""
        self._has_begun = True
        run(self._load()).addErrback(partial(log.failure, "the retained messages can't be read"))

    def stop(self) -> None:
        """End it: the broker stops."""
        self._is_stopped = True

    async def done(self) -> None:
        """Wait until the index has everything that the store has.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if there is no other node that this one knows.
        """
        if not self._has_begun:
            raise ServiceUnavailable("this node compares no retained messages with other nodes")
        if not self._is_done:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            await waiting

    async def _load(self) -> None:
        runtime = self._runtime
        # What was written before is not observed: the store must have it before it is read.
        await runtime.turn.drained()
        while not self._is_stopped:
            try:
                await self._read()
                break
            except ServiceUnavailable as error:
                log.error("the retain store can't be read: {error}", error=error)
                await pause(runtime.clock, RETRY_S)
        self._is_done = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:  # Who waited may have given up.
                each.callback(None)

    async def _read(self) -> None:
        store = self._runtime.stores.retain
        for read in (store.deletions, store.iterate):
            await self._read_pages(read)

    async def _read_pages(self, read: Callable[[object], Maybe[RetainContents]]) -> None:
        runtime = self._runtime
        cursor: object = None
        while True:
            contents = await resolve(read(cursor))
            now = runtime.clock.now()
            for write in contents.writes:
                if not self._retained.is_of_node(write.message.topic):
                    self._index.take(write.message.topic, write.version, not write.message.payload, now)
                    self._retained.versions.observe(write.version.received_at)
            cursor = contents.cursor
            if cursor is None:
                return
            if runtime.slices.is_over():
                await runtime.slices.turn()
