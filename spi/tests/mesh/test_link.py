"""Both ends of a link."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.mesh.frames import (
    ACK,
    ANSWER,
    CALL,
    DELIVER,
    FAILURE,
    HEADER_BYTES,
    HELLO,
    PUSH,
    FrameDecoder,
    Hello,
    MalformedFrame,
    encode,
)
from kinmqtt_spi.mesh.link import KEPT_BYTES, LARGE_ANSWER_BYTES, LAZY_FRAMES, LAZY_S, Link, LinkLimits, WrongPeer
from kinmqtt_spi.mesh.pipes import Pipe
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.mesh_nodes import Answered, LinkEnd, joined_ends

SMALL = LinkLimits(credit_bytes=1000, queue_bytes=5000, max_frame_bytes=4000)


class Written:
    """A transport that collects what is written."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.data.append(data)

    def close(self) -> None:
        self.is_closed = True


def hello(uid: int = 2, peer_uid: int = 1, received: int = 0, lowest: int = 1, highest: int = 1) -> bytes:
    return encode(HELLO, 0, Hello(lowest, highest, uid, peer_uid, received).pack())


def greeted(clock: TurnableClock) -> tuple[LinkEnd, Written]:
    """An end whose peer is played by the test."""
    end, transport = LinkEnd(1, 2, clock), Written()
    end.link.connected(transport)
    end.link.feed(hello())
    transport.data.clear()
    return end, transport


def test_batches_and_calls_arrive_in_order_and_are_answered() -> None:
    """Batches of both kinds arrive in the order of the calls; each answer reaches its own token, in any order."""
    clock = TurnableClock()
    here, there, _ = joined_ends(clock)
    tokens = [Answered() for _ in range(3)]

    assert here.link.push(b"one")
    here.link.deliver(b"two", tokens[0])
    assert here.link.push(b"")
    here.link.deliver(b"fail three", tokens[1])
    here.link.call(b"call", tokens[2])
    clock.advance(1.0)
    there.owed.reverse()
    there.answer_all()
    clock.advance(1.0)

    assert there.batches == [(b"one", False), (b"two", True), (b"", False), (b"fail three", True)]
    assert there.calls == [b"call"]
    assert [token.results[0] for token in (tokens[0], tokens[2])] == [b"owt", b"llac"]
    [error] = tokens[1].results
    assert isinstance(error, ServiceUnavailable)
    assert str(error) == "fail three"
    assert here.link.idle
    assert there.link.idle


def test_a_failure_carries_its_reason() -> None:
    """The reason code travels; a code that is unknown here becomes SERVER_UNAVAILABLE, a long text is cut."""
    clock = TurnableClock()
    here, there, _ = joined_ends(clock)
    known, unknown = Answered(), Answered()
    here.link.deliver(b"a", known)
    here.link.deliver(b"b", unknown)
    clock.advance(1.0)
    [(sequence, _), (later, _)] = there.owed

    there.link.fail(sequence, ServiceUnavailable("x" * 5000, ReasonCode.QUOTA_EXCEEDED))
    there.link._transmit(FAILURE, later.to_bytes(8, "big") + b"\xee" + b"\xff")
    clock.advance(1.0)

    errors = [known.results[0], unknown.results[0]]
    assert [error.reason for error in errors if isinstance(error, ServiceUnavailable)] == [0x97, 0x88]
    assert len(str(errors[0])) == 1000


