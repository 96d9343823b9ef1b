"""The contract of an event log and its consumers."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import OffsetOutOfRange, ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Consumer, Event, EventKind, EventLog, EventVersion, HoldBounds, Recorded, Start
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import NOW, event
from kinmqtt_spi.testing.consuming import (
    MANY,
    Collector,
    ConsumingContract,
    Waiting,
    counters,
    first,
    of,
    reaches,
)
from kinmqtt_spi.testing.contract import StoreContract, many
from kinmqtt_spi.testing.driving import Driver


class EventLogContract(ConsumingContract, StoreContract):
    """Override the fixture ``event_log``: an empty log, opened with ``drive`` if it must be awaited.

    Its consumers run while time passes: on ``clock``, which the fixture may request, or in the event loop of
    ``drive``. Override :meth:`pass_time` if they need more.
    """

    forgets = False
    """Whether the suite may have the oldest events go: override :meth:`forgetting`."""

    @pytest.fixture
    def event_log(self) -> EventLog:
        """The log under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture event_log")

    def forgetting(self, log: EventLog, drive: Driver) -> None:
        """Make all current events expire, by age or by number; there may be newer ones then."""
        raise NotImplementedError(f"{type(self).__name__} sets forgets, and does not override forgetting")

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
            assert of(found, name) == [each for batch in batches for each in batch if each.client_id == name]

    @behaviour("EVENT-03")
    def test_event_03_reading_goes_on_after_an_offset(self, event_log: EventLog, drive: Driver) -> None:
        """``read`` returns events above the given offset: after -1 all of them, after the last one none."""
        self._append(event_log, drive, *(event("a", number) for number in range(5)))
        found = self._read(event_log, drive)

        for place, recorded in enumerate(found):
            assert list(drive(event_log.read(recorded.offset, 10))) == found[place + 1 :]
        assert counters(drive(event_log.read(-1, 10))) == [0, 1, 2, 3, 4]

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

        assert counters(seen) == list(range(24))

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

        assert counters(self._read(event_log, drive)) == list(range(6))

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
        assert list(dict.fromkeys(counters(found))) == [1, 2, 3]

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

        assert counters(self._read(event_log, drive)) in ([1, 3], [1, 2, 3])

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
        assert counters(after) == [0, 1, 2, 3]
        assert after[3].offset > before[-1].offset

    # Consumers

    @behaviour("EVENT-12")
    def test_event_12_a_group_of_one_gets_everything(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A group with one consumer gets the present and the later events, in order, and never an empty batch."""
        self._append(event_log, drive, *(event("a", number) for number in range(3)))
        handler = Collector()
        event_log.consume("g", handler)
        self._until(clock, drive, lambda: len(handler.handled) >= 3)
        for number in range(3, 6):
            self._append(event_log, drive, event("a", number))
            self._until(clock, drive, reaches(handler.first, number + 1))

        assert handler.first() == self._read(event_log, drive)
        assert all(handler.batches)

    @behaviour("EVENT-13")
    def test_event_13_order_holds_per_client(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """A consumer gets each client's events in the order in which they were appended, however many there are."""
        handler = Collector()
        event_log.consume("g", handler)
        for number in range(250):
            self._append(event_log, drive, *(event(name, number) for name in "abc"))

        self._until(clock, drive, lambda: len(handler.first()) == 750)

        for name in "abc":
            assert counters(handler.first(), name) == list(range(250))

    @behaviour("EVENT-14")
    def test_event_14_a_group_begins_where_it_is_told(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A group without a committed offset begins with the oldest event, or with those after it joined."""
        self._append(event_log, drive, event("a", 1))
        old, new = Collector(), Collector()
        event_log.consume("old", old, Start.OLDEST)
        event_log.consume("new", new, Start.NEWEST)
        self._quiet(clock, drive)

        self._append(event_log, drive, event("a", 2))

        self._until(clock, drive, lambda: len(old.handled) >= 2 and len(new.handled) >= 1)
        assert (counters(old.first()), counters(new.first())) == ([1, 2], [2])

    @behaviour("EVENT-15")
    def test_event_15_a_return_commits(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """When the handler has returned, its batch is committed: no event of it is above the committed offset."""
        handler = Collector()
        event_log.consume("g", handler)
        for number in range(3):
            self._append(event_log, drive, event("a", number), event("b", number))

            self._until(clock, drive, reaches(handler.first, 2 * number + 2))
            self._committed(event_log, clock, drive, "g")

        assert not drive(event_log.read(drive(event_log.committed("g")), 10))

    @behaviour("EVENT-16")
    def test_event_16_a_failure_commits_nothing(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """While a handler raises, neither its batch nor later ones are committed."""
        self._append(event_log, drive, event("a", 1))
        handler = Collector(failures=MANY)
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
        handler = Collector(failures=3)
        event_log.consume("g", handler)
        self._until(clock, drive, lambda: bool(handler.batches))
        self._append(event_log, drive, event("a", 4))

        self._until(clock, drive, lambda: len(handler.first()) == 5)

        assert handler.batches[1:4] == [handler.batches[0]] * 3
        assert counters(handler.first()) == [0, 1, 2, 3, 4]

    @behaviour("EVENT-18")
    def test_event_18_a_known_group_goes_on(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """A group with a committed offset continues after it, wherever a new one would begin."""
        handler = Collector()
        consumer = event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1))
        self._committed(event_log, clock, drive, "g")
        drive(consumer.stop())
        self._append(event_log, drive, event("a", 2))

        oldest, newest = Collector(), Collector()
        consumer = event_log.consume("g", newest, Start.NEWEST)
        self._until(clock, drive, lambda: bool(newest.handled))
        self._committed(event_log, clock, drive, "g")
        drive(consumer.stop())
        self._append(event_log, drive, event("a", 3))
        event_log.consume("g", oldest, Start.OLDEST)
        self._until(clock, drive, lambda: bool(oldest.handled))

        assert [counters(each.first()) for each in (handler, newest, oldest)] == [[1], [2], [3]]

    @behaviour("EVENT-19")
    def test_event_19_what_is_not_committed_comes_again(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """Events that a consumer has not handled when it is stopped go to the next consumer of its group."""
        self._append(event_log, drive, event("a", 1), event("b", 1))
        stuck = Collector(failures=MANY)
        consumer = event_log.consume("g", stuck)
        self._until(clock, drive, lambda: bool(stuck.batches))
        drive(consumer.stop())

        heir = Collector()
        event_log.consume("g", heir)

        self._until(clock, drive, lambda: len(heir.first()) == 2)
        assert {recorded.event.client_id for recorded in heir.first()} == {"a", "b"}

    @behaviour("EVENT-20")
    def test_event_20_groups_are_apart(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """Each group gets every event, at its own pace: a group that hangs does not delay another."""
        self._append(event_log, drive, *(event("a", number) for number in range(3)))
        stuck, one, two = Collector(failures=MANY), Collector(), Collector()
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
        one, two = Collector(), Collector()
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
            assert counters((one if name in ones else two).first(), name) == [0, 1, 2]

    @behaviour("EVENT-22")
    def test_event_22_nothing_unhandled_is_committed(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """Events that one member has not handled are not committed by another member that is further."""
        stuck, fine = Collector(failures=MANY), Collector()
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
        event_log.consume("g", Collector(failures=2, also=handled))
        for number in range(6):
            self._append(event_log, drive, *(event(name, number) for name in "abcdef"))
            if number == 1:
                self.pass_time(clock, drive, 0.0)
            if number == 3:
                event_log.consume("g", Collector(also=handled))

        self._until(clock, drive, lambda: len(first(handled)) == 36)

        for name in "abcdef":
            assert counters(first(handled), name) == list(range(6))

    @behaviour("EVENT-24")
    def test_event_24_who_leaves_takes_nothing_along(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """When a consumer leaves, the others of its group take over its clients and its unhandled events."""
        handled: list[Recorded] = []
        leaving = event_log.consume("g", Collector(failures=MANY))
        event_log.consume("g", Collector(also=handled))
        self._quiet(clock, drive)
        names = [f"c{number}" for number in range(20)]
        self._append(event_log, drive, *(event(name, 1) for name in names))
        self._quiet(clock, drive)

        drive(leaving.stop())
        self._append(event_log, drive, *(event(name, 2) for name in names))

        self._until(clock, drive, lambda: len(first(handled)) == 40)
        for name in names:
            assert counters(first(handled), name) == [1, 2]

    @behaviour("EVENT-25")
    def test_event_25_a_stopped_consumer_gets_nothing(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A stopped consumer gets no further batch; a second stop does nothing."""
        handler = Collector()
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
        handler = Collector()

        event_log.consume("g", handler)

        self._until(clock, drive, lambda: len(of(handler.first(), "b")) == 2)
        with pytest.raises(OffsetOutOfRange) as gone:
            drive(event_log.read(-1, 1))
        assert handler.first()[0].offset == gone.value.oldest > last

    # Handlers that answer awaitables

    @behaviour("EVENT-27", needs="takes_awaitables")
    def test_event_27_a_result_commits(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """If a handler returns an awaitable, its batch is committed when that completes, and not before."""
        handler = Waiting(self, drive)
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
        handler = Waiting(self, drive, failures=2)
        event_log.consume("g", handler)
        for attempt in range(1, 4):
            self._until(clock, drive, reaches(lambda: handler.begun, attempt))
            assert drive(event_log.committed("g")) < handler.begun[0][0].offset
            handler.go()

        self._until(clock, drive, lambda: drive(event_log.committed("g")) >= handler.begun[0][-1].offset)

        assert handler.begun == [handler.begun[0]] * 3

    @behaviour("EVENT-29", needs="takes_awaitables")
    def test_event_29_stopping_waits_for_the_last_call(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """``stop`` completes with the handler's last call, whose batch is committed; no other call follows."""
        handler = Waiting(self, drive)
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
        handler, newcomer = Waiting(self, drive), Collector()
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
            return len(first(handler.ended + newcomer.handled)) == 20

        self._until(clock, drive, all_handled)

    # The next life, and chance

    @behaviour("EVENT-31", needs="survives_restart")
    def test_event_31_groups_outlive_the_log(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """After a restart a group continues after its committed offset, and misses no event."""
        handler = Collector()
        consumer = event_log.consume("g", handler)
        self._append(event_log, drive, event("a", 1), event("a", 2))
        self._committed(event_log, clock, drive, "g")
        drive(consumer.stop())
        self._append(event_log, drive, event("a", 3), event("a", 4))

        again = self._reopened(event_log, drive)
        committed = drive(again.committed("g"))
        heir = Collector()
        again.consume("g", heir, Start.NEWEST)

        self._until(clock, drive, lambda: len(first(handler.handled + heir.handled)) == 4)
        assert counters(heir.first())[-2:] == [3, 4]
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
            counts: dict[str, int] = {}
            members: list[Consumer] = []
            for step, number in steps:
                if step == "append":
                    name = f"{prefix}{number}"
                    counts[name] = counts.get(name, 0) + 1
                    self._append(event_log, drive, event(name, counts[name]))
                elif step == "join":
                    members.append(event_log.consume(prefix, Collector(number, also=handled)))
                elif step == "leave" and members:
                    drive(members.pop(number % len(members)).stop())
                else:
                    self.pass_time(clock, drive, number * 0.1)
            members.append(event_log.consume(prefix, Collector(also=handled)))
            total = sum(counts.values())

            def ours() -> list[Recorded]:
                return [each for each in first(handled) if each.event.client_id in counts]

            self._until(clock, drive, lambda: len(ours()) == total)
            for name, count in counts.items():
                assert counters(ours(), name) == list(range(1, count + 1))
            for member in members:
                drive(member.stop())

        run()

    # Groups that hold events

    @behaviour("EVENT-33", needs="forgets")
    def test_event_33_what_is_held_stays(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """What a held group has not committed is not deleted; afterwards it is."""
        event_log.hold("h")
        self._append(event_log, drive, event("a", 1), event("a", 2))

        self.forgetting(event_log, drive)
        assert counters(self._read(event_log, drive), "a") == [1, 2]
        event_log.consume("h", Collector())
        self._committed(event_log, clock, drive, "h")
        self.forgetting(event_log, drive)

        with pytest.raises(OffsetOutOfRange):
            drive(event_log.read(-1, 1))

    @behaviour("EVENT-34", needs="forgets")
    def test_event_34_what_is_held_is_bounded(self, event_log: EventLog, drive: Driver) -> None:
        """Beyond the bounds the oldest held events are deleted, and their number is reported."""
        lost: list[int] = []
        event_log.bound(HoldBounds(max_waiting=1), lost.append, lambda group: None)
        event_log.hold("h")
        self._append(event_log, drive, event("a", 1), event("a", 2))

        self.forgetting(event_log, drive)
        self._append(event_log, drive, event("b", 1))

        with pytest.raises(OffsetOutOfRange):
            drive(event_log.read(-1, 1))
        assert sum(lost) >= 2
        assert min(lost) > 0

    @behaviour("EVENT-35", needs="survives_restart")
    def test_event_35_holds_outlive_the_log(self, event_log: EventLog, drive: Driver) -> None:
        """After a restart the events of a held group stay, before it is held again too."""
        event_log.hold("h")
        self._append(event_log, drive, event("a", 1), event("a", 2))
        again = self._reopened(event_log, drive)
        if self.forgets:
            self.forgetting(again, drive)
            assert counters(self._read(again, drive), "a") == [1, 2]
        again.hold("h")

        assert not again.forget_unheld()
        assert counters(self._read(again, drive), "a") == [1, 2]

    @behaviour("EVENT-36", needs="survives_restart")
    def test_event_36_holds_are_forgotten(self, event_log: EventLog, drive: Driver) -> None:
        """``forget_unheld`` returns the groups that were held before the restart and not since, once."""
        for group in ("b", "a", "c"):
            event_log.hold(group)
        self._append(event_log, drive, event("a", 1))
        again = self._reopened(event_log, drive)
        again.hold("c")

        assert sorted(again.forget_unheld()) == ["a", "b"]

        assert not again.forget_unheld()

    @behaviour("EVENT-37")
    def test_event_37_lag_is_what_is_left(self, event_log: EventLog, clock: TurnableClock, drive: Driver) -> None:
        """``lag`` counts the events after a group's committed offset, and all of them for an unknown group."""
        self._append(event_log, drive, event("a", 1), event("a", 2))
        event_log.consume("g", Collector())
        self._committed(event_log, clock, drive, "g")
        self._append(event_log, drive, event("a", 3))

        assert (event_log.lag("g"), event_log.lag("nobody")) == (1, 3)

    @behaviour("EVENT-38")
    def test_event_38_a_held_group_gets_what_it_held(
        self, event_log: EventLog, clock: TurnableClock, drive: Driver
    ) -> None:
        """A held group begins where its hold began, wherever its consumers would."""
        self._append(event_log, drive, event("a", 1))
        event_log.hold("new", Start.NEWEST)
        event_log.hold("old")
        self._append(event_log, drive, event("a", 2))
        old, new = Collector(), Collector()

        event_log.consume("old", old, Start.NEWEST)
        event_log.consume("new", new, Start.OLDEST)

        self._until(clock, drive, lambda: len(old.handled) >= 2 and len(new.handled) >= 1)
        assert (counters(old.first()), counters(new.first())) == ([1, 2], [2])

    # Within

    def _append(self, log: EventLog, drive: Driver, *events: Event) -> None:
        self.persist(log, lambda: log.append(events), drive)

    def _read(self, log: EventLog, drive: Driver) -> list[Recorded]:
        return list(drive(log.read(-1, MANY)))

    def _reopened(self, log: EventLog, drive: Driver) -> EventLog:
        again = self.reopened(log, drive)
        assert isinstance(again, EventLog)
        return again

    def _committed(self, log: EventLog, clock: TurnableClock, drive: Driver, group: str) -> None:
        """Wait until a group has committed all events."""
        last = self._read(log, drive)[-1].offset
        self._until(clock, drive, lambda: drive(log.committed(group)) >= last)


def _by_client(its: Event) -> str:
    return its.client_id


def _steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    """An action, its client, and how often or for how long."""
    return many(st.tuples(st.sampled_from(("append", "append", "join", "leave", "turn")), st.integers(0, 5)))
