"""The event log in memory: a bounded list, and consumer groups that read it at their own pace."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Final

from kinmqtt_spi.errors import OffsetOutOfRange
from kinmqtt_spi.memory._consumers import Group, Member, Report, Runner, only_synchronous
from kinmqtt_spi.services.event import (
    Event,
    EventKind,
    EventLog,
    EventVersion,
    Handler,
    HoldBounds,
    Recorded,
    Start,
)

RETENTION: Final = 10_000
"""The default number of events that a log retains."""

RETENTION_BYTES: Final = 16 << 20
"""The default limit of their sizes (:attr:`Event.size_bytes`)."""


def _ignore(group: str, error: BaseException) -> None:
    """Leave a consumer's error unreported."""


def _offset(recorded: Recorded) -> int:
    return recorded.offset


_GONE: Final = Recorded(-1, Event(EventKind.CONNECT, "", EventVersion(0, 0), 0.0, {}))
"""Replaces a deleted event in the list, until the list is trimmed."""


class MemoryEventLog(EventLog):
    """Retains the newest ``retention`` events, in at most ``retention_bytes`` of memory, and what groups hold.

    Each event is committed when :meth:`append` returns. The newest event is retained whatever its size.

    ``later(delay_s, call)`` makes every call of a handler, in a turn of its own: a handler never runs inside
    :meth:`append`. ``run(awaitable, done, failed)`` drives the awaitables of asynchronous handlers; without it an
    asynchronous handler raises ``TypeError``. ``report(group, error)`` is called when a handler raised, and with
    ``OffsetOutOfRange`` when a slow consumer has missed events. ``records`` and ``committed`` are the events and the
    committed offsets of an earlier log that this one continues. ``on_commit(group, offset)`` is called for each
    commit, and ``on_hold(group, held)`` when a group is held for the first time, or no longer.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], object]], object],
        *,
        retention: int = RETENTION,
        retention_bytes: int = RETENTION_BYTES,
        run: Runner = only_synchronous,
        report: Report = _ignore,
        records: Sequence[Recorded] = (),
        committed: Mapping[str, int] | None = None,
        on_commit: Callable[[str, int], object] | None = None,
        on_hold: Callable[[str, bool], object] | None = None,
    ) -> None:
        if retention < 1:
            raise ValueError("an event log must retain at least one event")
        self._later = later
        self._run = run
        self._report = report
        self._retention = retention
        self._retention_bytes = retention_bytes
        self._records: list[Recorded] = []
        self._bytes = 0
        self._sizes_bytes: deque[int] = deque()
        """The size of each event: computing it again costs more than storing it."""
        self._gone = 0
        """The number of deleted events at the start of the list. It is trimmed when they are half of it."""
        self._next = 0
        self._groups: dict[str, Group] = {}
        self._starts: dict[str, Start] = {}
        """Where each group begins that has no committed offset."""
        self._on_commit = on_commit
        self._on_hold = on_hold
        self._committed: dict[str, int] = {}
        self._held: dict[str, bool] = {}
        """The groups for which events are held, and whether that was asked for since the start."""
        self._bounds = HoldBounds()
        self._on_lost: Callable[[int], object] = lambda count: None
        self._on_group: Callable[[str], object] = lambda group: None
        self.restore(records, committed or {})

    def restore(self, records: Sequence[Recorded], committed: Mapping[str, int], held: Iterable[str] = ()) -> None:
        """Replace the contents with the events, committed offsets and ``held`` groups of another log.

        Groups that are consumed or held already continue after the offsets that they have there.
        """
        self._records = list(records)
        self._gone = 0
        self._sizes_bytes = deque(each.event.size_bytes for each in self._records)
        self._bytes = sum(self._sizes_bytes)
        if records:
            self._next = records[-1].offset + 1
        self._committed = dict(committed)
        self._held = dict.fromkeys(held, False) | self._held
        on_lost, self._on_lost = self._on_lost, lambda count: None  # they were counted when they were lost
        self._forget_oldest()
        self._on_lost = on_lost
        for name, group in self._groups.items():
            group.restart(self._first_position(name), self._committed.get(name))
        for name in self._held:
            self._begin(name)

    @property
    def size_bytes(self) -> int:
        """The approximate size of the events in memory."""
        return self._bytes

    @property
    def oldest(self) -> int:
        """The offset of the oldest event, or of the next one if there is none."""
        return self._records[self._gone].offset if len(self._records) > self._gone else self._next

    @property
    def newest(self) -> int:
        """The offset of the newest event; -1 before the first."""
        return self._next - 1

    def count(self) -> int:
        """Return the number of events."""
        return len(self._records) - self._gone

    def append(self, events: Sequence[Event]) -> None:
        for event in events:
            self._records.append(Recorded(self._next, event))
            self._next += 1
            size_bytes = event.size_bytes
            self._sizes_bytes.append(size_bytes)
            self._bytes += size_bytes
        self._forget_oldest()
        if events:
            for group in self._groups.values():
                group.wake()

    def read(self, after: int, limit: int) -> Sequence[Recorded]:
        if after + 1 < self.oldest:
            raise OffsetOutOfRange(self.oldest)
        # Offsets are not consecutive if a restored log had lost events.
        first = bisect_right(self._records, after, self._gone, key=_offset)
        return tuple(self._records[first : first + limit]) if limit > 0 else ()

    def consume(self, group: str, handler: Handler, start: Start = Start.OLDEST) -> Member:
        """See :meth:`EventLog.consume`.

        A group exists as long as the log. When a consumer joins or leaves, the others finish their batches; then all
        continue after the committed offset. So events may be delivered twice, but are never skipped.
        """
        if self._run is only_synchronous and iscoroutinefunction(handler):
            raise TypeError(f"a consumer of group {group!r} is asynchronous, and this log has no runner for it")
        known = self._groups.get(group)
        if known is None:
            self._starts.setdefault(group, start)
            begin = self._position(group)
            known = self._groups[group] = Group(self, group, begin, self._later, self._run, self._report)
            known.committed = self._committed.get(group)
            known.on_commit = self._group_commits
            self._on_group(group)
        return known.join(handler)

    def hold(self, group: str, start: Start = Start.OLDEST) -> None:
        is_new = group not in self._held
        self._held[group] = True
        self._starts.setdefault(group, start)
        self._begin(group)
        if is_new:
            self._on_group(group)
            if self._on_hold is not None:
                self._on_hold(group, True)

    def forget_unheld(self) -> Sequence[str]:
        unheld = sorted(group for group, is_held in self._held.items() if not is_held)
        for group in unheld:
            del self._held[group]
            if self._on_hold is not None:
                self._on_hold(group, False)
        self._forget_oldest()
        return unheld

    def bound(self, bounds: HoldBounds, on_lost: Callable[[int], object], on_group: Callable[[str], object]) -> None:
        self._bounds = bounds
        self._on_lost = on_lost
        self._on_group = on_group
        for group in {**self._held, **self._groups}:
            on_group(group)
        self._forget_oldest()

    def lag(self, group: str) -> int:
        return len(self._records) - bisect_right(self._records, self._position(group), self._gone, key=_offset)

    def held(self) -> Sequence[str]:
        """Return the groups for which events are held."""
        return tuple(self._held)

    def committed(self, group: str) -> int:
        return self._committed.get(group, -1)

    def commits(self) -> Mapping[str, int]:
        """Return the committed offset of each group."""
        return self._committed

    def _position(self, group: str) -> int:
        """Return the committed offset of a group, or the offset that it begins after."""
        if group in self._committed:
            return self._committed[group]
        known = self._groups.get(group)
        return self._first_position(group) if known is None else known.begin

    def _first_position(self, group: str) -> int:
        return self.newest if self._starts.get(group) is Start.NEWEST else self.oldest - 1

    def _begin(self, group: str) -> None:
        """Give a held group a committed offset, so that it is known after a restart where it begins."""
        if group in self._held and group not in self._committed:
            self._group_commits(group, self._position(group))
            if group in self._groups:
                self._groups[group].committed = self._committed[group]

    def _forget_oldest(self) -> None:
        records = self._records
        gone = self._gone
        bounds = self._bounds
        # Events above it are held.
        floor = min((self._position(group) for group in self._held), default=self._next)
        lost = 0
        while len(records) - gone > 1 and (
            len(records) - gone > self._retention or self._bytes > self._retention_bytes
        ):
            if records[gone].offset > floor:
                if len(records) - gone <= bounds.max_waiting and self._bytes <= bounds.max_waiting_bytes:
                    break
                lost += 1
            self._bytes -= self._sizes_bytes.popleft()
            records[gone] = _GONE
            gone += 1
        if gone > len(records) - gone:
            del records[:gone]
            gone = 0
        self._gone = gone
        if lost:
            self._on_lost(lost)

    def _group_commits(self, group: str, offset: int) -> None:
        self._committed[group] = offset
        if group in self._held:
            self._forget_oldest()
        if self._on_commit is not None:
            self._on_commit(group, offset)
