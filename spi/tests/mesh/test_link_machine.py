"""A link over connections that are lost at any byte: what is assured arrives once, in order, and is answered once."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.mesh.frames import HEADER_BYTES
from kinmqtt_spi.mesh.link import LinkLimits
from kinmqtt_spi.mesh.pipes import Pipe
from spi_harness.examples import examples
from spi_harness.mesh_nodes import Answered, LinkEnd

LIMITS = LinkLimits(credit_bytes=300, queue_bytes=1500, max_frame_bytes=1000)
SIDES = st.integers(0, 1)


class LossyLink(RuleBasedStateMachine):
    """Two ends that push, deliver, call and answer, over pipes that are stalled and cut."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = TurnableClock()
        self.ends = [LinkEnd(1, 2, self.clock, LIMITS), LinkEnd(2, 1, self.clock, LIMITS)]
        self.pipe: Pipe | None = None
        self.serial = 0
        self.batches: list[list[bytes]] = [[], []]
        self.assured: list[list[bytes]] = [[], []]
        self.calls: list[list[bytes]] = [[], []]
        self.tokens: dict[bytes, Answered] = {}
        self.connect()

    def body(self, kind: bytes, size: int) -> bytes:
        self.serial += 1
        return b"%s %d " % (kind, self.serial) + bytes(size)

    @rule(side=SIDES, size=st.integers(0, 400))
    def push(self, side: int, size: int) -> None:
        batch = self.body(b"push", size)
        if self.ends[side].link.push(batch):
            self.batches[side].append(batch)

    @rule(side=SIDES, size=st.integers(0, 600), kind=st.sampled_from([b"deliver", b"fail"]))
    def deliver(self, side: int, size: int, kind: bytes) -> None:
        batch, token = self.body(kind, size), Answered()
        try:
            self.ends[side].link.deliver(batch, token)
        except ServiceUnavailable:
            return
        self.batches[side].append(batch)
        self.assured[side].append(batch)
        self.tokens[batch] = token

    @rule(side=SIDES, size=st.integers(0, 100))
    def call(self, side: int, size: int) -> None:
        body, token = self.body(b"call", size), Answered()
        try:
            self.ends[side].link.call(body, token)
        except ServiceUnavailable:
            return
        self.calls[side].append(body)
        self.tokens[body] = token

    @rule(side=SIDES, backwards=st.booleans())
    def answer(self, side: int, backwards: bool) -> None:
        if backwards:
            self.ends[side].owed.reverse()
        self.ends[side].answer_all()

    @rule(milliseconds=st.integers(0, 5))
    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    @precondition(lambda self: self.pipe is None or not self.pipe.is_open)
    @rule(chop=st.one_of(st.none(), st.integers(1, 50)))
    def connect(self, chop: int | None = None) -> None:
        self.pipe = Pipe(self.clock)
        if chop is not None:
            pieces: Any = lambda data: (data[at : at + chop] for at in range(0, len(data), chop))  # noqa: E731
            self.pipe.left.chop = self.pipe.right.chop = pieces
        self.ends[0].attach(self.pipe.left)
        self.ends[1].attach(self.pipe.right)

    @precondition(lambda self: self.pipe is not None)
    @rule(left=st.integers(0, 1200), right=st.integers(0, 1200))
    def cut(self, left: int, right: int) -> None:
        assert self.pipe is not None
        self.pipe.cut(left, right)
        self.clock.advance()

    @rule(side=SIDES)
    def refuse(self, side: int) -> None:
        self.ends[side].refusals = 1

    @precondition(lambda self: self.pipe is not None)
    @rule(to=SIDES, stalled=st.booleans())
    def stall(self, to: int, stalled: bool) -> None:
        assert self.pipe is not None
        end = self.pipe.right if to else self.pipe.left
        if stalled:
            end.stall()
        else:
            end.resume()

    @invariant()
    def in_order_and_once(self) -> None:
        for side in (0, 1):
            other = self.ends[1 - side]
            arrived = [batch for batch, _ in other.batches]
            assured = [batch for batch, is_assured in other.batches if is_assured]
            serials = [int(batch.split(b" ")[1]) for batch in arrived]
            assert serials == sorted(set(serials))
            assert set(arrived) <= set(self.batches[side])
            assert assured == self.assured[side][: len(assured)]
            assert other.calls == self.calls[side][: len(other.calls)]
        assert all(len(token.results) <= 1 for token in self.tokens.values())

    @invariant()
    def bounds_hold(self) -> None:
        largest = LIMITS.max_frame_bytes
        for end in self.ends:
            assert end.link.state().queued_bytes <= LIMITS.queue_bytes + HEADER_BYTES
            assert 0 <= end.link._flight_bytes <= max(LIMITS.credit_bytes + HEADER_BYTES, largest)
            assert 0 <= end.link._owed_bytes <= 2 * LIMITS.credit_bytes + largest + 2000

    def teardown(self) -> None:
        for end in self.ends:
            end.refusals = 0
        if self.pipe is not None:
            self.pipe.cut()
        self.clock.advance(1.0)
        self.connect()
        for _ in range(100):
            self.clock.advance(1.0)
            for end in self.ends:
                end.answer_all()
        self.in_order_and_once()
        for side in (0, 1):
            assert [batch for batch, assured in self.ends[1 - side].batches if assured] == self.assured[side]
            assert self.ends[1 - side].calls == self.calls[side]
            assert self.ends[side].link.idle
            assert self.ends[side].link.state().credit_bytes == LIMITS.credit_bytes
            assert self.ends[side].link._call_bytes == 0
        for body, token in self.tokens.items():
            [result] = token.results
            assert str(result) == body.decode() if body.startswith(b"fail") else result == body[::-1]


LossyLink.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
TestLossyLink = LossyLink.TestCase
