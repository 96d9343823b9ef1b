"""Which term a side asks for, and when an answer counts."""

from __future__ import annotations

import pytest

from akka_harness.states import cluster, info, record
from kinmqtt_akka_like_cluster.pure.arbitration import FRESH_S, Arbitration
from kinmqtt_akka_like_cluster.pure.downing import Decision, DowningPolicy, Strategy
from kinmqtt_akka_like_cluster.pure.gossip import ClusterState, Gossip, Record
from kinmqtt_akka_like_cluster.pure.membership import Membership
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM


def split(unreachable: dict[int, set[int]] | None = None, term: int = 0) -> ClusterState:
    """Return a state of four members, some of which can't reach others."""
    plain = cluster(*(record(uid) for uid in range(1, 5)), unreachable=unreachable)
    return ClusterState(plain.founder, plain.records, {}, plain.observations, term)


def arbitration(state: ClusterState, own: int = 1, *, is_needed: bool = True) -> tuple[Arbitration, Membership]:
    """Return a member's questions, and its membership; all members have seen its state."""
    membership = Membership(own, Gossip(state, frozenset(state.records)))
    policy = DowningPolicy(Strategy.ARBITER, None, None)
    return Arbitration(membership, policy, is_needed=is_needed), membership


@pytest.mark.parametrize(("last", "next_"), [(0, 1), (6, 7), (MAX_TERM, MAX_TERM)])
def test_a_side_asks_for_the_next_term(last: int, next_: int) -> None:
    """The term after the cluster's last one is asked for, again and again until one is acted on."""
    asking, _ = arbitration(split({1: {4}}, last))

    assert asking.ask(100.0).term == next_
    assert asking.ask(105.0).term == next_


def test_all_members_of_a_side_ask_in_one_name() -> None:
    """Members of one side have one number, and those of the other side, or of a part of it, have another."""
    halves = split({1: {3, 4}, 2: {3, 4}})
    part = halves.with_observation(1, {2, 3, 4})

    sides = {own: arbitration(halves, own)[0].ask(100.0).side for own in range(1, 5)}

    assert sides[1] == sides[2] != sides[3] == sides[4]
    assert arbitration(part, 1)[0].ask(100.0).side not in sides.values()


def test_a_newcomer_does_not_change_a_sides_name() -> None:
    """A process that joins in a split can't make its side ask as another one."""
    state = split({1: {4}})
    joined = state.with_record(Record(info(5), MemberState.JOINING))

    assert arbitration(joined)[0].ask(100.0).side == arbitration(state)[0].ask(100.0).side


def test_an_answer_about_another_term_does_not_count() -> None:
    """A late answer to an earlier question is ignored."""
    asking, membership = arbitration(split({1: {4}}))
    early = asking.ask(100.0)
    membership.raise_term(early.term)
    late = asking.ask(105.0)

    assert not asking.decided(True, 106.0, early)
    assert asking.checked(Decision.DOWN_UNREACHABLE, 111.0) is Decision.ASK_ARBITER
    assert asking.decided(True, 112.0, late)
    assert asking.checked(Decision.DOWN_UNREACHABLE, 112.0) is Decision.DOWN_UNREACHABLE


def test_an_answer_to_another_side_does_not_count() -> None:
    """A side that fell apart while the answer was on its way has no term: both parts would act on it."""
    whole, membership = arbitration(split({1: {4}}))
    asked = whole.ask(100.0)
    membership.observe(3, reachable=False)
    part = whole.ask(105.0)

    assert part.term == asked.term
    assert part.side != asked.side
    assert not whole.decided(True, 106.0, asked)
    assert whole.decided(True, 107.0, part)


def test_an_old_answer_is_not_acted_on() -> None:
    """A side that could not act at once asks again, and waits for that answer."""
    asking, _ = arbitration(split({1: {4}}))
    asking.decided(True, 100.0, asking.ask(99.0))

    assert asking.checked(Decision.DOWN_UNREACHABLE, 100.0 + FRESH_S - 0.1) is Decision.DOWN_UNREACHABLE
    assert asking.checked(Decision.DOWN_UNREACHABLE, 100.0 + FRESH_S) is Decision.ASK_ARBITER
    asking.ask(100.0 + FRESH_S)
    assert asking.checked(Decision.DOWN_UNREACHABLE, 101.0 + FRESH_S) is Decision.WAIT
    assert asking.checked(Decision.DOWN_SELF, 101.0 + FRESH_S) is Decision.DOWN_SELF


def test_a_term_is_noted_when_it_is_acted_on() -> None:
    """The state has a term with the members that it downs, and not before: others must not hear of it alone."""
    asking, membership = arbitration(split({1: {4}}))
    asking.decided(True, 100.0, asking.ask(99.0))
    before = membership.state.term

    asking.used()

    assert (before, membership.state.term) == (0, 1)


def test_other_strategies_use_no_terms() -> None:
    """Without an arbiter decisions are as they are, and no term is noted."""
    asking, membership = arbitration(split({1: {4}}), is_needed=False)

    assert asking.checked(Decision.DOWN_UNREACHABLE, 100.0) is Decision.DOWN_UNREACHABLE
    asking.used()
    assert membership.state.term == 0


def test_a_term_that_was_asked_for_in_vain_is_left_alone() -> None:
    """When a split heals before an answer comes, the term counts as taken; not before all have answered and agree."""
    asking, membership = arbitration(split({1: {4}}))
    asking.ask(100.0)
    asking.tick()
    in_split = membership.state.term
    membership.observe(4, True)
    asking.tick()
    before_all_agree = membership.state.term
    membership.note_seen({2, 3, 4})

    asking.tick()

    assert (in_split, before_all_agree, membership.state.term) == (0, 0, 1)
