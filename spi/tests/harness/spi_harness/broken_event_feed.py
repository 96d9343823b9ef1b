"""Event feeds that break one promise each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.event_feed import LocalFeed
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Consumer, Recorded, Start, node_group
from kinmqtt_spi.testing.event_feed import EventFeedContract
from spi_harness.turning import ClockRunner, Gate


class Feeds(EventFeedContract):
    """``double`` is the feed; the nodes' feeds have one log."""

    has_nodes = True
    takes_awaitables = True
    double: type[LocalFeed] = LocalFeed

    @pytest.fixture
    def event_feed(self, clock: TurnableClock) -> LocalFeed:
        return self.double(MemoryEventLog(clock.later, run=ClockRunner(clock)), self.node)

    def record(self, feed: Any, drive: Any, *events: Any) -> None:
        feed._log.append(events)

    def other_node(self, feed: Any, drive: Any) -> Any:
        return self.double(feed._log, "node-2")

    def held(self, drive: Any) -> tuple[Awaitable[None], Callable[[], object]]:
        gate = Gate()
        return gate, gate.go


class _Between(LocalFeed):
    """Stands between the log and its handlers."""

    def consume(self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False) -> Consumer:
        return super().consume(group, lambda batch: self.handle(handler, batch), start, each_node=each_node)

    def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
        """Hand over a batch."""
        raise NotImplementedError


class TestFEED_01_HandsOverBackwards(Feeds):
    class double(_Between):
        def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
            return handler(batch[::-1])


class TestFEED_02_ForgetsTheSchema(Feeds):
    class double(_Between):
        def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
            return handler([evolve(each, event=evolve(each.event, schema_version=2)) for each in batch])


class TestFEED_03_DividesClients(Feeds):
    class double(_Between):
        def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
            return handler([evolve(each, partition=each.offset % 3) for each in batch])


class TestFEED_03_CountsBackwards(Feeds):
    class double(_Between):
        def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
            return handler([evolve(each, offset=1000 - each.offset) for each in batch])


class TestFEED_04_BeginsWithTheOldest(Feeds):
    class double(LocalFeed):
        def consume(
            self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False
        ) -> Consumer:
            return super().consume(group, handler, each_node=each_node)


class TestFEED_05_BeginsAnew(Feeds):
    class double(LocalFeed):
        def consume(
            self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False
        ) -> Consumer:
            log: Any = self._log
            log._groups.pop(group, None)
            log._committed.pop(group, None)
            return super().consume(group, handler, each_node=each_node)


class _Dropping(_Between):
    def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
        try:
            return handler(batch)
        except RuntimeError:
            return None


class TestFEED_06_CommitsWhatFails(Feeds):
    double = _Dropping


class TestFEED_07_DropsWhatFails(Feeds):
    double = _Dropping


class TestFEED_08_HasOneGroup(Feeds):
    class double(LocalFeed):
        def consume(
            self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False
        ) -> Consumer:
            return super().consume("all", handler, start)


class TestFEED_09_CountsEverything(Feeds):
    class double(LocalFeed):
        def lag(self, group: str) -> int:
            return super().lag("nobody")


class TestFEED_10_GoesOnWhenStopped(Feeds):
    class double(LocalFeed):
        def consume(self, group: str, *arguments: Any, **more: Any) -> Consumer:
            super().consume(group, *arguments, **more)

            class Endless(Consumer):
                def stop(self) -> None:
                    pass

            return Endless()


class _Sharing(LocalFeed):
    def consume(self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False) -> Consumer:
        return super().consume(group, handler, start)


class TestFEED_11_SharesANodesEvents(Feeds):
    double = _Sharing


class TestFEED_12_SharesEachNodesEvents(Feeds):
    double = _Sharing


class TestFEED_13_EachNodeGetsEverything(Feeds):
    class double(LocalFeed):
        def consume(
            self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False
        ) -> Consumer:
            return super().consume(group, handler, start, each_node=True)

        def lag(self, group: str) -> int:
            return super().lag(node_group(group, self._node))


class TestFEED_14_WaitsForNothing(Feeds):
    class double(_Between):
        def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
            answer = handler(batch)
            log: Any = self._log
            if isawaitable(answer):
                log._run(answer, lambda: None, lambda error: None)


class TestFEED_15_TakesErrorsForResults(Feeds):
    class double(_Between):
        def handle(self, handler: Any, batch: Sequence[Recorded]) -> Any:
            return self.wait(handler(batch))

        async def wait(self, answer: Any) -> None:
            try:
                await answer
            except RuntimeError:
                pass
