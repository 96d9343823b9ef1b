"""What a turn does where a store did not commit: writes that are retried, and who is notified of what failed."""

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

log = Logger("kinmqtt.turn")

ALWAYS_RETRIED: Final = (ClearWill, DiscardSession, ReleaseSession, RemoveSubscriptions, Purge)
"""Writes of what has happened whether it was kept or not: they are handed over again until they are kept."""

ELSEWHERE: Final = ReasonCode.USE_ANOTHER_SERVER
"""Why a publisher is sent away whose message was meant for a session that another broker owns by now."""

RETRIED_AT_ONCE: Final = 1000
"""Clients of whom something is handed over again in one turn, besides those of whom the turn writes anyway."""


CommitFailedHandler = Callable[[str, Sequence[QueueWrite], ReasonCode, bool], None]


class CommitFailed(Exception):
    """A store did not keep what a turn wanted kept."""

    def __init__(self, reason: ReasonCode) -> None:
        super().__init__("a store did not keep it")
        self.reason = reason


class Recovery:
    """The writes that await a retry, by client, and the callbacks for what failed for good."""

    __slots__ = ("_awaiting", "_on_commit_failed", "_on_fenced", "_on_unopened", "_stores")

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._awaiting: dict[str, RetryWrites] = {}
        """By client id: they go with later turns' writes, before them."""
        self._on_fenced: Callable[[str, int], None] = lambda client_id, epoch: None
        self._on_unopened: Callable[[str, int, ReasonCode], None] = lambda client_id, epoch, reason: None
        self._on_commit_failed: CommitFailedHandler = lambda client_id, writes, reason, certain: None

    def when_fenced(self, call: Callable[[str, int], None]) -> None:
        """Have ``call`` told the client id of each session that a newer owner holds than that of the epoch told."""
        self._on_fenced = call

    def when_commit_failed(self, call: CommitFailedHandler, unopened: Callable[[str, int, ReasonCode], None]) -> None:
        """Have ``call`` told each client id whose queue writes were not committed, these writes, why they were not,
        and whether that is certain: a store that answers late may have committed them all the same.

        ``unopened`` is told of each session that was to begin: its client id and epoch.
        """
        self._on_commit_failed = call
        self._on_unopened = unopened

    @property
    def is_empty(self) -> bool:
        """Whether no write awaits a retry."""
        return not self._awaiting

    def awaits_retry(self, client_id: str, *, queue_only: bool = False) -> bool:
        """Whether a write of a client awaits a retry, to the queue store or to any."""
        awaiting = self._awaiting.get(client_id)
        return awaiting is not None and (bool(awaiting.queue) or not queue_only)

    def add_retries(self, batch: Batch, client_id: str | None) -> None:
        """Put writes that await a retry before those of a batch: of one client, or of its clients and of others."""
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
        """Keep the writes of a batch that must be made although it failed, until a later turn retries them."""
        tied = batch.tied
        queue: list[QueueWrite] = [w for w in batch.queue if isinstance(w, ALWAYS_RETRIED) and w not in tied]
        if not batch.refused and self._stores.queue.transaction not in batch.failed:
            # It has kept that they were taken over, and another store has not kept the rest: better twice than never.
            queue += [InboundClose(*write) for write in batch.queue if isinstance(write, InboundOpen)]
        for write in queue:
            self._awaiting.setdefault(write.client_id, RetryWrites()).queue.append(write)
        for change in batch.sessions:
            if isinstance(change, ALWAYS_RETRIED) and change not in tied:
                self._awaiting.setdefault(change.client_id, RetryWrites()).sessions.append(change)

    def notify_fenced(self, batch: Batch) -> None:
        """Tell of the sessions that a newer owner holds, and have what was meant for them be sent again.

        Whoever published it is not acknowledged: it comes back, and where it does so the newer owner may be.
        """
        for client_id in batch.fenced:
            epochs = [write.epoch for write in (*batch.queue, *batch.sessions) if write.client_id == client_id]
            # Which write was refused is not told. Of one that was handed over again the client may have been claimed
            # here since, under a later epoch: that nobody has taken away.
            epoch = min(epochs, default=0) if client_id in batch.retried_clients else max(epochs, default=0)
            attempt(partial(self._on_fenced, client_id, epoch))
        if batch.failure is not None:
            return  # Nobody is acknowledged anyway.
        publishers = self._forget_refused(batch)
        if not publishers:
            return
        for connection in batch.unfinished_publishers:
            if connection.is_of(publishers):
                attempt(partial(connection.withhold_acknowledgement, ELSEWHERE))
        acknowledgements, batch.acknowledgements = batch.acknowledgements, []
        for connection, packet in acknowledgements:
            if connection.is_of(publishers):
                attempt(partial(connection.withhold_acknowledgement, ELSEWHERE))
            else:
                batch.acknowledgements.append((connection, packet))
        taken_over: dict[str, list[QueueWrite]] = {}
        for write in batch.queue:
            if isinstance(write, InboundOpen) and write.client_id in publishers:
                # What says that it was taken over must go, or the message that is sent again counts as a repetition.
                taken_over.setdefault(write.client_id, []).append(write)
                if write.client_id not in batch.fenced:
                    self._awaiting.setdefault(write.client_id, RetryWrites()).queue.append(InboundClose(*write))
        for client_id, writes in taken_over.items():
            attempt(partial(self._on_commit_failed, client_id, writes, ELSEWHERE, False))

    def _forget_refused(self, batch: Batch) -> set[str]:
        """Have the messages for sessions that a newer owner holds count as dropped; answers who published them."""
        refused: dict[str, list[QueueWrite]] = {}
        publishers: set[str] = set()
        for write in batch.queue:
            if isinstance(write, Append) and write.client_id in batch.fenced:
                refused.setdefault(write.client_id, []).append(write)
                publishers.add(write.entry.message.publisher.client_id)
        for client_id, writes in refused.items():
            attempt(partial(self._on_commit_failed, client_id, writes, ELSEWHERE, True))
        return publishers

    def notify_failed(self, batch: Batch, error: BaseException) -> None:
        reason = getattr(error, "reason", None)
        if not isinstance(reason, ReasonCode):  # errors of other libraries have one too
            reason = ReasonCode.SERVER_UNAVAILABLE
        self.await_retry(batch)
        for connection in (*batch.unfinished_publishers, *(connection for connection, _ in batch.acknowledgements)):
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
    """Make a call whose failure must not keep others from theirs."""
    try:
        call()
    except Exception:
        log.failure("{call} failed at the end of a turn", call=call)
