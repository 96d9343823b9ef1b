"""Consumer groups of the event log: partitioning, offsets and redelivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutine
from typing import Final, Protocol, TypeAlias
from zlib import crc32

from kinmqtt_spi.errors import OffsetOutOfRange
from kinmqtt_spi.services.event import Consumer, Handler, Recorded

BATCH: Final = 100
"""The maximum number of events in a batch."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""A failed batch is redelivered after a pause that doubles from the first to the longest."""

_SCAN: Final = 1000
"""The maximum number of events examined in one turn, including those of other members."""

Later: TypeAlias = Callable[[float, Callable[[], object]], object]
Report: TypeAlias = Callable[[str, BaseException], object]
Runner: TypeAlias = Callable[
    [Awaitable[None], Callable[[], None], Callable[[BaseException], None]], Awaitable[None] | None
]
"""Drives an awaitable and calls ``done`` or ``failed`` once. Returns what can be waited on until then (the
Deferred or task it made), or ``None`` if there is nothing to wait for."""


class Log(Protocol):
    """The part of a log that a group needs."""

    @property
    def oldest(self) -> int:
        """The offset of the oldest event."""

    def read(self, after: int, limit: int) -> Sequence[Recorded]:
        """Return at most ``limit`` events after an offset."""


def only_synchronous(
    awaitable: Awaitable[None], done: Callable[[], None], failed: Callable[[BaseException], None]
) -> None:
    """The default runner of a log: raises ``TypeError``."""
    if iscoroutine(awaitable):
        awaitable.close()
    raise TypeError("the event handler answered an awaitable, and this log has no runner for it")


class Member(Consumer):
    """One consumer. It has one batch at a time, with the events of its client ids in order."""

    def __init__(self, group: Group, handler: Handler) -> None:
        self.group = group
        self.handler = handler
        self.position = -1
        """The offset up to which this member has handled its events."""
        self.busy = False
        self.resting = False
        """Whether it waits for the redelivery of a failed batch."""
        self.stopped = False
        self.failures = 0
        self.again: tuple[Sequence[Recorded], int] | None = None
        """The failed batch, which is redelivered unchanged, and the position after it."""
        self.running: Awaitable[None] | None = None

    def stop(self) -> Awaitable[None] | None:
        """Leave the group; the other members take over the events that this one has not committed.

        Returns what the runner made of the handler's last call, if that is still running.
        """
        if not self.stopped:
            self.stopped = True
            self.group.leave(self)
        return self.running if self.busy else None


class Group:
    """The consumers with one group name.

    ``wanted`` are the current members, ``present`` the members that the client ids are divided among. They are made
    equal when no member has a batch, so that two members never have events of one client at the same time.
    """

    def __init__(self, log: Log, name: str, begin: int, later: Later, run: Runner, report: Report) -> None:
        self._log = log
        self._name = name
        self.begin = begin
        """The offset after which a group without a committed one begins."""
        self._later = later
        self._run = run
        self._report = report
        self._woken = False
        self.committed: int | None = None
        self.on_commit: Callable[[str, int], object] = lambda name, offset: None
        self.wanted: list[Member] = []
        self.present: tuple[Member, ...] = ()

    def join(self, handler: Handler) -> Member:
        """Add a consumer and return it."""
        member = Member(self, handler)
        self.wanted.append(member)
        self.wake()
        return member

    def restart(self, begin: int, committed: int | None) -> None:
        """Continue after other offsets: the log has other contents now."""
        self.begin = begin
        self.committed = committed
        self.present = ()
        self.wake()

    def leave(self, member: Member) -> None:
        """Remove a consumer."""
        self.wanted.remove(member)
        self.wake()

    def wake(self) -> None:
        """Schedule a turn that looks for work."""
        if not self._woken and (self.wanted or self.present):
            self._woken = True
            self._later(0.0, self._turn)

    def _turn(self) -> None:
        self._woken = False
        if tuple(self.wanted) != self.present:
            if any(member.busy for member in self.present):
                return  # the last of them to finish wakes the group
            self._divide()
        for number, member in enumerate(self.present):
            if not (member.busy or member.resting or member.stopped):
                self._feed(number, member)

    def _divide(self) -> None:
        self._commit()
        self.present = tuple(self.wanted)
        position = self.begin if self.committed is None else self.committed
        for member in self.present:
            member.position = position
            member.again = None

    def _feed(self, number: int, member: Member) -> None:
        """Pass a member its next batch, if there is one."""
        if member.again is not None:
            self._call(member, *member.again)
            return
        if member.position + 1 < self._log.oldest:
            self._report(self._name, OffsetOutOfRange(self._log.oldest))
            member.position = self._log.oldest - 1
        batch: list[Recorded] = []
        end = member.position
        for record in self._log.read(member.position, _SCAN):
            end = record.offset
            if self._falls_to(record.event.client_id) == number:
                batch.append(record)
                if len(batch) == BATCH:
                    break
        if batch:
            self._call(member, batch, end)
        elif end > member.position:
            self._handled(member, end)

    def _falls_to(self, client_id: str) -> int:
        members = len(self.present)
        return 0 if members == 1 else crc32(client_id.encode("utf-8", "surrogatepass")) % members

    def _call(self, member: Member, batch: Sequence[Recorded], end: int) -> None:
        member.busy = True
        try:
            answer = member.handler(batch)
        except Exception as error:  # whatever a handler raises, its batch is redelivered
            self._failed(member, error, batch, end)
            return
        if not isawaitable(answer):
            self._handled(member, end)
            return
        try:
            running = self._run(
                answer,
                lambda: self._handled(member, end),
                lambda error: self._failed(member, error, batch, end),
            )
        except Exception:
            member.busy = False
            member.stop()
            raise
        member.running = running if member.busy else None

    def _handled(self, member: Member, end: int) -> None:
        member.busy = False
        member.running = None
        member.failures = 0
        member.again = None
        member.position = end
        self._commit()
        self.wake()

    def _failed(self, member: Member, error: BaseException, batch: Sequence[Recorded], end: int) -> None:
        member.busy = False
        member.running = None
        member.again = (batch, end)
        self._report(self._name, error)
        if member.stopped:
            self.wake()
            return
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(member.failures, 30), LONGEST_PAUSE_S)
        member.failures += 1
        member.resting = True
        self._later(pause_s, lambda: self._rested(member))
        self.wake()

    def _rested(self, member: Member) -> None:
        member.resting = False
        self.wake()

    def _commit(self) -> None:
        """Commit the position of the slowest member."""
        if self.present:
            position = min(member.position for member in self.present)
            if position > (self.begin if self.committed is None else self.committed):
                self.committed = position
                self.on_commit(self._name, position)
