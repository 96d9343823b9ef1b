"""The arbiter that decides a split: which term is asked for, and for how long an answer counts.

A term goes to one side for ever. The cluster's state has the last one that a side has acted on, and a split is about
the next one. A state that has a term also has the members DOWN that it was about, so nobody on another side can go on
with the term behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from kinmqtt_akka_like_cluster.pure.downing import Decision, DowningPolicy
from kinmqtt_akka_like_cluster.pure.effects import AskArbiter
from kinmqtt_akka_like_cluster.pure.gossip import NodeAddress
from kinmqtt_akka_like_cluster.pure.membership import Membership
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM

FRESH_S: Final = 5.0
"""For how long an answer is acted upon; later the arbiter is asked again."""


SUPERSEDED_S: Final = 20.0
"""How long another cluster must be noted until this one ends: longer than a note lasts, so that it lives."""


class Arbitration:
    """A member's questions to the arbiter, and their answers. Times are monotonic, in seconds."""

    def __init__(self, membership: Membership, policy: DowningPolicy, *, is_needed: bool) -> None:
        """``is_needed``: whether the strategy decides by the arbiter."""
        self._membership = membership
        self._policy = policy
        self._is_needed = is_needed
        self._asked_s = float("-inf")
        self._asked_term = 0
        self._question: AskArbiter | None = None
        self._granted_s: float | None = None
        self._foreign_since_s: float | None = None
        """Since when members of another cluster are noted, which has a later term."""
        self._wanted: tuple[AskArbiter, int] | None = None
        """An operator's question, and the uid of the member that is to be DOWN if it is granted."""

    def checked(self, decision: Decision, now: float) -> Decision:
        """Return a decision, or in place of one that is based on an old answer that it must be asked again."""
        if decision is not Decision.DOWN_UNREACHABLE or not self._is_needed:
            return decision
        if self._granted_s is not None and now - self._granted_s < FRESH_S:
            return decision
        return Decision.WAIT if now - self._asked_s < FRESH_S else Decision.ASK_ARBITER

    def ask(self, now: float) -> AskArbiter:
        """Ask for the next term in the name of this side."""
        self._asked_term = min(self._membership.state.term + 1, MAX_TERM)
        self._asked_s = now
        self._question = AskArbiter(self._side_number(), self._asked_term)
        return self._question

    def ask_for_operator(self, uid: int) -> AskArbiter | None:
        """Ask for the next term to mark a member DOWN, whatever the strategy says; ``None`` if nobody need be asked.

        The member may be alive, and cut off. If it got the term later, it would mark the others DOWN, and go on.
        """
        if not self._is_needed:
            return None
        self._asked_term = min(self._membership.state.term + 1, MAX_TERM)
        question = AskArbiter(self._side_number(without=uid), self._asked_term)
        self._wanted = (question, uid)
        return question

    def decided_for_operator(self, granted: bool, question: AskArbiter) -> int | None:
        """Take an answer; returns whom to mark DOWN now, as an operator has wanted it."""
        if self._wanted is None or question != self._wanted[0]:
            return None
        uid = self._wanted[1]
        self._wanted = None
        if not granted:
            return None
        self._membership.raise_term(question.term)
        return uid

    def decided(self, granted: bool, now: float, question: AskArbiter) -> bool:
        """Take an answer; returns whether it counts: one to an earlier question does not, if the side has changed."""
        if question != self._question:
            return False
        self._policy.arbiter_decided(granted)
        if granted:
            self._granted_s = now
        return True

    def used(self) -> None:
        """Note in the cluster's state that this side acts on the term, which it does in the same step."""
        if self._is_needed:
            self._membership.raise_term(self._asked_term)

    def tick(self) -> None:
        """When there is no split: leave a term alone that was asked for in vain.

        If a split heals before an answer comes, the term may be taken. When all members answer again and agree, none
        of them has acted on it.
        """
        if not self._membership.undecided and self._membership.is_converged:
            self._membership.raise_term(self._asked_term)

    def is_superseded(self, noted: Collection[NodeAddress], term: int, now: float) -> bool:
        """Tell whether there is a later cluster beside this one; ``noted`` and ``term`` are what the arbiter knows.

        A process that could reach neither this cluster nor its notes has formed another one, with a later term.
        """
        own = {record.info.address for record in self._membership.records.values()}
        if term <= self._membership.state.term or own.issuperset(noted):
            self._foreign_since_s = None
            return False
        if self._foreign_since_s is None:
            self._foreign_since_s = now
        return now - self._foreign_since_s >= SUPERSEDED_S

    def _side_number(self, without: int | None = None) -> int:
        """Return a number for this side, made from the uids of its members that are not newcomers, but for one.

        If a side falls apart while it asks, the parts have other numbers: only one of them may get the term.
        """
        membership = self._membership
        uids = (
            uid
            for uid, record in membership.records.items()
            if uid != without
            and uid not in membership.unreachable
            and record.state in (MemberState.UP, MemberState.LEAVING)
        )
        text = ",".join(map(str, sorted(uids)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
