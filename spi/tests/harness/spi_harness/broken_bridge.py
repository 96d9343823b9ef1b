"""Sinks that break one promise each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.polling import Pending
from kinmqtt_spi.services.bridge import Item, Poison
from kinmqtt_spi.testing.bridge import SinkCase, SinkContract
from spi_harness.targets import Target, TargetSink, sink_case


class BridgeSuite(SinkContract):
    """``double`` is a sink over a target in memory."""

    can_fail = can_refuse = can_hang = has_poison = True
    double: type[TargetSink]

    @pytest.fixture
    def sink(self) -> SinkCase:
        case, self.target = sink_case(self.double)
        return case

    def failing(self, case: SinkCase) -> Callable[[], object]:
        return self._set("down")

    def refusing(self, case: SinkCase) -> Callable[[], object]:
        return self._set("refusing")

    def hanging(self, case: SinkCase) -> Callable[[], object]:
        return self._set("hanging")

    def _set(self, state: str) -> Callable[[], object]:
        changed: Callable[[], object] = self.target.set(state)
        return changed


class TestSINK_01_LosesTheLastOfABatch(BridgeSuite):
    class double(TargetSink):
        def deliver(self, items: Sequence[Item]) -> Any:
            return super().deliver(items[:-1]) if len(items) > 1 else super().deliver(items)


class TestSINK_02_SendsBackwards(BridgeSuite):
    class double(TargetSink):
        def deliver(self, items: Sequence[Item]) -> Any:
            return super().deliver(items[::-1])


class TestSINK_03_AnswersBooleans(BridgeSuite):
    class double(TargetSink):
        async def send(self, items: Sequence[Item]) -> Any:
            await super().send(items)
            return [True] * len(items)


class TestSINK_04_AnswersBeforeTheTargetHasIt(BridgeSuite):
    class double(TargetSink):
        def __init__(self, target: Target) -> None:
            super().__init__(target)
            self.buffer: list[Item] = []

        def deliver(self, items: Sequence[Item]) -> Any:
            before, self.buffer = self.buffer, list(items)
            return super().deliver(before)


class TestSINK_05_DecodesPayloads(BridgeSuite):
    class double(TargetSink):
        def deliver(self, items: Sequence[Item]) -> Any:
            for item in items:
                self.target.received.append(item.message.payload.decode("utf-8", "replace").encode())


class TestSINK_06_StaysClosed(BridgeSuite):
    class double(TargetSink):
        was_closed = False

        async def send(self, items: Sequence[Item]) -> Any:
            if self.was_closed:
                raise ServiceUnavailable("closed for good")
            return await super().send(items)

        async def close(self) -> None:
            self.was_closed = True


class TestSINK_07_HangsInClose(BridgeSuite):
    class double(TargetSink):
        async def close(self) -> None:
            await Pending[None]()


class TestSINK_08_CanNotBeClosedTwice(BridgeSuite):
    class double(TargetSink):
        async def close(self) -> None:
            if not self.is_open:
                raise RuntimeError("not open")
            await super().close()


class TestSINK_09_SaysItsHealthAsText(BridgeSuite):
    class double(TargetSink):
        def check(self) -> Any:
            return "fine"


class TestSINK_10_SaysThatItHasWhatItCouldNotSend(BridgeSuite):
    class double(TargetSink):
        async def send(self, items: Sequence[Item]) -> Any:
            if self.target.state == "down":
                if len(self.target.received) == 1 and items[0].attempt == 1:
                    return None
                raise ServiceUnavailable("the target is down")
            return await super().send(items)


class TestSINK_11_RaisesWhateverComes(BridgeSuite):
    class double(TargetSink):
        async def reach(self) -> None:
            if self.target.state == "down":
                raise OSError("connection refused")
            await super().reach()


class TestSINK_12_TakesARefusalForAnOutage(BridgeSuite):
    class double(TargetSink):
        async def reach(self) -> None:
            if self.target.state != "up":
                raise ServiceUnavailable("not authorized")


class TestSINK_13_CallsTheWholeBatchPoison(BridgeSuite):
    class double(TargetSink):
        def deliver(self, items: Sequence[Item]) -> Any:
            if any(self.is_poison(item) for item in items):
                return [Poison("bad batch")] * len(items)
            return super().deliver(items)


class TestSINK_14_GoesOnWhenCancelled(BridgeSuite):
    class double(TargetSink):
        late: Sequence[Item] = ()

        async def send(self, items: Sequence[Item]) -> Any:
            if self.target.state == "hanging":
                self.late = items
                await Pending[None]()
            late, self.late = self.late, ()
            answer = await super().send(items)
            if late:  # what was cancelled arrives, and once more, behind what came after it
                super().deliver(list(map(_marked, late)))
            return answer


def _marked(item: Item) -> Item:
    return item._replace(message=evolve(item.message, payload=item.message.payload + b" late"))


class TestSINK_15_ShowsPayloads(BridgeSuite):
    class double(TargetSink):
        async def send(self, items: Sequence[Item]) -> Any:
            if self.target.state == "down":
                raise ServiceUnavailable(f"could not send {items[0].message.payload!r}")
            return await super().send(items)

        async def open(self) -> None:
            self.is_open = True
