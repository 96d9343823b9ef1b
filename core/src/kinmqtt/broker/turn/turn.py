"""A reactor turn: its writes are gathered, committed together, and only then acknowledged.

Every entry into the broker (a read, a timer, a plugin's publish) calls :meth:`Turn.touch`. When the turn ends, its
writes go to each store in one batch. Acknowledgements and deliveries to persistent sessions wait for the commits.
Batches are released in the order in which they were made, which keeps acknowledgements in order (MQTT-4.6.0-2). Then
each connection with output gets one write, in this turn or in one of the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.turn.batch import Batch, Stores
from kinmqtt.broker.turn.recovery import CommitFailed, WriteRecovery, attempt
from kinmqtt.broker.turn.slices import Slices
from kinmqtt.broker.turn.turn_buffer import TurnBuffer
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.services.queue import QueueWrite
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit

if TYPE_CHECKING:
    from kinmqtt.broker.turn.ports import Peer, Recipient

log = Logger("kinmqtt.turn")

FLUSHED_AT_ONCE: Final = 16
"""Small buffers flushed between two checks of the clock; it is checked after each large one."""

SHORT_TURNS: Final = 8
"""After this many short turns the callback of :meth:`Turn.when_ended` is called."""


class Turn:
    """The current turn, and the earlier ones whose commits are pending."""

    __slots__ = (
        "_call_soon",
        "_committing",
        "_ends",
        "_event_log_failing",
        "_failing",
        "_monotonic",
        "_observe",
        "_paused",
        "_retries",
        "_scheduled",
        "_slices",
        "_stores",
        "_unsent_large",
        "_unsent_small",
        "_when_ended",
        "batch",
        "began_at",
        "dirty",
        "has_large",
        "pump",
        "recovery",
    )

    def __init__(
        self, stores: Stores, call_soon: Callable[[Callable[[], object]], object], slices: Slices | None = None
    ) -> None:
        """``call_soon`` makes a call in the next reactor turn, before new input is read.

        ``slices`` limits the time for committing and sending; ``None`` for no limit.
        """
        self._stores = stores
        self._slices = slices
        self.has_large = False
        """Whether this turn's output has a large packet that may go to many clients."""
        self._call_soon = call_soon
        self._scheduled = False
        self._retries: bool | str = False
        self._failing = False
        """Whether the last commit failed."""
        self._event_log_failing = False
        self._committing: deque[Batch] = deque()
        self._monotonic: Callable[[], float] | None = None
        self._observe: Callable[[float], object] = lambda seconds: None
        self.recovery = WriteRecovery(stores)
        self._paused: set[str] = set()
        """Clients that are being claimed, or whose queue is being loaded: their writes wait, because
        their order relative to that would be undefined."""
        self.batch = Batch()
        self.began_at = 0.0
        """The time first read in this turn, in seconds since the epoch; 0 before."""
        self.dirty: list[TurnBuffer] = []
        """Buffers to flush: those that are not empty."""
        self._ends = 0
        self._when_ended: Callable[[], object] | None = None
        self._unsent_large: list[TurnBuffer] = []
        """Large buffers of earlier turns not sent for lack of time, the oldest first."""
        self._unsent_small: list[TurnBuffer] = []
        """Small buffers of earlier turns not sent for lack of time."""
        self.pump: list[Recipient] = []
        """Sessions that may have window capacity for queued messages."""

    def when_ended(self, call: Callable[[], object]) -> None:
        """Set a callback between turns: after each turn that had a slice, and each :data:`SHORT_TURNS` turns."""
        self._when_ended = call

    def measure(self, monotonic: Callable[[], float], observe: Callable[[float], object]) -> None:
        """Report the duration of each turn's commit to ``observe``, in seconds of this clock."""
        self._monotonic = monotonic
        self._observe = observe

    async def pause_writes(self, client_id: str) -> None:
        """Hold back writes of a client until :meth:`resume_writes`, and wait for its pending commits."""
        self._paused.add(client_id)
        for batch in tuple(self._committing):
            if any(write.client_id == client_id for write in (*batch.queue, *batch.sessions)):
                await self._when_released(batch)

    def paused_writes(self, client_id: str) -> list[QueueWrite]:
        """Returns the queue writes of a client that wait for :meth:`resume_writes`."""
        return [write for write in self.batch.queue if write.client_id == client_id]

    def writes_for(self, client_id: str) -> bool:
        """Whether queue writes of a client are waiting or being committed."""
        return any(write.client_id == client_id for batch in (self.batch, *self._committing) for write in batch.queue)

    def _when_released(self, batch: Batch) -> Deferred[None]:
        """Fires when a batch is committed or has failed."""
        done: Deferred[None] = Deferred()
        if batch in self._committing:
            batch.after_commit.append(lambda: done.callback(None))
            batch.on_commit_failed.append(lambda reason: done.callback(None))
        else:
            done.callback(None)
        return done

    def resume_writes(self, client_id: str, epochs: tuple[int, int] | None = None) -> None:
        """Release the paused writes of a client; ``epochs``, old and new, moves them to a new epoch."""
        self._paused.discard(client_id)
        if self.batch.is_empty:
            return
        if epochs is not None:
            self.batch.restamp(client_id, *epochs)
        self.touch()

    def retry(self, client_id: str | None = None) -> None:
        """Retry failed writes of earlier turns, of one client or of as many as fit into a turn."""
        if not self.recovery.is_empty and not self._committing:
            self._retries = client_id or True
            self.touch()

    def touch(self) -> None:
        """Schedule the end of this turn, if it is not scheduled."""
        if not self._scheduled:
            self._scheduled = True
            self.began_at = 0.0
            if self._slices is not None:
                self._slices.begin()
            self._call_soon(self.end)

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call in the next reactor turn, before new input is read."""
        self._call_soon(call)

    def packets_for(self, buffer: TurnBuffer) -> list[bytes]:
        """Returns a buffer's packet list, to which the caller must append.

        A buffer whose list is not empty is in :attr:`dirty`. This method ensures it, and so does the loop over many
        in :class:`kinmqtt.broker.routing.fanout.Fanout`. A buffer that is flushed before the turn ends may be there
        twice: the second flush sends what came after the first.
        """
        packets = buffer.packets
        if not packets:
            self.dirty.append(buffer)
        return packets

    def acknowledge(self, connection: Peer, packet: bytes, *, completes: bool) -> None:
        """Send an acknowledgement when this turn's writes are committed.

        ``completes``: it is the last one for a message of the client, which may then send another (section 4.9).
        """
        self.batch.acknowledgements.append((connection, packet, completes))

    @property
    def commits_under_way(self) -> int:
        """The number of turns with pending commits."""
        return len(self._committing)

    def end(self) -> None:
        """End the turn: commit its writes, release committed batches, and send."""
        slices = self._slices
        if slices is not None:
            slices.begin_sending()
        try:
            self._commit()
            while (self.pump or not self.batch.is_empty) and not self._is_paused():
                self._pump()
                self._commit()
            self._flush()
        finally:
            # After an exception too, the next turn can begin.
            self._scheduled = False
            self.began_at = 0.0
            had_slice = slices is not None and slices.end_sending(
                bool(self._unsent_large or self._unsent_small), bool(self._unsent_small)
            )
            self._ends += 1
            if self._when_ended is not None and (had_slice or not self._ends % SHORT_TURNS):
                attempt(self._when_ended)
            if self._unsent_large or self._unsent_small:
                self.touch()
        if self.dirty or ((self.pump or not self.batch.is_empty) and not self._is_paused()):
            self.touch()

    def _is_paused(self) -> bool:
        """Whether the batch must wait for a claim, or for a queue that is being loaded."""
        held = self._paused
        if not held:
            return False
        batch = self.batch
        return any(write.client_id in held for write in batch.queue) or any(
            change.client_id in held for change in batch.sessions
        )

    def committed(self) -> Deferred[None]:
        """Fires when this turn's writes are committed; fails with :class:`CommitFailed` if they are not."""
        done: Deferred[None] = Deferred()
        self.batch.after_commit.append(lambda: done.callback(None))
        self.batch.on_commit_failed.append(lambda reason: done.errback(CommitFailed(reason)))
        self.touch()
        return done

    def drained(self) -> Deferred[None]:
        """Fires when this turn's writes, and all before them, are committed or have failed."""
        done: Deferred[None] = Deferred()
        self.batch.after_commit.append(lambda: done.callback(None))
        self.batch.on_commit_failed.append(lambda reason: done.callback(None))
        self.touch()
        return done

    def _pump(self) -> None:
        pumped, self.pump = self.pump, []
        for session in pumped:
            attempt(session.pump)

    def _commit(self) -> None:
        batch = self.batch
        if self._is_paused():
            return
        retries, self._retries = self._retries, False
        if batch.is_empty and not retries:
            batch.unfinished_publishers.clear()  # Their messages need no commit.
            return
        batch.promises = bool(batch.queue or batch.sessions or batch.retain)
        if not self.recovery.is_empty:
            self.recovery.add_retries(batch, retries if isinstance(retries, str) else None)
        self.batch = Batch()
        self._committing.append(batch)
        batch.pending_commits = 1
        failed = batch.ahead or next((ahead.failure for ahead in self._committing if ahead.failure is not None), None)
        if failed is not None:
            # Later writes would overtake those that clients send again after the failure.
            batch.ahead = batch.failure = failed
            batch.refused = True
            self._commit_done(batch)
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
            # Last, because a committed QoS 2 identifier implies that the other writes are committed.
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
        self._commit_done(batch)

    def _write(self, batch: Batch, store: Store, write: Callable[[], Commit]) -> bool:
        """Write to a store, or commit it; returns ``False`` if it failed at once."""
        try:
            commit = write()
        except Fenced as error:
            batch.fenced |= error.client_ids
            return True
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Any error: a batch that is never released would block all later ones.
            self._write_failed(batch, store, error)
            return False
        if isinstance(commit, Awaitable):
            batch.pending_commits += 1
            batch.late = True
            as_deferred(commit).addCallbacks(
                lambda _: self._commit_done(batch), lambda failure: self._failed_later(batch, store, failure)
            )
        return True

    def _failed_later(self, batch: Batch, store: Store, failure: Failure) -> None:
        error: Any = failure.value
        if isinstance(error, Fenced):
            batch.fenced |= error.client_ids
        else:
            self._write_failed(batch, store, error)
        self._commit_done(batch)

    def _write_failed(self, batch: Batch, store: Store, error: BaseException) -> None:
        if store is self._stores.event:
            # No client relies on events.
            if not self._event_log_failing:
                log.error("the event log can't store events: {error}", error=error)
            self._event_log_failing = batch.lost_events = True
            return
        if not isinstance(error, ServiceUnavailable):
            log.failure("{store} failed to commit writes", Failure(error), store=type(store).__name__)
        elif not self._failing:
            log.error("{store} can't commit writes: {error}", store=type(store).__name__, error=error)
        self._failing = True
        batch.failed.append(store.transaction)
        if batch.promises:
            batch.failure = error
        elif not batch.retries_scheduled:
            batch.retries_scheduled = True
            # No client relies on events and retries: connections stay open, and the writes are retried.
            self.recovery.await_retry(batch)

    def _commit_done(self, batch: Batch) -> None:
        batch.pending_commits -= 1
        late = False
        while self._committing and not self._committing[0].pending_commits:
            released = self._committing.popleft()
            self._release(released)
            released.forget_calls()
            late = True
        if late:
            self.touch()

    def _release(self, batch: Batch) -> None:
        if batch.fenced:
            self.recovery.notify_fenced(batch)
        if batch.failure is not None:
            if batch.ahead is None and not self.batch.is_empty:
                # The current turn's writes may come from clients notified of the failure below.
                self.batch.ahead = batch.failure
            self.recovery.notify_failed(batch, batch.failure)
            return
        if batch.promises and self._monotonic is not None:
            self._observe(self._monotonic() - batch.began_at)
        if not batch.failed and (batch.queue or batch.sessions or batch.retain):
            self._failing = False
        if batch.events and not batch.lost_events:
            self._event_log_failing = False
        if not self._failing and not self._committing and not self.recovery.is_empty:
            self.retry()
        for session, packet_id, delivery in batch.sends:
            try:
                session.transmit(packet_id, delivery)
            except Exception:
                log.failure("a message to {client_id!r} could not be sent", client_id=session.client_id)
        if batch.late:
            for session in batch.queued:
                session.wants_pump()
        for connection, packet, completes in batch.acknowledgements:
            try:
                connection.send_acknowledgement(packet, completes)
            except Exception:
                log.failure("an acknowledgement could not be sent")
        for call in batch.after_commit:
            attempt(call)

    def _flush(self) -> None:
        """Flush buffers while there is time; the rest is flushed in later turns."""
        dirty, self.dirty = self.dirty, []
        late = self._unsent_large
        if self.has_large or late:
            # Small buffers do not wait for large ones.
            late += [buffer for buffer in dirty if buffer.is_large]
            dirty = [buffer for buffer in dirty if not buffer.is_large]
        if self._unsent_small:
            dirty = self._unsent_small + dirty
        self._unsent_small = self._send(dirty, FLUSHED_AT_ONCE)
        if late:
            self._unsent_large = self._send(late, 1)
        self.has_large = bool(self._unsent_large)

    def _send(self, buffers: list[TurnBuffer], asks_after: int) -> list[TurnBuffer]:
        """Flush buffers until the slice is over, at least ``asks_after``; returns those not flushed."""
        slices = self._slices
        for sent, buffer in enumerate(buffers, 1):
            try:
                buffer.flush()
            except Exception:
                log.failure("packets to {client} could not be sent", client=buffer.name)
            if not sent % asks_after and slices is not None and slices.is_over():
                return buffers[sent:]
        return []
