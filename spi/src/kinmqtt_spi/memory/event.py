"""The event log in memory: a bounded list, and groups of consumers that follow it at their own pace."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Final

from kinmqtt_spi.errors import OffsetOutOfRange
from kinmqtt_spi.memory._consumers import Group, Member, Report, Runner, only_synchronous
from kinmqtt_spi.services.event import Event, EventKind, EventLog, EventVersion, Handler, Recorded, Start

RETENTION: Final = 10_000
"""Events that a log keeps by itself."""

RETENTION_BYTES: Final = 16 << 20
"""What these may take (:attr:`Event.size_bytes`): where that is less, there are fewer."""


def _ignore(group: str, error: BaseException) -> None:
    """Leave a consumer's error unreported."""


def _offset(recorded: Recorded) -> int:
    return recorded.offset


_GONE: Final = Recorded(-1, Event(EventKind.CONNECT, "", EventVersion(0, 0), 0.0, {}))
"""Stands where an event was that is gone, until the places of such are cut off."""


class MemoryEventLog(EventLog):
    """Keeps the newest ``retention`` events, as far as they take no more than ``retention_bytes`` in memory.

    Each is kept when :meth:`append` returns. The newest is there however large it is.

    ``later(delay_s, call)`` makes every call of a handler, in a turn of its own: a handler never runs inside
    :meth:`append`. ``run(awaitable, done, failed)`` drives what asynchronous handlers answer; without it
    a handler must be synchronous, and one that is not raises ``TypeError``. ``report(group, error)`` is told
    when a handler raised, and (with ``OffsetOutOfRange``) when a consumer was so slow that events it had not
    seen are gone. A log that goes on where another ended is handed its ``records`` and what its groups had
    ``committed``; ``on_commit(group, offset)`` is told of each commit.
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
    ) -> None:
        if retention < 1:
            raise ValueError("an event log must keep at least one event")
        self._later = later
        self._run = run
        self._report = report
        self._retention = retention
        self._retention_bytes = retention_bytes
        self._records: list[Recorded] = []
        self._bytes = 0
        self._sizes_bytes: deque[int] = deque()
        """What each event takes: to look twice at all that it holds costs more than to remember."""
        self._gone = 0
        """Places at the start of the list whose events are gone: they are cut off when they are half."""
        self._next = 0
        self._groups: dict[str, Group] = {}
        self._on_commit = on_commit
        self._committed: dict[str, int] = {}
        self.restore(records, committed or {})

    def restore(self, records: Sequence[Recorded], committed: Mapping[str, int]) -> None:
        """Begin anew, where another log ended: with the events it had, and what its groups had committed."""
        self._records = list(records[-self._retention :])
        self._gone = 0
        self._sizes_bytes = deque(each.event.size_bytes for each in self._records)
        self._bytes = sum(self._sizes_bytes)
        self._forget_oldest()
        if records:
            self._next = records[-1].offset + 1
        self._committed = dict(committed)

    @property
    def size_bytes(self) -> int:
        """About what the events take in memory."""
        return self._bytes

    @property
    def oldest(self) -> int:
        """The offset of the oldest event still here, or of the next one if there is none."""
        return self._records[self._gone].offset if len(self._records) > self._gone else self._next

    @property
    def newest(self) -> int:
        """The offset of the newest event; -1 before the first."""
        return self._next - 1

    def count(self) -> int:
        """How many events there are."""
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
        # Offsets need not be consecutive: where something was lost from a log that was read, they are not.
        first = bisect_right(self._records, after, self._gone, key=_offset)
        return tuple(self._records[first : first + limit]) if limit > 0 else ()

    def consume(self, group: str, handler: Handler, start: Start = Start.OLDEST) -> Member:
        """See :meth:`EventLog.consume`.

        A group remembers where it began and what it committed for as long as the log lives. When a consumer
        joins or leaves, the others finish their batches; then all go on after the committed offset, so that
        events may come twice and are never left out.
        """
        if self._run is only_synchronous and iscoroutinefunction(handler):
            raise TypeError(f"a consumer of group {group!r} is asynchronous: this log has nothing to run it")
        known = self._groups.get(group)
        if known is None:
            begin = self.oldest - 1 if start is Start.OLDEST else self.newest
            known = self._groups[group] = Group(self, group, begin, self._later, self._run, self._report)
            known.committed = self._committed.get(group)
            known.on_commit = self._group_commits
        return known.join(handler)

    def committed(self, group: str) -> int:
        return self._committed.get(group, -1)

    def commits(self) -> Mapping[str, int]:
        """What each group has committed."""
        return self._committed

    def _forget_oldest(self) -> None:
        records = self._records
        gone = self._gone
        while len(records) - gone > 1 and (
            len(records) - gone > self._retention or self._bytes > self._retention_bytes
        ):
            self._bytes -= self._sizes_bytes.popleft()
            records[gone] = _GONE
            gone += 1
        if gone > len(records) - gone:
            del records[:gone]
            gone = 0
        self._gone = gone

    def _group_commits(self, group: str, offset: int) -> None:
        self._committed[group] = offset
        if self._on_commit is not None:
            self._on_commit(group, offset)
