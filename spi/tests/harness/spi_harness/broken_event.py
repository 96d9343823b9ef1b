"""Event logs that break one promise each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from itertools import count
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.errors import OffsetOutOfRange, ServiceUnavailable
from kinmqtt_spi.memory._consumers import Member
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Consumer, Event, EventVersion, HoldBounds, Recorded, Start
from kinmqtt_spi.testing.build import event
from kinmqtt_spi.testing.event import EventLogContract
from spi_harness.turning import ClockRunner, Gate

RETENTION = 5000


class _Broken(EventLogContract):
    """``double`` is the log."""

    forgets = True
    takes_awaitables = True
    double: type[MemoryEventLog]

    @pytest.fixture
    def event_log(self, clock: TurnableClock) -> MemoryEventLog:
        return self.double(clock.later, retention=RETENTION, run=ClockRunner(clock))

    def forgetting(self, log: Any, drive: Any) -> None:
        log.append([event("filler", number) for number in range(RETENTION)])

    def held(self, drive: Any) -> tuple[Awaitable[None], Callable[[], object]]:
        gate = Gate()
        return gate, gate.go


class _Between(MemoryEventLog):
    """Stands between the log and its handlers."""

    def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
        return super().consume(group, lambda batch: self.handle(group, handler, batch), start)

    def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
        """Hand over a batch."""
        raise NotImplementedError


class _Grouping(MemoryEventLog):
    """Changes groups when they are made."""

    def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
        known = group in self._groups
        member = super().consume(group, handler, start)
        self.joined(self._groups[group], member, known)
        return member

    def joined(self, group: Any, member: Any, known: bool) -> None:
        """A consumer has joined a group, which may be new."""
        raise NotImplementedError


class TestEVENT_01_HasCommittedZero(_Broken):
    class double(MemoryEventLog):
        def committed(self, group: str) -> int:
            return max(super().committed(group), 0)


class TestEVENT_02_KeepsBatchesBackwards(_Broken):
    class double(MemoryEventLog):
        def append(self, events: Sequence[Event]) -> None:
            super().append(events[::-1])


class TestEVENT_03_BeginsWithTheOffset(_Broken):
    class double(MemoryEventLog):
        def read(self, after: int, limit: int) -> Sequence[Recorded]:
            return super().read(max(after - 1, -1), limit)


class TestEVENT_04_AnswersOneMore(_Broken):
    class double(MemoryEventLog):
        def read(self, after: int, limit: int) -> Sequence[Recorded]:
            return super().read(after, limit + 1)


class TestEVENT_04_SkipsBetweenPages(_Broken):
    class double(MemoryEventLog):
        def read(self, after: int, limit: int) -> Sequence[Recorded]:
            return super().read(after, limit + 1)[0 if after < 0 else 1 :][:limit]


class TestEVENT_05_MakesTextOfData(_Broken):
    class double(MemoryEventLog):
        def append(self, events: Sequence[Event]) -> None:
            super().append(
                [evolve(each, data={key: str(value) for key, value in each.data.items()}) for each in events]
            )


class TestEVENT_05_TakesCountersForSmall(_Broken):
    class double(MemoryEventLog):
        def append(self, events: Sequence[Event]) -> None:
            versions = [EventVersion(each.version.epoch, each.version.counter % 2**32) for each in events]
            super().append([evolve(each, version=its) for each, its in zip(events, versions, strict=True)])


class TestEVENT_05_ForgetsTheSchema(_Broken):
    class double(MemoryEventLog):
        def append(self, events: Sequence[Event]) -> None:
            super().append([evolve(each, schema_version=1) for each in events])


class TestEVENT_06_CountsAnewAtEachRead(_Broken):
    class double(MemoryEventLog):
        reads = 0

        def read(self, after: int, limit: int) -> Sequence[Recorded]:
            self.reads += 1
            return [evolve(each, offset=each.offset + self.reads) for each in super().read(after, limit)]


class TestEVENT_07_AnswersWhatIsLeft(_Broken):
    class double(MemoryEventLog):
        def read(self, after: int, limit: int) -> Sequence[Recorded]:
            return super().read(max(after, self.oldest - 1), limit)


class TestEVENT_07_NamesWhatIsGone(_Broken):
    class double(MemoryEventLog):
        def read(self, after: int, limit: int) -> Sequence[Recorded]:
            if after + 1 < self.oldest:
                raise OffsetOutOfRange(after + 1)
            return super().read(after, limit)


class TestEVENT_08_KeepsTheLastFirst(_Broken):
    class double(MemoryEventLog):
        """Holds what it is handed until it is asked, then begins at the end."""

        handed: tuple[Sequence[Event], ...] = ()

        def append(self, events: Sequence[Event]) -> Any:
            self.handed = (*self.handed, events)
            return self.done()

        async def done(self) -> None:
            handed, self.handed = self.handed, ()
            for events in reversed(handed):
                super().append(events)


class TestEVENT_09_MovesWhatItKnows(_Broken):
    class double(MemoryEventLog):
        def append(self, events: Sequence[Event]) -> None:
            self._records = [each for each in self._records if each.event not in events]
            super().append(events)


class TestEVENT_09_RefusesWhatItKnows(_Broken):
    class double(MemoryEventLog):
        def append(self, events: Sequence[Event]) -> None:
            if any(each.event in events for each in self._records):
                raise ServiceUnavailable("the event is there already")
            super().append(events)


class TestEVENT_10_FailsInSilence(_Broken):
    can_fail = True

    class double(MemoryEventLog):
        down = False

        def append(self, events: Sequence[Event]) -> None:
            if not self.down:
                super().append(events)

    def failing(self, log: Any) -> Callable[[], object]:
        log.down = True
        return lambda: setattr(log, "down", False)


class _Restarting(_Broken):
    """``next_life`` makes the log's next life of it."""

    survives_restart = True
    double = MemoryEventLog

    def reopened(self, log: Any, drive: Any) -> Any:
        again = MemoryEventLog(log._later, run=log._run)
        self.next_life(log, again)
        return again

    def next_life(self, log: Any, again: Any) -> None:
        raise NotImplementedError


