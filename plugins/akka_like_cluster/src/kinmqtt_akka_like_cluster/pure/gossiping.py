"""Push-pull gossip: a digest first, and the whole state only to a member whose digest is another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kinmqtt_akka_like_cluster.pure.effects import Send
from kinmqtt_akka_like_cluster.pure.gossip import MOST_TERMS_AHEAD, ClusterState
from kinmqtt_akka_like_cluster.pure.membership import Membership, TooManyMembers
from kinmqtt_akka_like_cluster.pure.messages import FullGossip, Left, MalformedControl, Status

Choose: TypeAlias = Callable[[Sequence[int]], int]
"""Chooses one of several uids at random."""

FASTER: Final = 3
"""How many times as often a member gossips while fewer than half are known to have seen the state."""


class Gossiping:
    """The gossip of one member. Times are monotonic, in seconds."""

    def __init__(self, membership: Membership, choose: Choose, pause_s: float) -> None:
        """``pause_s``: the time between two rounds."""
        self._membership = membership
        self._choose = choose
        self._pause_s = pause_s
        self._last_s = float("-inf")
        """When the last round was due: it may have been a little later, as rounds wait for a tick."""

    def tick(self, now: float) -> list[Send]:
        """If it is time to, send the digest to a member that has not seen the state, or else to any that may answer.

        That may be one on another side: it need not know yet that others can't reach it.
        """
        membership = self._membership
        pause_s = self._pause_s if membership.is_seen_by_half else self._pause_s / FASTER
        if now - self._last_s < pause_s:
            return []
        behind = membership.others - membership.unreachable - membership.seen
        peers = sorted(behind or membership.others - membership.unanswering)
        if not peers:
            return []
        self._last_s = max(self._last_s + pause_s, now - pause_s / 2)
        return [Send(self._choose(peers), self._status())]

    def received_status(self, sender: int, status: Status) -> list[Send]:
        """Answer a digest: with the whole state if it is another one, or with who else has seen it."""
        membership = self._membership
        if status.digest != membership.digest:
            return [self.whole(sender, reply=True)]
        membership.note_seen(status.seen)
        return [] if membership.seen <= status.seen else [Send(sender, self._status(), reply=True)]

    def received_whole(self, sender: int, message: FullGossip) -> list[Send]:
        """Merge a state, and answer so that the sender knows as much. That of another cluster is not merged.

        Raises :class:`~.wire.MalformedControl` for too many members, and for a term that is far ahead.
        """
        state = message.gossip.state
        if state.founder != self._membership.state.founder:
            # This process asked to join that cluster too, which now waits for it.
            return [Send(sender, Left(), reply=True)] if self._membership.own in state.records else []
        check_term(state, self._membership.state.term, f"GOSSIP of {sender:016x}")
        try:
            is_behind = self._membership.receive(message.gossip)
        except TooManyMembers as error:
            raise MalformedControl(f"GOSSIP of {sender:016x} would make {error}") from error
        if self._membership.is_gone(self._membership.own):
            return []
        return [self.whole(sender, reply=True) if is_behind else Send(sender, self._status(), reply=True)]

    def whole(self, uid: int, *, reply: bool = False) -> Send:
        """Return the whole state as a message."""
        return Send(uid, FullGossip(self._membership.gossip), reply)

    def _status(self) -> Status:
        return Status(self._membership.digest, self._membership.seen)


def check_term(state: ClusterState, known: int, what: str) -> None:
    """Raise :class:`~.wire.MalformedControl` if a state's term is far ahead of the one that is known."""
    if state.term - known > MOST_TERMS_AHEAD:
        raise MalformedControl(f"{what} has the term {state.term}, more than {MOST_TERMS_AHEAD} ahead of {known}")
