"""One reactor turn: what is gathered in it, committed together, and only then told to anybody.

Every entry into the broker (a read, a timer, a plugin's publish) calls :meth:`Turn.touch`. When the turn ends, its
writes go to each store in one batch. What depends on them, acknowledgements and deliveries of kept sessions, waits
for the commits; batches are released in the order in which they were made, so acknowledgements keep theirs
(MQTT-4.6.0-2). Then each connection that has something to send gets one write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.awaiting import as_deferred
from kinmqtt.broker.outbox import Outbox
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import Event, EventLog
from kinmqtt_spi.services.queue import Purge, QueueStore, QueueWrite
from kinmqtt_spi.services.retain import RetainStore, RetainWrite
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    SessionStore,
    SessionWrite,
)
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit

if TYPE_CHECKING:
    from kinmqtt.broker.connection import Connection
    from kinmqtt.broker.delivery import Delivery
    from kinmqtt.broker.session import Session

log = Logger("kinmqtt.turn")

STANDING: Final = (ClearWill, DiscardSession, ReleaseSession, RemoveSubscriptions, Purge)
"""Writes of what has happened whether it was kept or not: they are handed over again until they are kept."""


Unkept = Callable[[str, Sequence[QueueWrite], ReasonCode, bool], None]


class NotKept(Exception):
    """A store did not keep what a turn wanted kept."""

    def __init__(self, reason: ReasonCode) -> None:
        super().__init__("a store did not keep it")
        self.reason = reason


@define(slots=True)
class Batch:
    """What one turn wants kept, and what waits for it."""

    queue: list[QueueWrite] = field(factory=list)
    sessions: list[SessionWrite] = field(factory=list)
    retain: list[RetainWrite] = field(factory=list)
    events: list[Event] = field(factory=list)
    acknowledgements: list[tuple[Connection, bytes]] = field(factory=list)
    sends: list[tuple[Session, int, Delivery]] = field(factory=list)
    queued: list[Session] = field(factory=list)
    """Kept sessions in whose queue something more waits."""
    afterwards: list[Callable[[], object]] = field(factory=list)
    """Called when everything is kept."""
    otherwise: list[Callable[[ReasonCode], object]] = field(factory=list)
    """Called when something could not be kept."""
    waiting: int = 0
    """Commits that have not fired."""
    late: bool = False
    """Whether any commit had to be waited for: until then a read did not show what was queued."""
    failure: BaseException | None = None
    ahead: BaseException | None = None
    """Why something ahead of it was not kept: then it must not be either."""
    given_back: bool = False
    """Whether what must be kept of it has been put aside for another turn."""
    promises: bool = False
    """Whether anything of it was promised to anybody: not events alone, nor what is handed over again."""
    refused: bool = False
    """Whether it is certain that nothing was kept in the queue store."""
    fenced: set[str] = field(factory=set)
    again: set[str] = field(factory=set)
    """Clients of whom something is written that an earlier turn could not have kept."""
    tied: set[QueueWrite | SessionWrite] = field(factory=set)
    """Writes that may be kept with this turn's others only: who made them makes all of them again."""


@define(slots=True)
class Stores:
    """The services a turn commits to."""

    queue: QueueStore
    session: SessionStore
    retain: RetainStore
    event: EventLog


