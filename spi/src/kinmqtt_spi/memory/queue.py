"""Queues in memory: the default store behind the message path, so a write costs well under a microsecond.

The store remembers the epoch and the last sequence number of each client, to fence former owners. For clients without
entries it remembers nothing else, and at most ``remembered_epochs`` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final, TypeAlias

from attrs import frozen

from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory._removed import RemovedMessages
from kinmqtt_spi.services.queue import (
    Append,
    Entry,
    InboundClose,
    InboundOpen,
    InflightEntry,
    Purge,
    QueueSizes,
    QueueState,
    QueueStore,
    QueueWrite,
    Release,
    Remove,
    Requeue,
    Send,
    Stage,
)
from kinmqtt_spi.values import MessageId

SWEEP_ABOVE: Final = 1024
"""The number of expiry entries below which stale ones are not swept."""

_EMPTY: Final = QueueState()


@frozen(slots=True)
class QueueSnapshot:
    """A part of a client's queue, for copying the queue while it is in use."""

    epoch: int = 0
    inbound: tuple[int, ...] = ()
    pending: tuple[tuple[int, MessageId], ...] = ()
    """Inbound identifiers whose messages other nodes have not committed, with the ids of the messages."""
    entries: tuple[tuple[int, int | None, Entry | None], ...] = ()
    """Sequence number, packet identifier if in flight, and the entry until it is released."""


class _Queue:
    """One client's queue. ``queued`` is in order of sequence numbers, ``inflight`` in order of sending."""

    __slots__ = ("bytes", "epoch", "floor", "inbound", "inflight", "last", "pending", "queued", "released")

    def __init__(self, epoch: int, last: int, floor: int) -> None:
        self.epoch = epoch
        self.last = last
        self.floor = floor
        """Appends up to this number are repeats. A purge sets it to 0, because numbers may start again."""
        self.queued: dict[int, Entry] = {}
        self.inflight: dict[int, tuple[int, Entry | None]] = {}
        """Packet identifier, and the entry until it is released."""
        self.inbound: set[int] = set()
        self.pending: dict[int, MessageId] | None = None
        self.released: dict[int, MessageId] | None = None
        """By sequence number: the ids of messages whose PUBREC was received."""
        self.bytes = 0


_Handler: TypeAlias = Callable[[_Queue, Any], None]


