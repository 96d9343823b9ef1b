"""The embedded stores: stores in memory with a log in front of them.

Writes are gathered; :meth:`Ledger.commit` appends them to the log as one group and then applies them in memory, which
serves all reads. So a turn is persisted as a whole or not at all, and memory is never ahead of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kinmqtt.builtins.embedded.image import EVENTS, EVENTS_BYTES, FILTER_BYTES, PASSING, Image
from kinmqtt.builtins.embedded.records import CommitGroup, pack
from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.event import EVENT_BYTES, Event, Recorded
from kinmqtt_spi.services.queue import ENTRY_BYTES, QueueWrite
from kinmqtt_spi.services.retain import RETAINED_BYTES, RetainVersion, RetainWrite
from kinmqtt_spi.services.session import Claim, SessionWrite
from kinmqtt_spi.values import MESSAGE_BYTES, SUBSCRIPTION_BYTES, Commit, NodeIdentity

EPOCHS_AHEAD: Final = 1_000_000
"""Epochs are reserved in blocks of this size, so that most claims need no write."""

EVENTS_IN_SLICE: Final = 500
EVENT_SLICE_BYTES: Final = 1 << 20
"""The most events in a slice of a snapshot, and their size, where groups hold more than the newest ones."""

RECORD_BYTES: Final = 150
"""Approximate size of a message in the log besides topic and payload."""

SESSION_BYTES: Final = 100
"""Approximate size of a stored session in the log besides its subscriptions."""

_QUEUED_LESS: Final = MESSAGE_BYTES + ENTRY_BYTES - RECORD_BYTES
_RETAINED_LESS: Final = MESSAGE_BYTES + RETAINED_BYTES - RECORD_BYTES
_SUBSCRIPTION_LESS: Final = SUBSCRIPTION_BYTES - FILTER_BYTES
_EVENT_LESS: Final = EVENT_BYTES - RECORD_BYTES
"""By how much an event is smaller in the log than in memory, approximately; the contents have the same size."""


class Ledger:
    """The shared part of the four stores: gathers a turn's writes and persists them."""

    def __init__(self, context: Any) -> None:
        """``context`` is the plugin's :class:`~kinmqtt_spi.services.plugin.Context`."""
        self.append: Callable[[bytes], Commit] | None = None
        """Persists a group; ``None`` while the log is not open."""
        self.gathered = CommitGroup()
        self.sessions = EmbeddedSessionStore(self)
        self.queues = EmbeddedQueueStore(self)
        self.retained = EmbeddedRetainStore(self)
        self.events = EmbeddedEventLog(self, context)
        self.groups = 0
        self.after: Callable[[], object] = lambda: None
        """Called after a group has been appended."""

    def restore(self, image: Image) -> None:
        """Load the contents of the log."""
        self.sessions.begin_with(image.sessions, image.floor)
        image.queues.bring_about(self.queues, self.queues.carry_out)
        for read in (image.retained.iterate, image.retained.deletions):
            cursor: object = None
            while True:
                contents = read(cursor, 1000)
                self.retained.carry_out(contents.writes)
                cursor = contents.cursor
                if cursor is None:
                    break
        self.events.restore(image.events, image.offsets, image.held)

    def commit(self, all: bool = False) -> Commit:
        """Persist the gathered writes: all of them, or none if this fails.

        Without ``all``, writes that no caller waits for are left for the next commit if there are no others.
        """
        group = self.gathered
        if not (group if all else group.asks):
            return None
        self.gathered = CommitGroup()
        group.is_checked = bool(group.retain)
        if self.append is None:
            raise RuntimeError("the embedded store was written to before it was opened")
        fenced = self.sessions.take_fenced(group.sessions) if group.sessions else set()
        try:
            commit = self.append(pack(group))
        except BaseException:
            # Writes that the stores already know of go into the next group.
            self.gathered.floor = max(self.gathered.floor, group.floor)
            self.gathered.offsets = group.offsets | self.gathered.offsets
            self.gathered.holds = group.holds | self.gathered.holds
            self.gathered.claims = group.claims + self.gathered.claims
            raise
        # The log has it, so apply it in memory: a snapshot must never be behind the log. If the sync to the disk
        # fails, nothing is acknowledged, and clients that return find it in memory.
        self.groups += 1
        if group.sessions:
            fenced |= _fenced(self.sessions.carry_out, group.sessions)
        if group.queue:
            fenced |= _fenced(self.queues.carry_out, group.queue)
        if group.retain:
            self.retained.carry_out(group.retain)
        if group.events:
            self.events.carry_out(group.events)
        self.after()
        if not fenced:
            return commit
        if commit is None:
            raise Fenced(fenced)
        return _fail(commit, fenced)

    def standing(self) -> CommitGroup:
        """Return the state that a snapshot needs besides the contents of the stores and :meth:`held_events`."""
        return CommitGroup(
            events=self.events.newest_events(),
            offsets=dict(self.events.commits()),
            holds=dict.fromkeys(self.events.held(), True),
            floor=self.sessions.set_aside,
        )

    def held_events(self) -> Iterator[CommitGroup]:
        """Yield the events that groups hold and that are not among the newest, in slices."""
        after = self.events.oldest - 1
        end = self.events.newest_events()[:1]
        while end and after + 1 < end[0].offset:
            events = self.events.page(max(after, self.events.oldest - 1))
            events = [recorded for recorded in events if recorded.offset < end[0].offset]
            if not events:
                return
            yield CommitGroup(events=events)
            after = events[-1].offset

    @property
    def live_bytes(self) -> int:
        """Return the approximate size of a log without obsolete records."""
        totals = self.queues.totals()
        queued = totals.queued_bytes - _QUEUED_LESS * totals.queued + RECORD_BYTES * totals.inflight
        retained = self.retained.size_bytes() - _RETAINED_LESS * self.retained.count()
        retained += self.retained.deletion_bytes + RECORD_BYTES * self.retained.deletion_count
        subscriptions, subscription_bytes = self.sessions.subscriptions()
        sessions = SESSION_BYTES * self.sessions.count() + subscription_bytes - _SUBSCRIPTION_LESS * subscriptions
        return queued + retained + sessions + self.events.size_bytes - _EVENT_LESS * self.events.count()


