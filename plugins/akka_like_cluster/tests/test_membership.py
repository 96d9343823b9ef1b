"""What a member sees in the cluster's state, and how it changes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akka_harness.states import FOUNDER, cluster, gossips, info, record, states
from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_MEMBERS,
    RANK,
    ClusterState,
    Gossip,
    NodeAddress,
    NodeInfo,
    Observation,
    Record,
)
from kinmqtt_akka_like_cluster.pure.membership import Membership, TooManyMembers
from kinmqtt_akka_like_cluster.pure.sides import accused_by, side_of
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.values import NodeIdentity

JOINING, UP, LEAVING = MemberState.JOINING, MemberState.UP, MemberState.LEAVING
EXITING, DOWN = MemberState.EXITING, MemberState.DOWN
NOBODY: frozenset[int] = frozenset()


def member(own: int, state: ClusterState, *seen: int) -> Membership:
    """Return a member that knows this state, and who else has seen it."""
    return Membership(own, Gossip(state, frozenset(seen)))


def agreed(state: ClusterState, own: int = 1) -> Membership:
    """Return a member that knows that all others have seen this state."""
    return member(own, state, *state.records)


def states_of(membership: Membership) -> Mapping[int, MemberState]:
    """Return the states of all members."""
    return {uid: each.state for uid, each in membership.records.items()}


# Leader and convergence


def test_the_lowest_address_leads() -> None:
    """The leader is the reachable UP or LEAVING member with the lowest address, whatever its uid."""
    state = cluster(
        Record(info(1), JOINING), Record(info(3), UP), Record(info(2), EXITING), Record(info(4), LEAVING), record(5)
    )

    assert agreed(state).leader == 3
    assert agreed(state.with_observation(5, {3})).leader == 4


def test_ports_are_compared_as_numbers() -> None:
    """Of two brokers on one host the one with the lower port leads."""
    nodes = [
        NodeInfo(NodeIdentity(f"n{port}", uid), NodeAddress("a", port)) for uid, port in ((1, 10_000), (2, 9_999))
    ]

    membership = agreed(cluster(*(Record(node, UP) for node in nodes)))

    assert membership.leader == 2


def test_a_joining_member_leads_if_none_is_up() -> None:
    """Before anybody is UP the lowest JOINING member leads; with nobody left there is no leader."""
    assert agreed(cluster(Record(info(2)), Record(info(3))), 3).leader == 2
    assert agreed(cluster(record(1, DOWN), record(2, EXITING)), 2).leader is None


def test_members_agree_when_all_that_count_have_seen_the_state() -> None:
    """JOINING, UP and LEAVING members must have seen it; unreachable, DOWN and EXITING ones need not."""
    state = cluster(Record(info(1), JOINING), record(2), record(3, LEAVING), record(4, EXITING), record(5, DOWN))

    assert not member(2, state).is_converged
    assert not member(2, state, 1).is_converged
    assert member(2, state, 1, 3).is_converged
    assert member(2, state.with_observation(2, {3}), 1).is_converged


def test_a_change_must_be_seen_again() -> None:
    """After a change only this member has seen the state; a digest that others have seen is noted."""
    membership = agreed(cluster(record(1), record(2), record(3)))
    before = membership.digest

    membership.observe(3, False)

    assert membership.digest != before
    assert membership.seen == {1}
    membership.note_seen({2, 99})
    assert membership.seen == {1, 2}


# What the leader does


def test_ready_members_become_up_in_order() -> None:
    """The leader numbers the ready JOINING members by address, above all numbers so far; the others wait."""
    state = cluster(record(1), Record(info(3), ready=True), Record(info(2), ready=True), Record(info(4)))
    membership = agreed(state.with_record(record(5, up_number=7)))

    assert membership.lead()

    numbers = {uid: each.up_number for uid, each in membership.records.items()}
    assert states_of(membership) == {1: UP, 2: UP, 3: UP, 4: JOINING, 5: UP}
    assert numbers == {1: 1, 2: 8, 3: 9, 4: 0, 5: 7}


def test_a_leaving_member_exits_when_it_is_drained_and_is_removed_then() -> None:
    """LEAVING and drained becomes EXITING; when all have seen that, it is REMOVED."""
    membership = agreed(cluster(record(1), record(2, LEAVING), record(3, LEAVING, drained=True)))

    membership.lead()
    assert states_of(membership) == {1: UP, 2: LEAVING, 3: EXITING}
    assert not membership.lead()
    membership.note_seen({2})
    membership.lead()

    assert states_of(membership) == {1: UP, 2: LEAVING}
    assert membership.is_gone(3)


def test_a_down_member_is_removed() -> None:
    """DOWN becomes REMOVED when all others have seen it, and leaves no observation."""
    membership = agreed(cluster(record(1), record(2), record(3, DOWN), unreachable={1: {3}, 3: {1, 2}}))

    assert membership.lead()

    assert states_of(membership) == {1: UP, 2: UP}
    assert membership.state.removed == {3: 1}
    assert membership.state.observations == {1: Observation(1, NOBODY)}


@pytest.mark.parametrize(
    ("state", "own", "seen"),
    [
        pytest.param(cluster(record(1), record(2, DOWN), record(3)), 3, (1, 3), id="another one leads"),
        pytest.param(cluster(record(1), record(2, DOWN), record(3)), 1, (1,), id="not all have seen the state"),
    ],
)
def test_only_the_leader_acts_and_only_on_agreement(state: ClusterState, own: int, seen: tuple[int, ...]) -> None:
    """Nothing is changed by another member, or before all have seen the state."""
    membership = member(own, state, *seen)

    assert not membership.lead()

    assert membership.state == state


def test_in_a_split_the_leader_changes_no_numbers() -> None:
    """While a member is unreachable and not DOWN, nobody becomes UP or leaves; those that are DOWN are removed."""
    waiting = [Record(info(2), ready=True), record(3, LEAVING, drained=True), record(4, EXITING)]
    membership = agreed(cluster(record(1), *waiting, record(5, DOWN), record(6), unreachable={1: {6}}))

    membership.lead()
    assert states_of(membership) == {1: UP, 2: JOINING, 3: LEAVING, 4: EXITING, 6: UP}
    membership.advance(6, DOWN)
    membership.note_seen({2, 3})
    membership.lead()

    assert states_of(membership) == {1: UP, 2: UP, 3: EXITING}


def test_an_unreachable_exiting_member_is_no_split() -> None:
    """A member that has left and whose process has ended holds nobody up."""
    membership = agreed(cluster(record(1), record(2, EXITING), Record(info(3), ready=True), unreachable={1: {2}}))

    membership.lead()

    assert states_of(membership) == {1: UP, 3: UP}


def test_of_two_processes_with_one_name_one_stays() -> None:
    """If two seeds let processes with one name in at once, the leader downs all but the older or lower one."""
    double = Record(info(4, "n2"), ready=True)
    twins = [Record(info(5, "new"), ready=True), Record(info(6, "new"), ready=True)]
    membership = agreed(cluster(record(1), record(2), double, *twins))

    membership.lead()

    assert states_of(membership) == {1: UP, 2: UP, 4: DOWN, 5: UP, 6: DOWN}


# Changes


def test_a_state_never_goes_back() -> None:
    """A member is moved forward only, and a uid that is known keeps its record."""
    membership = agreed(cluster(record(1), record(2, DOWN)))

    membership.advance(2, LEAVING)
    membership.add(info(2))

    assert states_of(membership) == {1: UP, 2: DOWN}
    assert membership.changes == 1


def test_an_observation_has_a_new_version_only_if_it_differs() -> None:
    """Who can't be reached is versioned; repeated and unknown members change nothing."""
    membership = agreed(cluster(record(1), record(2)))

    for uid, reachable in ((2, False), (2, False), (9, False), (2, True), (2, True)):
        membership.observe(uid, reachable)

    assert membership.state.observations == {1: Observation(2, NOBODY)}