def test_credit_bounds_what_is_on_the_wire() -> None:
    """Above the credit best-effort batches are dropped whole, and assured ones wait, in order, up to the bound."""
    clock = TurnableClock()
    here, there, pipe = joined_ends(clock, SMALL)
    pipe.right.stall()
    tokens = [Answered() for _ in range(9)]

    taken = [here.link.push(bytes(450)) for _ in range(3)]
    for number in range(7):
        here.link.deliver(b"%d" % number * 500, tokens[number])
    full = here.link.state()
    with pytest.raises(ServiceUnavailable, match="wait for process"):
        here.link.deliver(bytes(500), tokens[7])
    on_the_wire = pipe.right.coming_bytes
    pipe.right.resume()
    clock.advance(1.0)

    assert taken == [True, True, False]
    assert here.link.dropped == 1
    assert (full.credit_bytes, full.queued_bytes > 4000) == (0, True)
    assert on_the_wire <= 1100
    there.answer_all()
    clock.advance(1.0)
    there.answer_all()
    clock.advance(1.0)
    there.answer_all()
    clock.advance(1.0)
    assert [batch[:1] for batch, assured in there.batches if assured] == [b"%d" % number for number in range(7)]
    assert here.link.state().credit_bytes == SMALL.credit_bytes


def test_unanswered_batches_hold_credit_back() -> None:
    """A receiver whose store is slow takes no more than its share: it acknowledges when it has answered."""
    clock = TurnableClock()
    here, there, _ = joined_ends(clock, SMALL)
    for _ in range(8):
        here.link.deliver(bytes(500), Answered())
    clock.advance(1.0)
    slow = len(there.batches)
    there.answer_all()
    clock.advance(1.0)

    assert slow <= 4
    assert len(there.batches) > slow


def test_calls_pass_batches_without_credit() -> None:
    """Control does not wait behind batches; it has a bound of its own, which a link's owner may exceed."""
    clock = TurnableClock()
    here, there, pipe = joined_ends(clock, SMALL)
    pipe.right.stall()
    for _ in range(5):
        here.link.deliver(bytes(800), Answered())
    here.link.call(b"call", Answered())
    here.link.call(bytes(3000), Answered())
    with pytest.raises(ServiceUnavailable):
        here.link.call(bytes(3000), Answered())
    here.link.call(bytes(3000), Answered(), None)
    pipe.right.resume()
    clock.advance(0.001)

    assert len(there.batches) == 1
    assert [len(call) for call in there.calls] == [4, 3000, 3000]


def test_what_no_frame_takes_is_refused() -> None:
    """A batch, a call or an answer that does not fit in a frame fails alone; the link goes on."""
    clock = TurnableClock()
    here, there, _ = joined_ends(clock, LinkLimits(max_frame_bytes=500))
    token = Answered()

    assert not here.link.push(bytes(500))
    for send in (here.link.deliver, here.link.call):
        with pytest.raises(ServiceUnavailable) as raised:
            send(bytes(500), token)
        assert raised.value.reason == ReasonCode.PACKET_TOO_LARGE
    here.link.deliver(b"small", token)
    clock.advance(1.0)
    there.link.answer(there.owed[0][0], bytes(500))
    clock.advance(1.0)

    [error] = token.results
    assert isinstance(error, ServiceUnavailable)
    assert "500 bytes" in str(error)


def test_one_batch_above_the_credit_goes_alone() -> None:
    """An assured batch that is larger than the whole credit is sent when nothing else is on the wire."""
    clock = TurnableClock()
    here, there, _ = joined_ends(clock, SMALL)

    here.link.deliver(b"a" * 3000, Answered())
    here.link.deliver(b"b", Answered())
    clock.advance(0.001)
    alone = len(there.batches)
    clock.advance(1.0)
    there.answer_all()
    clock.advance(1.0)

    assert alone == 1
    assert [len(batch) for batch, _ in there.batches] == [3000, 1]


