"""The contract of an event log and its consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from time import monotonic
from typing import Final

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import OffsetOutOfRange, ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Consumer, Event, EventKind, EventLog, EventVersion, Recorded, Start
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import NOW, event
from kinmqtt_spi.testing.contract import StoreContract, many
from kinmqtt_spi.testing.driving import LIMIT_S, AsyncioDriver, Driver
from kinmqtt_spi.values import Maybe

_STEP_S: Final = 0.25
_QUIET_S: Final = 2.0
"""How long it is watched that something does not come about."""
_PATIENCE_S: Final = 120.0
"""How long it is waited for that something comes about."""
_MANY: Final = 1_000_000


class EventLogContract(StoreContract):
    """Override the fixture ``event_log``: an empty log, opened with ``drive`` if it must be awaited.

    Its consumers run while time passes: on ``clock``, which the fixture may request, or in the event loop of
    ``drive``. Override :meth:`pass_time` if they need more.
    """

    forgets = False
    """Whether the suite may have the oldest events go: override :meth:`forgetting`."""
    takes_awaitables = False
    """Whether handlers may answer awaitables: override :meth:`held` where it is not asyncio that runs them."""

    @pytest.fixture
    def event_log(self) -> EventLog:
        """The log under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture event_log")

    def forgetting(self, log: EventLog, drive: Driver) -> None:
        """Make all current events expire, by age or by number; there may be newer ones then."""
        raise NotImplementedError(f"{type(self).__name__} sets forgets, and does not override forgetting")

    def held(self, drive: Driver) -> tuple[Awaitable[None], Callable[[], object]]:
        """Return an awaitable for a handler, and a call that ends the wait: an asyncio future by default."""
        if not isinstance(drive, AsyncioDriver):
            raise NotImplementedError(f"{type(self).__name__} sets takes_awaitables, and does not override held")
        future: asyncio.Future[None] = drive.loop.create_future()
        return future, lambda: future.set_result(None)

    def pass_time(self, clock: TurnableClock, drive: Driver, seconds: float) -> None:
        """Let consumers run: advance the clock, and run the event loop for a moment if there is one."""
        clock.advance(seconds)
        if self.reactor is not None:
            moment: Maybe[None] = asyncio.sleep(0.01)
            drive(moment)

    # The log

    @behaviour("EVENT-01")
    def test_event_01_an_empty_log_has_nothing(self, event_log: EventLog, drive: Driver) -> None:
        """An empty log returns no events, and -1 as the committed offset of an unknown group."""
        assert not drive(event_log.read(-1, 10))
        assert drive(event_log.committed("nobody")) == -1

    @behaviour("EVENT-02")
    def test_event_02_events_are_in_order(self, event_log: EventLog, drive: Driver) -> None:
        """A client's events are read in the order in which they were appended, and offsets increase."""
        batches = [[event(name, 2 * number), event(name, 2 * number + 1)] for number in range(6) for name in "ab"]
        for batch in batches:
            self._append(event_log, drive, *batch)

        found = self._read(event_log, drive)

        offsets = [recorded.offset for recorded in found]
        assert offsets == sorted(set(offsets))
        assert offsets[0] >= 0
        for name in "ab":
            assert _of(found, name) == [each for batch in batches for each in batch if each.client_id == name]

    @behaviour("EVENT-03")
    def test_event_03_reading_goes_on_after_an_offset(self, event_log: EventLog, drive: Driver) -> None:
        """``read`` returns events above the given offset: after -1 all of them, after the last one none."""
        self._append(event_log, drive, *(event("a", number) for number in range(5)))
        found = self._read(event_log, drive)

        for place, recorded in enumerate(found):
            assert list(drive(event_log.read(recorded.offset, 10))) == found[place + 1 :]
        assert _counters(drive(event_log.read(-1, 10))) == [0, 1, 2, 3, 4]

    @behaviour("EVENT-04")
    def test_event_04_pages_leave_nothing_out(self, event_log: EventLog, drive: Driver) -> None:
        """``read`` returns at most the limit; pages return each event once while events are appended."""
        self._append(event_log, drive, *(event("a", number) for number in range(20)))

        seen: list[Recorded] = []
        for number in range(100):
            page = drive(event_log.read(seen[-1].offset if seen else -1, 3))
            assert len(page) <= 3
            if not page:
                break
            seen += page
            if number < 4:
                self._append(event_log, drive, event("a", 20 + number))

        assert _counters(seen) == list(range(24))

    @behaviour("EVENT-05")
    def test_event_05_everything_comes_back(self, event_log: EventLog, drive: Driver) -> None:
        """An event is returned unchanged: kind, version, time, schema version, and plain values as data."""
        data = {"text": "ü \U0001f600", "count": 2**40, "ratio": 0.1, "yes": True, "none": None, "": ""}
        events = [
            Event(kind, f"ä/{kind.value}+#", EventVersion(2**40, 2**50 + number), NOW + 0.123456, data, 1 + number)
            for number, kind in enumerate(EventKind)
        ]
        events.append(event("plain", data={}))
        self._append(event_log, drive, *events)

        found = [evolve(recorded.event, data=dict(recorded.event.data)) for recorded in self._read(event_log, drive)]

        assert sorted(found, key=_by_client) == sorted(events, key=_by_client)

    @behaviour("EVENT-06")
    def test_event_06_offsets_stay(self, event_log: EventLog, drive: Driver) -> None:
        """An event keeps its offset, however often it is read, and later events have higher offsets."""
        self._append(event_log, drive, event("a", 1), event("b", 1))
        before = self._read(event_log, drive)
        assert self._read(event_log, drive) == before

        self._append(event_log, drive, event("a", 2), event("c", 1))

        after = self._read(event_log, drive)
        assert after[:2] == before
        assert min(recorded.offset for recorded in after[2:]) > before[-1].offset

    @behaviour("EVENT-07", needs="forgets")
    def test_event_07_what_is_gone_is_told(self, event_log: EventLog, drive: Driver) -> None:
        """A read after which the next event was deleted raises OffsetOutOfRange with the first available offset."""
        self._append(event_log, drive, *(event("a", number) for number in range(3)))
        first, *_, last = self._read(event_log, drive)
        self.forgetting(event_log, drive)
        self._append(event_log, drive, event("b", 1))

        for after in (-1, first.offset):
            with pytest.raises(OffsetOutOfRange) as gone:
                drive(event_log.read(after, 10))
            oldest = gone.value.oldest
            assert oldest > last.offset
            assert drive(event_log.read(oldest - 1, 1))[0].offset == oldest

    @behaviour("EVENT-08")
    def test_event_08_batches_are_kept_in_order(self, event_log: EventLog, drive: Driver) -> None:
        """Batches that are appended before the first is committed are committed in that order."""
        answers = []
        for number in range(3):
            answers.append(event_log.append([event("a", 2 * number), event("a", 2 * number + 1)]))
            answers.append(event_log.commit())

        for answer in answers:
            drive(answer)

        assert _counters(self._read(event_log, drive)) == list(range(6))

    @behaviour("EVENT-09")
    def test_event_09_a_repeated_batch_loses_nothing(self, event_log: EventLog, drive: Driver) -> None:
        """A batch that is appended twice is there once or twice; no event is lost or moved."""
        batch = [event("a", 1), event("a", 2)]
        self._append(event_log, drive, *batch)
        before = self._read(event_log, drive)
        self._append(event_log, drive, event("a", 3))

        self._append(event_log, drive, *batch)

        found = self._read(event_log, drive)
        assert found[:2] == before
        assert list(dict.fromkeys(_counters(found))) == [1, 2, 3]

    @behaviour("EVENT-10", needs="can_fail")
    def test_event_10_a_failure_is_told(self, event_log: EventLog, drive: Driver) -> None:
        """While the log's backend fails, appending raises ServiceUnavailable; afterwards it works again.

        Events that were committed before, and those that were reported as committed later, are there.
        """
        self._append(event_log, drive, event("a", 1))
        mend = self.failing(event_log)

        with pytest.raises(ServiceUnavailable):
            self._append(event_log, drive, event("a", 2))
        mend()
        self._append(event_log, drive, event("a", 3))

        assert _counters(self._read(event_log, drive)) in ([1, 3], [1, 2, 3])

    @behaviour("EVENT-11", needs="survives_restart")
    def test_event_11_events_outlive_the_log(self, event_log: EventLog, drive: Driver) -> None:
        """After a restart the committed events are there, with the same offsets, and new events have higher ones."""
        self._append(event_log, drive, *(event("ä", number) for number in range(3)))
        before = self._read(event_log, drive)

        again = self._reopened(event_log, drive)

        assert self._read(again, drive) == before
        self._append(again, drive, event("ä", 3))
        after = self._read(again, drive)
        assert after[:3] == before
        assert _counters(after) == [0, 1, 2, 3]
        assert after[3].offset > before[-1].offset

    # Consumers

    @behaviour("EVENT-12")
    def test_event_12_a_group_of_one_gets_everything(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A group with one consumer gets the present and the later events, in order, and never an empty batch."""
        self._append(event_log, drive, *(event("a", number) for number in range(3)))
        handler = _Collector()
        event_log.consume("g", handler)
        self._until(clock, drive, lambda: len(handler.handled) >= 3)
        for number in range(3, 6):
            self._append(event_log, drive, event("a", number))
            self._until(clock, drive, _reaches(handler.first, number + 1))

        assert handler.first() == self._read(event_log, drive)
        assert all(handler.batches)

    @behaviour("EVENT-13")
    def test_event_13_order_holds_per_client(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """A consumer gets each client's events in the order in which they were appended, however many there are."""
        handler = _Collector()
        event_log.consume("g", handler)
        for number in range(250):
            self._append(event_log, drive, *(event(name, number) for name in "abc"))

        self._until(clock, drive, lambda: len(handler.first()) == 750)

        for name in "abc":
            assert _counters(handler.first(), name) == list(range(250))

    @behaviour("EVENT-14")
    def test_event_14_a_group_begins_where_it_is_told(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A group without a committed offset begins with the oldest event, or with those after it joined."""
        self._append(event_log, drive, event("a", 1))
        old, new = _Collector(), _Collector()
        event_log.consume("old", old, Start.OLDEST)
        event_log.consume("new", new, Start.NEWEST)
        self._quiet(clock, drive)

        self._append(event_log, drive, event("a", 2))

        self._until(clock, drive, lambda: len(old.handled) >= 2 and len(new.handled) >= 1)
        assert (_counters(old.first()), _counters(new.first())) == ([1, 2], [2])

    @behaviour("EVENT-15")
    def test_event_15_a_return_commits(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """When the handler has returned, its batch is committed: no event of it is above the committed offset."""
        handler = _Collector()
        event_log.consume("g", handler)
        for number in range(3):
            self._append(event_log, drive, event("a", number), event("b", number))

            self._until(clock, drive, _reaches(handler.first, 2 * number + 2))
            self._committed(event_log, clock, drive, "g")

        assert not drive(event_log.read(drive(event_log.committed("g")), 10))

    @behaviour("EVENT-16")
    def test_event_16_a_failure_commits_nothing(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """While a handler raises, neither its batch nor later ones are committed."""
        self._append(event_log, drive, event("a", 1))
        handler = _Collector(failures=_MANY)
        event_log.consume("g", handler)
        self._until(clock, drive, lambda: bool(handler.batches))

        self._append(event_log, drive, event("a", 2), event("b", 1))
        self._quiet(clock, drive)

        first = self._read(event_log, drive)[0].offset
        assert drive(event_log.committed("g")) < first

    @behaviour("EVENT-17")
    def test_event_17_a_failed_batch_comes_again(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A batch whose handler raised is delivered again, unchanged, until it is handled."""
        self._append(event_log, drive, *(event("a", number) for number in range(4)))
        handler = _Collector(failures=3)
        event_log.consume("g", handler)
        self._until(clock, drive, lambda: bool(handler.batches))
        self._append(event_log, drive, event("a", 4))

        self._until(clock, drive, lambda: len(handler.first()) == 5)

        assert handler.batches[1:4] == [handler.batches[0]] * 3
        assert _counters(handler.first()) == [0, 1, 2, 3, 4]

    @behaviour("EVENT-18")
    def test_event_18_a_known_group_goes_on(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """A group with a committed offset continues after it, wherever a new one would begin."""
        handler = _Collector()
        consumer = event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1))
        self._committed(event_log, clock, drive, "g")
        drive(consumer.stop())
        self._append(event_log, drive, event("a", 2))

        oldest, newest = _Collector(), _Collector()
        consumer = event_log.consume("g", newest, Start.NEWEST)
        self._until(clock, drive, lambda: bool(newest.handled))
        self._committed(event_log, clock, drive, "g")
        drive(consumer.stop())
        self._append(event_log, drive, event("a", 3))
        event_log.consume("g", oldest, Start.OLDEST)
        self._until(clock, drive, lambda: bool(oldest.handled))

        assert [_counters(each.first()) for each in (handler, newest, oldest)] == [[1], [2], [3]]

    @behaviour("EVENT-19")
    def test_event_19_what_is_not_committed_comes_again(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """Events that a consumer has not handled when it is stopped go to the next consumer of its group."""
        self._append(event_log, drive, event("a", 1), event("b", 1))
        stuck = _Collector(failures=_MANY)
        consumer = event_log.consume("g", stuck)
        self._until(clock, drive, lambda: bool(stuck.batches))
        drive(consumer.stop())

        heir = _Collector()
        event_log.consume("g", heir)

        self._until(clock, drive, lambda: len(heir.first()) == 2)
        assert {recorded.event.client_id for recorded in heir.first()} == {"a", "b"}

    @behaviour("EVENT-20")
    def test_event_20_groups_are_apart(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """Each group gets every event, at its own pace: a group that hangs does not delay another."""
        self._append(event_log, drive, *(event("a", number) for number in range(3)))
        stuck, one, two = _Collector(failures=_MANY), _Collector(), _Collector()
        for group, handler in (("stuck", stuck), ("one", one), ("two", two)):
            event_log.consume(group, handler)

        self._until(clock, drive, lambda: len(one.first()) == len(two.first()) == 3)

        assert one.first() == two.first() == self._read(event_log, drive)
        assert drive(event_log.committed("stuck")) < one.first()[0].offset

    # Groups of several

    @behaviour("EVENT-21")
    def test_event_21_members_divide_the_clients(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """Client ids are divided among a group's members: each gets some, and one gets all events of a client."""
        one, two = _Collector(), _Collector()
        event_log.consume("g", one)
        event_log.consume("g", two)
        self._quiet(clock, drive)
        names = [f"c{number}" for number in range(50)]
        for number in range(3):
            self._append(event_log, drive, *(event(name, number) for name in names))

        self._until(clock, drive, lambda: len(one.first()) + len(two.first()) >= 150)
        self._quiet(clock, drive)

        ones = {recorded.event.client_id for recorded in one.first()}
        twos = {recorded.event.client_id for recorded in two.first()}
        assert ones and twos
        assert not ones & twos
        assert sorted(ones | twos) == sorted(names)
        for name in names:
            assert _counters((one if name in ones else two).first(), name) == [0, 1, 2]

    @behaviour("EVENT-22")
    def test_event_22_nothing_unhandled_is_committed(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """Events that one member has not handled are not committed by another member that is further."""
        stuck, fine = _Collector(failures=_MANY), _Collector()
        event_log.consume("g", stuck)
        event_log.consume("g", fine)
        self._quiet(clock, drive)
        self._append(event_log, drive, *(event(f"c{number}") for number in range(50)))

        self._until(clock, drive, lambda: bool(stuck.batches) and bool(fine.handled))
        self._quiet(clock, drive)

        missed = min(recorded.offset for batch in stuck.batches for recorded in batch)
        assert drive(event_log.committed("g")) < missed

    @behaviour("EVENT-23")
    def test_event_23_a_newcomer_loses_nothing(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """While a consumer joins, every event is handled, in order for each client; some may be delivered twice."""
        handled: list[Recorded] = []
        event_log.consume("g", _Collector(failures=2, also=handled))
        for number in range(6):
            self._append(event_log, drive, *(event(name, number) for name in "abcdef"))
            if number == 1:
                self.pass_time(clock, drive, 0.0)
            if number == 3:
                event_log.consume("g", _Collector(also=handled))

        self._until(clock, drive, lambda: len(_first(handled)) == 36)

        for name in "abcdef":
            assert _counters(_first(handled), name) == list(range(6))

    @behaviour("EVENT-24")
    def test_event_24_who_leaves_takes_nothing_along(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """When a consumer leaves, the others of its group take over its clients and its unhandled events."""
        handled: list[Recorded] = []
        leaving = event_log.consume("g", _Collector(failures=_MANY))
        event_log.consume("g", _Collector(also=handled))
        self._quiet(clock, drive)
        names = [f"c{number}" for number in range(20)]
        self._append(event_log, drive, *(event(name, 1) for name in names))
        self._quiet(clock, drive)

        drive(leaving.stop())
        self._append(event_log, drive, *(event(name, 2) for name in names))

        self._until(clock, drive, lambda: len(_first(handled)) == 40)
        for name in names:
            assert _counters(_first(handled), name) == [1, 2]

    @behaviour("EVENT-25")
    def test_event_25_a_stopped_consumer_gets_nothing(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A stopped consumer gets no further batch; a second stop does nothing."""
        handler = _Collector()
        consumer = event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1))
        self._until(clock, drive, lambda: bool(handler.handled))
        drive(consumer.stop())
        batches = len(handler.batches)

        self._append(event_log, drive, event("a", 2))
        self._quiet(clock, drive)
        drive(consumer.stop())

        assert len(handler.batches) == batches

    @behaviour("EVENT-26", needs="forgets")
    def test_event_26_the_oldest_is_what_is_there(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """If the oldest events were deleted, a new group begins with the oldest available one."""
        self._append(event_log, drive, event("a", 1))
        last = self._read(event_log, drive)[-1].offset
        self.forgetting(event_log, drive)
        self._append(event_log, drive, event("b", 1), event("b", 2))
        handler = _Collector()

        event_log.consume("g", handler)

        self._until(clock, drive, lambda: len(_of(handler.first(), "b")) == 2)
        with pytest.raises(OffsetOutOfRange) as gone:
            drive(event_log.read(-1, 1))
        assert handler.first()[0].offset == gone.value.oldest > last

    # Handlers that answer awaitables

    @behaviour("EVENT-27", needs="takes_awaitables")
    def test_event_27_a_result_commits(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """If a handler returns an awaitable, its batch is committed when that completes, and not before."""
        handler = _Waiting(self, drive)
        event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1))
        self._until(clock, drive, lambda: len(handler.begun) == 1)
        self._quiet(clock, drive)
        first = handler.begun[0][0].offset
        assert drive(event_log.committed("g")) < first

        handler.go()

        self._until(clock, drive, lambda: drive(event_log.committed("g")) >= first)

    @behaviour("EVENT-28", needs="takes_awaitables")
    def test_event_28_an_error_brings_the_batch_again(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """If the awaitable of a handler raises, the same batch is delivered again."""
        self._append(event_log, drive, event("a", 1), event("a", 2))
        handler = _Waiting(self, drive, failures=2)
        event_log.consume("g", handler)
        for attempt in range(1, 4):
            self._until(clock, drive, _reaches(lambda: handler.begun, attempt))
            assert drive(event_log.committed("g")) < handler.begun[0][0].offset
            handler.go()

        self._until(clock, drive, lambda: drive(event_log.committed("g")) >= handler.begun[0][-1].offset)

        assert handler.begun == [handler.begun[0]] * 3

    @behaviour("EVENT-29", needs="takes_awaitables")
    def test_event_29_stopping_waits_for_the_last_call(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """``stop`` completes with the handler's last call, whose batch is committed; no other call follows."""
        handler = _Waiting(self, drive)
        consumer = event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1))
        self._until(clock, drive, lambda: len(handler.begun) == 1)
        self._append(event_log, drive, event("a", 2))

        stopped = consumer.stop()
        self._quiet(clock, drive)
        handler.go()
        drive(stopped)

        assert len(handler.ended) == 1
        self._until(clock, drive, lambda: drive(event_log.committed("g")) >= handler.begun[0][0].offset)
        self._quiet(clock, drive)
        assert len(handler.begun) == 1

    @behaviour("EVENT-30", needs="takes_awaitables")
    def test_event_30_a_client_is_in_one_hand(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """While a handler has events of a client, no other call of its group gets events of that client.

        That holds while consumers join.
        """
        handler, newcomer = _Waiting(self, drive), _Collector()
        event_log.consume("g", handler)
        names = [f"c{number}" for number in range(10)]
        self._append(event_log, drive, *(event(name, 1) for name in names))
        self._until(clock, drive, lambda: len(handler.begun) == 1)

        event_log.consume("g", newcomer)
        self._append(event_log, drive, *(event(name, 2) for name in names))
        self._quiet(clock, drive)

        in_hand = {recorded.event.client_id for recorded in handler.begun[0]}
        assert len(handler.begun) == 1
        assert not in_hand & {recorded.event.client_id for batch in newcomer.batches for recorded in batch}

        def all_handled() -> bool:
            handler.go()
            return len(_first(handler.ended + newcomer.handled)) == 20

        self._until(clock, drive, all_handled)

    # The next life, and chance

    @behaviour("EVENT-31", needs="survives_restart")
    def test_event_31_groups_outlive_the_log(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """After a restart a group continues after its committed offset, and misses no event."""
        handler = _Collector()
        consumer = event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1), event("a", 2))
        self._committed(event_log, clock, drive, "g")
        drive(consumer.stop())
        self._append(event_log, drive, event("a", 3), event("a", 4))

        again = self._reopened(event_log, drive)
        committed = drive(again.committed("g"))
        heir = _Collector()
        again.consume("g", heir, Start.NEWEST)

        self._until(clock, drive, lambda: len(_first(handler.handled + heir.handled)) == 4)
        assert _counters(heir.first())[-2:] == [3, 4]
        assert min(recorded.offset for recorded in heir.handled) > committed

    @behaviour("EVENT-32")
    def test_event_32_nothing_is_lost_by_chance(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """With random joins, leaves and failures every event is handled, in order for each client."""
        examples = iter(range(1_000_000))

        @settings(
            max_examples=50, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(_steps())
        def run(steps: list[tuple[str, int]]) -> None:
            prefix = f"{next(examples)}-"
            handled: list[Recorded] = []
            counters: dict[str, int] = {}
            members: list[Consumer] = []
            for step, number in steps:
                if step == "append":
                    name = f"{prefix}{number}"
                    counters[name] = counters.get(name, 0) + 1
                    self._append(event_log, drive, event(name, counters[name]))
                elif step == "join":
                    members.append(event_log.consume(prefix, _Collector(number, also=handled)))
                elif step == "leave" and members:
                    drive(members.pop(number % len(members)).stop())
                else:
                    self.pass_time(clock, drive, number * 0.1)
            members.append(event_log.consume(prefix, _Collector(also=handled)))
            total = sum(counters.values())

            def ours() -> list[Recorded]:
                return [each for each in _first(handled) if each.event.client_id in counters]

            self._until(clock, drive, lambda: len(ours()) == total)
            for name, count in counters.items():
                assert _counters(ours(), name) == list(range(1, count + 1))
            for member in members:
                drive(member.stop())

        run()

    # Within

    def _append(self, log: EventLog, drive: Driver, *events: Event) -> None:
        self.persist(log, lambda: log.append(events), drive)

    def _read(self, log: EventLog, drive: Driver) -> list[Recorded]:
        return list(drive(log.read(-1, _MANY)))

    def _reopened(self, log: EventLog, drive: Driver) -> EventLog:
        again = self.reopened(log, drive)
        assert isinstance(again, EventLog)
        return again

    def _until(self, clock: TurnableClock, drive: Driver, condition: Callable[[], object]) -> None:
        """Let time pass until a condition holds."""
        passed, limit = 0.0, monotonic() + (0 if self.reactor is None else LIMIT_S)
        while not condition():
            assert passed < _PATIENCE_S or monotonic() < limit, "the condition is not reached"
            self.pass_time(clock, drive, _STEP_S if passed else 0.0)
            passed += _STEP_S

    def _quiet(self, clock: TurnableClock, drive: Driver) -> None:
        """Let time pass, to check that nothing happens."""
        for _ in range(int(_QUIET_S / _STEP_S)):
            self.pass_time(clock, drive, _STEP_S)

    def _committed(self, log: EventLog, clock: TurnableClock, drive: Driver, group: str) -> None:
        """Wait until a group has committed all events."""
        last = self._read(log, drive)[-1].offset
        self._until(clock, drive, lambda: drive(log.committed(group)) >= last)


class _Collector:
    """A handler that collects its events, and raises a number of times."""

    def __init__(self, failures: int = 0, also: list[Recorded] | None = None) -> None:
        self.batches: list[list[Recorded]] = []
        self.handled: list[Recorded] = []
        self._failures = failures
        self._also = also

    def __call__(self, batch: Sequence[Recorded]) -> None:
        self.batches.append(list(batch))
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the test's handler can't at the moment")
        self.handled += batch
        if self._also is not None:
            self._also += batch

    def first(self) -> list[Recorded]:
        """The handled events, without redelivered ones."""
        return _first(self.handled)


class _Waiting:
    """A handler whose calls end when the test says so."""

    def __init__(self, suite: EventLogContract, drive: Driver, failures: int = 0) -> None:
        self.begun: list[list[Recorded]] = []
        self.ended: list[Recorded] = []
        self._suite = suite
        self._drive = drive
        self._failures = failures
        self._going: list[Callable[[], object]] = []

    async def __call__(self, batch: Sequence[Recorded]) -> None:
        self.begun.append(list(batch))
        awaitable, go = self._suite.held(self._drive)
        self._going.append(go)
        await awaitable
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the test's handler can't at the moment")
        self.ended += batch

    def go(self) -> None:
        """End the call that was begun."""
        going, self._going = self._going, []
        for go in going:
            go()


def _reaches(items: Callable[[], Sized], count: int) -> Callable[[], bool]:
    """Tell whether there are that many of them."""
    return lambda: len(items()) >= count


def _first(handled: Iterable[Recorded]) -> list[Recorded]:
    """The events without redelivered ones."""
    first: dict[int, Recorded] = {}
    for recorded in handled:
        first.setdefault(recorded.offset, recorded)
    return list(first.values())


def _of(records: Iterable[Recorded], client_id: str) -> list[Event]:
    return [recorded.event for recorded in records if recorded.event.client_id == client_id]


def _counters(records: Iterable[Recorded], client_id: str | None = None) -> list[int]:
    return [each.event.version.counter for each in records if client_id in (None, each.event.client_id)]


def _by_client(its: Event) -> str:
    return its.client_id


def _steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    """An action, its client, and how often or for how long."""
    return many(st.tuples(st.sampled_from(("append", "append", "join", "leave", "turn")), st.integers(0, 5)))
