"""States of clusters, made by hypothesis and by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_NUMBER,
    STATES,
    ClusterState,
    Gossip,
    NodeAddress,
    NodeInfo,
    Observation,
    Record,
)
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM
from kinmqtt_spi.values import NodeIdentity

FOUNDER = 1
UIDS = st.integers(1, 6)
NUMBERS = st.one_of(st.integers(0, 4), st.just(MOST_NUMBER))


def info(uid: int, name: str | None = None, port: int = 4883, votes: bool = True) -> NodeInfo:
    """Return a node's info; its uid is in its name and its address."""
    return NodeInfo(NodeIdentity(name or f"n{uid}", uid), NodeAddress(f"10.0.0.{uid}", port), votes)


def record(uid: int, state: MemberState = MemberState.UP, **others: bool | int) -> Record:
    """Return the record of a member, which is ready."""
    return Record(info(uid), state, **{"ready": True, "up_number": uid, **others})  # type: ignore[arg-type]


def cluster(*records: Record, unreachable: dict[int, set[int]] | None = None) -> ClusterState:
    """Return a state with these members; ``unreachable``: whom each observer can't reach."""
    observations = {uid: Observation(1, frozenset(uids)) for uid, uids in (unreachable or {}).items()}
    return ClusterState(FOUNDER, {each.info.uid: each for each in records}, {}, observations)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Make a record of one of few members. Some lie about their names."""
    uid = draw(UIDS)
    node = info(uid, draw(st.sampled_from((None, None, None, "ünïcode"))), draw(st.sampled_from((4883, 1, 65_535))))
    state = draw(st.sampled_from(STATES[:-1]))
    return Record(node, state, draw(NUMBERS), draw(st.booleans()), draw(st.booleans()))


OBSERVATIONS = st.builds(Observation, NUMBERS, st.frozensets(UIDS))


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    """Make a state as it comes out of a merge."""
    members = {each.info.uid: each for each in draw(st.lists(records(), max_size=6))}
    removed = draw(st.dictionaries(UIDS, NUMBERS, max_size=3))
    observations = draw(st.dictionaries(UIDS, OBSERVATIONS, max_size=4))
    made = ClusterState(FOUNDER, members, removed, observations, draw(st.sampled_from((0, 1, MAX_TERM))))
    return made.merge(made)


@st.composite
def gossips(draw: st.DrawFn) -> Gossip:
    """Make a state within its bounds, and some who have seen it."""
    state = draw(states()).pruned()
    seen = draw(st.frozensets(UIDS))
    return Gossip(state, seen & state.records.keys())