def test_a_lost_connection_loses_best_effort_batches_only() -> None:
    """What was on its way is sent again and reaches the owner once; best-effort batches are lost, or dropped."""
    clock = TurnableClock()
    here, there, pipe = joined_ends(clock)
    token = Answered()
    here.link.push(b"lost")
    here.link.deliver(b"kept", token)
    pipe.cut()
    clock.advance(1.0)
    while_down = here.link.push(b"dropped")
    here.link.deliver(b"later", Answered())
    pipe = Pipe(clock)
    here.attach(pipe.left)
    there.attach(pipe.right)
    clock.advance(1.0)
    there.answer_all()
    pipe.cut()  # The answers are on their way.
    clock.advance(1.0)
    pipe = Pipe(clock)
    here.attach(pipe.left)
    there.attach(pipe.right)
    clock.advance(1.0)

    assert while_down is False
    assert there.batches == [(b"kept", True), (b"later", True)]
    assert token.results == [b"tpek"]
    assert (here.link.dropped, here.link.resent) == (2, 1)
    assert here.link.state().queued_bytes == 0


def test_a_batch_that_its_owner_refuses_is_sent_again() -> None:
    """If the owner raises, the batch does not count as received, and nothing behind it is taken before it."""
    clock = TurnableClock()
    here, there, pipe = joined_ends(clock)
    pipe.right.stall()
    for batch in (b"one", b"two", b"three"):
        here.link.deliver(batch, Answered())
    there.refusals = 1
    pipe.right.resume()
    clock.advance(1.0)
    refused = list(there.batches)
    pipe = Pipe(clock)
    here.attach(pipe.left)
    there.attach(pipe.right)
    clock.advance(1.0)

    assert refused == []
    assert len(there.errors) == 1
    assert [batch for batch, _ in there.batches] == [b"one", b"two", b"three"]


def acknowledged(transport: Written) -> list[int]:
    """What was acknowledged, and in which writes; the frames that go back are left out."""
    return [
        sequence for written in transport.data for kind, sequence, _ in FrameDecoder().feed(written) if kind == ACK
    ]


def test_answers_are_acknowledged_together() -> None:
    """There is no frame for each, and none by itself that has few of them."""
    clock = TurnableClock()
    end, transport = greeted(clock)
    tokens = [Answered() for _ in range(LAZY_FRAMES)]
    for token in tokens:
        end.link.deliver(b"batch", token)
    transport.data.clear()

    for number in range(LAZY_FRAMES - 1):
        end.link.feed(encode(ANSWER, number + 1, (number + 1).to_bytes(8, "big")))
    clock.advance(10 * LAZY_S)
    lazy = list(transport.data)
    end.link.feed(encode(ANSWER, LAZY_FRAMES, LAZY_FRAMES.to_bytes(8, "big")))

    assert lazy == []
    assert acknowledged(transport) == [LAZY_FRAMES]
    assert all(token.results == [b""] for token in tokens)


def test_batches_are_acknowledged_together() -> None:
    """A batch waits a little for others: each acknowledgement wakes its reader."""
    clock = TurnableClock()
    end, transport = greeted(clock)

    for number in range(1, LAZY_FRAMES + 4):
        end.link.feed(encode(PUSH, number, b"batch"))
    at_once = acknowledged(transport)
    clock.advance(LAZY_S)

    assert at_once == [LAZY_FRAMES]
    assert acknowledged(transport) == [LAZY_FRAMES, LAZY_FRAMES + 3]


def test_an_answer_takes_the_acknowledgement_of_its_batch_along() -> None:
    """Both in one write, and nothing follows."""
    clock = TurnableClock()
    end, transport = greeted(clock)
    end.link.feed(encode(DELIVER, 1, b"batch"))

    end.answer_all()
    clock.advance(LAZY_S)

    [written] = transport.data
    assert [(kind, sequence) for kind, sequence, _ in FrameDecoder().feed(written)] == [(ACK, 1), (ANSWER, 1)]


def test_a_batch_that_is_answered_within_the_read_is_acknowledged() -> None:
    """Its answer acknowledges those before it; it follows by itself."""
    clock = TurnableClock()
    end, transport = greeted(clock)
    received = end.received

    def answered(sequence: int, batch: bytes, assured: bool) -> None:
        received(sequence, batch, assured)
        end.link.answer(sequence, b"")

    end.received = answered  # type: ignore[method-assign]
    end.link.feed(encode(DELIVER, 1, b"one"))
    end.link.feed(encode(DELIVER, 2, b"two"))
    within = acknowledged(transport)
    clock.advance(LAZY_S)

    assert within == [1]
    assert acknowledged(transport) == [1, 2]