class MemoryQueueStore(QueueStore):
    """Holds queues in dicts; every write is committed when :meth:`apply` returns.

    ``remembered_epochs`` is the number of clients without entries whose epoch is remembered. Above it, the client
    that has been empty longest is forgotten, and a former owner of that client is no longer fenced.
    ``shared`` says that several brokers of one process use it.
    """

    def __init__(self, *, remembered_epochs: int = 10_000, shared: bool = False) -> None:
        self.is_shared = shared
        self._queues: dict[str, _Queue] = {}
        self._resting: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self._max_resting = remembered_epochs
        self._queued = self._bytes = self._inflight = self._inbound = 0
        self._expiry: list[tuple[float, str, int]] = []
        self._removed = RemovedMessages()
        self._sweep_at = SWEEP_ABOVE
        self._handlers: Mapping[type[QueueWrite], _Handler] = {
            Append: self._append,
            Send: self._send,
            Release: self._release,
            Remove: self._remove,
            Requeue: self._requeue,
            InboundOpen: self._inbound_open,
            InboundClose: self._inbound_close,
            Purge: self._purge,
        }

    def apply(self, writes: Sequence[QueueWrite]) -> None:
        queues = self._queues
        handlers = self._handlers
        fenced: set[str] = set()
        for write in writes:
            client_id, epoch = write[0], write[1]
            queue = queues.get(client_id)
            if queue is None:
                queue = self._wake(write)
            if epoch != queue.epoch:
                if epoch < queue.epoch:
                    fenced.add(client_id)
                    continue
                queue.epoch = epoch
            handlers[type(write)](queue, write)
        if fenced:
            raise Fenced(fenced)

    def load(self, client_id: str) -> QueueState:
        queue = self._queues.get(client_id)
        if queue is None:
            resting = self._resting.get(client_id)
            return _EMPTY if resting is None else QueueState(last_sequence=resting[1])
        inflight = tuple(
            InflightEntry(sequence, packet_id, Stage.RELEASED if entry is None else Stage.SENT, entry)
            for sequence, (packet_id, entry) in queue.inflight.items()
        )
        pending = queue.pending
        if pending is None:
            return QueueState(inflight, frozenset(queue.inbound), queue.last, _sizes(queue))
        inbound = frozenset(queue.inbound.difference(pending))
        return QueueState(inflight, inbound, queue.last, _sizes(queue), dict(pending))

    def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
        queue = self._queues.get(client_id)
        if queue is None or limit <= 0 or after >= queue.last:
            return ()
        queued = queue.queued
        if queue.last - after > 4 * len(queued):
            return tuple(islice((entry for number, entry in queued.items() if number > after), limit))
        # The numbers are dense: looking them up is faster than iterating over the entries before ``after``.
        numbers = range(max(after + 1, 0), queue.last + 1)
        return tuple(islice((queued[number] for number in numbers if number in queued), limit))

    def known(self, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
        known = self._removed.known(client_id, ids)
        queue = self._queues.get(client_id)
        if queue is not None:
            known.update(entry.message.id for entry in queue.queued.values() if entry.message.id in ids)
            known.update(
                entry.message.id
                for _, entry in queue.inflight.values()
                if entry is not None and entry.message.id in ids
            )
            known.update(id for id in (queue.released or {}).values() if id in ids)
        return known

    def completed(self, client_id: str) -> Sequence[MessageId]:
        queue = self._queues.get(client_id)
        released = () if queue is None else (queue.released or {}).values()
        return (*self._removed.of(client_id), *released)

    def remember(self, client_id: str, ids: Sequence[MessageId]) -> None:
        for id in ids:
            self._removed.add(client_id, id)

    def sizes(self, client_id: str) -> QueueSizes:
        queue = self._queues.get(client_id)
        return _EMPTY.sizes if queue is None else _sizes(queue)

    def totals(self) -> QueueSizes:
        return QueueSizes(self._queued, self._bytes, self._inflight, self._inbound)

    def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
        return self.expire_of(now, limit, None)

    def expire_of(
        self, now: float, limit: int, includes: Callable[[str], bool] | None
    ) -> Sequence[tuple[str, Entry]]:
        """Do as :meth:`expire` for the client ids that ``includes`` names; ``None`` for all."""
        self._removed.turn(now)
        removed: list[tuple[str, Entry]] = []
        left: list[tuple[float, str, int]] = []
        heap = self._expiry
        while heap and heap[0][0] <= now and len(removed) < limit:
            at, client_id, sequence = mark = heappop(heap)
            if includes is not None and not includes(client_id):
                left.append(mark)
                continue
            queue = self._queues.get(client_id)
            entry = None if queue is None else queue.queued.get(sequence)
            # The mark is stale if the entry was sent, removed or replaced since.
            if queue is not None and entry is not None and entry.message.expires_at == at:
                self._take(queue, sequence, entry)
                removed.append((client_id, entry))
        for mark in left:
            heappush(heap, mark)
        return removed

    def restore_counters(self, client_id: str, epoch: int, last: int, floor: int) -> None:
        """Restore a client's counters: entries up to ``last`` were appended, those up to ``floor`` since a purge."""
        queue = self._queues.get(client_id)
        if queue is None:
            self._resting[client_id] = (epoch, last, floor)
        else:
            queue.last = max(queue.last, last)
            queue.floor = max(queue.floor, floor)

    def clients(self) -> list[str]:
        """Return the client ids with entries or identifiers."""
        return list(self._queues)

    def snapshot(self, client_id: str, after: int | None, limit: int) -> QueueSnapshot:
        """Return at most ``limit`` entries of a client with numbers above ``after``, in order, of any stage."""
        queue = self._queues.get(client_id)
        if queue is None:
            return QueueSnapshot()
        first = -1 if after is None else after
        found: dict[int, tuple[int | None, Entry | None]] = {
            number: sent for number, sent in queue.inflight.items() if number > first
        }
        found |= {entry.sequence: (None, entry) for entry in self.read(client_id, first, limit)}
        numbers = sorted(found)[:limit]
        pending = tuple((queue.pending or {}).items())
        inbound = tuple(queue.inbound.difference(queue.pending or ()))
        return QueueSnapshot(queue.epoch, inbound, pending, tuple((number, *found[number]) for number in numbers))

    def _remember(self, client_id: str, id: MessageId) -> None:
        """Remember a QoS 2 message that was removed, for a while."""
        self._removed.add(client_id, id)

    def _wake(self, write: QueueWrite) -> _Queue:
        resting = self._resting.pop(write.client_id, None)
        queue = _Queue(write.epoch, 0, 0) if resting is None else _Queue(*resting)
        self._queues[write.client_id] = queue
        return queue

    def _append(self, queue: _Queue, write: Append) -> None:
        client_id, _, entry, packet_id = write
        sequence = entry.sequence
        if sequence <= queue.floor:
            return
        queue.floor = sequence
        if sequence > queue.last:
            queue.last = sequence
        if packet_id is not None:
            queue.inflight[sequence] = (packet_id, entry)
            self._inflight += 1
            return
        queue.queued[sequence] = entry
        message = entry.message
        size = entry.size_bytes
        queue.bytes += size
        self._bytes += size
        self._queued += 1
        if message.expires_at is not None:
            self._mark(message.expires_at, client_id, sequence)

    def _send(self, queue: _Queue, write: Send) -> None:
        entry = queue.queued.get(write.sequence)
        if entry is not None:
            self._take(queue, write.sequence, entry)
            queue.inflight[write.sequence] = (write.packet_id, entry)
            self._inflight += 1

    def _release(self, queue: _Queue, write: Release) -> None:
        sent = queue.inflight.get(write.sequence)
        if sent is not None:
            entry = sent[1]
            if entry is not None:
                if queue.released is None:
                    queue.released = {}
                queue.released[write.sequence] = entry.message.id
            queue.inflight[write.sequence] = (sent[0], None)

    def _remove(self, queue: _Queue, write: Remove) -> None:
        sequence = write.sequence
        sent = queue.inflight.pop(sequence, None)
        if sent is not None:
            self._inflight -= 1
            if queue.released is not None and sequence in queue.released:
                self._remember(write.client_id, queue.released.pop(sequence))
                if not queue.released:
                    queue.released = None
            return
        entry = queue.queued.get(sequence)
        if entry is not None:
            self._take(queue, sequence, entry)

    def _requeue(self, queue: _Queue, write: Requeue) -> None:
        back = {number: entry for number, (_, entry) in queue.inflight.items() if entry is not None}
        for number, entry in back.items():
            del queue.inflight[number]
            size = entry.size_bytes
            queue.bytes += size
            self._bytes += size
            if entry.message.expires_at is not None:
                self._mark(entry.message.expires_at, write.client_id, number)
        if back:
            self._inflight -= len(back)
            self._queued += len(back)
            queue.queued = dict(sorted((back | queue.queued).items()))
        if not (queue.queued or queue.inflight or queue.inbound):
            self._rest(write.client_id, queue)

    def _inbound_open(self, queue: _Queue, write: InboundOpen) -> None:
        if write.packet_id not in queue.inbound:
            queue.inbound.add(write.packet_id)
            self._inbound += 1
        message = write.message
        if message is not None:
            if queue.pending is None:
                queue.pending = {}
            queue.pending[write.packet_id] = message
        elif queue.pending is not None:
            self._confirm(queue, write.packet_id)

    def _inbound_close(self, queue: _Queue, write: InboundClose) -> None:
        if write.packet_id in queue.inbound:
            queue.inbound.remove(write.packet_id)
            self._inbound -= 1
            if queue.pending is not None:
                self._confirm(queue, write.packet_id)

    @staticmethod
    def _confirm(queue: _Queue, packet_id: int) -> None:
        """Remove the mark of an identifier that is pending no more."""
        pending = queue.pending
        if pending is not None:
            pending.pop(packet_id, None)
            if not pending:
                queue.pending = None

    def _purge(self, queue: _Queue, write: Purge) -> None:
        self._queued -= len(queue.queued)
        self._bytes -= queue.bytes
        self._inflight -= len(queue.inflight)
        self._inbound -= len(queue.inbound)
        queue.floor = 0
        self._removed.forget(write.client_id)
        self._rest(write.client_id, queue)

    def _take(self, queue: _Queue, sequence: int, entry: Entry) -> None:
        """Remove an entry from the queued ones."""
        queued = queue.queued
        del queued[sequence]
        if not queued:
            queued.clear()  # frees the table, which does not shrink when keys are deleted
        size = entry.size_bytes
        queue.bytes -= size
        self._bytes -= size
        self._queued -= 1

    def _rest(self, client_id: str, queue: _Queue) -> None:
        """Reduce a queue without entries to its epoch and numbers."""
        del self._queues[client_id]
        self._resting[client_id] = (queue.epoch, queue.last, queue.floor)
        if len(self._resting) > self._max_resting:
            self._resting.popitem(last=False)

    def _mark(self, at: float, client_id: str, sequence: int) -> None:
        """Add an expiry mark for a queued message. Stale marks are swept when they may be half of all."""
        heappush(self._expiry, (at, client_id, sequence))
        if len(self._expiry) > self._sweep_at:
            self._expiry = [mark for mark in set(self._expiry) if self._holds(mark)]
            heapify(self._expiry)
            self._sweep_at = max(SWEEP_ABOVE, 2 * len(self._expiry))

    def _holds(self, mark: tuple[float, str, int]) -> bool:
        at, client_id, sequence = mark
        queue = self._queues.get(client_id)
        entry = None if queue is None else queue.queued.get(sequence)
        return entry is not None and entry.message.expires_at == at


def _sizes(queue: _Queue) -> QueueSizes:
    return QueueSizes(len(queue.queued), queue.bytes, len(queue.inflight), len(queue.inbound))
