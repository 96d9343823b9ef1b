"""The contract of an event feed and its consumers."""

from __future__ import annotations

import pytest
from attrs import evolve

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Event, EventFeed, EventKind, EventVersion, Recorded, Start, node_group
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import NOW, event
from kinmqtt_spi.testing.consuming import MANY, Collector, ConsumingContract, Waiting, of
from kinmqtt_spi.testing.driving import Driver


class EventFeedContract(ConsumingContract):
    """Override the fixture ``event_feed``, a feed without events that is open, and :meth:`record`.

    Its consumers run while time passes: on ``clock``, which the fixture may request, or in the event loop of
    ``drive``. Override :meth:`pass_time` if they need more.
    """

    node = "node-1"
    """The name of the node whose feed ``event_feed`` is."""
    has_nodes = False
    """Whether the feed has the events of several nodes: override :meth:`other_node`."""

    @pytest.fixture
    def event_feed(self) -> EventFeed:
        """The feed under test, without events."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture event_feed")

    def record(self, feed: EventFeed, drive: Driver, *events: Event) -> None:
        """Put events into the feed, as the broker does."""
        raise NotImplementedError(f"{type(self).__name__} does not override record")

    def other_node(self, feed: EventFeed, drive: Driver) -> EventFeed:
        """Return another node's feed with the same events."""
        raise NotImplementedError(f"{type(self).__name__} sets has_nodes, and does not override other_node")

    @behaviour("FEED-01")
    def test_feed_01_a_consumer_gets_everything(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """A group with one consumer gets the present and the later events, each client's in order."""
        self.record(event_feed, drive, *(event(name, number) for number in range(3) for name in "ab"))
        handler = Collector()
        event_feed.consume("g", handler)
        self._until(clock, drive, lambda: len(_handled(handler)) == 6)
        self.record(event_feed, drive, *(event(name, number) for number in range(3, 6) for name in "ab"))

        self._until(clock, drive, lambda: len(_handled(handler)) == 12)

        assert [_of(handler, name) for name in "ab"] == [list(range(6))] * 2
        assert all(handler.batches)

    @behaviour("FEED-02")
    def test_feed_02_events_are_unchanged(self, event_feed: EventFeed, clock: TurnableClock, drive: Driver) -> None:
        """An event is delivered unchanged: kind, version, time, schema version, and plain values as data."""
        data = {"text": "ü \U0001f600", "count": 2**40, "ratio": 0.1, "yes": True, "none": None}
        events = [
            Event(kind, f"ä/{kind.value}+#", EventVersion(2**40, 2**50 + number), NOW + 0.125, data, 1 + number % 2)
            for number, kind in enumerate(EventKind)
        ]
        self.record(event_feed, drive, *events)
        handler = Collector()

        event_feed.consume("g", handler)

        self._until(clock, drive, lambda: len(_handled(handler)) == len(events))
        found = [evolve(each, data=dict(each.data)) for each in _handled(handler)]
        assert sorted(found, key=_by_client) == sorted(events, key=_by_client)

    @behaviour("FEED-03")
    def test_feed_03_offsets_count_in_partitions(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """A client's events are in one partition, and the offsets of a partition increase."""
        self.record(event_feed, drive, *(event(f"c{number % 7}", number) for number in range(70)))
        handler = Collector()

        event_feed.consume("g", handler)

        self._until(clock, drive, lambda: len(_handled(handler)) == 70)
        partitions: dict[str, set[int]] = {}
        offsets: dict[int, list[int]] = {}
        for recorded in _once(handler.handled):
            partitions.setdefault(recorded.event.client_id, set()).add(recorded.partition)
            offsets.setdefault(recorded.partition, []).append(recorded.offset)
        assert all(len(each) == 1 for each in partitions.values())
        assert all(each == sorted(set(each)) for each in offsets.values())

    @behaviour("FEED-04")
    def test_feed_04_a_group_begins_where_it_is_told(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """A group without a committed offset begins with the oldest event, or with those after it joined."""
        self.record(event_feed, drive, event("a", 1))
        old, new = Collector(), Collector()
        event_feed.consume("old", old, Start.OLDEST)
        event_feed.consume("new", new, Start.NEWEST)
        self._until(clock, drive, lambda: bool(old.handled))
        self._quiet(clock, drive)

        self.record(event_feed, drive, event("a", 2))

        self._until(clock, drive, lambda: _of(old, "a") == [1, 2] and bool(new.handled))
        assert _of(new, "a") == [2]

    @behaviour("FEED-05")
    def test_feed_05_a_known_group_goes_on(self, event_feed: EventFeed, clock: TurnableClock, drive: Driver) -> None:
        """A group with a committed offset continues after it, wherever a new one would begin."""
        handler, heir = Collector(), Collector()
        consumer = event_feed.consume("g", handler)
        self.record(event_feed, drive, event("a", 1))
        self._until(clock, drive, lambda: bool(handler.handled) and drive(event_feed.lag("g")) == 0)
        drive(consumer.stop())
        self.record(event_feed, drive, event("a", 2))

        event_feed.consume("g", heir, Start.NEWEST)

        self._until(clock, drive, lambda: bool(heir.handled))
        assert _of(heir, "a") == [2]

    @behaviour("FEED-06")
    def test_feed_06_a_failure_commits_nothing(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """While a handler raises, its batch counts as lag, and goes to the next consumer of the group."""
        self.record(event_feed, drive, event("a", 1), event("a", 2))
        stuck, heir = Collector(failures=MANY), Collector()
        consumer = event_feed.consume("g", stuck)
        self._until(clock, drive, lambda: bool(stuck.batches))
        self._quiet(clock, drive)
        assert drive(event_feed.lag("g")) == 2
        drive(consumer.stop())

        event_feed.consume("g", heir)

        self._until(clock, drive, lambda: _of(heir, "a") == [1, 2])

    @behaviour("FEED-07")
    def test_feed_07_a_failed_batch_comes_again(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """A batch whose handler raised is delivered again until it is handled, before later events."""
        self.record(event_feed, drive, *(event("a", number) for number in range(4)))
        handler = Collector(failures=2)
        event_feed.consume("g", handler)
        self._until(clock, drive, lambda: bool(handler.batches))
        self.record(event_feed, drive, event("a", 4))

        self._until(clock, drive, lambda: len(_handled(handler)) == 5)

        assert _of(handler, "a") == [0, 1, 2, 3, 4]
        assert [batch[0] for batch in handler.batches[:3]] == [handler.batches[0][0]] * 3

    @behaviour("FEED-08")
    def test_feed_08_groups_are_apart(self, event_feed: EventFeed, clock: TurnableClock, drive: Driver) -> None:
        """Each group gets every event, at its own pace: a group that hangs does not delay another."""
        self.record(event_feed, drive, *(event("a", number) for number in range(3)))
        stuck, one, two = Collector(failures=MANY), Collector(), Collector()
        for group, handler in (("stuck", stuck), ("one", one), ("two", two)):
            event_feed.consume(group, handler)

        self._until(clock, drive, lambda: _of(one, "a") == _of(two, "a") == [0, 1, 2])

        assert not stuck.handled

    @behaviour("FEED-09")
    def test_feed_09_lag_is_what_is_left(self, event_feed: EventFeed, clock: TurnableClock, drive: Driver) -> None:
        """``lag`` counts the events after a group's committed offset, and all of them for an unknown group."""
        self.record(event_feed, drive, event("a", 1), event("b", 1))
        handler = Collector()
        consumer = event_feed.consume("g", handler)
        self._until(clock, drive, lambda: len(_handled(handler)) == 2 and drive(event_feed.lag("g")) == 0)
        drive(consumer.stop())
        self.record(event_feed, drive, event("a", 2), event("b", 2), event("c", 1))

        self._until(clock, drive, lambda: drive(event_feed.lag("nobody")) == 5)
        assert drive(event_feed.lag("g")) == 3

    @behaviour("FEED-10")
    def test_feed_10_a_stopped_consumer_gets_nothing(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """A stopped consumer gets no further batch; a second stop does nothing."""
        handler = Collector()
        consumer = event_feed.consume("g", handler)
        self.record(event_feed, drive, event("a", 1))
        self._until(clock, drive, lambda: bool(handler.handled))
        drive(consumer.stop())
        batches = len(handler.batches)

        self.record(event_feed, drive, event("a", 2))
        self._quiet(clock, drive)
        drive(consumer.stop())

        assert len(handler.batches) == batches

    # Nodes

    @behaviour("FEED-11")
    def test_feed_11_each_node_is_a_group(self, event_feed: EventFeed, clock: TurnableClock, drive: Driver) -> None:
        """``each_node`` makes a group of the node's name, which goes on where it was."""
        handler, heir, plain = Collector(), Collector(), Collector()
        consumer = event_feed.consume("g", handler, each_node=True)
        self.record(event_feed, drive, event("a", 1))
        group = node_group("g", self.node)
        self._until(clock, drive, lambda: bool(handler.handled) and drive(event_feed.lag(group)) == 0)
        drive(consumer.stop())
        self.record(event_feed, drive, event("a", 2))

        event_feed.consume("g", heir, each_node=True)
        event_feed.consume("g", plain)

        self._until(clock, drive, lambda: bool(heir.handled) and len(_handled(plain)) == 2)
        assert (_of(heir, "a"), _of(plain, "a")) == ([2], [1, 2])

    @behaviour("FEED-12", needs="has_nodes")
    def test_feed_12_each_node_gets_everything(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """With ``each_node`` the consumers of every node get all events."""
        other = self.other_node(event_feed, drive)
        one, two = Collector(), Collector()
        event_feed.consume("g", one, each_node=True)
        other.consume("g", two, each_node=True)

        self.record(event_feed, drive, *(event(f"c{number}") for number in range(30)))

        self._until(clock, drive, lambda: len(_handled(one)) == len(_handled(two)) == 30)

    @behaviour("FEED-13", needs="has_nodes")
    def test_feed_13_a_group_shares_its_events(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """Without ``each_node`` a group's events are shared by its consumers on all nodes, by client id."""
        other = self.other_node(event_feed, drive)
        one, two = Collector(), Collector()
        event_feed.consume("g", one)
        other.consume("g", two)
        self._settle(event_feed, clock, drive, one, two)
        before = len(one.handled), len(two.handled)
        names = [f"c{number}" for number in range(50)]

        self.record(event_feed, drive, *(event(name, number) for number in range(2) for name in names))

        self._until(clock, drive, lambda: len(one.handled) + len(two.handled) >= 100 + sum(before))
        ones, twos = one.handled[before[0] :], two.handled[before[1] :]
        assert {each.event.client_id for each in ones} & {each.event.client_id for each in twos} == set()
        assert ones and twos
        for name in names:
            assert [each.version.counter for each in of(ones, name) + of(twos, name)] == [0, 1]

    def _settle(self, feed: EventFeed, clock: TurnableClock, drive: Driver, one: Collector, two: Collector) -> None:
        """Wait until both consumers get events: a group may take its time to divide them."""
        numbers = iter(range(MANY))

        def both() -> bool:
            self.record(feed, drive, *(event(f"s{next(numbers)}") for _ in range(10)))
            return bool(one.handled and two.handled)

        self._until(clock, drive, both)
        self._until(clock, drive, lambda: drive(feed.lag("g")) == 0)

    # Handlers that answer awaitables

    @behaviour("FEED-14", needs="takes_awaitables")
    def test_feed_14_a_result_commits(self, event_feed: EventFeed, clock: TurnableClock, drive: Driver) -> None:
        """If a handler returns an awaitable, its batch is committed when that completes, and not before."""
        handler = Waiting(self, drive)
        event_feed.consume("g", handler)
        self.record(event_feed, drive, event("a", 1))
        self._until(clock, drive, lambda: len(handler.begun) == 1)
        self._quiet(clock, drive)
        assert drive(event_feed.lag("g")) == 1

        handler.go()

        self._until(clock, drive, lambda: drive(event_feed.lag("g")) == 0)

    @behaviour("FEED-15", needs="takes_awaitables")
    def test_feed_15_an_error_brings_the_batch_again(
        self, event_feed: EventFeed, clock: TurnableClock, drive: Driver
    ) -> None:
        """If the awaitable of a handler raises, its events are delivered again."""
        self.record(event_feed, drive, event("a", 1))
        handler = Waiting(self, drive, failures=1)
        event_feed.consume("g", handler)
        self._until(clock, drive, lambda: len(handler.begun) == 1)
        handler.go()
        self._until(clock, drive, lambda: len(handler.begun) == 2)

        handler.go()

        self._until(clock, drive, lambda: drive(event_feed.lag("g")) == 0)
        assert handler.begun == [handler.begun[0]] * 2


def _once(handled: list[Recorded]) -> list[Recorded]:
    """The events without redelivered ones."""
    return list({(each.partition, each.offset): each for each in reversed(handled)}.values())[::-1]


def _handled(handler: Collector) -> list[Event]:
    return [recorded.event for recorded in _once(handler.handled)]


def _of(handler: Collector, client_id: str) -> list[int]:
    return [each.version.counter for each in of(_once(handler.handled), client_id)]


def _by_client(its: Event) -> str:
    return its.client_id