class Turn:
    """The current turn and those whose commits are under way."""

    __slots__ = (
        "_call_soon",
        "_failing",
        "_on_fenced",
        "_on_unkept",
        "_on_unopened",
        "_owed_queue",
        "_owed_sessions",
        "_retries",
        "_scheduled",
        "_stores",
        "_under_way",
        "batch",
        "dirty",
        "pump",
    )

    def __init__(self, stores: Stores, call_soon: Callable[[Callable[[], object]], object]) -> None:
        """``call_soon`` makes a call in the next reactor turn, before new input is read."""
        self._stores = stores
        self._call_soon = call_soon
        self._scheduled = False
        self._retries = False
        self._failing = False
        """Whether the last that was to be kept was not."""
        self._under_way: deque[Batch] = deque()
        self._on_fenced: Callable[[str], None] = lambda client_id: None
        self._on_unopened: Callable[[str, int, ReasonCode], None] = lambda client_id, epoch, reason: None
        self._on_unkept: Unkept = lambda client_id, writes, reason, certain: None
        self._owed_queue: list[QueueWrite] = []
        self._owed_sessions: list[SessionWrite] = []
        """What must still be kept of turns that were not; they go with the next turn's writes, before them."""
        self.batch = Batch()
        self.dirty: list[Outbox] = []
        """Outboxes that were empty before this turn."""
        self.pump: list[Session] = []
        """Sessions that may have room for what waits in their queue."""

    def when_fenced(self, call: Callable[[str], None]) -> None:
        """Have ``call`` told the client id of each session that a newer owner holds."""
        self._on_fenced = call

    def when_unkept(self, call: Unkept, unopened: Callable[[str, int, ReasonCode], None]) -> None:
        """Have ``call`` told each client id of whose queue a turn had something to keep, that, why it was not, and
        whether that is certain: a store that answers late may have kept it all the same.

        ``unopened`` is told of each session that was to begin: its client id and epoch.
        """
        self._on_unkept = call
        self._on_unopened = unopened

    def owes(self, client_id: str) -> bool:
        """Whether something of a client must be handed over again."""
        return any(write.client_id == client_id for write in (*self._owed_queue, *self._owed_sessions))

    def retry(self) -> None:
        """Hand over again what an earlier turn could not have kept."""
        if (self._owed_queue or self._owed_sessions) and not self._under_way:
            self._retries = True
            self.touch()

    def touch(self) -> None:
        """Something happens in this turn: see to it that it ends."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.end)

    def acknowledge(self, connection: Connection, packet: bytes) -> None:
        """Send an acknowledgement when everything this turn wants kept is kept."""
        self.batch.acknowledgements.append((connection, packet))

    @property
    def commits_under_way(self) -> int:
        """How many turns wait for a store."""
        return len(self._under_way)

    def end(self) -> None:
        """Commit, release what is committed, and send."""
        self._commit()
        while self.pump or not _is_empty(self.batch):
            self._pump()
            self._commit()
        self._flush()
        self._scheduled = False
        if self.dirty or self.pump or not _is_empty(self.batch):
            self.touch()

    def committed(self) -> Deferred[None]:
        """Fires when everything this turn wants kept is kept; fails with :class:`NotKept` if it is not."""
        done: Deferred[None] = Deferred()
        self.batch.afterwards.append(lambda: done.callback(None))
        self.batch.otherwise.append(lambda reason: done.errback(NotKept(reason)))
        self.touch()
        return done

    def drained(self) -> Deferred[None]:
        """Fires when no commit is under way: for an orderly stop."""
        done: Deferred[None] = Deferred()
        self.batch.afterwards.append(lambda: done.callback(None))
        self.batch.otherwise.append(lambda reason: done.callback(None))
        self.touch()
        return done

    def _pump(self) -> None:
        pumped, self.pump = self.pump, []
        for session in pumped:
            _attempt(session.pump)

    def _commit(self) -> None:
        batch = self.batch
        retries, self._retries = self._retries, False
        if _is_empty(batch) and not retries:
            return
        batch.promises = bool(batch.queue or batch.sessions or batch.retain)
        if self._owed_queue or self._owed_sessions:
            self._take_up_owed()
        self.batch = Batch()
        self._under_way.append(batch)
        batch.waiting = 1
        failed = batch.ahead or next((ahead.failure for ahead in self._under_way if ahead.failure is not None), None)
        if failed is not None:
            # What is written behind a failure would overtake what its clients send again.
            batch.ahead = batch.failure = failed
            batch.refused = True
            self._kept(batch)
            return
        stores = self._stores
        asked: list[Store] = []
        taken = True
        if batch.retain:
            asked.append(stores.retain)
            taken = self._write(batch, lambda: stores.retain.put(batch.retain))
        if batch.sessions and taken:
            asked.append(stores.session)
            taken = self._write(batch, lambda: stores.session.apply(batch.sessions))
        if batch.queue:
            # Last: a QoS 2 identifier that is kept says that all the rest is.
            batch.refused = True
            if taken:
                asked.append(stores.queue)
                batch.refused = not self._write(batch, lambda: stores.queue.apply(batch.queue))
        if batch.events:
            asked.append(stores.event)
            self._write(batch, lambda: stores.event.append(batch.events))
        for store in asked:
            taken = self._write(batch, store.commit)
            if store is stores.queue and not taken:
                batch.refused = True
        self._kept(batch)

    def _take_up_owed(self) -> None:
        batch = self.batch
        batch.again |= {write.client_id for write in (*self._owed_queue, *self._owed_sessions)}
        batch.queue[:0] = self._owed_queue
        batch.sessions[:0] = self._owed_sessions
        self._owed_queue, self._owed_sessions = [], []

    def _write(self, batch: Batch, write: Callable[[], Commit]) -> bool:
        """Hand something over; ``False`` where the store refused it there and then."""
        try:
            commit = write()
        except Fenced as error:
            batch.fenced |= error.client_ids
            return True
        except Exception as error:
            self._not_kept(batch, error)
            return False
        if isinstance(commit, Awaitable):
            batch.waiting += 1
            batch.late = True
            as_deferred(commit).addCallbacks(
                lambda _: self._kept(batch), lambda failure: self._failed_later(batch, failure)
            )
        return True

    def _failed_later(self, batch: Batch, failure: Failure) -> None:
        error: Any = failure.value
        if isinstance(error, Fenced):
            batch.fenced |= error.client_ids
        else:
            self._not_kept(batch, error)
        self._kept(batch)

    def _not_kept(self, batch: Batch, error: BaseException) -> None:
        if not isinstance(error, ServiceUnavailable):
            log.failure("a store did not keep a batch of writes", Failure(error))
        elif not self._failing:
            log.error("a store can't keep what it is given: {error}", error=error)
        self._failing = True
        if batch.promises:
            batch.failure = error
        elif not batch.given_back:
            batch.given_back = True
            # Events, and what is handed over again, are no promise to anybody here: what is alive goes on without.
            self._owe(batch)

    def _kept(self, batch: Batch) -> None:
        batch.waiting -= 1
        late = False
        while self._under_way and not self._under_way[0].waiting:
            self._release(self._under_way.popleft())
            late = True
        if late:
            self.touch()

    def _release(self, batch: Batch) -> None:
        for client_id in batch.fenced - batch.again:
            self._on_fenced(client_id)
        if batch.failure is not None:
            if batch.ahead is None and not _is_empty(self.batch):
                # Gathered in this turn already, by those who are about to be told.
                self.batch.ahead = batch.failure
            self._give_up(batch, batch.failure)
            return
        if batch.promises:
            self._failing = False
        for session, packet_id, delivery in batch.sends:
            try:
                session.transmit(packet_id, delivery)
            except Exception:
                log.failure("a message to {client_id!r} could not be sent", client_id=session.client_id)
        if batch.late:
            for session in batch.queued:
                session.wants_pump()
        for connection, packet in batch.acknowledgements:
            connection.send_acknowledgement(packet)
        for call in batch.afterwards:
            _attempt(call)

    def _give_up(self, batch: Batch, error: BaseException) -> None:
        reason = getattr(error, "reason", ReasonCode.SERVER_UNAVAILABLE)
        self._owe(batch)
        for connection, packet in batch.acknowledgements:
            connection.withhold_acknowledgement(packet, reason)
        unkept: dict[str, list[QueueWrite]] = {}
        for write in batch.queue:
            unkept.setdefault(write.client_id, []).append(write)
        for opened in batch.sessions:
            if isinstance(opened, OpenSession):
                _attempt(partial(self._on_unopened, opened.client_id, opened.epoch, reason))
        for client_id, writes in unkept.items():
            _attempt(partial(self._on_unkept, client_id, writes, reason, batch.refused))
        for call in batch.otherwise:
            _attempt(partial(call, reason))

    def _owe(self, batch: Batch) -> None:
        tied = batch.tied
        self._owed_queue += [w for w in batch.queue if isinstance(w, STANDING) and w not in tied]
        self._owed_sessions += [w for w in batch.sessions if isinstance(w, STANDING) and w not in tied]

    def _flush(self) -> None:
        dirty, self.dirty = self.dirty, []
        for outbox in dirty:
            _attempt(outbox.connection.flush)


def _attempt(call: Callable[[], object]) -> None:
    """Make a call whose failure must not keep others from theirs."""
    try:
        call()
    except Exception:
        log.failure("{call} failed at the end of a turn", call=call)


def _is_empty(batch: Batch) -> bool:
    return not (
        batch.acknowledgements
        or batch.queue
        or batch.sends
        or batch.afterwards
        or batch.sessions
        or batch.retain
        or batch.events
    )
