"""What follows a failed commit: writes are tried again, and publishers and sessions are notified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from twisted.logger import Logger

from kinmqtt.broker.turn.batch import Batch, RetryWrites, Stores
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append, InboundClose, InboundOpen, Purge, QueueWrite
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
)
from kinmqtt_spi.values import Message

log = Logger("kinmqtt.turn")

ALWAYS_RETRIED: Final = (ClearWill, DiscardSession, ReleaseSession, RemoveSubscriptions, Purge)
"""Writes of facts that no failure undoes: they are retried until they are committed."""

ELSEWHERE: Final = ReasonCode.USE_ANOTHER_SERVER
"""The reason to disconnect a publisher whose message was for a session that another broker owns now."""

RETRIED_AT_ONCE: Final = 1000
"""Clients whose writes are retried in one turn, besides those with other writes in it."""


CommitFailedHandler = Callable[[str, Sequence[QueueWrite], ReasonCode, bool], None]


class CommitFailed(Exception):
    """Raised if a store failed to commit a turn's writes."""

    def __init__(self, reason: ReasonCode) -> None:
        super().__init__("a store did not commit it")
        self.reason = reason


class WriteRecovery:
    """Holds the writes that await a retry, and the callbacks for failed commits."""

    __slots__ = ("_awaiting", "_on_commit_failed", "_on_fenced", "_on_moved", "_on_unopened", "_stores", "failed")

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.failed = 0
        """The number of batches that were not committed."""
        self._awaiting: dict[str, RetryWrites] = {}
        """By client id; added to later turns' writes, before them."""
        self._on_fenced: Callable[[str, int], None] = lambda client_id, epoch: None
        self._on_moved: Callable[[str, Message], None] = lambda client_id, message: None
        self._on_unopened: Callable[[str, int, ReasonCode], None] = lambda client_id, epoch, reason: None
        self._on_commit_failed: CommitFailedHandler = lambda client_id, writes, reason, certain: None

    def when_fenced(self, call: Callable[[str, int], None]) -> None:
        """Call ``call`` with client id and epoch for each session that an owner of a later epoch holds."""
        self._on_fenced = call

    def when_moved(self, call: Callable[[str, Message], None]) -> None:
        """Call ``call`` with each message that a session's later owner lacks, and that nobody will send again."""
        self._on_moved = call

    def when_commit_failed(self, call: CommitFailedHandler, unopened: Callable[[str, int, ReasonCode], None]) -> None:
        """Set the callbacks for failed commits.

        ``call`` gets each client id with its failed queue writes, the reason, and whether the failure is certain: a
        store that failed late may still have committed. ``unopened`` gets client id, epoch and reason of each session
        that failed to open.
        """
        self._on_commit_failed = call
        self._on_unopened = unopened

    @property
    def is_empty(self) -> bool:
        """Whether no write awaits a retry."""
        return not self._awaiting

    def awaits_retry(self, client_id: str, *, queue_only: bool = False) -> bool:
        """Whether a write of a client awaits a retry; with ``queue_only``, one to the queue store."""
        awaiting = self._awaiting.get(client_id)
        return awaiting is not None and (bool(awaiting.queue) or not queue_only)

    def add_retries(self, batch: Batch, client_id: str | None) -> None:
        """Insert retries before a batch's writes: of its clients, and of ``client_id`` or, if ``None``, of others."""
        if client_id is None:
            clients = {write.client_id for write in (*batch.queue, *batch.sessions)}
            clients.update(islice(self._awaiting, RETRIED_AT_ONCE))
        else:
            clients = {client_id, *(write.client_id for write in (*batch.queue, *batch.sessions))}
        clients &= self._awaiting.keys()
        taken = [self._awaiting.pop(client_id) for client_id in clients]
        batch.retried_clients |= clients
        batch.queue[:0] = [write for owed in taken for write in owed.queue]
        batch.sessions[:0] = [write for owed in taken for write in owed.sessions]

    def await_retry(self, batch: Batch) -> None:
        """Hold the mandatory writes of a failed batch until a later turn retries them."""
        tied = batch.tied
        queue: list[QueueWrite] = [w for w in batch.queue if isinstance(w, ALWAYS_RETRIED) and w not in tied]
        if not batch.refused and self._stores.queue.transaction not in batch.failed:
            # The queue store has committed the acceptance and another store failed: better twice than never.
            queue += [InboundClose(*write[:3]) for write in batch.queue if isinstance(write, InboundOpen)]
        for write in queue:
            self._awaiting.setdefault(write.client_id, RetryWrites()).queue.append(write)
        for change in batch.sessions:
            if isinstance(change, ALWAYS_RETRIED) and change not in tied:
                self._awaiting.setdefault(change.client_id, RetryWrites()).sessions.append(change)

    def notify_fenced(self, batch: Batch) -> None:
        """Report sessions that a later owner holds, and have messages for them published again.

        Their publishers are disconnected without acknowledgement and then send the messages again, maybe to the
        broker of the later owner.
        """
        for client_id in batch.fenced:
            epochs = [write.epoch for write in (*batch.queue, *batch.sessions) if write.client_id == client_id]
            # The store does not say which write it refused. If that was a retry, this node may have claimed the
            # client again since, under a later epoch that is still valid.
            epoch = min(epochs, default=0) if client_id in batch.retried_clients else max(epochs, default=0)
            attempt(partial(self._on_fenced, client_id, epoch))
        if batch.failure is not None:
            return  # Nothing is acknowledged anyway.
        publishers = self._forget_refused(batch)
        if not publishers:
            return
        self._report_moved(batch, publishers)
        for connection in batch.unfinished_publishers:
            if connection.is_of(publishers):
                attempt(partial(connection.withhold_acknowledgement, ELSEWHERE))
        acknowledgements, batch.acknowledgements = batch.acknowledgements, []
        for acknowledgement in acknowledgements:
            connection = acknowledgement[0]
            if connection.is_of(publishers):
                attempt(partial(connection.withhold_acknowledgement, ELSEWHERE))
            else:
                batch.acknowledgements.append(acknowledgement)
        taken_over: dict[str, list[QueueWrite]] = {}
        for write in batch.queue:
            if isinstance(write, InboundOpen) and write.client_id in publishers:
                taken_over.setdefault(write.client_id, []).append(write)
                if write.message is None and write.client_id not in batch.fenced:
                    # Remove the record of acceptance, or the message sent again would count as a duplicate.
                    self._awaiting.setdefault(write.client_id, RetryWrites()).queue.append(InboundClose(*write[:3]))
        for client_id, writes in taken_over.items():
            attempt(partial(self._on_commit_failed, client_id, writes, ELSEWHERE, False))

    def _report_moved(self, batch: Batch, publishers: set[str]) -> None:
        """Report messages for sessions of later owners that no connected publisher will send again."""
        told = {
            client_id
            for client_id in publishers
            if any(each.is_of({client_id}) for each in batch.unfinished_publishers)
            or any(each[0].is_of({client_id}) for each in batch.acknowledgements)
        }
        for write in batch.queue:
            if isinstance(write, Append) and write.client_id in batch.fenced:
                message = write.entry.message
                if batch.followed is not None and message.id in batch.followed:
                    continue
                if message.publisher.client_id not in told:
                    attempt(partial(self._on_moved, write.client_id, message))

    def _forget_refused(self, batch: Batch) -> set[str]:
        """Count messages for sessions of later owners as dropped; returns the client ids of their publishers.

        Messages that are sent after these sessions anyway are left out.
        """
        refused: dict[str, list[QueueWrite]] = {}
        publishers: set[str] = set()
        for write in batch.queue:
            if isinstance(write, Append) and write.client_id in batch.fenced:
                if batch.followed is not None and write.entry.message.id in batch.followed:
                    continue
                refused.setdefault(write.client_id, []).append(write)
                publishers.add(write.entry.message.publisher.client_id)
        for client_id, writes in refused.items():
            attempt(partial(self._on_commit_failed, client_id, writes, ELSEWHERE, True))
        return publishers

    def notify_failed(self, batch: Batch, error: BaseException) -> None:
        """Schedule retries of a failed batch, disconnect its publishers, and run its failure callbacks."""
        reason = getattr(error, "reason", None)
        if not isinstance(reason, ReasonCode):  # Errors of other libraries may have a reason too.
            reason = ReasonCode.SERVER_UNAVAILABLE
        self.failed += 1
        self.await_retry(batch)
        acknowledged = (connection for connection, _, _ in batch.acknowledgements)
        for connection in (*batch.unfinished_publishers, *acknowledged):
            attempt(partial(connection.withhold_acknowledgement, reason))
        failed: dict[str, list[QueueWrite]] = {}
        for write in batch.queue:
            failed.setdefault(write.client_id, []).append(write)
        for opened in batch.sessions:
            if isinstance(opened, OpenSession):
                attempt(partial(self._on_unopened, opened.client_id, opened.epoch, reason))
        for client_id, writes in failed.items():
            attempt(partial(self._on_commit_failed, client_id, writes, reason, batch.refused))
        for call in batch.on_commit_failed:
            attempt(partial(call, reason))


def attempt(call: Callable[[], object]) -> None:
    """Make a call and log its exception, so that later calls are made."""
    try:
        call()
    except Exception:
        log.failure("{call} failed at the end of a turn", call=call)
