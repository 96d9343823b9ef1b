"""Cluster backends that break one promise each about batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.services.cluster import LinkState
from kinmqtt_spi.values import Maybe, NodeIdentity
from spi_harness.broken_cluster import SoundNodes
from spi_harness.two_nodes import CREDIT_BYTES, Answer, Frame, Hub, Node


class TestCLUSTER_10_CutsAtALine(SoundNodes):
    class double(Node):
        def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
            return super().receive(origin, batch.rstrip(b"\r\n"), assured)


class TestCLUSTER_10_SaysItIsItsOwn(SoundNodes):
    class double(Node):
        def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
            return super().receive(self.me, batch, assured)


class TestCLUSTER_10_AssuresEverything(SoundNodes):
    class double(Node):
        def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
            return super().receive(origin, batch, True)


class TestCLUSTER_10_HandsOverItsBuffer(SoundNodes):
    class double(Node):
        def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
            buffer: Any = bytearray(batch)
            return super().receive(origin, buffer, assured)


class TestCLUSTER_10_AnswersYes(SoundNodes):
    class double(Node):
        def transmit(self, other: Node, serial: int, batch: bytes, answer: Answer) -> None:
            give = answer.give
            answer.give = lambda value=None: give(b"yes")  # type: ignore[method-assign]
            super().transmit(other, serial, batch, answer)


class TestCLUSTER_11_AnswersWhenItIsSent(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            super().deliver(node, batch, messages)
            return b"yes"


class TestCLUSTER_11_AnswersWhenItArrives(SoundNodes):
    class double(Node):
        def take(self, origin: Any, batch: bytes, answer: Any, serial: int = 0) -> None:
            super().take(origin, batch, None)
            if answer is not None:
                answer.give(b"yes")


class TestCLUSTER_12_TakesAFailureForDone(SoundNodes):
    class double(Node):
        def expect(self, node: NodeIdentity) -> Any:
            answer = super().expect(node)
            answer.fail = lambda error: answer.give()  # type: ignore[method-assign]
            return answer


class TestCLUSTER_12_TakesAFailureForAnEnd(SoundNodes):
    class double(Node):
        def transmit(self, other: Node, serial: int, batch: bytes, answer: Answer) -> None:
            fail = answer.fail
            answer.fail = lambda error: fail(NodeGone(str(error)))  # type: ignore[method-assign]
            super().transmit(other, serial, batch, answer)


class TestCLUSTER_12_SendsNothingAfterAFailure(SoundNodes):
    class double(Node):
        failed = False

        def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
            if self.failed:
                raise ServiceUnavailable("it has failed before")
            try:
                return super().receive(origin, batch, assured)
            except ServiceUnavailable:
                self.failed = True
                raise


class TestCLUSTER_19_HasNoCredit(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            return LinkState(0, 0, 0.0)


class TestCLUSTER_19_HasNoMeasure(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            self.at(node)
            return LinkState(CREDIT_BYTES, 0, float("nan"))


class TestCLUSTER_20_RaisesWhenItIsFull(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            if not super().push(node, batch):
                raise ServiceUnavailable(f"the link to {node.name} is full")
            return True


class TestCLUSTER_20_TakesEverything(SoundNodes):
    class double(Node):
        def credit(self, other: Node) -> int:
            return CREDIT_BYTES


class TestCLUSTER_20_StaysFull(SoundNodes):
    class double(Node):
        was_full = False

        def credit(self, other: Node) -> int:
            self.was_full = self.was_full or super().credit(other) < CREDIT_BYTES // 32
            return 0 if self.was_full else super().credit(other)


class TestCLUSTER_20_DropsTheOldest(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other = self.at(node)
            if super().push(node, batch):
                return True
            other.inbox.popleft()
            super().push(node, batch)
            return False


class TestCLUSTER_21_AnotherWayOvertakes(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other, me = self.at(node), self.me
            self.hub.clock.later(0.0005, lambda: other.take(me, batch, None))
            return True


class TestCLUSTER_23_WaitsForTheGone(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            return super().deliver(node, batch, messages) if node in self.hub.nodes else self.expect(node)


class TestCLUSTER_23_PushesIntoTheVoid(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            return super().push(node, batch) if node in self.hub.nodes else True


class TestCLUSTER_23_BarsForTheGone(SoundNodes):
    class double(Node):
        def lagging(self, version: int) -> list[NodeIdentity]:
            return [other for other, seen in self.seen.items() if seen < version]

        def lose(self, node: NodeIdentity) -> None:
            super().lose(node)
            self.seen[node] = 0


class TestCLUSTER_27_SaysItWasSent(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            super().push(node, batch)
            return True


class TestCLUSTER_27_SendsWhatFits(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other = self.at(node)
            credit = self.credit(other)
            return super().push(node, batch[: max(1, credit)]) and len(batch) <= credit

        def credit(self, other: Node) -> int:
            return max(1, super().credit(other))


class TestCLUSTER_27_SendsItInTheEnd(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other, me = self.at(node), self.me
            if not super().push(node, batch):
                other.send(Frame(lambda: other.take(me, batch, None)))
                return False
            return True


class TestCLUSTER_27_RefusesWithinItsCredit(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            return len(batch) <= self.credit(self.at(node)) // 2 and super().push(node, batch)


class TestCLUSTER_28_GivesUp(SoundNodes):
    class double(Node):
        def expect(self, node: NodeIdentity) -> Answer:
            answer = super().expect(node)
            self.hub.clock.later(30.0, lambda: answer.fail(ServiceUnavailable(f"{node.name} does not answer")))
            return answer


class TestCLUSTER_28_TriesAgain(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            answer, other = super().deliver(node, batch, messages), self.at(node)

            def again() -> None:
                if not answer.done():
                    self.serial += 1
                    self.transmit(other, self.serial, batch, answer)

            self.hub.clock.later(5.0, again)
            return answer


class TestCLUSTER_28_CountsTimeAsAnAnswer(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            answer = super().deliver(node, batch, messages)
            self.hub.clock.later(30.0, lambda: answer.give(b""))
            return answer


class TestCLUSTER_29_WaitsForTheGone(SoundNodes):
    class double(Node):
        def lose(self, node: NodeIdentity) -> None:
            self.waiting.pop(node, None)
            super().lose(node)


class TestCLUSTER_29_IsNotSurprised(SoundNodes):
    class double(Node):
        def lose(self, node: NodeIdentity) -> None:
            for answer in self.waiting.pop(node, ()):
                answer.give(b"")
            super().lose(node)


class TestCLUSTER_29_SaysItIsUnavailable(SoundNodes):
    class double(Node):
        def lose(self, node: NodeIdentity) -> None:
            for answer in self.waiting.pop(node, ()):
                answer.fail(ServiceUnavailable(f"node {node.name} does not answer"))
            super().lose(node)


class TestCLUSTER_30_SendsOnce(SoundNodes):
    class double(Node):
        def reconnect(self, other: Node) -> None:
            self.assured.clear()
            super().reconnect(other)


class TestCLUSTER_30_TakesItTwice(SoundNodes):
    class double(Node):
        def is_new(self, origin: NodeIdentity, serial: int) -> bool:
            return True


class TestCLUSTER_30_SendsTheLastFirst(SoundNodes):
    class double(Node):
        def reconnect(self, other: Node) -> None:
            for numbered in self.assured.values():
                for serial in sorted(numbered, reverse=True):
                    numbered[serial] = numbered.pop(serial)
            super().reconnect(other)


class TestCLUSTER_30_FailsWithTheConnection(SoundNodes):
    class double(Node):
        def reconnect(self, other: Node) -> None:
            for numbered in self.assured.values():
                for sent in numbered.values():
                    sent.answer.fail(ServiceUnavailable("the connection was lost"))
            super().reconnect(other)


class TestCLUSTER_31_AnswersTheOldest(SoundNodes):
    class double(Node):
        def __init__(self, hub: Hub) -> None:
            super().__init__(hub)
            self.pending: list[Answer] = []

        def take(self, origin: Any, batch: bytes, answer: Answer | None, serial: int = 0) -> None:
            if answer is not None:
                self.pending.append(answer)
                answer = _Oldest(self.pending)
            super().take(origin, batch, answer, serial)


class _Oldest(Answer):
    """Answers whoever waits longest."""

    def __init__(self, pending: list[Answer]) -> None:
        super().__init__()
        self.pending = pending

    def give(self, value: Any = None) -> None:
        self.oldest().give(value)

    def fail(self, error: BaseException) -> None:
        self.oldest().fail(error)

    def oldest(self) -> Answer:
        return next(each for each in self.pending if not each.done())


class TestCLUSTER_31_FailsAll(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            answer = super().deliver(node, batch, messages)
            fail = answer.fail

            def fail_all(error: BaseException) -> None:
                fail(error)
                others: Sequence[Answer] = [each.answer for each in self.assured[node].values()]
                for each in others:
                    each.give(b"") if each.done() else Answer.fail(each, error)

            answer.fail = fail_all
            return answer


class TestCLUSTER_32_DropsTheMalformed(SoundNodes):
    class double(Node):
        def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
            assert self.listener is not None
            try:
                return self.listener.received(origin, batch, assured)
            except MalformedBatch:
                return b""


class TestCLUSTER_32_StopsReading(SoundNodes):
    class double(Node):
        def cut(self) -> None:
            self.stalled = True


class TestCLUSTER_32_ShutsItOut(SoundNodes):
    class double(Node):
        def cut(self) -> None:
            for other in self.others():
                assert self.me is not None
                other.lose(self.me)
