"""What a broker does as a member of a cluster, from its first question to a seed to its end.

A coordinator is fed with events, and returns effects, which its driver carries out in their order. It has no clock,
no sockets and no randomness.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kinmqtt_akka_like_cluster.pure.coordinator_settings import CoordinatorSettings
from kinmqtt_akka_like_cluster.pure.effects import (
    AskArbiter,
    AskToForm,
    Downed,
    Effect,
    Joined,
    LeaveCompleted,
    MemberChanged,
    Send,
)
from kinmqtt_akka_like_cluster.pure.gossip import Gossip, NodeAddress, NodeInfo, Record
from kinmqtt_akka_like_cluster.pure.gossiping import Choose, check_term
from kinmqtt_akka_like_cluster.pure.joining import Joining
from kinmqtt_akka_like_cluster.pure.membership import Membership, MemberView
from kinmqtt_akka_like_cluster.pure.messages import (
    FullGossip,
    Heartbeat,
    HeartbeatAck,
    Join,
    Message,
    NotYet,
    Refused,
    Welcome,
)
from kinmqtt_akka_like_cluster.pure.participant import Participant
from kinmqtt_spi.services.cluster import Member, MemberState

__all__ = ["Coordinator", "CoordinatorSettings", "MemberView"]


class Coordinator:
    """One process's part in a cluster. ``now`` is a monotonic time in seconds in all calls.

    All events return effects. After :class:`~.effects.Downed` or :class:`~.effects.LeaveCompleted`, and after
    :meth:`stop`, they are ignored.
    """

    def __init__(self, info: NodeInfo, settings: CoordinatorSettings, choose: Choose) -> None:
        """``info``: this process, with a fresh uid; ``choose`` returns one of several uids at random."""
        self.own = info
        self.settings = settings
        self._choose = choose
        self._joining = Joining(Join(info, settings.digest), settings.seeds, settings.form_after_s)
        self._participant: Participant | None = None
        self._record = Record(info)
        """This process's record after the last event."""
        self._is_ready = False
        self._founding_term = 0
        self._has_ended = False
        self._ticked_s: float | None = None
        self._news: list[Effect] = []
        self._reported: dict[int, Member] = {}
        self._reported_of = -1
        """The count of changes that was reported last."""

    # Events

    def tick(self, now: float) -> list[Effect]:
        """Do what is due. Call it each ``settings.detector.tick_s`` seconds."""
        if self._has_ended:
            return []
        gap_s = 0.0 if self._ticked_s is None else now - self._ticked_s
        lost_s = gap_s if gap_s > self.settings.detector.stall_s else 0.0
        self._ticked_s = now
        if self._participant is not None:
            return self._finish(self._participant.tick(now, lost_s))
        self._joining.postpone(lost_s)
        effects: list[Effect] = [*self._joining.tick(now)]
        if self._joining.may_form(now):
            if not self.settings.asks_to_form:
                self._form()
            elif self._joining.asks_to_form(now):
                effects.append(AskToForm())
        return self._finish(effects)

    def received(self, from_uid: int, message: Message, now: float) -> list[Effect]:
        """Take a message from the process that the connection was verified to be with, member or not.

        Raises :class:`~.wire.MalformedControl` for gossip of too many members, or of a term that is far ahead.
        """
        if self._has_ended:
            return []
        if self._participant is None:
            return self._finish(self._received_outside(from_uid, message, now))
        return self._finish(self._participant.received(from_uid, message, now))

    def connection_lost(self, uid: int) -> list[Effect]:
        """Note that the control connection with a process was lost; what was on its way is repeated."""
        if self._participant is not None:
            self._participant.connection_lost(uid)
        return []

    def malformed(self, uid: int, now: float) -> list[Effect]:
        """Note that a process has sent a malformed message, on a connection of either kind, which was closed."""
        if self._participant is None or self._has_ended:
            return []
        self._participant.malformed(uid, now)
        return self._finish([])

    def replace_seeds(self, seeds: Sequence[NodeAddress]) -> list[Effect]:
        """Use other seeds from now on: they were looked up again."""
        self._joining.replace_seeds(seeds)
        return []

    def set_founding_term(self, term: int) -> list[Effect]:
        """Set the last term that the arbiter of splits has decided.

        Without it a cluster that this process forms would ask for old terms, and lose each split. A cluster that lets
        it in may not be far ahead of it.
        """
        self._founding_term = term
        return []

    def may_form(self, term: int | None) -> list[Effect]:
        """Take the answer to :class:`~.effects.AskToForm`: form a cluster with a term, or with ``None`` ask on."""
        if self._participant is not None or self._has_ended:
            return []
        if term is not None:
            self._founding_term = term
            self._form()
        else:
            self._joining.must_not_form()
        return self._finish([])

    def noted(self, addresses: Collection[NodeAddress], term: int, now: float) -> list[Effect]:
        """Take the addresses of members that the arbiter knows, and its last term; the driver asks every few seconds.

        A member of an older cluster ends: two clusters would go on over the same stores.
        """
        if self._participant is None or self._has_ended:
            return []
        return self._finish(self._participant.noted(addresses, term, now))

    def set_ready(self) -> list[Effect]:
        """Note that this broker has restored its sessions: it may become UP."""
        self._is_ready = True
        if self._participant is None or self._has_ended:
            return []
        self._participant.membership.update_own(ready=True)
        return self._finish([])

    def leave(self) -> list[Effect]:
        """Begin to leave: this member is LEAVING. The driver goes on with :meth:`drained`."""
        if self._has_ended:
            return []
        if self._participant is None:
            self._has_ended = True
            return [*self._joining.farewell(), LeaveCompleted()]
        self._participant.membership.advance(self.own.uid, MemberState.LEAVING)
        return self._finish([])

    def drained(self) -> list[Effect]:
        """Note that all clients are gone and all is answered: a LEAVING member may exit."""
        if self._participant is None or self._has_ended:
            return []
        self._participant.membership.update_own(drained=True)
        return self._finish([])

    def stop(self) -> list[Effect]:
        """End at once: the others are told, and need not detect it."""
        if self._has_ended:
            return []
        self._has_ended = True
        return [*self._joining.farewell()] if self._participant is None else self._participant.farewell()

    def down(self, uid: int) -> list[Effect]:
        """Mark a member DOWN, as an operator wants it. Raises ``ValueError`` for a uid that is no member's.

        With an arbiter that happens when it has agreed: else the member, if it lives, could mark all others DOWN.
        """
        if self._participant is None or uid not in self._participant.membership.records:
            raise ValueError(f"{uid:016x} is no member that this node knows; the command `members` lists their uids")
        if self._has_ended:
            return []
        return self._finish(self._participant.down_for_operator(uid))

    def arbiter_decided(self, granted: bool, now: float, question: AskArbiter) -> list[Effect]:
        """Take the answer to :class:`~.effects.AskArbiter`, about the term in it."""
        if self._participant is None or self._has_ended:
            return []
        return self._finish(self._participant.arbiter_decided(granted, now, question))

    # What an operator and the driver may see

    @property
    def has_ended(self) -> bool:
        """Whether all events are ignored from now on."""
        return self._has_ended

    @property
    def members(self) -> tuple[MemberView, ...]:
        """The members by address; empty before this process is one."""
        return () if self._participant is None else self._participant.membership.views()

    @property
    def leader(self) -> int | None:
        """The uid of the member that leads, as this node sees it."""
        return None if self._participant is None else self._participant.membership.leader

    @property
    def is_converged(self) -> bool:
        """Whether all members that can be reached are known to have the same state."""
        return self._participant is not None and self._participant.membership.is_converged

    @property
    def digest(self) -> bytes | None:
        """What identifies the state that this node has; ``None`` before it is a member."""
        return None if self._participant is None else self._participant.membership.digest

    def info(self, uid: int) -> NodeInfo | None:
        """Return what a member said of itself, with the address to dial."""
        record = None if self._participant is None else self._participant.membership.records.get(uid)
        return None if record is None else record.info

    def phi(self, now: float) -> Mapping[int, float]:
        """Return the suspicion of each member that this node monitors, by uid."""
        if self._participant is None:
            return {}
        detector = self._participant.detector
        return {uid: detector.phi(uid, now) for uid in detector.monitored}

    # Before membership

    def _received_outside(self, sender: int, message: Message, now: float) -> list[Effect]:
        match message:
            case Heartbeat(number):
                return [Send(sender, HeartbeatAck(number), reply=True)]
            case Join():
                return [Send(sender, NotYet(), reply=True)]
            case Welcome(gossip) | FullGossip(gossip):
                return self._welcomed(gossip)
            case Refused(reason):
                return [*self._joining.refused(reason, now)]
            case NotYet():
                self._joining.not_yet(sender)
        return []

    def _welcomed(self, gossip: Gossip) -> list[Effect]:
        """Enter a cluster that has this process as a member. The welcome itself may have been lost."""
        check_term(gossip.state, self._founding_term, "WELCOME")
        uid = self.own.uid
        record = gossip.state.records.get(uid)
        if uid in gossip.state.removed or (record is not None and record.state is MemberState.DOWN):
            self._has_ended = True
            return [Downed("the cluster gave this process up before it had joined")]
        if record is not None:
            self._become_member(Membership(uid, gossip))
        return []

    def _form(self) -> None:
        self._become_member(Membership.formed_by(self.own, self._founding_term))

    def _become_member(self, membership: Membership) -> None:
        self._participant = Participant(membership, self.settings, self._choose)
        if self._is_ready:
            membership.update_own(ready=True)
        self._news.append(Joined())

    # After each event

    def _finish(self, effects: list[Effect]) -> list[Effect]:
        """Put the changes of members in front, as other effects may need them, and this process's end behind.

        A process that is DOWN itself reports no changes. Whoever ends with a side may have marked the others DOWN,
        too: the core would take the sessions of nodes that go on for abandoned.
        """
        participant = self._participant
        if participant is None:
            return effects
        news, self._news = self._news, []
        end = self._end(participant)
        changes = [] if isinstance(end, Downed) else self._changes(participant.membership)
        return [*news, *changes, *effects, *([] if end is None else [end])]

    def _changes(self, membership: Membership) -> list[MemberChanged]:
        if self._reported_of == membership.changes:
            return []
        self._reported_of = membership.changes
        members = {uid: _member(membership, record) for uid, record in membership.records.items()}
        before, self._reported = self._reported, members
        gone = [
            Member(member.node, MemberState.REMOVED, False) for uid, member in before.items() if uid not in members
        ]
        changed = [member for uid, member in members.items() if before.get(uid) != member]
        return [MemberChanged(member) for member in (*gone, *changed)]

    def _end(self, participant: Participant) -> Downed | LeaveCompleted | None:
        membership = participant.membership
        record = membership.records.get(self.own.uid)
        end: Downed | LeaveCompleted
        if record is None:
            has_left = self._record.state in (MemberState.LEAVING, MemberState.EXITING) and self._record.drained
            end = LeaveCompleted() if has_left else Downed("the other members have removed this process")
        elif record.state is MemberState.DOWN:
            end = Downed(participant.down_reason or "the other members have marked this process DOWN")
        elif record.state is MemberState.EXITING and membership.is_converged:
            end = LeaveCompleted()
        else:
            self._record = record
            return None
        self._has_ended = True
        return end


def _member(membership: Membership, record: Record) -> Member:
    """Return what the core is told of a member."""
    reachable = record.state is not MemberState.DOWN and record.info.uid not in membership.suspected
    return Member(record.info.node, record.state, reachable)