def test_the_sender_of_old_gossip_is_behind() -> None:
    """A merge tells whether the sender lacks something; equal states join what each knows of who has seen them."""
    old = cluster(record(1), record(2))
    membership = member(1, old.with_record(record(3)))

    assert membership.receive(Gossip(old, frozenset({1, 2})))
    assert membership.seen == {1}
    assert not membership.receive(Gossip(old.with_record(record(3)), frozenset({3})))
    assert membership.seen == {1, 3}


def test_a_cluster_has_a_largest_size() -> None:
    """Gossip that would make too many members is refused, and changes nothing."""
    state = cluster(record(1))
    membership = agreed(state)
    others = ClusterState(FOUNDER, {uid: record(1) for uid in range(2, MOST_MEMBERS + 2)})

    with pytest.raises(TooManyMembers, match="1001 members, above 1000"):
        membership.receive(Gossip(others, NOBODY))

    assert membership.state == state


@given(histories=st.lists(gossips(), min_size=1, max_size=6), data=st.data())
def test_members_that_heard_the_same_agree(histories: list[Gossip], data: st.DataObject) -> None:
    """Two members that got the same gossip in any order, and any of it twice, have the same digest."""
    start = cluster(Record(info(1), JOINING), Record(info(2), JOINING))
    one, other = member(1, start), member(2, start)

    for gossip in histories:
        one.receive(gossip)
    for gossip in data.draw(st.permutations([*histories, *histories])):
        other.receive(gossip)

    assert one.digest == other.digest
    assert one.state == other.state


