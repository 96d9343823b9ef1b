"""One reactor turn: what is gathered in it, committed together, and only then told to anybody.

Every entry into the broker (a read, a timer, a plugin's publish) calls :meth:`Turn.touch`. When the turn ends, its
writes go to each store in one batch. What depends on them, acknowledgements and deliveries of kept sessions, waits
for the commits; batches are released in the order in which they were made, so acknowledgements keep theirs
(MQTT-4.6.0-2). Then each connection that has something to send gets one write, in this turn or in one of the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.turn.batch import Batch, Owed, Stores
from kinmqtt.broker.turn.outbox import Outbox
from kinmqtt.broker.turn.slices import Slices
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append, InboundClose, InboundOpen, Purge, QueueWrite
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
)
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit

if TYPE_CHECKING:
    from kinmqtt.broker.turn.ports import Peer, Recipient

log = Logger("kinmqtt.turn")

STANDING: Final = (ClearWill, DiscardSession, ReleaseSession, RemoveSubscriptions, Purge)
"""Writes of what has happened whether it was kept or not: they are handed over again until they are kept."""

ELSEWHERE: Final = ReasonCode.USE_ANOTHER_SERVER
"""Why a publisher is sent away whose message was meant for a session that another broker owns by now."""

OWED_AT_ONCE: Final = 1000
"""Clients of whom something is handed over again in one turn, besides those of whom the turn writes anyway."""

FLUSHED_AT_ONCE: Final = 16
"""Connections that are sent little before the clock is looked at; it is after each that is sent much."""

LITTLE_TURNS: Final = 8
"""Turns in which little is done, before what is done between turns is."""

CommitFailedHandler = Callable[[str, Sequence[QueueWrite], ReasonCode, bool], None]


class CommitFailed(Exception):
    """A store did not keep what a turn wanted kept."""

    def __init__(self, reason: ReasonCode) -> None:
        super().__init__("a store did not keep it")
        self.reason = reason


class Turn:
    """The current turn and those whose commits are under way."""

    __slots__ = (
        "_call_soon",
        "_ends",
        "_failing",
        "_held",
        "_late",
        "_late_small",
        "_loses_events",
        "_monotonic",
        "_observe",
        "_on_fenced",
        "_on_commit_failed",
        "_on_unopened",
        "_owed",
        "_retries",
        "_scheduled",
        "_slices",
        "_stores",
        "_under_way",
        "_when_ended",
        "batch",
        "began_at",
        "dirty",
        "has_large",
        "pump",
    )

    def __init__(
        self, stores: Stores, call_soon: Callable[[Callable[[], object]], object], slices: Slices | None = None
    ) -> None:
        """``call_soon`` makes a call in the next reactor turn, before new input is read.

        What is told of the end of a turn may be long work: then a slice of ``slices`` begins.
        """
        self._stores = stores
        self._slices = slices
        self.has_large = False
        """Whether a packet that many may get, and that is large, goes out with this turn."""
        self._call_soon = call_soon
        self._scheduled = False
        self._retries: bool | str = False
        self._failing = False
        """Whether the last that was to be kept was not."""
        self._loses_events = False
        self._under_way: deque[Batch] = deque()
        self._on_fenced: Callable[[str, int], None] = lambda client_id, epoch: None
        self._on_unopened: Callable[[str, int, ReasonCode], None] = lambda client_id, epoch, reason: None
        self._on_commit_failed: CommitFailedHandler = lambda client_id, writes, reason, certain: None
        self._monotonic: Callable[[], float] | None = None
        self._observe: Callable[[float], object] = lambda seconds: None
        self._owed: dict[str, Owed] = {}
        """What must still be kept of turns that were not, by client id; it goes with later turns' writes, before
        them."""
        self._held: set[str] = set()
        """Clients who are being claimed, or whose queue is being loaded: whether a write of theirs comes before that
        or behind, nobody knows."""
        self.batch = Batch()
        self.began_at = 0.0
        """When somebody first asked for the time in this turn, in seconds since the epoch; 0 before."""
        self.dirty: list[Outbox] = []
        """Outboxes that were empty before this turn."""
        self._ends = 0
        self._when_ended: Callable[[], object] | None = None
        self._late: list[Outbox] = []
        """Those of earlier turns that there was no time for and that get much; the oldest first."""
        self._late_small: list[Outbox] = []
        """The same of those that get little."""
        self.pump: list[Recipient] = []
        """Sessions that may have room for what waits in their queue."""

    def when_fenced(self, call: Callable[[str, int], None]) -> None:
        """Have ``call`` told the client id of each session that a newer owner holds than that of the epoch told."""
        self._on_fenced = call

    def when_commit_failed(self, call: CommitFailedHandler, unopened: Callable[[str, int, ReasonCode], None]) -> None:
        """Have ``call`` told each client id of whose queue a turn had something to keep, that, why it was not, and
        whether that is certain: a store that answers late may have kept it all the same.

        ``unopened`` is told of each session that was to begin: its client id and epoch.
        """
        self._on_commit_failed = call
        self._on_unopened = unopened

    def when_ended(self, call: Callable[[], object]) -> None:
        """Have a call made between turns: after each that is long, and after some of the others."""
        self._when_ended = call

    def measure(self, monotonic: Callable[[], float], observe: Callable[[float], object]) -> None:
        """Have ``observe`` told how many seconds each turn waits until what it wants kept is kept, by this clock."""
        self._monotonic = monotonic
        self._observe = observe

    def owes(self, client_id: str, *, queue_only: bool = False) -> bool:
        """Whether something of a client must be handed over again, to the queue store or to any."""
        owed = self._owed.get(client_id)
        return owed is not None and (bool(owed.queue) or not queue_only)

    async def hold(self, client_id: str) -> None:
        """What is written of a client from now on waits, until :meth:`go_on`; what is on its way is waited for."""
        self._held.add(client_id)
        for batch in tuple(self._under_way):
            if any(write.client_id == client_id for write in (*batch.queue, *batch.sessions)):
                await self._released(batch)

    def held(self, client_id: str) -> list[QueueWrite]:
        """What waits for :meth:`go_on` to go to a client's queue."""
        return [write for write in self.batch.queue if write.client_id == client_id]

    def writes_for(self, client_id: str) -> bool:
        """Whether something is on its way to the queue store that concerns a client, or is to go there."""
        return any(write.client_id == client_id for batch in (self.batch, *self._under_way) for write in batch.queue)

    def _released(self, batch: Batch) -> Deferred[None]:
        """Fires when a batch that is under way is not any more, whatever became of it."""
        done: Deferred[None] = Deferred()
        if batch in self._under_way:
            batch.afterwards.append(lambda: done.callback(None))
            batch.otherwise.append(lambda reason: done.callback(None))
        else:
            done.callback(None)
        return done

    def go_on(self, client_id: str, epochs: tuple[int, int] | None = None) -> None:
        """What waited goes on; under the second of two epochs where it was under the first."""
        self._held.discard(client_id)
        if self.batch.is_empty:
            return
        if epochs is not None:
            self.batch.restamp(client_id, *epochs)
        self.touch()

    def retry(self, client_id: str | None = None) -> None:
        """Hand over again what earlier turns could not have kept, of one client or of as many as go in one turn."""
        if self._owed and not self._under_way:
            self._retries = client_id or True
            self.touch()

    def touch(self) -> None:
        """Something happens in this turn: see to it that it ends."""
        if not self._scheduled:
            self._scheduled = True
            if self._slices is not None:
                self._slices.begin()
            self._call_soon(self.end)

    def acknowledge(self, connection: Peer, packet: bytes) -> None:
        """Send an acknowledgement when everything this turn wants kept is kept."""
        self.batch.acknowledgements.append((connection, packet))

    @property
    def commits_under_way(self) -> int:
        """How many turns wait for a store."""
        return len(self._under_way)

    def end(self) -> None:
        """Commit, release what is committed, and send."""
        slices = self._slices
        if slices is not None:
            slices.settle()
        try:
            self._commit()
            while (self.pump or not self.batch.is_empty) and not self._waits():
                self._pump()
                self._commit()
            self._flush()
        finally:
            # Whatever went wrong, there is a next turn.
            self._scheduled = False
            self.began_at = 0.0
            had_slice = slices is not None and slices.settled(
                bool(self._late or self._late_small), bool(self._late_small)
            )
            self._ends += 1
            if self._when_ended is not None and (had_slice or not self._ends % LITTLE_TURNS):
                _attempt(self._when_ended)
            if self._late or self._late_small:
                self.touch()
        if self.dirty or ((self.pump or not self.batch.is_empty) and not self._waits()):
            self.touch()

    def _waits(self) -> bool:
        """Whether what is to be kept must wait for a claim, or for a queue that is being loaded."""
        held = self._held
        if not held:
            return False
        batch = self.batch
        return any(write.client_id in held for write in batch.queue) or any(
            change.client_id in held for change in batch.sessions
        )

    def committed(self) -> Deferred[None]:
        """Fires when everything this turn wants kept is kept; fails with :class:`CommitFailed` if it is not."""
        done: Deferred[None] = Deferred()
        self.batch.afterwards.append(lambda: done.callback(None))
        self.batch.otherwise.append(lambda reason: done.errback(CommitFailed(reason)))
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
        if self._waits():
            return
        retries, self._retries = self._retries, False
        if batch.is_empty and not retries:
            batch.unfinished.clear()  # Of what they have sent nothing is to be kept.
            return
        batch.promises = bool(batch.queue or batch.sessions or batch.retain)
        if self._owed:
            self._take_up_owed(retries if isinstance(retries, str) else None)
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
        if batch.promises and self._monotonic is not None:
            batch.began_at = self._monotonic()
        stores = self._stores
        asked: list[Store] = []
        taken = True
        if batch.retain:
            asked.append(stores.retain)
            taken = self._write(batch, stores.retain, lambda: stores.retain.put(batch.retain))
        if batch.sessions and taken:
            asked.append(stores.session)
            taken = self._write(batch, stores.session, lambda: stores.session.apply(batch.sessions))
        if batch.queue:
            # Last: a QoS 2 identifier that is kept says that all the rest is.
            batch.refused = True
            if taken:
                asked.append(stores.queue)
                batch.refused = not self._write(batch, stores.queue, lambda: stores.queue.apply(batch.queue))
        if batch.events:
            asked.append(stores.event)
            self._write(batch, stores.event, lambda: stores.event.append(batch.events))
        for store in asked:
            taken = self._write(batch, store, store.commit)
            if not taken and store.transaction is stores.queue.transaction:
                batch.refused = True
        self._kept(batch)

    def _take_up_owed(self, client_id: str | None) -> None:
        """Have what is owed go before this turn's writes: of one client, or of those written of and of others."""
        batch = self.batch
        if client_id is None:
            clients = {write.client_id for write in (*batch.queue, *batch.sessions)}
            clients.update(islice(self._owed, OWED_AT_ONCE))
        else:
            clients = {client_id, *(write.client_id for write in (*batch.queue, *batch.sessions))}
        clients &= self._owed.keys()
        taken = [self._owed.pop(client_id) for client_id in clients]
        batch.again |= clients
        batch.queue[:0] = [write for owed in taken for write in owed.queue]
        batch.sessions[:0] = [write for owed in taken for write in owed.sessions]

    def _write(self, batch: Batch, store: Store, write: Callable[[], Commit]) -> bool:
        """Hand something over; ``False`` where the store refused it there and then."""
        try:
            commit = write()
        except Fenced as error:
            batch.fenced |= error.client_ids
            return True
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Whatever it was: a batch that is never released would hold up all that come behind it.
            self._not_kept(batch, store, error)
            return False
        if isinstance(commit, Awaitable):
            batch.waiting += 1
            batch.late = True
            as_deferred(commit).addCallbacks(
                lambda _: self._kept(batch), lambda failure: self._failed_later(batch, store, failure)
            )
        return True

    def _failed_later(self, batch: Batch, store: Store, failure: Failure) -> None:
        error: Any = failure.value
        if isinstance(error, Fenced):
            batch.fenced |= error.client_ids
        else:
            self._not_kept(batch, store, error)
        self._kept(batch)

    def _not_kept(self, batch: Batch, store: Store, error: BaseException) -> None:
        if store is self._stores.event:
            # Nobody was promised that.
            if not self._loses_events:
                log.error("the event log can't keep what it is given: {error}", error=error)
            self._loses_events = batch.lost_events = True
            return
        if not isinstance(error, ServiceUnavailable):
            log.failure("a store did not keep a batch of writes", Failure(error))
        elif not self._failing:
            log.error("a store can't keep what it is given: {error}", error=error)
        self._failing = True
        batch.failed.append(store.transaction)
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
        if batch.fenced:
            self._tell_fenced(batch)
        if batch.failure is not None:
            if batch.ahead is None and not self.batch.is_empty:
                # Gathered in this turn already, by those who are about to be told.
                self.batch.ahead = batch.failure
            self._give_up(batch, batch.failure)
            return
        if batch.promises and self._monotonic is not None:
            self._observe(self._monotonic() - batch.began_at)
        if not batch.failed and (batch.queue or batch.sessions or batch.retain):
            self._failing = False
        if batch.events and not batch.lost_events:
            self._loses_events = False
        if self._owed and not self._under_way and not self._failing:
            self.retry()
        for session, packet_id, delivery in batch.sends:
            try:
                session.transmit(packet_id, delivery)
            except Exception:
                log.failure("a message to {client_id!r} could not be sent", client_id=session.client_id)
        if batch.late:
            for session in batch.queued:
                session.wants_pump()
        for connection, packet in batch.acknowledgements:
            try:
                connection.send_acknowledgement(packet)
            except Exception:
                log.failure("an acknowledgement could not be sent")
        for call in batch.afterwards:
            _attempt(call)

    def _tell_fenced(self, batch: Batch) -> None:
        """Tell of the sessions that a newer owner holds, and have what was meant for them be sent again.

        Whoever published it is not acknowledged: it comes back, and where it does so the newer owner may be.
        """
        for client_id in batch.fenced:
            epochs = [write.epoch for write in (*batch.queue, *batch.sessions) if write.client_id == client_id]
            # Which write was refused is not told. Of one that was handed over again the client may have been claimed
            # here since, under a later epoch: that nobody has taken away.
            epoch = min(epochs, default=0) if client_id in batch.again else max(epochs, default=0)
            _attempt(partial(self._on_fenced, client_id, epoch))
        if batch.failure is not None:
            return  # Nobody is acknowledged anyway.
        publishers = self._forget_refused(batch)
        if not publishers:
            return
        for connection in batch.unfinished:
            if connection.is_of(publishers):
                _attempt(partial(connection.withhold_acknowledgement, ELSEWHERE))
        acknowledgements, batch.acknowledgements = batch.acknowledgements, []
        for connection, packet in acknowledgements:
            if connection.is_of(publishers):
                _attempt(partial(connection.withhold_acknowledgement, ELSEWHERE))
            else:
                batch.acknowledgements.append((connection, packet))
        taken_over: dict[str, list[QueueWrite]] = {}
        for write in batch.queue:
            if isinstance(write, InboundOpen) and write.client_id in publishers:
                # What says that it was taken over must go, or the message that is sent again counts as a repetition.
                taken_over.setdefault(write.client_id, []).append(write)
                if write.client_id not in batch.fenced:
                    self._owed.setdefault(write.client_id, Owed()).queue.append(InboundClose(*write))
        for client_id, writes in taken_over.items():
            _attempt(partial(self._on_commit_failed, client_id, writes, ELSEWHERE, False))

    def _forget_refused(self, batch: Batch) -> set[str]:
        """Have the messages for sessions that a newer owner holds count as dropped; answers who published them."""
        refused: dict[str, list[QueueWrite]] = {}
        publishers: set[str] = set()
        for write in batch.queue:
            if isinstance(write, Append) and write.client_id in batch.fenced:
                refused.setdefault(write.client_id, []).append(write)
                publishers.add(write.entry.message.publisher.client_id)
        for client_id, writes in refused.items():
            _attempt(partial(self._on_commit_failed, client_id, writes, ELSEWHERE, True))
        return publishers

    def _give_up(self, batch: Batch, error: BaseException) -> None:
        reason = getattr(error, "reason", None)
        if not isinstance(reason, ReasonCode):  # errors of other libraries have one too
            reason = ReasonCode.SERVER_UNAVAILABLE
        self._owe(batch)
        for connection in (*batch.unfinished, *(connection for connection, _ in batch.acknowledgements)):
            _attempt(partial(connection.withhold_acknowledgement, reason))
        on_commit_failed: dict[str, list[QueueWrite]] = {}
        for write in batch.queue:
            on_commit_failed.setdefault(write.client_id, []).append(write)
        for opened in batch.sessions:
            if isinstance(opened, OpenSession):
                _attempt(partial(self._on_unopened, opened.client_id, opened.epoch, reason))
        for client_id, writes in on_commit_failed.items():
            _attempt(partial(self._on_commit_failed, client_id, writes, reason, batch.refused))
        for call in batch.otherwise:
            _attempt(partial(call, reason))

    def _owe(self, batch: Batch) -> None:
        tied = batch.tied
        queue: list[QueueWrite] = [w for w in batch.queue if isinstance(w, STANDING) and w not in tied]
        if not batch.refused and self._stores.queue.transaction not in batch.failed:
            # It has kept that they were taken over, and another store has not kept the rest: better twice than never.
            queue += [InboundClose(*write) for write in batch.queue if isinstance(write, InboundOpen)]
        for write in queue:
            self._owed.setdefault(write.client_id, Owed()).queue.append(write)
        for change in batch.sessions:
            if isinstance(change, STANDING) and change not in tied:
                self._owed.setdefault(change.client_id, Owed()).sessions.append(change)

    def _flush(self) -> None:
        """Send, as far as there is time; the rest goes out in later turns."""
        dirty, self.dirty = self.dirty, []
        late = self._late
        if self.has_large or late:
            # Who gets little does not wait for what goes to others.
            late += [outbox for outbox in dirty if outbox.is_large]
            dirty = [outbox for outbox in dirty if not outbox.is_large]
        if self._late_small:
            dirty = self._late_small + dirty
        self._late_small = self._send(dirty, FLUSHED_AT_ONCE)
        if late:
            self._late = self._send(late, 1)
        self.has_large = bool(self._late)

    def _send(self, outboxes: list[Outbox], asks_after: int) -> list[Outbox]:
        """Send until the time is over, but to some in any case; answers to whom nothing was sent."""
        slices = self._slices
        for sent, outbox in enumerate(outboxes, 1):
            try:
                outbox.flush()
            except Exception:
                log.failure("what {client} is sent could not be", client=outbox.name)
            if not sent % asks_after and slices is not None and slices.is_over():
                return outboxes[sent:]
        return []


def _attempt(call: Callable[[], object]) -> None:
    """Make a call whose failure must not keep others from theirs."""
    try:
        call()
    except Exception:
        log.failure("{call} failed at the end of a turn", call=call)
