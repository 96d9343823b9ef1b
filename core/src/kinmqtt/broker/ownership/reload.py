"""Loads the state of a client's queue from the queue store, at a claim or after a failed commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import evolve
from twisted.logger import Logger

from kinmqtt.broker.ownership.background import in_background
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import pause, resolve
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append, QueueState, QueueWrite

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.sessions")


class Reload:
    """Loads the state of queues, and restores from it the sessions whose writes were not committed."""

    def __init__(self, runtime: Runtime, registry: Registry) -> None:
        self._runtime = runtime
        self._registry = registry
        self._pending: set[str] = set()
        """Clients whose sessions differ from the queue store, until they are restored from it."""

    def start(self, session: Session) -> None:
        """Restore a session from the queue store, in the background and until it succeeds."""
        client_id = session.client_id
        if client_id not in self._pending:
            self._pending.add(client_id)
            in_background(self._reload(session), client_id)

    async def complete(self, session: Session) -> None:
        """Restore a session now if :meth:`start` has not done so yet; the caller holds the lock of the client id.

        Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed` while writes of the client wait for a retry.
        """
        client_id = session.client_id
        if client_id in self._pending:
            session.restore(await self.load(client_id, session.epoch))
            self._pending.discard(client_id)

    async def load(self, client_id: str, epoch: int, patient: bool = False) -> QueueState:
        """Return the state of a queue in the store, with the appends that ``epoch``'s owner has not committed yet.

        The client's writes are paused until the store has answered: otherwise it is unknown whether the answer
        includes them. Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed` while writes of the client wait for
        a retry, and :class:`~kinmqtt_spi.errors.ServiceUnavailable` from the store; a ``patient`` caller waits
        instead.
        """
        turn = self._runtime.turn
        while True:
            try:
                await turn.drained()
                state = await self._load_once(client_id)
            except (CommitFailed, ServiceUnavailable):
                if not patient:
                    raise
                await pause(self._runtime.clock, RETRY_S)
                continue
            complete = _with_appends(state, turn.paused_writes(client_id), epoch)
            if complete is not None:
                return complete

    async def _load_once(self, client_id: str) -> QueueState:
        turn = self._runtime.turn
        try:
            await turn.pause_writes(client_id)
            if turn.recovery.awaits_retry(client_id, queue_only=True):
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
            return await resolve(self._runtime.stores.queue.load(client_id))
        finally:
            turn.resume_writes(client_id)

    async def _reload(self, session: Session) -> None:
        """Retry until the session is restored, here or by a claim of its client id, or is no longer this node's."""
        client_id = session.client_id
        runtime = self._runtime
        async with self._registry.locks.of(client_id):
            logged = False
            try:
                while self._registry.get(client_id) is session and client_id in self._pending:
                    try:
                        state = await self.load(client_id, session.epoch)
                    except CommitFailed:
                        await pause(runtime.clock, RETRY_S)
                    except Exception as error:
                        if not logged:
                            _log_failure(client_id, error)
                        logged = True
                        await pause(runtime.clock, RETRY_S)
                    else:
                        session.restore(state)
                        return
            finally:
                self._pending.discard(client_id)


def _log_failure(client_id: str, error: Exception) -> None:
    if isinstance(error, ServiceUnavailable):
        log.error("the queue of {client_id!r} can't be loaded: {error}", client_id=client_id, error=error)
    else:
        log.failure("the queue of {client_id!r} can't be loaded", client_id=client_id)


def _with_appends(state: QueueState, writes: Sequence[QueueWrite], epoch: int) -> QueueState | None:
    """Return the state after these writes are committed too; ``None`` if that can't be known in advance.

    The store will refuse writes under another epoch; their clients are notified before the session begins.
    """
    queued, size_bytes, last = state.sizes.queued, state.sizes.queued_bytes, state.last_sequence
    for write in writes:
        if not isinstance(write, Append) or write.packet_id is not None or write.epoch != epoch:
            return None
        queued += 1
        size_bytes += write.entry.size_bytes
        last = max(last, write.entry.sequence)
    return evolve(state, sizes=evolve(state.sizes, queued=queued, queued_bytes=size_bytes), last_sequence=last)
