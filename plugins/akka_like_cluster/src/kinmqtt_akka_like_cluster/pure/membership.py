"""One member's copy of the cluster's state: what it sees in it, and how it changes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve, frozen

from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_MEMBERS,
    MOST_NUMBER,
    RANK,
    ClusterState,
    Gossip,
    NodeInfo,
    Record,
)
from kinmqtt_akka_like_cluster.pure.gossip_codec import digest
from kinmqtt_akka_like_cluster.pure.sides import accused_by, side_of
from kinmqtt_spi.services.cluster import MemberState

_CHOSEN_BY_ITSELF: Final = frozenset({MemberState.UP, MemberState.LEAVING})
_OVER: Final = frozenset({MemberState.DOWN, MemberState.EXITING})
"""The states whose members nobody waits for."""


class TooManyMembers(ValueError):
    """A change would make more than :data:`~.gossip.MOST_MEMBERS` members."""


@frozen(slots=True)
class MemberView:
    """A member as an operator sees it from this node."""

    info: NodeInfo
    state: MemberState
    up_number: int
    ready: bool
    drained: bool
    reachable: bool
    unreachable_by: tuple[int, ...]
    """The uids of the members that can't reach it, ascending, whether their observation counts or not."""
    has_seen: bool
    """Whether it is known to have seen the present state."""


