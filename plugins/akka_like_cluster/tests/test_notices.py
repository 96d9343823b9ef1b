"""Notices about client ids, over links that have no room or whose answers fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed

from kinmqtt_akka_like_cluster.register.notices import AGAIN_S, MAX_WAITING, Notices
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.values import Maybe, NodeIdentity

NODE = NodeIdentity("n1", 1)


class Link:
    """Takes some notices: a letter for each of its outcomes, and all later ones."""

    def __init__(self, outcomes: str = "") -> None:
        self.outcomes = list(outcomes)
        self.arrived: list[bytes] = []

    def ask(self, node: NodeIdentity, data: bytes, limit_s: float) -> Maybe[bytes]:
        outcome = self.outcomes.pop(0) if self.outcomes else "ok"
        if outcome == "full":
            raise ServiceUnavailable("the link is full")
        if outcome == "gone":
            raise NodeGone("n1 is down")
        if outcome == "fails":
            return fail(ServiceUnavailable("no answer"))
        self.arrived.append(data)
        return succeed(b"")


def notices(link: Link) -> tuple[Notices, TurnableClock, RecordingLog]:
    clock, log = TurnableClock(), RecordingLog()
    made = Notices(link.ask, clock, log)
    made.members_changed({NODE})
    return made, clock, log


@given(outcomes=st.lists(st.sampled_from(("full", "ok", "fails")), max_size=20), count=st.integers(1, 10))
def test_each_notice_arrives_in_the_end(outcomes: list[str], count: int) -> None:
    """None is lost, and those that a full link holds back keep their order."""
    link = Link()
    link.outcomes = list(outcomes)
    told, clock, _ = notices(link)
    sent = [bytes((number,)) for number in range(count)]

    for notice in sent:
        told.tell(NODE, notice)
    for _ in range(len(outcomes) + 1):
        clock.advance(AGAIN_S)

    assert sorted(link.arrived) == sent
    assert "fails" in outcomes or link.arrived == sent
    assert len(told) == 0


@pytest.mark.parametrize("end", ["it is gone", "the broker stops"])
def test_nothing_waits_for_a_member_without_end(end: str) -> None:
    """Notices that wait are forgotten when the member is gone, or this broker stops; a full line is told."""
    link = Link()
    link.outcomes = ["full"]
    told, clock, log = notices(link)
    for _ in range(MAX_WAITING):
        told.tell(NODE, b"x")
    assert told.is_full

    if end == "it is gone":
        told.members_changed(set())
    else:
        told.stop()
    clock.advance(AGAIN_S)
    told.tell(NODE, b"x")

    assert len(told) == 0
    assert len(log.texts("warn")) == 1


def test_an_answer_that_fails_late_is_no_answer() -> None:
    """The notice is sent again after the answer's limit, unless the member is gone."""
    late: list[Deferred[bytes]] = [Deferred(), Deferred(), Deferred()]
    asked: list[bytes] = []

    def ask(node: NodeIdentity, data: bytes, limit_s: float) -> Maybe[bytes]:
        asked.append(data)
        return late[len(asked) - 1]

    clock = TurnableClock()
    told = Notices(ask, clock, RecordingLog())
    told.members_changed({NODE})
    told.tell(NODE, b"end")
    late[0].errback(ServiceUnavailable("no answer"))
    clock.advance(AGAIN_S)
    late[1].errback(NodeGone("n1 is down"))
    clock.advance(AGAIN_S)

    assert asked == [b"end", b"end"]
