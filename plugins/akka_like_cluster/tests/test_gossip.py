"""The merge of two copies of the cluster's state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akka_harness.states import cluster, gossips, info, record, states
from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_NUMBER,
    MOST_REMOVED,
    RANK,
    ClusterState,
    Gossip,
    NodeAddress,
    NodeInfo,
    Observation,
    later,
)
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.values import NodeIdentity


@given(one=states(), other=states(), third=states())
def test_a_merge_does_not_depend_on_order_or_repetition(
    one: ClusterState, other: ClusterState, third: ClusterState
) -> None:
    """The merge is associative, commutative and idempotent, even if members lie about themselves."""
    merged = one.merge(other)

    assert merged == other.merge(one)
    assert merged.merge(third) == one.merge(other.merge(third))
    assert merged.merge(one) == merged == merged.merge(merged)


@given(one=gossips(), other=gossips(), third=gossips())
def test_who_has_seen_a_state_does_not_depend_on_order_or_repetition(
    one: Gossip, other: Gossip, third: Gossip
) -> None:
    """The merge of the state with those that have seen it is associative, commutative and idempotent too."""
    merged = one.merge(other)

    assert merged == other.merge(one)
    assert merged.merge(third) == one.merge(other.merge(third))
    assert one.merge(one) == one
    assert merged.seen <= one.seen | other.seen


@given(one=states(), other=states())
def test_nothing_goes_back(one: ClusterState, other: ClusterState) -> None:
    """After a merge every member is where it was or beyond, and what was removed is no member."""
    merged = one.merge(other)

    assert merged.removed.keys() == one.removed.keys() | other.removed.keys()
    assert merged.removed.keys().isdisjoint(merged.records)
    for uid, before in one.records.items():
        assert uid in merged.removed or RANK[before.state] <= RANK[merged.records[uid].state]
    for observation in merged.observations.values():
        assert observation.unreachable.isdisjoint(merged.removed)


@given(one=gossips(), other=gossips(), third=gossips())
def test_members_that_prune_come_to_the_same_state(one: Gossip, other: Gossip, third: Gossip) -> None:
    """Members that merge and prune after each message, in any order, come to the same state."""
    states = one.state, other.state, third.state

    forth = states[0].merge(states[1]).pruned().merge(states[2]).pruned()
    back = states[2].merge(states[1]).pruned().merge(states[0]).pruned()

    assert forth == back == forth.pruned()


def test_down_wins_over_leaving_and_exiting() -> None:
    """A member that one side has seen leave, and the other has marked DOWN, is DOWN."""
    for state in (MemberState.JOINING, MemberState.UP, MemberState.LEAVING, MemberState.EXITING):
        assert later(state, MemberState.DOWN) is MemberState.DOWN is later(MemberState.DOWN, state)


def test_only_those_who_saw_the_result_have_seen_it() -> None:
    """A member that has seen an older state has not seen the merged one."""
    old = cluster(record(1), record(2))
    new = old.with_record(record(3))

    merged = Gossip(old, frozenset({1, 2})).merge(Gossip(new, frozenset({3})))

    assert merged == Gossip(new, frozenset({3}))


def test_states_of_two_clusters_are_not_merged() -> None:
    """A state that another process has founded raises, and names both founders."""
    one = cluster(record(1))
    other = ClusterState(0xABC, {2: record(2)})

    with pytest.raises(ValueError, match="0000000000000001 and 0000000000000abc"):
        one.merge(other)


def test_a_removed_member_takes_its_observations_along() -> None:
    """After a removal nothing of the uid is left but its number, and others may count it no longer."""
    state = cluster(record(1), record(2), record(3), unreachable={1: {2, 3}, 2: {1}})

    removed = state.without([2])

    assert removed.records.keys() == {1, 3}
    assert removed.removed == {2: 1}
    assert removed.observations == {1: Observation(1, frozenset({3}))}
    assert removed.with_record(record(2)) == removed


def test_the_oldest_removals_are_forgotten() -> None:
    """No more removed uids are remembered than the bound; the latest removals stay."""
    state = cluster(record(1)).without(range(100, 100 + MOST_REMOVED)).without([7])

    pruned = state.pruned()

    assert len(pruned.removed) == MOST_REMOVED
    assert pruned.removed[7] == 2
    assert 100 not in pruned.removed


def test_numbers_stop_at_their_limit() -> None:
    """A peer that sends the highest numbers can't make this node count beyond what a message can carry."""
    state = ClusterState(1, {1: record(1)}, {8: MOST_NUMBER}, {1: Observation(MOST_NUMBER, frozenset())})

    after = state.without([9]).with_observation(1, {2})

    assert after.removed[9] == MOST_NUMBER
    assert after.observations[1].version == MOST_NUMBER


@given(host=st.sampled_from(("", "x" * 256, "\ud800", "é" * 128)))
def test_an_invalid_host_is_refused(host: str) -> None:
    """A host that is empty, too long or no UTF-8 raises ValueError."""
    with pytest.raises(ValueError):
        NodeAddress(host, 4883)


@pytest.mark.parametrize(("host", "port"), [("a", 0), ("a", 65_536), ("a", -1), ("/run/a.sock", 4883)])
def test_an_invalid_port_is_refused(host: str, port: int) -> None:
    """A port out of range, or one beside a Unix socket, raises ValueError that names the range."""
    with pytest.raises(ValueError, match="1 to 65535, and 0 for a Unix socket"):
        NodeAddress(host, port)


@pytest.mark.parametrize(("name", "uid"), [("", 1), ("x" * 256, 1), ("a", -1), ("a", 2**64)])
def test_an_invalid_node_is_refused(name: str, uid: int) -> None:
    """A name or a uid that no message can carry raises ValueError."""
    with pytest.raises(ValueError):
        NodeInfo(NodeIdentity(name, uid), NodeAddress("a", 1))


def test_addresses_are_written_as_they_are_dialled() -> None:
    """A name, an IPv6 address and a Unix socket each have their usual form."""
    assert str(NodeAddress("a.example", 1)) == "a.example:1"
    assert str(NodeAddress("::1", 4883)) == "[::1]:4883"
    assert str(NodeAddress("/run/a.sock", 0)) == "unix:/run/a.sock"
    assert str(info(2)) == "n2 (0000000000000002) at 10.0.0.2:4883"