class Membership:
    """The state of the cluster as one of its members knows it.

    All changes are steps forward, so they can be made at any time, and are spread by gossip.
    """

    def __init__(self, own: int, gossip: Gossip) -> None:
        """``own``: the uid of this process; ``gossip``: what it knows first. Raises :class:`TooManyMembers`."""
        self.own = own
        self.changes = 0
        """Counts the changes of the state: what is derived from it is valid until the next one."""
        self._adopt(gossip.state.pruned())
        if gossip.state == self.state:
            self.note_seen(gossip.seen)

    @classmethod
    def formed_by(cls, info: NodeInfo, term: int) -> Membership:
        """Return the membership of a new cluster, whose only member is JOINING; ``term``: the last one decided."""
        return cls(info.uid, Gossip(ClusterState(info.uid, {info.uid: Record(info)}, term=term), frozenset()))

    # What it sees

    @property
    def records(self) -> Mapping[int, Record]:
        """The members by uid, without the REMOVED ones."""
        return self.state.records

    @property
    def seen(self) -> frozenset[int]:
        """The members that are known to have seen the present state; this one always has."""
        return self._seen

    @property
    def gossip(self) -> Gossip:
        """The state, and who has seen it, for another member."""
        return Gossip(self.state, self._seen)

    def is_gone(self, uid: int) -> bool:
        """Tell whether a uid is DOWN or REMOVED."""
        record = self.records.get(uid)
        return uid in self.state.removed or (record is not None and record.state is MemberState.DOWN)

    @property
    def others(self) -> frozenset[int]:
        """The other members that are not DOWN."""
        return frozenset(
            uid for uid, record in self.records.items() if uid != self.own and record.state is not MemberState.DOWN
        )

    @property
    def unreachable(self) -> frozenset[int]:
        """The members that count as unreachable: those on other sides (see :mod:`.sides`), and the DOWN ones.

        All members with the same state agree on it, so decisions are made by it.
        """
        return self._unreachable

    @property
    def suspected(self) -> frozenset[int]:
        """The members that this side can't reach. One that others can't reach may suspect nobody itself."""
        return self._suspected

    @property
    def unanswering(self) -> frozenset[int]:
        """The members that this one itself can't reach."""
        observation = self.state.observations.get(self.own)
        return frozenset() if observation is None else observation.unreachable

    @property
    def undecided(self) -> frozenset[int]:
        """The unreachable members that are neither DOWN nor EXITING: there may be a split that is not decided yet."""
        return frozenset(uid for uid in self._unreachable if self.records[uid].state not in _OVER)

    @property
    def leader(self) -> int | None:
        """The uid of the member that leads: the lowest address of the reachable UP or LEAVING ones.

        If there are none, of the JOINING ones; ``None`` if all are DOWN, EXITING or unreachable.
        """
        reachable = [record for uid, record in self.records.items() if uid not in self._unreachable]
        candidates = [record for record in reachable if record.state in _CHOSEN_BY_ITSELF] or [
            record for record in reachable if record.state is MemberState.JOINING
        ]
        first = min(candidates, key=lambda record: (record.info.address, record.info.uid), default=None)
        return None if first is None else first.info.uid

    @property
    def is_converged(self) -> bool:
        """Tell whether all members that are not unreachable, DOWN or EXITING have seen this state."""
        return all(
            uid in self._seen
            for uid, record in self.records.items()
            if record.state not in _OVER and uid not in self._unreachable
        )

    @property
    def is_seen_by_half(self) -> bool:
        """Tell whether half of the members have seen this state."""
        return 2 * len(self._seen) >= len(self.records)

    def conflicting(self, info: NodeInfo) -> list[Record]:
        """Return the members that are not DOWN and have the name or the address of another process."""
        return [
            record
            for uid, record in self.records.items()
            if uid != info.uid
            and record.state is not MemberState.DOWN
            and (record.info.node.name == info.node.name or record.info.address == info.address)
        ]

    def views(self) -> tuple[MemberView, ...]:
        """Return the members for an operator, by address."""
        records = sorted(self.records.values(), key=lambda record: (record.info.address, record.info.uid))
        return tuple(
            MemberView(
                record.info,
                record.state,
                record.up_number,
                record.ready,
                record.drained,
                record.info.uid not in self._suspected,
                tuple(
                    sorted(
                        uid for uid, each in self.state.observations.items() if record.info.uid in each.unreachable
                    )
                ),
                record.info.uid in self._seen,
            )
            for record in records
        )

    # How it changes

    def receive(self, gossip: Gossip) -> bool:
        """Merge another member's state; returns whether the sender lacks something of the result.

        Raises :class:`TooManyMembers`, and ``ValueError`` for the state of another cluster.
        """
        state = self.state.merge(gossip.state).pruned()
        is_news = state != self.state
        if is_news:
            self._adopt(state)
        if state != gossip.state:
            return True
        self.note_seen(gossip.seen)
        return False

    def note_seen(self, uids: Iterable[int]) -> None:
        """Note that these members have seen the present state."""
        self._seen |= self.records.keys() & frozenset(uids)

    def add(self, info: NodeInfo) -> None:
        """Add a JOINING member. A uid that is known keeps its state. Raises :class:`TooManyMembers`."""
        if info.uid not in self.records:
            self._adopt(self.state.with_record(Record(info)))

    def advance(self, uid: int, state: MemberState) -> None:
        """Move a member forward to a state before REMOVED, if it is not there or beyond."""
        record = self.records[uid]
        if RANK[record.state] < RANK[state]:
            self._adopt(self.state.with_record(evolve(record, state=state)))

    def update_own(self, *, ready: bool = False, drained: bool = False) -> None:
        """Note in this member's own record that it is ready, or drained."""
        record = self.records[self.own]
        changed = evolve(record, ready=record.ready or ready, drained=record.drained or drained)
        if changed != record:
            self._adopt(self.state.with_record(changed))

    def observe(self, uid: int, reachable: bool) -> None:
        """Note whether this member can reach another one."""
        before = self.unanswering
        after = before - {uid} if reachable else before | {uid} & self.records.keys()
        if after != before:
            self._adopt(self.state.with_observation(self.own, after))

    def raise_term(self, term: int) -> None:
        """Note the last term that a split of this cluster was about."""
        if term > self.state.term:
            self._adopt(evolve(self.state, term=term))

    def lead(self) -> bool:
        """If this member leads and the members agree, move members forward. Returns whether it has.

        While a member is unreachable and not DOWN yet, only those that are DOWN are removed: there may be a leader on
        each side of a split, and neither may change how many members it counts.
        """
        if self.leader != self.own or not self.is_converged:
            return False
        state = self.state
        removed = [uid for uid, record in self.records.items() if record.state is MemberState.DOWN]
        if not self.undecided:
            removed += (uid for uid, record in self.records.items() if record.state is MemberState.EXITING)
            for record in self._promoted():
                state = state.with_record(record)
        for record in self._rivals():
            state = state.with_record(evolve(record, state=MemberState.DOWN))
        if removed:
            state = state.without(removed)
        if state == self.state:
            return False
        self._adopt(state.pruned())
        return True

    def _rivals(self) -> list[Record]:
        """Return the JOINING members that have the name or address of another: two seeds let them in at once."""
        return [
            record
            for record in self.records.values()
            if record.state is MemberState.JOINING
            and any(
                other.state is not MemberState.JOINING or other.info.uid < record.info.uid
                for other in self.conflicting(record.info)
            )
        ]

    def _promoted(self) -> list[Record]:
        """Return the records of the members that are to become UP or EXITING, changed."""
        number = max(record.up_number for record in self.records.values())
        promoted = []
        for record in sorted(self.records.values(), key=lambda record: (record.info.address, record.info.uid)):
            if record.state is MemberState.JOINING and record.ready:
                number = min(number + 1, MOST_NUMBER)
                promoted.append(evolve(record, state=MemberState.UP, up_number=number))
            elif record.state is MemberState.LEAVING and record.drained:
                promoted.append(evolve(record, state=MemberState.EXITING))
        return promoted

    def _adopt(self, state: ClusterState) -> None:
        if len(state.records) > MOST_MEMBERS:
            raise TooManyMembers(f"{len(state.records)} members, above {MOST_MEMBERS}")
        self.state = state
        self.changes += 1
        self.digest = digest(state)
        self._seen = frozenset({self.own} & state.records.keys())
        side = side_of(state, self.own)
        self._unreachable = frozenset(state.records.keys() - side)
        self._suspected = accused_by(state, side) - {self.own}