class EmbeddedSessionStore(MemorySessionStore):
    """Sessions."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self.set_aside = 0
        """Epochs up to this one may be in use; after a restart, new epochs begin above it."""

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        claim = super().claim(client_id, node, above)
        if claim.session is not None:
            self._ledger.gathered.claims.append((client_id, claim.epoch))
        if claim.epoch > self.set_aside:
            self.set_aside = claim.epoch + EPOCHS_AHEAD
            self._ledger.gathered.floor = self.set_aside
        return claim

    def begin_with(self, sessions: MemorySessionStore, floor: int) -> None:
        """Copy another store's contents; epochs of clients without a session begin above ``floor``."""
        self.load_from(sessions, floor)
        self.set_aside = floor

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        self._ledger.gathered.sessions += writes

    @property
    def transaction(self) -> object:
        return self._ledger

    def commit(self) -> Commit:
        return self._ledger.commit()

    def carry_out(self, writes: Sequence[SessionWrite]) -> None:
        """Apply persisted writes."""
        super().apply(writes)


class EmbeddedQueueStore(MemoryQueueStore):
    """Queues. The memory of released and completed QoS 2 messages (:meth:`known`) is lost by a restart."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def apply(self, writes: Sequence[QueueWrite]) -> None:
        self._ledger.gathered.queue += writes

    @property
    def transaction(self) -> object:
        return self._ledger

    def commit(self) -> Commit:
        return self._ledger.commit()

    def carry_out(self, writes: Sequence[QueueWrite]) -> None:
        """Apply persisted writes."""
        super().apply(writes)


class EmbeddedRetainStore(MemoryRetainStore):
    """Retained messages."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self._versions: dict[str, RetainVersion] = {}
        """The versions of the writes in ``_group``, by topic."""
        self._group: CommitGroup | None = None
        """The gathered writes, as this store knew them last."""

    def put(self, writes: Sequence[RetainWrite]) -> None:
        passing = [write for write in writes if write.message.topic.startswith(PASSING)]
        if passing:
            super().put(passing)
            writes = [write for write in writes if not write.message.topic.startswith(PASSING)]
        group = self._ledger.gathered
        if group is not self._group:
            self._group = group
            self._versions = {}
        for write in writes:
            topic, version = write.message.topic, write.version
            known = self._versions.get(topic) or self.version_of(topic)
            # The log has no condition: what is not accepted must not be in it.
            if (known is None or version >= known) and write.expected in (None, known):
                group.retain.append(write)
                self._versions[topic] = version

    @property
    def transaction(self) -> object:
        return self._ledger

    def commit(self) -> Commit:
        return self._ledger.commit()

    def carry_out(self, writes: Sequence[RetainWrite]) -> None:
        """Apply persisted writes."""
        super().put(writes)