def test_a_part_of_the_credit_is_acknowledged_at_once() -> None:
    """Else the sender would run out of it, and wait."""
    end = LinkEnd(1, 2, TurnableClock(), SMALL)
    transport = Written()
    end.link.connected(transport)
    end.link.feed(hello())

    end.link.feed(encode(PUSH, 1, bytes(100)))
    few = acknowledged(transport)
    end.link.feed(encode(PUSH, 2, bytes(100)))

    assert few == []
    assert acknowledged(transport) == [2]


def test_an_abandoned_link_acknowledges_nothing_later() -> None:
    """The peer is gone."""
    clock = TurnableClock()
    end, transport = greeted(clock)
    end.link.feed(encode(PUSH, 1, b"batch"))

    end.link.abandon()
    clock.advance(LAZY_S)

    assert transport.data == []


def test_a_large_answer_is_acknowledged_soon() -> None:
    """Its sender keeps it until then."""
    clock = TurnableClock()
    end, transport = greeted(clock)
    token = Answered()
    end.link.deliver(b"batch", token)
    end.link.feed(encode(ANSWER, 1, (1).to_bytes(8, "big") + bytes(LARGE_ANSWER_BYTES)))
    clock.advance(LAZY_S)

    assert token.results == [bytes(LARGE_ANSWER_BYTES)]
    assert acknowledged(transport) == [1]


def test_a_peer_that_acknowledges_no_answer_may_not_ask_on() -> None:
    """What is kept of answers is bounded. On its next connection the peer says what it has, and may ask again."""
    clock = TurnableClock()
    limits = LinkLimits(answer_bytes=5000)
    end = LinkEnd(1, 2, clock, limits)
    end.link.connected(Written())
    end.link.feed(hello())
    sequence = 0
    with pytest.raises(MalformedFrame, match="acknowledges no answer"):
        while sequence < 100:
            sequence += 1
            end.link.feed(encode(DELIVER, sequence, b"fail" if sequence % 2 else b"batch"))
            end.answer_all()
    end.link.connected(Written())
    end.link.feed(hello(received=sequence - 1))
    end.link.feed(encode(DELIVER, sequence, b"batch"))

    assert 20 < sequence <= limits.answer_bytes // KEPT_BYTES
    assert len(end.batches) == sequence


def test_a_withdrawn_call_is_not_sent_again() -> None:
    """It takes no room either; others are sent, and answered."""
    clock = TurnableClock()
    end = LinkEnd(1, 2, clock, SMALL)
    other, withdrawn = Answered(), Answered()
    end.link.call(bytes(3000), withdrawn)
    number = end.link.call(b"other", other)
    end.link.withdraw(number - 1)
    end.link.withdraw(number - 1)
    end.link.call(bytes(4000 - HEADER_BYTES), Answered())
    transport = Written()
    end.link.connected(transport)
    end.link.feed(hello())
    end.link.feed(encode(ANSWER, 1, number.to_bytes(8, "big") + b"done"))

    assert transport.data[1] == encode(CALL, number, b"other")
    assert len(transport.data) == 3
    assert (other.results, withdrawn.results) == ([b"done"], [])


def test_the_round_trip_is_measured() -> None:
    """The round trip is the smoothed time from a frame to its acknowledgement, not of what was sent again."""
    clock = TurnableClock()
    here, _, pipe = joined_ends(clock, delay_s=0.25)
    before = here.link.state().round_trip_s
    here.link.push(b"batch")
    clock.advance(1.0)
    measured = here.link.state().round_trip_s
    here.link.deliver(b"batch", Answered())
    pipe.cut()
    clock.advance(100.0)
    again = Pipe(clock, 0.25)
    here.attach(again.left)
    other = LinkEnd(2, 1, clock)
    other.attach(again.right)
    clock.advance(1.0)

    assert before == 0.0
    assert measured == pytest.approx(0.5)
    assert here.link.state().round_trip_s == pytest.approx(0.5)


