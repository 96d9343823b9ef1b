"""Downing: tables of all splits of small clusters, and the time that a view must be stable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from attrs import define, evolve
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.pure.downing import (
    ASK_AGAIN_S,
    Decision,
    DowningPolicy,
    Strategy,
    ViewMember,
    decide,
    is_majority,
    usual_wait_s,
)
from kinmqtt_spi.services.cluster import MemberState

UP, JOINING, LEAVING, EXITING = MemberState.UP, MemberState.JOINING, MemberState.LEAVING, MemberState.EXITING
SURVIVES = frozenset({Decision.KEEP, Decision.DOWN_UNREACHABLE})
TABLES = [
    (Strategy.KEEP_MAJORITY, None),
    (Strategy.KEEP_OLDEST, None),
    (Strategy.DOWN_ALL, None),
    *((Strategy.STATIC_QUORUM, quorum) for quorum in range(1, 5)),
]
Side = frozenset[int]


def cluster(size: int, votes: Sequence[bool] = (), states: Sequence[MemberState] = ()) -> list[ViewMember]:
    """Return the members 0 to ``size - 1``: the lowest address has number 0, the oldest is number 1."""
    return [
        ViewMember(
            uid=number,
            address=f"10.0.0.{number}:4883",
            up_number=(number - 1) % size + 1,
            votes=votes[number] if votes else True,
            reachable=True,
            state=states[number] if states else UP,
        )
        for number in range(size)
    ]


def seen_from(side: Side, members: Sequence[ViewMember]) -> list[ViewMember]:
    """Return the view of the nodes of a side that reach each other only."""
    return [evolve(member, reachable=member.uid in side) for member in members]


def splits(size: int, sides: int) -> Iterator[list[Side]]:
    """Yield all ways to split the members into so many sides, none of them empty."""
    for places in product(range(sides), repeat=size):
        split = [frozenset(n for n in range(size) if places[n] == side) for side in range(sides)]
        if all(split) and split == sorted(split, key=min):
            yield split


def votings(size: int) -> list[tuple[bool, ...]]:
    """Return which members may vote: all combinations up to five, beyond them all but one at most."""
    votings = product([True, False], repeat=size)
    return [votes for votes in votings if size <= 5 or votes.count(False) <= 1]


def deciding(side: Side, members: Sequence[ViewMember], strategy: Strategy, quorum: int | None) -> Decision:
    """Return what a side decides; all its nodes must agree."""
    view = seen_from(side, members)
    [decision] = {decide(strategy, quorum, own, view) for own in side}
    return decision


def surviving(
    split: Sequence[Side], members: Sequence[ViewMember], strategy: Strategy, quorum: int | None
) -> list[Side]:
    """Return the sides that go on."""
    return [side for side in split if deciding(side, members, strategy, quorum) in SURVIVES]


@pytest.mark.parametrize(("strategy", "quorum"), TABLES)
@pytest.mark.parametrize("size", range(2, 8))
def test_at_most_one_of_two_sides_survives(strategy: Strategy, quorum: int | None, size: int) -> None:
    """In every split of up to seven members into two sides, with any of them voting, one side at most goes on."""
    for split, votes in product(splits(size, 2), votings(size)):
        survivors = surviving(split, cluster(size, votes), strategy, quorum)

        assert len(survivors) <= 1


@pytest.mark.parametrize(("strategy", "quorum"), TABLES)
@pytest.mark.parametrize("size", range(3, 7))
def test_at_most_one_of_three_sides_survives(strategy: Strategy, quorum: int | None, size: int) -> None:
    """In every split of up to six members into three sides one side at most goes on."""
    for split, votes in product(splits(size, 3), votings(size)):
        survivors = surviving(split, cluster(size, votes), strategy, quorum)

        assert len(survivors) <= 1


@pytest.mark.parametrize("size", range(2, 8))
def test_exactly_one_of_two_sides_has_the_majority(size: int) -> None:
    """The side with more votes goes on, or of two halves the lowest address; nobody does where nobody votes."""
    for split, votes in product(splits(size, 2), votings(size)):
        members = cluster(size, votes)
        voters = {member.uid for member in members if member.votes}

        survivors = surviving(split, members, Strategy.KEEP_MAJORITY, None)

        if not voters:
            assert survivors == []
        else:
            assert survivors == [max(split, key=lambda side: (len(side & voters), min(voters) in side))]


@pytest.mark.parametrize("size", range(2, 8))
def test_the_side_of_the_oldest_survives_unless_it_is_alone(size: int) -> None:
    """The oldest keeps its side; alone against two or more it is downed, of two nodes it goes on."""
    for split in splits(size, 2):
        with_oldest, without = sorted(split, key=lambda side: 1 not in side)

        survivors = surviving(split, cluster(size), Strategy.KEEP_OLDEST, None)

        assert survivors == [without if len(with_oldest) == 1 and len(without) > 1 else with_oldest]


@pytest.mark.parametrize("quorum", range(1, 8))
@pytest.mark.parametrize("size", range(2, 8))
def test_the_side_with_the_quorum_survives(size: int, quorum: int) -> None:
    """A side goes on with the quorum; where two sides could have one, all members are downed."""
    for split in splits(size, 2):
        decisions = [deciding(side, cluster(size), Strategy.STATIC_QUORUM, quorum) for side in split]

        if size >= 2 * quorum:
            assert decisions == [Decision.DOWN_ALL] * 2
        else:
            expected = [Decision.DOWN_UNREACHABLE if len(side) >= quorum else Decision.DOWN_SELF for side in split]
            assert decisions == expected


@pytest.mark.parametrize("size", range(2, 8))
def test_down_all_downs_every_side(size: int) -> None:
    """No side goes on."""
    for split in splits(size, 2):
        decisions = {deciding(side, cluster(size), Strategy.DOWN_ALL, None) for side in split}

        assert decisions == {Decision.DOWN_ALL}


def later_views(members: list[ViewMember]) -> Iterator[list[ViewMember]]:
    """Yield what the members may have become: JOINING ones UP, as the youngest, and LEAVING ones EXITING."""
    movable = [member.uid for member in members if member.state in {JOINING, LEAVING}]
    for count in range(len(movable) + 1):
        for moved in combinations(movable, count):
            yield [
                member
                if member.uid not in moved
                else evolve(member, state=EXITING)
                if member.state is LEAVING
                else evolve(member, state=UP, up_number=100 - member.uid)
                for member in members
            ]


@pytest.mark.parametrize(
    ("strategy", "quorum"), [*TABLES[:2], (Strategy.STATIC_QUORUM, 2), (Strategy.STATIC_QUORUM, 3)]
)
@pytest.mark.parametrize("size", range(2, 5))
def test_a_side_that_missed_the_last_transitions_does_not_survive_too(
    strategy: Strategy, quorum: int | None, size: int
) -> None:
    """One side at most goes on where one has seen members become UP or EXITING just before, and the other has not."""
    for states in product([UP, JOINING, LEAVING], repeat=size):
        before = cluster(size, states=states)
        for after, split in product(later_views(before), splits(size, 2)):
            for stale, fresh in (split, split[::-1]):
                if all(after[uid].state is EXITING for uid in fresh):
                    continue
                own = next(uid for uid in fresh if after[uid].state is not EXITING)

                knows = decide(strategy, quorum, own, seen_from(fresh, after)) in SURVIVES
                missed = deciding(stale, before, strategy, quorum) in SURVIVES

                assert not (knows and missed)


def test_joining_members_do_not_count() -> None:
    """The side with two of three UP members has the majority, wherever members are JOINING."""
    members = cluster(6, states=[UP, UP, UP, JOINING, JOINING, JOINING])
    with_two, with_one = frozenset({1, 2, 3, 4}), frozenset({0, 5})

    decisions = [deciding(side, members, Strategy.KEEP_MAJORITY, None) for side in (with_one, with_two)]

    assert is_majority(1, seen_from(with_two, members))
    # Member 5 may be UP by now, and the halves equal: the lowest address is there.
    assert decisions == [Decision.DOWN_SELF, Decision.DOWN_SELF]
    assert surviving([with_two | {5}, frozenset({0})], members, Strategy.KEEP_MAJORITY, None) == [with_two | {5}]


def test_a_joining_member_is_not_the_oldest() -> None:
    """A member that is JOINING has no number yet, so it is younger than all that are UP."""
    members = [
        evolve(m, up_number=0 if m.state is JOINING else m.uid + 1) for m in cluster(4, states=[UP, UP, UP, JOINING])
    ]

    survivors = surviving([frozenset({0, 1}), frozenset({2, 3})], members, Strategy.KEEP_OLDEST, None)

    assert survivors == [{0, 1}]


def test_leaving_members_count() -> None:
    """A LEAVING member still votes, but its vote alone is not enough: it may be gone by now for the others."""
    members = cluster(5, states=[UP, UP, UP, UP, LEAVING])
    split = [frozenset({0, 1}), frozenset({2, 3, 4})]

    survivors = surviving(split, members, Strategy.KEEP_MAJORITY, None)

    assert is_majority(2, seen_from(split[1], members))
    assert not is_majority(0, seen_from(split[0], members))
    assert survivors == []
    assert surviving([frozenset({0, 2, 4}), frozenset({1, 3})], members, Strategy.KEEP_MAJORITY, None) == [{0, 2, 4}]


@pytest.mark.parametrize("state", [EXITING, MemberState.DOWN, MemberState.REMOVED])
@pytest.mark.parametrize(
    "strategy", [Strategy.KEEP_MAJORITY, Strategy.KEEP_OLDEST, Strategy.DOWN_ALL, Strategy.ARBITER]
)
def test_members_that_are_gone_are_no_reason_to_down_anybody(state: MemberState, strategy: Strategy) -> None:
    """Nobody waits for a member that has left or is DOWN already."""
    view = seen_from(frozenset({1, 2}), cluster(3, states=[state, UP, UP]))

    assert decide(strategy, None, 1, view) is Decision.KEEP


def test_an_unreachable_joining_member_is_downed() -> None:
    """A member that got lost while it joined does not stay for ever."""
    view = seen_from(frozenset({0, 1}), cluster(3, states=[UP, UP, JOINING]))

    assert decide(Strategy.KEEP_MAJORITY, None, 0, view) is Decision.DOWN_UNREACHABLE


@given(st.integers(2, 7), st.integers(0, 126), st.permutations(range(7)))
def test_the_order_of_members_decides_nothing(size: int, mask: int, order: list[int]) -> None:
    """Nodes that hold the same view in another order decide the same."""
    side = frozenset(n for n in range(size) if mask >> n & 1) or frozenset({0})
    view = seen_from(side, cluster(size))
    shuffled = [view[n] for n in order if n < size]

    for strategy, quorum in [*TABLES, (Strategy.ARBITER, None)]:
        assert decide(strategy, quorum, min(side), view) is decide(strategy, quorum, min(side), shuffled)


@define
class Clocked:
    """A policy that is called each half second with the view of a side of a cluster."""

    policy: DowningPolicy
    members: list[ViewMember]
    own: int
    now: float = 1000.0

    def for_s(self, time_s: float, side: Side) -> Decision:
        """Let a view be for a while, and return the last decision."""
        view = seen_from(side, self.members)
        for _ in range(int(time_s * 2)):
            self.now += 0.5
            decision = self.policy.observe(self.own, view, self.now)
        return decision

    def first(self, decision: Decision, side: Side, within_s: float = 100.0) -> float:
        """Return after how long a view leads to a decision."""
        begin_s = self.now
        while self.now < begin_s + within_s:
            if self.for_s(0.5, side) is decision:
                return self.now - begin_s
        raise AssertionError(f"no {decision} in {within_s} s")


def clocked(
    size: int,
    strategy: Strategy = Strategy.KEEP_MAJORITY,
    own: int = 0,
    stable_after_s: float | None = None,
    **kw: Any,
) -> Clocked:
    """Return a policy of a node of a cluster that has seen all members reachable for a minute."""
    run = Clocked(DowningPolicy(strategy, 2, stable_after_s), cluster(size, **kw), own)
    assert run.for_s(60, frozenset(range(size))) is Decision.KEEP
    return run


@pytest.mark.parametrize(
    ("members", "wait_s"),
    [(1, 7), (5, 7), (6, 10), (10, 10), (11, 13), (20, 13), (21, 17), (50, 17), (51, 20), (100, 20)],
)
def test_larger_clusters_wait_longer(members: int, wait_s: float) -> None:
    """The time that a view must be stable grows with the members, as the design says."""
    assert usual_wait_s(members) == wait_s


@pytest.mark.parametrize(("size", "wait_s"), [(3, 7.5), (7, 10.5), (12, 13.5), (30, 17.5), (60, 20.5)])
def test_a_decision_waits_until_the_view_is_stable(size: int, wait_s: float) -> None:
    """The decision comes when the view has been the same for the time of that size, and not before."""
    run = clocked(size)

    after_s = run.first(Decision.DOWN_UNREACHABLE, frozenset(range(size - 1)))

    assert after_s == wait_s


def test_the_time_can_be_set() -> None:
    """A time of the settings replaces that by the number of members."""
    run = clocked(3, stable_after_s=2.0)

    assert run.first(Decision.DOWN_UNREACHABLE, frozenset({0, 1})) == 2.5


@pytest.mark.parametrize("size", range(2, 6))
@pytest.mark.parametrize(("strategy", "quorum"), TABLES)
def test_a_stable_view_decides_as_the_table(strategy: Strategy, quorum: int | None, size: int) -> None:
    """The policy waits, and then decides as the table does, on every side of every split."""
    members = cluster(size)
    for side in (side for split in splits(size, 2) for side in split):
        run = Clocked(DowningPolicy(strategy, quorum, None), members, own=min(side))

        early = run.for_s(7, side)
        decision = run.for_s(0.5, side)

        assert early is Decision.WAIT
        assert decision is deciding(side, members, strategy, quorum)


def test_every_change_of_reachability_starts_the_wait_anew() -> None:
    """A second loss delays the decision about both."""
    run = clocked(5)

    run.for_s(6, frozenset({0, 1, 2, 3}))
    after_s = run.first(Decision.DOWN_UNREACHABLE, frozenset({0, 1, 2}))

    assert after_s == 7.5


def test_a_new_member_starts_the_wait_anew() -> None:
    """A change of the set of members counts as one of reachability does."""
    run = clocked(3)

    run.for_s(6, frozenset({0, 1}))
    run.members = cluster(4, states=[UP, UP, UP, JOINING])
    after_s = run.first(Decision.DOWN_UNREACHABLE, frozenset({0, 1, 3}))

    assert after_s == 7.5


def test_a_split_that_heals_downs_nobody() -> None:
    """A node that reaches everybody again keeps all, and the next loss waits from its own begin."""
    run = clocked(3, own=2)
    run.for_s(6.5, frozenset({2}))

    healed = run.for_s(0.5, frozenset({0, 1, 2}))

    assert healed is Decision.KEEP
    assert run.first(Decision.DOWN_SELF, frozenset({2})) == 7.5


def test_time_without_calls_does_not_count() -> None:
    """A node that stalled in the middle of the wait looks at the view for the whole time again."""
    run = clocked(3, own=2)
    run.for_s(4, frozenset({2}))

    run.now += 60
    after_s = run.first(Decision.DOWN_SELF, frozenset({2}))

    assert after_s == 7.5


def flapping(now: float) -> Side:
    """Return the side of a node of five that loses one member for good, and another each four seconds."""
    return frozenset({0, 1, 2, 3} if int(now) % 4 < 2 else {0, 1, 2})


def test_reachability_that_never_settles_downs_everybody() -> None:
    """A view that flaps for the stable time and three quarters of it ends with everybody down, and not before."""
    run = clocked(5)
    begin_s = run.now

    decided_s = []
    for _ in range(40):
        if run.for_s(0.5, flapping(run.now)) is not Decision.WAIT:
            decided_s.append(run.now - begin_s)

    assert decided_s[0] == pytest.approx(1.75 * 7 + 0.5, abs=0.5)
    assert run.for_s(0.5, flapping(run.now)) is Decision.DOWN_ALL


def test_time_without_calls_is_no_flapping() -> None:
    """A node that stalled looks at a view that flaps for the whole time again before it downs everybody."""
    run = clocked(5)
    for _ in range(20):
        run.for_s(0.5, flapping(run.now))
    run.now += 60

    decisions = {run.for_s(0.5, flapping(run.now)) for _ in range(20)}

    assert decisions == {Decision.WAIT}


def test_a_view_that_has_settled_may_flap_again() -> None:
    """Flapping before everybody was reachable again does not count."""
    run = clocked(5)
    for _ in range(20):
        run.for_s(0.5, flapping(run.now))
    run.for_s(1, frozenset(range(5)))

    decisions = {run.for_s(6.5, frozenset({0, 1, 2, 3})), run.for_s(6.5, frozenset({0, 1, 2}))}

    assert decisions == {Decision.WAIT}


def test_losing_one_after_the_other_is_no_flapping() -> None:
    """Members that get lost in a row, none of which comes back, are downed together when that has settled."""
    run = clocked(5)

    for side in (frozenset({0, 1, 2, 3}), frozenset({0, 1, 2})):
        assert run.for_s(6.5, side) is Decision.WAIT
    decision = run.for_s(1, frozenset({0, 1, 2}))

    assert decision is Decision.DOWN_UNREACHABLE


def test_a_member_that_flaps_alone_downs_nobody() -> None:
    """Whenever everybody is reachable the view has settled: one bad node does not stop the cluster."""
    run = clocked(3)

    decisions = set()
    for _ in range(30):
        decisions |= {run.for_s(2, frozenset({0, 1})), run.for_s(2, frozenset({0, 1, 2}))}

    assert decisions == {Decision.WAIT, Decision.KEEP}


def test_a_decision_is_repeated_until_the_view_changes() -> None:
    """A caller that misses a decision gets it again; once the members are DOWN there is nothing to do."""
    run = clocked(3)
    run.for_s(8, frozenset({0, 1}))

    again = run.for_s(5, frozenset({0, 1}))
    run.members[2] = evolve(run.members[2], state=MemberState.DOWN)
    done = run.for_s(0.5, frozenset({0, 1}))

    assert again is Decision.DOWN_UNREACHABLE
    assert done is Decision.KEEP


@pytest.mark.parametrize("size", range(2, 8))
def test_of_two_sides_the_majority_asks_the_arbiter_first(size: int) -> None:
    """The majority asks as soon as its view is stable, the other side half that time later."""
    for split in splits(size, 2):
        asked_s = {}
        for side in split:
            run = Clocked(DowningPolicy(Strategy.ARBITER, None, 8.0), cluster(size), own=min(side))
            asked_s[side] = run.first(Decision.ASK_ARBITER, side)

        majority, minority = sorted(split, key=lambda side: (-len(side), min(side)))
        assert asked_s == {majority: 8.5, minority: 12.5}


@pytest.mark.parametrize("size", range(2, 8))
def test_exactly_the_side_with_the_term_survives(size: int) -> None:
    """Whoever gets the term, all nodes of that side go on, and all others are downed."""
    for split in splits(size, 2):
        for winner in split:
            for side in split:
                for own in side:
                    run = Clocked(DowningPolicy(Strategy.ARBITER, None, 1.0), cluster(size), own)
                    run.first(Decision.ASK_ARBITER, side)
                    run.policy.arbiter_decided(side == winner)

                    decision = run.for_s(0.5, side)

                    assert decision is (Decision.DOWN_UNREACHABLE if side == winner else Decision.DOWN_SELF)


def test_the_arbiter_is_asked_once() -> None:
    """While the answer is out, the node waits; without one it asks again, and downs nobody."""
    run = clocked(3, Strategy.ARBITER)
    run.first(Decision.ASK_ARBITER, frozenset({0, 1}))

    waiting = run.for_s(ASK_AGAIN_S - 0.5, frozenset({0, 1}))
    again = run.for_s(0.5, frozenset({0, 1}))

    assert waiting is Decision.WAIT
    assert again is Decision.ASK_ARBITER


def test_an_answer_of_the_arbiter_that_nobody_asked_for_is_ignored() -> None:
    """An answer before the view is stable decides nothing."""
    run = clocked(3, Strategy.ARBITER)
    run.for_s(3, frozenset({0, 1}))

    run.policy.arbiter_decided(False)

    assert run.first(Decision.ASK_ARBITER, frozenset({0, 1})) == 4.5


def test_an_answer_of_the_arbiter_does_not_outlive_its_view() -> None:
    """A term that was refused in a split that has healed since downs nobody, also not in the next split."""
    run = clocked(3, Strategy.ARBITER)
    run.first(Decision.ASK_ARBITER, frozenset({0, 1}))
    run.for_s(1, frozenset({0, 1, 2}))

    run.policy.arbiter_decided(False)
    healed = run.for_s(1, frozenset({0, 1, 2}))
    after_s = run.first(Decision.ASK_ARBITER, frozenset({0, 1}))

    assert healed is Decision.KEEP
    assert after_s == 7.5


def test_a_view_that_changes_before_the_term_is_granted_is_decided_anew() -> None:
    """A term that was granted for another view downs nobody that got lost just now."""
    run = clocked(5, Strategy.ARBITER)
    run.first(Decision.ASK_ARBITER, frozenset({0, 1, 2, 3}))
    run.policy.arbiter_decided(True)

    decision = run.for_s(0.5, frozenset({0, 1, 2}))

    assert decision is Decision.WAIT


@pytest.mark.parametrize("state", [MemberState.DOWN, MemberState.REMOVED])
def test_a_node_that_was_downed_is_down(state: MemberState) -> None:
    """A node that sees its own uid downed by others ends at once."""
    view = cluster(3, states=[state, UP, UP])

    assert DowningPolicy(Strategy.KEEP_MAJORITY, None, None).observe(0, view, 0.0) is Decision.DOWN_SELF


def test_a_node_reaches_itself() -> None:
    """What others say about this node's reachability does not count for itself."""
    view = [evolve(member, reachable=member.uid != 0) for member in cluster(2)]

    assert DowningPolicy(Strategy.KEEP_MAJORITY, None, None).observe(0, view, 0.0) is Decision.KEEP


def test_a_node_that_is_no_member_can_not_observe() -> None:
    """The error names the uid and says what to do."""
    policy = DowningPolicy(Strategy.KEEP_MAJORITY, None, None)

    with pytest.raises(ValueError, match="own uid 9 is not among the 3 members; call observe after it has joined"):
        policy.observe(9, cluster(3), 0.0)


@pytest.mark.parametrize("quorum", [None, 0, -1])
def test_a_static_quorum_needs_a_number(quorum: int | None) -> None:
    """Without a quorum nobody could go on, or everybody."""
    with pytest.raises(ValueError, match="quorum is"):
        DowningPolicy(Strategy.STATIC_QUORUM, quorum, None)
    with pytest.raises(ValueError, match="quorum is"):
        decide(Strategy.STATIC_QUORUM, quorum, 0, seen_from(frozenset({0}), cluster(2)))


@pytest.mark.parametrize("time_s", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused(time_s: float) -> None:
    """A negative time to be stable would decide before anything is known."""
    with pytest.raises(ValueError, match="stable_after_s is"):
        DowningPolicy(Strategy.KEEP_MAJORITY, None, time_s)
