"""A process that is a member: gossip, failure detection, witnesses, newcomers and downing, put together."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kinmqtt_akka_like_cluster.pure.arbitration import Arbitration
from kinmqtt_akka_like_cluster.pure.coordinator_settings import CoordinatorSettings
from kinmqtt_akka_like_cluster.pure.detector import Ask, Beat, Detector
from kinmqtt_akka_like_cluster.pure.distrust import Distrust
from kinmqtt_akka_like_cluster.pure.downing import Decision, DowningPolicy, Strategy, ViewMember
from kinmqtt_akka_like_cluster.pure.effects import AskArbiter, Downing, Effect, Send
from kinmqtt_akka_like_cluster.pure.gossip import NodeAddress, NodeInfo
from kinmqtt_akka_like_cluster.pure.gossiping import Choose, Gossiping
from kinmqtt_akka_like_cluster.pure.joining import conflict, refusal, unsettled
from kinmqtt_akka_like_cluster.pure.membership import Membership
from kinmqtt_akka_like_cluster.pure.messages import (
    FullGossip,
    Heartbeat,
    HeartbeatAck,
    Join,
    Left,
    Message,
    NotYet,
    Status,
    Welcome,
    Witness,
    Witnessed,
)
from kinmqtt_akka_like_cluster.pure.probes import ForNewcomer, ForWitness, Probes, Verdict
from kinmqtt_spi.services.cluster import MemberState

BY_OPERATOR: Final = "an operator wants it"


class Participant:
    """A member, from its welcome to its end. Times are monotonic, in seconds."""

    def __init__(self, membership: Membership, settings: CoordinatorSettings, choose: Choose) -> None:
        self.membership = membership
        self.detector = Detector(membership.own, settings.detector)
        self.down_reason: str | None = None
        """Why this process marked itself DOWN."""
        self._settings = settings
        self._gossiping = Gossiping(membership, choose, settings.gossip_s)
        self._distrust = Distrust()
        self._probes = Probes(settings.detector.pause_s)
        self._policy = DowningPolicy(settings.strategy, settings.quorum, settings.stable_after_s)
        self._arbitration = Arbitration(membership, self._policy, is_needed=settings.strategy is Strategy.ARBITER)
        self._beats = 0
        self._acked: dict[int, int] = {}
        """The highest heartbeat that each member has answered."""
        self._watched: frozenset[int] = frozenset()
        self._view: list[ViewMember] = []
        self._view_of = -1
        """The count of changes that ``_view`` belongs to."""

    # Events

    def tick(self, now: float, lost_s: float) -> list[Effect]:
        """Do what is due; ``lost_s``: how long this process stood still before."""
        self._probes.postpone(lost_s)
        effects = [*self._detect(now), *(self._beat(uid) for uid in self._probes.due(now))]
        for verdict in self._probes.expired(now):
            effects += self._concluded(verdict, now)
        effects += self._decide(now)
        if not self.membership.is_gone(self.membership.own):
            self.membership.lead()
            effects += self._gossiping.tick(now)
        return effects

    def received(self, sender: int, message: Message, now: float) -> list[Effect]:
        """Take a message. Raises :class:`~.wire.MalformedControl` for gossip that no sound member sends."""
        if self.membership.is_gone(sender):
            # It was away, or the welcome has never reached it. By this it learns that it is no member any more.
            is_question = isinstance(message, Heartbeat | Status | Witness | Join)
            return [self._gossiping.whole(sender, reply=True)] if is_question else []
        match message:
            case Join():
                return self._asked_to_join(sender, message, now)
            case Heartbeat(number):
                return [Send(sender, HeartbeatAck(number), reply=True)]
            case HeartbeatAck(number):
                return self._acknowledged(sender, number, now)
            case Status():
                return [*self._gossiping.received_status(sender, message)]
            case FullGossip(gossip) | Welcome(gossip):
                return [*self._gossiping.received_whole(sender, FullGossip(gossip))]
            case Witness(about):
                return self._asked_as_witness(sender, about, now)
            case Witnessed(about, alive):
                self.detector.witnessed(about, sender, alive, now)
            case Left():
                return self._left(sender)
        return []

    def connection_lost(self, uid: int) -> None:
        """Send what was on its way to a member again."""
        self._probes.repeat(uid)

    def malformed(self, sender: int, now: float) -> None:
        """Note that a member has sent a malformed message. At the third one in a minute it counts as unreachable."""
        if sender in self.membership.others and self._distrust.note(sender, now):
            self.membership.observe(sender, reachable=False)

    def arbiter_decided(self, granted: bool, now: float, question: AskArbiter) -> list[Effect]:
        """Take the answer to :class:`~.effects.AskArbiter`, and act on it."""
        wanted = self._arbitration.decided_for_operator(granted, question)
        effects = [] if wanted is None else self.down([wanted], BY_OPERATOR)
        if self._arbitration.decided(granted, now, question):
            effects += self._decide(now)
        return effects

    def noted(self, addresses: Collection[NodeAddress], term: int, now: float) -> list[Effect]:
        """Take what the arbiter knows, and end if a later cluster goes on beside this one."""
        if not self._arbitration.is_superseded(addresses, term, now):
            return []
        return self.down([self.membership.own], "another cluster has been formed meanwhile, with a later term")

    def down_for_operator(self, uid: int) -> list[Effect]:
        """Mark a member DOWN, or ask the arbiter first, which may refuse."""
        question = self._arbitration.ask_for_operator(uid)
        return self.down([uid], BY_OPERATOR) if question is None else [question]

    def down(self, uids: list[int], reason: str, decision: Decision | None = None) -> list[Effect]:
        """Mark members DOWN. If this one is among them, the others are told."""
        membership = self.membership
        marked = tuple(sorted(uid for uid in uids if uid in membership.records and not membership.is_gone(uid)))
        if not marked:
            return []
        reachable = membership.others - membership.unreachable
        for uid in marked:
            membership.advance(uid, MemberState.DOWN)
        effects: list[Effect] = [Downing(decision, marked, reason)]
        if membership.own in marked:
            self.down_reason = reason
            effects += (self._gossiping.whole(uid) for uid in sorted(reachable))
        return effects

    def farewell(self) -> list[Effect]:
        """Return what to tell the other members when this process ends."""
        return [Send(uid, Left()) for uid in sorted(self.membership.others)]

    # Failure detection

    def _detect(self, now: float) -> list[Effect]:
        others = self.membership.others
        if others != self._watched:
            self._watched = others
            self._acked = {uid: number for uid, number in self._acked.items() if uid in others}
            self.detector.watch(others, now)
        effects: list[Effect] = []
        for due in self.detector.tick(now):
            if isinstance(due, Beat):
                effects.append(self._beat(due.to))
            elif isinstance(due, Ask):
                effects.append(Send(due.witness, Witness(due.about)))
            else:
                self.membership.observe(due.uid, due.reachable and due.uid not in self._distrust)
        for uid in self._distrust.ended(others, now):
            self.membership.observe(uid, reachable=not self.detector.is_marked(uid))
        return effects

    def _beat(self, uid: int) -> Send:
        self._beats += 1
        return Send(uid, Heartbeat(self._beats))

    def _acknowledged(self, sender: int, number: int, now: float) -> list[Effect]:
        if not self._acked.get(sender, 0) < number <= self._beats or sender not in self.membership.records:
            return []
        self._acked[sender] = number
        self.detector.heard(sender, now)
        verdict = self._probes.answered(sender, number)
        return [] if verdict is None else self._concluded(verdict, now)

    def _asked_as_witness(self, asker: int, about: int, now: float) -> list[Effect]:
        if about not in self.membership.others:
            return []
        alive = self.detector.is_alive(about, now)
        if alive is None:
            self._probes.ask(about, ForWitness(asker), self._beats + 1, now)
            return [self._beat(uid) for uid in self._probes.due(now)]
        return [Send(asker, Witnessed(about, alive), reply=True)]

    def _concluded(self, verdict: Verdict, now: float) -> list[Effect]:
        """Answer all who wanted to know whether a member is alive."""
        effects: list[Effect] = []
        record = self.membership.records.get(verdict.about)
        for purpose in verdict.purposes:
            if isinstance(purpose, ForWitness):
                effects.append(Send(purpose.asker, Witnessed(verdict.about, verdict.is_alive), reply=True))
            elif verdict.is_alive and record is not None:
                effects.append(Send(purpose.info.uid, conflict(purpose.info, record.info), reply=True))
            elif record is not None and self.membership.undecided - {verdict.about}:
                effects.append(Send(purpose.info.uid, unsettled(purpose.info, record.info), reply=True))
            else:
                reason = f"it does not answer, and {purpose.info} takes its place"
                effects += self.down([verdict.about], reason)
                effects += self._admit(purpose.info, now)
        return effects

    # Newcomers, and those who leave

    def _asked_to_join(self, sender: int, join: Join, now: float) -> list[Effect]:
        own = self.membership.records[self.membership.own]
        if own.state is MemberState.EXITING:
            return [Send(sender, NotYet(), reply=True)]
        refused = refusal(join, sender, self.membership, self._settings.digest)
        return self._admit(join.info, now) if refused is None else [Send(sender, refused, reply=True)]

    def _admit(self, info: NodeInfo, now: float) -> list[Effect]:
        """Let a process join, unless a member that is alive, or that must be asked first, has its name or address."""
        effects: list[Effect] = []
        is_waiting = False
        rivals = [] if info.uid in self.membership.records else self.membership.conflicting(info)
        if rivals and self.membership.undecided - {rival.info.uid for rival in rivals}:
            return [Send(info.uid, unsettled(info, rivals[0].info), reply=True)]
        for rival in rivals:
            uid = rival.info.uid
            if uid == self.membership.own:
                return [*effects, Send(info.uid, conflict(info, rival.info), reply=True)]
            if uid in self.membership.unreachable:
                effects += self.down([uid], f"it is unreachable, and {info} takes its place")
            else:
                self._probes.ask(uid, ForNewcomer(info), self._beats + 1, now)
                is_waiting = True
        if is_waiting:
            return [*effects, *(self._beat(uid) for uid in self._probes.due(now))]
        self.membership.add(info)
        return [*effects, Send(info.uid, Welcome(self.membership.gossip), reply=True)]

    def _left(self, sender: int) -> list[Effect]:
        record = self.membership.records.get(sender)
        if record is None or record.state is MemberState.EXITING:
            return []
        return self.down([sender], "it says that its process ends")

    # Downing

    def _decide(self, now: float) -> list[Effect]:
        membership = self.membership
        decision = self._arbitration.checked(self._policy.observe(membership.own, self._members(), now), now)
        lost = sorted(membership.unreachable)
        strategy = self._settings.strategy.value
        if decision is Decision.ASK_ARBITER:
            return [self._arbitration.ask(now)] if self._is_sure(now) else []
        if decision is Decision.DOWN_UNREACHABLE:
            if not self._is_sure(now):
                return []
            self._arbitration.used()
            return self.down(lost, f"unreachable; by {strategy} this side goes on", decision)
        if decision in (Decision.DOWN_SELF, Decision.DOWN_ALL):
            reason = f"by {strategy} this side ends; {len(lost)} of {len(membership.records)} members are unreachable"
            return self.down(self._ending(decision), reason, decision)
        self._arbitration.tick()
        return []

    def _is_sure(self, now: float) -> bool:
        """Tell whether this side may go on: its members have seen the same state, and have answered lately.

        After a time of heavy loss the detector takes long to mark a member. Its silence is known before: it may be on
        the other side, where this one is the minority.
        """
        side = self.membership.others - self.membership.unreachable
        silent = (uid for uid in self.detector.monitored if self.detector.is_alive(uid, now) is False)
        return self.membership.is_converged and side.isdisjoint(silent)

    def _ending(self, decision: Decision) -> list[int]:
        """Return whom to mark DOWN when this side ends.

        That are all members of the side if they have seen the same state: they would decide the same, but one after
        the other, and each DOWN is a change of the view for the rest, which would wait and serve clients still.
        """
        membership = self.membership
        if decision is Decision.DOWN_ALL:
            return [*membership.records]
        side = membership.others - membership.unreachable if membership.is_converged else frozenset()
        return [membership.own, *side]

    def _members(self) -> list[ViewMember]:
        """Return this member's view for the strategy."""
        membership = self.membership
        if self._view_of != membership.changes:
            self._view_of = membership.changes
            self._view = [
                ViewMember(
                    uid,
                    str(record.info.address),
                    record.up_number,
                    record.info.votes,
                    uid not in membership.unreachable,
                    record.state,
                )
                for uid, record in membership.records.items()
            ]
        return self._view
