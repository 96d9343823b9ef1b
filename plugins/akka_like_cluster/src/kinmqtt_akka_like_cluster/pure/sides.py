"""The sides of a cluster: who counts as unreachable to whom, when members disagree about it.

Each member says whom it can't reach. If it is a crash or a clean split, there is nothing to choose. But a path may
fail between two members only, both of which reach a third one: then each might take the third one for its own side,
and both might go on. So the sides are a function of the state, and all who have the same state draw the same lines.
Akka's split brain resolver meets this case ("indirectly connected nodes") by downing both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinmqtt_akka_like_cluster.pure.gossip import ClusterState
from kinmqtt_spi.services.cluster import MemberState


def side_of(state: ClusterState, own: int) -> frozenset[int]:
    """Return the members on the side of ``own``, itself among them; it is alone if it is DOWN."""
    rest = {uid for uid, record in state.records.items() if record.state is not MemberState.DOWN}
    while own in rest:
        side = _first_side(state, rest)
        if own in side:
            return frozenset(side)
        rest -= side
    return frozenset({own})


def accused_by(state: ClusterState, side: Iterable[int]) -> frozenset[int]:
    """Return the members that somebody on a side can't reach."""
    accused = (state.observations[uid].unreachable for uid in side if uid in state.observations)
    return frozenset[int]().union(*accused) & state.records.keys()


def _first_side(state: ClusterState, members: set[int]) -> set[int]:
    """Return those of the members who are on the side that is drawn first; at least one.

    A member is outside if one accuses it that is not outside itself: nobody is discredited by a member that crashed.
    Where members accuse each other, and no one else decides between them, the one that accuses the fewest is
    believed: it is not the one whose own network failed. The others that accuse it are outside.
    """
    accused: dict[int, set[int]] = {}
    for uid, observation in state.observations.items():
        if uid in members and (others := observation.unreachable & members - {uid}):
            accused[uid] = set(others)
    counts = {uid: len(others) for uid, others in accused.items()}
    outside: set[int] = set()
    while accused:
        believed = [uid for uid in accused if not _accusers(uid, accused)]
        if not believed:
            believed = [min(accused, key=lambda uid: (counts[uid], state.records[uid].info.address, uid))]
            outside |= _accusers(believed[0], accused)
        for uid in believed:
            outside |= accused.pop(uid)
        for uid in outside & accused.keys():
            del accused[uid]
    return members - outside


def _accusers(uid: int, accused: Mapping[int, set[int]]) -> set[int]:
    return {other for other, uids in accused.items() if uid in uids}