class EmbeddedEventLog(MemoryEventLog):
    """Events, and the committed offsets of their consumers."""

    def __init__(self, ledger: Ledger, context: Any) -> None:
        from kinmqtt.builtins.memory import reporter, run_awaitable

        self._ledger = ledger
        super().__init__(
            context.clock.later,
            retention=EVENTS,
            retention_bytes=EVENTS_BYTES,
            run=run_awaitable,
            report=reporter(context),
            on_commit=self._note,
            on_hold=self._note_hold,
        )

    def append(self, events: Sequence[Event]) -> None:
        gathered = self._ledger.gathered.events
        first = self.newest + 1 + len(gathered)
        gathered.extend(Recorded(first + number, event) for number, event in enumerate(events))

    @property
    def transaction(self) -> object:
        return self._ledger

    def commit(self) -> Commit:
        return self._ledger.commit()

    def carry_out(self, records: Sequence[Recorded]) -> None:
        """Apply persisted events."""
        super().append([recorded.event for recorded in records])

    def restore(self, records: Sequence[Recorded], committed: Mapping[str, int], held: Iterable[str] = ()) -> None:
        # What was held before the log was read began at an offset of an empty log.
        self._ledger.gathered.offsets.clear()
        super().restore(records, committed, held)

    def all(self) -> list[Recorded]:
        """Return all stored events."""
        return list(self.read(self.oldest - 1, self.count()))

    def newest_events(self) -> list[Recorded]:
        """Return the newest events, as many as are stored when no group holds any."""
        count = self.count()
        first = self.read(self.oldest - 1, count)[max(0, count - EVENTS) :]
        size_bytes = 0
        newest: list[Recorded] = []
        for recorded in reversed(first):
            size_bytes += recorded.event.size_bytes
            if newest and size_bytes > EVENTS_BYTES:
                break
            newest.append(recorded)
        return newest[::-1]

    def page(self, after: int) -> list[Recorded]:
        """Return events after an offset, as many as a snapshot's slice may have."""
        page: list[Recorded] = []
        size_bytes = 0
        for recorded in self.read(after, EVENTS_IN_SLICE):
            size_bytes += recorded.event.size_bytes
            if page and size_bytes > EVENT_SLICE_BYTES:
                break
            page.append(recorded)
        return page

    def _note_hold(self, group: str, held: bool) -> None:
        self._ledger.gathered.holds[group] = held

    def _note(self, group: str, offset: int) -> None:
        # Written with the next turn; if that fails, consumers get a batch of events again.
        self._ledger.gathered.offsets[group] = offset


def _fenced(carry_out: Callable[[Any], None], writes: Any) -> frozenset[str]:
    try:
        carry_out(writes)
    except Fenced as error:
        return error.client_ids
    return frozenset()


async def _fail(commit: Any, fenced: set[str]) -> None:
    await commit
    raise Fenced(fenced)
