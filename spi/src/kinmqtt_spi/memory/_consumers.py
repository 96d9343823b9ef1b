"""Groups of consumers of the event log: who gets which events, how far each is, and what comes again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutine
from typing import Final, Protocol, TypeAlias
from zlib import crc32

from kinmqtt_spi.errors import OffsetOutOfRange
from kinmqtt_spi.services.event import Consumer, Handler, Recorded

BATCH: Final = 100
"""The most events a handler gets at once."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""A failed batch comes again after a pause that doubles from the first to the longest."""

_SCAN: Final = 1000
"""The most events looked through in one turn: those of other members cost time too."""

Later: TypeAlias = Callable[[float, Callable[[], object]], object]
Report: TypeAlias = Callable[[str, BaseException], object]
Runner: TypeAlias = Callable[
    [Awaitable[None], Callable[[], None], Callable[[BaseException], None]], Awaitable[None] | None
]
"""Drives an awaitable and calls ``done`` or ``failed`` once. Answers what can be waited on until it has (the
Deferred or task it made), or ``None`` where there is nothing to wait for."""


class Log(Protocol):
    """What a group needs of its log."""

    @property
    def oldest(self) -> int:
        """The offset of the oldest event still here."""

    def read(self, after: int, limit: int) -> Sequence[Recorded]:
        """At most ``limit`` events after an offset."""


def only_synchronous(
    awaitable: Awaitable[None], done: Callable[[], None], failed: Callable[[BaseException], None]
) -> None:
    """The runner of a log that was handed none: raises ``TypeError``."""
    if iscoroutine(awaitable):
        awaitable.close()
    raise TypeError("the event handler answered an awaitable, and this log was given nothing to run it")


class Member(Consumer):
    """One consumer. It has one batch at a time, and sees the client ids that fall to it in order."""

    def __init__(self, group: Group, handler: Handler) -> None:
        self.group = group
        self.handler = handler
        self.position = -1
        """All events of this member up to here are handled."""
        self.busy = False
        self.resting = False
        """Waiting for a failed batch to come again."""
        self.stopped = False
        self.failures = 0
        self.again: tuple[Sequence[Recorded], int] | None = None
        """The batch that failed, which comes again as it was, and the position behind it."""
        self.running: Awaitable[None] | None = None

    def stop(self) -> Awaitable[None] | None:
        """Leave the group; its other members take over what this one has not committed.

        Answers what the runner made of the handler's last call, if that is still running.
        """
        if not self.stopped:
            self.stopped = True
            self.group.leave(self)
        return self.running if self.busy else None


class Group:
    """The consumers of one name.

    ``wanted`` are the members there should be, ``present`` those the client ids are divided among. They are
    made equal when no member holds a batch, so that two never hold events of one client at the same time.
    """

    def __init__(self, log: Log, name: str, begin: int, later: Later, run: Runner, report: Report) -> None:
        self._log = log
        self._name = name
        self._begin = begin
        self._later = later
        self._run = run
        self._report = report
        self._woken = False
        self.committed: int | None = None
        self.on_commit: Callable[[str, int], object] = lambda name, offset: None
        self.wanted: list[Member] = []
        self.present: tuple[Member, ...] = ()

    def join(self, handler: Handler) -> Member:
        """Add a consumer."""
        member = Member(self, handler)
        self.wanted.append(member)
        self.wake()
        return member

    def leave(self, member: Member) -> None:
        """Take a consumer out."""
        self.wanted.remove(member)
        self.wake()

    def wake(self) -> None:
        """Look for work in a later turn."""
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
        position = self._begin if self.committed is None else self.committed
        for member in self.present:
            member.position = position
            member.again = None

    def _feed(self, number: int, member: Member) -> None:
        """Hand a member its next batch, if there is one."""
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
        except Exception as error:  # whatever a handler raises, its batch comes again
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
        """The group is as far as the slowest of those who divide the client ids."""
        if self.present:
            position = min(member.position for member in self.present)
            if position > (self._begin if self.committed is None else self.committed):
                self.committed = position
                self.on_commit(self._name, position)