@given(state=states(), own=st.integers(1, 6), steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6))))
def test_whatever_happens_members_go_forward(state: ClusterState, own: int, steps: list[tuple[int, int]]) -> None:
    """No sequence of events moves a member back or brings a removed one back."""
    membership = member(own, state)
    for kind, uid in steps:
        before = membership.state
        if own not in membership.records:
            break
        if kind == 0:
            membership.add(info(uid))
        elif kind == 1 and uid in membership.records:
            membership.advance(uid, DOWN)
        elif kind == 2:
            membership.observe(uid, uid % 2 == 0)
        elif kind == 3:
            membership.update_own(ready=True, drained=True)
        elif kind == 4:
            membership.note_seen(membership.records)
            membership.lead()
        else:
            membership.receive(Gossip(state, NOBODY))
        after = membership.state

        assert after.removed.keys() >= before.removed.keys()
        assert after.removed.keys().isdisjoint(after.records)
        for uid, record_before in before.records.items():
            assert uid in after.removed or RANK[record_before.state] <= RANK[after.records[uid].state]


# Sides


def sides(state: ClusterState) -> list[set[int]]:
    """Return all sides of a state, by their lowest uids."""
    found = {side_of(state, uid) for uid, each in state.records.items() if each.state is not DOWN}
    return sorted((set(side) for side in found), key=min)


def up(*uids: int) -> list[Record]:
    """Return the records of UP members."""
    return [record(uid) for uid in uids]


@pytest.mark.parametrize(
    ("unreachable", "expected"),
    [
        pytest.param({}, [{1, 2, 3, 4, 5}], id="all is well"),
        pytest.param({1: {5}}, [{1, 2, 3, 4}, {5}], id="a crash"),
        pytest.param({1: {5}, 5: {2}}, [{1, 2, 3, 4}, {5}], id="who crashed discredits nobody"),
        pytest.param({1: {4}, 2: {5}, 3: {4}}, [{1, 2, 3}, {4, 5}], id="a split, as one side knows it"),
        pytest.param(
            {1: {4, 5}, 2: {4, 5}, 3: {4, 5}, 4: {1, 2, 3}, 5: {1, 2, 3}},
            [{1, 2, 3}, {4, 5}],
            id="a split, as it is known after it",
        ),
        pytest.param({2: {1}, 3: {1}, 1: {2, 3, 4, 5}}, [{1}, {2, 3, 4, 5}], id="one whose own network failed"),
        pytest.param({1: {2, 3}, 2: {1}}, [{1}, {2, 3, 4, 5}], id="who accuses fewer is believed"),
        pytest.param({1: {4}, 4: {1}}, [{1, 2, 3, 5}, {4}], id="one path failed: the lower address is believed"),
        pytest.param({1: {2}, 2: {3}, 3: {1}}, [{1, 4, 5}, {2}, {3}], id="a circle"),
        pytest.param({3: {3}}, [{1, 2, 3, 4, 5}], id="itself"),
    ],
)
def test_sides_are_drawn_from_what_members_say(unreachable: dict[int, set[int]], expected: list[set[int]]) -> None:
    """Whom a credible member can't reach is on another side; all who have the state draw the same lines."""
    state = cluster(*up(1, 2, 3, 4, 5), unreachable=unreachable)

    assert sides(state) == expected


def test_what_a_down_member_said_counts_no_longer() -> None:
    """Observations of a DOWN member are ignored, and it is on no side."""
    state = cluster(*up(1, 2), record(3, DOWN), unreachable={3: {1, 2}})

    assert sides(state) == [{1, 2}]
    assert side_of(state, 3) == {3}


def test_who_can_not_be_reached_suspects_nobody_for_it() -> None:
    """A member that others can't reach counts all as unreachable, but reports as such only whom its side accuses."""
    membership = agreed(cluster(*up(1, 2, 3, 4), unreachable={1: {4}}), 4)

    assert membership.unreachable == {1, 2, 3}
    assert membership.suspected == NOBODY
    membership.observe(2, False)
    assert membership.suspected == {2}


@given(state=states())
def test_sides_divide_the_members(state: ClusterState) -> None:
    """Each member that is not DOWN is on one side, the same for all on it, where nobody accuses another."""
    alive = {uid for uid, each in state.records.items() if each.state is not DOWN}

    drawn = {uid: side_of(state, uid) for uid in alive}

    assert frozenset[int]().union(*drawn.values()) == alive
    for uid, side in drawn.items():
        assert uid in side
        assert all(drawn[other] == side for other in side)
        assert accused_by(state, {uid}) & side <= {uid}