def test_an_abandoned_link_returns_what_was_not_answered() -> None:
    """When the peer is gone, the tokens of all calls and batches are returned, and nothing is left."""
    clock = TurnableClock()
    here, there, _ = joined_ends(clock, SMALL)
    tokens = [Answered() for _ in range(4)]
    for token in tokens[:3]:
        here.link.deliver(bytes(900), token)
    here.link.call(b"call", tokens[3])
    clock.advance(1.0)
    there.link.abandon()
    there.answer_all()

    assert set(here.link.abandon()) == set(tokens)
    assert here.link.idle
    assert here.link.state().queued_bytes == 0


def test_a_new_connection_replaces_the_old() -> None:
    """The old connection is closed, and its bytes are not read any more."""
    clock = TurnableClock()
    end, transport = greeted(clock)
    other = Written()

    end.link.connected(other)

    assert transport.is_closed
    assert not end.link.established
    assert len(other.data) == 1


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode(PUSH, 1, b"batch"), "before HELLO"),
        (hello(uid=3), "process 0000000000000003"),
        (hello(peer_uid=3), "expects process 0000000000000003"),
        (hello(received=1), "has frame 1, of 0"),
        (hello(lowest=2, highest=4), "versions 2 to 4 of the link, this node 1 to 1"),
        (hello() + hello(), "a second HELLO"),
        (hello() + encode(ANSWER, 1, b"short"), "an ANSWER of 5 bytes"),
        (hello() + encode(FAILURE, 1, bytes(8)), "a FAILURE of 8 bytes"),
        (hello() + encode(ACK, 1), "acknowledges frame 1, of 0"),
        (encode(HELLO, 0, bytes(60)), "another protocol"),
        (encode(HELLO, 0, bytes(2000)), "above 1024"),
    ],
)
def test_bad_input_is_refused(data: bytes, text: str) -> None:
    """What does not belong there raises MalformedFrame, and says what it was."""
    end = LinkEnd(1, 2, TurnableClock())
    pipe = Pipe(TurnableClock())
    end.attach(pipe.left)

    end.feed(pipe.left, data)

    [error] = end.errors
    assert text in str(error)
    assert not end.link.established
    assert not pipe.left.is_open


def test_another_process_is_named() -> None:
    """Who answers instead of the expected process can be read, to find a peer that was restarted."""
    link = Link(1, 2, LinkEnd(1, 2, TurnableClock()), TurnableClock())
    link.connected(Written())

    with pytest.raises(WrongPeer) as raised:
        link.feed(hello(uid=9))

    assert raised.value.uid == 9


@pytest.mark.parametrize(
    "again",
    [
        lambda end: end.link.feed(encode(DELIVER, 1, b"batch")),
        lambda end: end.link.feed(encode(CALL, 0, b"call")),
        lambda end: end.link.answer(99, b""),
        lambda end: end.link.feed(encode(ANSWER, 2, bytes(8))),
    ],
)
def test_what_came_before_does_nothing(again: Callable[[LinkEnd], None]) -> None:
    """A frame with an old number, an answer to nothing and a second answer have no effect."""
    end, _ = greeted(TurnableClock())
    end.link.feed(encode(DELIVER, 1, b"batch"))

    again(end)

    assert end.batches == [(b"batch", True)]
    assert end.calls == []


def test_bytes_after_a_loss_are_not_read() -> None:
    """A link without a connection reads nothing."""
    end, _ = greeted(TurnableClock())
    end.link.lost()

    end.link.feed(encode(PUSH, 1, b"batch"))

    assert end.batches == []
