"""When a connection is read from: the table of reasons, and the gate that keeps it."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.read_gate import (
    ANSWER,
    AWAITING_TURN_BYTES,
    CAPACITY,
    CONGESTION,
    DELAY,
    DISCONNECTING,
    HOLDS,
    READ_AHEAD_BYTES,
    RULES,
    TURN,
    ReadGate,
)
from kinmqtt.mqtt.framing import Framer


class FakeLink:
    """A transport of which only its reading is of interest."""

    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def gate_of(link: FakeLink) -> ReadGate:
    """A gate before a client that is not accepted yet."""
    return ReadGate(cast(Link, link), Framer())


def test_what_holds_packets_is_what_the_table_says() -> None:
    """The constant that the message path compares is the table's column."""
    assert sum(reason for reason, rule in RULES.items() if rule.holds_packets) == HOLDS


def test_each_reason_is_a_bit_of_its_own() -> None:
    """Several may hold at one time."""
    assert sum(RULES) == 2 ** len(RULES) - 1


@pytest.mark.parametrize("reason", [DELAY, CAPACITY, CONGESTION, DISCONNECTING])
def test_a_reason_that_reads_nothing_ahead_stops_at_once(reason: int) -> None:
    """Whatever the client has sent until then."""
    link = FakeLink()
    gate = gate_of(link)

    gate.shut(reason)

    assert not link.reading
    assert gate.holds_packets is RULES[reason].holds_packets


@pytest.mark.parametrize(("reason", "most"), [(ANSWER, READ_AHEAD_BYTES), (TURN, AWAITING_TURN_BYTES)])
def test_a_little_is_read_ahead_of_an_answer_and_of_a_turn(reason: int, most: int) -> None:
    """About as much as the table says: pieces that are held uncut count for a little more than their bytes."""
    link = FakeLink()
    gate = gate_of(link)

    gate.wait(reason)
    gate.read_ahead(bytes(most - 1024))
    before = link.reading
    gate.read_ahead(bytes(1025))

    assert (before, link.reading) == (True, False)
    assert RULES[reason].reads_ahead_bytes == most


def test_nothing_is_read_ahead_of_an_answer_to_an_accepted_client() -> None:
    """It may send megabytes; that it has gone shows soon enough."""
    link = FakeLink()
    gate = gate_of(link)

    gate.accept()
    gate.wait(ANSWER)

    assert not link.reading


class Gate(RuleBasedStateMachine):
    """Reasons come and go in any order; answers and delays are counted, the others are there or not."""

    def __init__(self) -> None:
        super().__init__()
        self.link = FakeLink()
        self.gate = gate_of(self.link)
        self.gate.accept()
        self.counts = dict.fromkeys(RULES, 0)

    @rule()
    @precondition(lambda self: not self.counts[TURN])
    def wait_for_an_answer(self) -> None:
        self.gate.wait(ANSWER)
        self.counts[ANSWER] += 1

    @rule()
    @precondition(lambda self: not self.gate.holds_packets)
    def wait_for_a_turn(self) -> None:
        self.gate.wait(TURN)
        self.counts[TURN] = 1

    @rule()
    @precondition(lambda self: self.counts[TURN] or self.counts[ANSWER])
    def what_was_waited_for_is_there(self) -> None:
        reason = TURN if self.counts[TURN] else ANSWER
        self.counts[reason] -= 1
        assert self.gate.end_wait(reason) is not bool(self.counts[ANSWER])
        self.gate.open()

    @rule(reason=st.sampled_from([DELAY, CAPACITY, CONGESTION]))
    def shut(self, reason: int) -> None:
        self.gate.shut(reason)
        self.counts[reason] = self.counts[reason] + 1 if reason == DELAY else 1

    @rule(reason=st.sampled_from([DELAY, CAPACITY, CONGESTION]))
    def clear(self, reason: int) -> None:
        if self.counts[reason]:
            self.gate.clear(reason)
            self.counts[reason] -= 1
            self.gate.open()

    @invariant()
    def it_is_open_where_no_reason_is_left(self) -> None:
        assert self.gate.reasons == sum(reason for reason, count in self.counts.items() if count)
        assert self.gate.holds_packets is bool(self.counts[ANSWER] or self.counts[TURN])
        if not self.gate.reasons:
            assert self.link.reading
        elif self.gate.reasons != TURN:
            assert not self.link.reading


TestGate = Gate.TestCase
