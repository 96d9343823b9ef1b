"""Commits what other nodes have sent, within this node's limits, and notes what is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.retained_sync.index import VersionIndex
from kinmqtt.broker.retained_sync.source import Source, is_of
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.retain import RetainWrite

if TYPE_CHECKING:
    from kinmqtt.broker.routing.retained import Retained

log = Logger("kinmqtt.retained")

LOG_S: Final = 60.0
"""The least time between two lines about refused messages: an exchange may refuse thousands."""

MAX_AHEAD_S: Final = 60.0
"""A version so much ahead of this node's clock is reported: what it belongs to may win for as long."""

MOST_AHEAD_S: Final = 10 * 365 * 86_400.0
"""A version that is farther ahead of this node's clock is refused."""


class Intake:
    """Takes writes of this node and of others into the store and the index."""

    def __init__(self, runtime: Runtime, retained: Retained, index: VersionIndex, source: Source) -> None:
        self._runtime = runtime
        self._retained = retained
        self._index = index
        self._source = source
        self._unlogged = 0
        """Refusals that no line has counted yet."""
        self._refusals = Pace(runtime.clock, LOG_S)
        self._times = Pace(runtime.clock, LOG_S)

    # Other nodes' writes

    async def accept(self, writes: Sequence[RetainWrite]) -> int:
        """Commit the writes that are newer than what is here; returns how many messages the limits forbid.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if a store does not commit them, or can't be read.
        """
        runtime = self._runtime
        slices, turn = runtime.slices, runtime.turn
        failed = turn.recovery.failed
        refused = 0
        taken: list[RetainWrite] = []
        for write in writes:
            if slices.is_over():
                await slices.turn()
            message, version = write.message, write.version
            if self._retained.is_of_node(message.topic):
                continue
            if version.received_at - runtime.clock.now() > MOST_AHEAD_S:
                # It would win for ever, and this node's own versions would have to be above it.
                refused += 1
                continue
            self._note_time(version.received_at)
            if not self._index.is_newer(message.topic, version, not message.payload, runtime.clock.now()):
                continue
            if message.payload:
                is_full: bool = await resolve(self._retained.lacks_capacity(message))
                if is_full:
                    refused += 1
                    continue
            self._retained.put_foreign(write)
            taken.append(write)
        if refused:
            self._count_refused(refused)
        if not taken:
            return refused
        try:
            await turn.committed()
            if turn.recovery.failed != failed:  # One of the turns in between may have had a part of them.
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
        except CommitFailed as error:
            await self.check(taken)
            raise ServiceUnavailable("the retain store did not commit the messages", error.reason) from error
        self.note(taken)
        statistics = runtime.statistics
        statistics.retained_from_nodes.value += len(taken)
        return refused

    def _note_time(self, received_at: float) -> None:
        self._retained.versions.observe(received_at)
        ahead_s = received_at - self._runtime.clock.now()
        if ahead_s > MAX_AHEAD_S and self._times.due() is not None:
            text = "a retained message of another node is from {ahead_s:.0f} s ahead of this node's clock"
            log.warn(text, ahead_s=ahead_s)

    def _count_refused(self, refused: int) -> None:
        self._runtime.statistics.retained_refused.value += refused
        self._unlogged += refused
        if self._refusals.due() is not None:
            count, self._unlogged = self._unlogged, 0
            text = (
                "{count} retained messages of other nodes are refused: limits.max_retained_messages, "
                "max_retained_bytes or user_share; clients of this node do not get them"
            )
            log.warn(text, count=count)

    # This node's

    def when_committed(self, writes: list[RetainWrite], spread: Callable[[Sequence[RetainWrite]], object]) -> None:
        """Note the writes of this turn when they are committed, and ``spread`` them then."""

        def committed() -> None:
            self.note(writes)
            spread(writes)

        batch = self._runtime.turn.batch
        batch.after_commit.append(committed)
        batch.on_commit_failed.append(lambda reason: self._check_later(writes))

    def note(self, writes: Sequence[RetainWrite]) -> None:
        """Note writes that are committed."""
        now = self._runtime.clock.now()
        for write in writes:
            self._index.take(write.message.topic, write.version, not write.message.payload, now)

    def _check_later(self, writes: Sequence[RetainWrite]) -> None:
        run(self.check(writes)).addErrback(partial(log.failure, "retained messages could not be compared"))

    async def check(self, writes: Sequence[RetainWrite]) -> None:
        """Note those writes of a failed commit that the store has all the same."""
        for write in writes:
            try:
                message = await self._source.stored(write.message.topic)
            except ServiceUnavailable:
                return  # Nothing is known of it; the next start reads the store.
            if write.message.payload:
                if message is not None and is_of(message, write.version):
                    self.note([write])
            elif message is None:
                self.note([write])