class TestEVENT_11_ForgetsEverything(_Restarting):
    def next_life(self, log: Any, again: Any) -> None:
        pass


class TestEVENT_11_CountsAnew(_Restarting):
    def next_life(self, log: Any, again: Any) -> None:
        again.append([each.event for each in log._records[1:]])


class TestEVENT_12_StopsAtTheEnd(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            wake = group.wake
            group.wake = lambda: None if member.position >= 2 else wake()


class TestEVENT_12_HandsOverNothing(_Broken):
    class double(_Between):
        def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
            handler([])
            return handler(batch)


class TestEVENT_13_HandsOverBackwards(_Broken):
    class double(_Between):
        def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
            return handler(batch[::-1])


class TestEVENT_14_BeginsWithTheOldest(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            return super().consume(group, handler)


class TestEVENT_14_BeginsWithTheNewest(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            return super().consume(group, handler, Start.NEWEST)


class TestEVENT_15_CommitsNothing(_Broken):
    class double(MemoryEventLog):
        def committed(self, group: str) -> int:
            return -1


class TestEVENT_16_CommitsBeforeItCalls(_Broken):
    class double(_Between):
        def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
            self._committed[group] = batch[-1].offset
            return handler(batch)


class TestEVENT_17_DropsWhatFails(_Broken):
    class double(_Between):
        def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
            try:
                return handler(batch)
            except RuntimeError:
                return None


class TestEVENT_17_AddsToWhatFailed(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            failed = group._failed

            def forget(member: Any, *more: Any) -> None:
                failed(member, *more)
                member.again = None

            group._failed = forget


class TestEVENT_18_BeginsAnew(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            if group in self._groups and not self._groups[group].wanted:
                del self._groups[group]
                self._committed.pop(group, None)
            return super().consume(group, handler, start)


class TestEVENT_19_CommitsWhenItStops(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            leave = group.leave

            def commit(member: Any) -> None:
                group.committed = self.newest
                leave(member)

            group.leave = commit


class TestEVENT_20_HasOneGroup(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            return super().consume("all", handler, start)


class TestEVENT_21_EverybodyGetsEverything(_Broken):
    class double(MemoryEventLog):
        numbers = count()

        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            return super().consume(f"{group}-{next(self.numbers)}", handler, start)


class TestEVENT_21_DividesEvents(_Broken):
    class double(_Grouping):
        numbers = count()

        def joined(self, group: Any, member: Any, known: bool) -> None:
            group._falls_to = lambda client_id: next(self.numbers) // 7 % len(group.present)


class TestEVENT_21_OneDoesEverything(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            group._falls_to = lambda client_id: 0


class TestEVENT_22_CommitsAsFarAsTheFastest(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            def commit() -> None:
                if group.present:
                    position = max(member.position for member in group.present)
                    if position > group.begin:
                        group.committed = position
                        group.on_commit(group._name, position)

            group._commit = commit


class TestEVENT_23_NewcomersBeginAtTheEnd(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            if known:
                group.committed = self.newest


class TestEVENT_24_NobodyTakesOver(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            group.leave = lambda member: None


class TestEVENT_25_GoesOnWhenStopped(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Any:
            super().consume(group, handler, start)

            class Endless(Consumer):
                def stop(self) -> None:
                    pass

            return Endless()


class TestEVENT_26_BeginsAtTheEndWhereSomethingIsGone(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            return super().consume(group, handler, Start.NEWEST if self.oldest else start)


class _InPassing(_Between):
    """Does not wait for what handlers answer."""

    def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
        answer = handler(batch)
        if isawaitable(answer):
            self._run(answer, lambda: None, lambda error: None)


class TestEVENT_27_WaitsForNothing(_Broken):
    double = _InPassing


class TestEVENT_28_TakesErrorsForResults(_Broken):
    class double(_Between):
        def handle(self, group: str, handler: Any, batch: Sequence[Recorded]) -> Any:
            return self.wait(handler(batch))

        async def wait(self, answer: Any) -> None:
            try:
                await answer
            except RuntimeError:
                pass


class TestEVENT_29_StopsAtOnce(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Any:
            member = super().consume(group, handler, start)

            class Hasty(Consumer):
                def stop(self) -> None:
                    member.stop()

            return Hasty()


class TestEVENT_30_HandsOverWhatIsInHand(_Broken):
    double = _InPassing


class TestEVENT_31_ForgetsWhatWasCommitted(_Restarting):
    def next_life(self, log: Any, again: Any) -> None:
        again.restore(log._records, {})


class TestEVENT_32_LosesWhatALeaverHad(_Broken):
    class double(_Grouping):
        def joined(self, group: Any, member: Any, known: bool) -> None:
            leave = group.leave

            def commit(member: Any) -> None:
                group.committed = self.newest
                leave(member)

            group.leave = commit


class TestEVENT_33_HoldsNothing(_Broken):
    class double(MemoryEventLog):
        def hold(self, group: str, start: Start = Start.OLDEST) -> None:
            pass


class TestEVENT_33_HoldsForEver(_Broken):
    class double(MemoryEventLog):
        def _position(self, group: str) -> int:
            return -1 if group in self._held else super()._position(group)


class TestEVENT_34_HoldsWithoutABound(_Broken):
    class double(MemoryEventLog):
        def bound(self, bounds: HoldBounds, on_lost: Any, on_group: Any) -> None:
            super().bound(HoldBounds(), on_lost, on_group)


class TestEVENT_34_LosesInSilence(_Broken):
    class double(MemoryEventLog):
        def bound(self, bounds: HoldBounds, on_lost: Any, on_group: Any) -> None:
            super().bound(bounds, lambda count: None, on_group)


class TestEVENT_35_ForgetsHolds(_Restarting):
    def next_life(self, log: Any, again: Any) -> None:
        again._retention = RETENTION
        again.restore(log._records, log._committed)


class TestEVENT_36_ForgetsWhatWasHeld(_Restarting):
    def next_life(self, log: Any, again: Any) -> None:
        again.restore(log._records, log._committed)


class TestEVENT_36_ForgetsWhatIsHeld(_Restarting):
    def next_life(self, log: Any, again: Any) -> None:
        again.restore(log._records, log._committed, log.held())
        again.hold = lambda group: None


class TestEVENT_37_CountsEverything(_Broken):
    class double(MemoryEventLog):
        def lag(self, group: str) -> int:
            return self.count()


class TestEVENT_38_BeginsWhereConsumersDo(_Broken):
    class double(MemoryEventLog):
        def consume(self, group: str, handler: Any, start: Start = Start.OLDEST) -> Member:
            self._committed.pop(group, None)
            self._starts[group] = start
            return super().consume(group, handler, start)
