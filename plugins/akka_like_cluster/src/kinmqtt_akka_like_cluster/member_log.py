"""The log's lines about members: one for each change that an operator may want to know of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.services.plugin import Log
from kinmqtt_spi.values import NodeIdentity

_WORDS: Final = {
    MemberState.JOINING: "has joined",
    MemberState.UP: "is up",
    MemberState.LEAVING: "is leaving",
}
"""What is said of a state that needs no reason. EXITING is not said: it is a step from LEAVING to REMOVED."""

_DOWN: Final = "is down"


class MemberLog:
    """Knows each member as it was logged last, until it is removed."""

    def __init__(self, own: NodeIdentity, log: Log, downing: str) -> None:
        """``downing``: the strategy of the cluster, by which brokers mark others DOWN."""
        self._own = own
        self._log = log
        self._elsewhere = f"another broker has decided so, and its log says why (downing is {downing})"
        self._logged: dict[int, Member] = {}

    def changed(self, member: Member, down_reason: str | None, unreachable_by: Sequence[str]) -> None:
        """Log how a member has changed.

        ``down_reason``: why this broker has marked it DOWN, ``None`` if it has not; ``unreachable_by``: the names of
        the members that can't reach it.
        """
        uid = member.node.uid
        before = self._logged.get(uid)
        if member.state is MemberState.REMOVED:
            self._logged.pop(uid, None)
        else:
            self._logged[uid] = member
        if before is None or before.state is not member.state:
            self._state_changed(member, before, down_reason)
        was_reachable = before is None or before.reachable
        if member.state not in (MemberState.DOWN, MemberState.REMOVED) and member.reachable is not was_reachable:
            reason = f"not reached by {', '.join(unreachable_by)}" if unreachable_by else ""
            self._say(member.node, "is reachable again" if member.reachable else "is unreachable", reason)

    def _state_changed(self, member: Member, before: Member | None, down_reason: str | None) -> None:
        if member.state is MemberState.DOWN:
            self._say(member.node, _DOWN, down_reason or self._elsewhere)
        elif member.state is MemberState.REMOVED:
            has_left = before is not None and before.state in (MemberState.LEAVING, MemberState.EXITING)
            if before is not None and before.state is not MemberState.DOWN and (down_reason or not has_left):
                # It was DOWN for less than a report: whoever reads on wants to know who decided so, and why.
                self._say(member.node, _DOWN, down_reason or self._elsewhere)
                has_left = False
            self._say(member.node, "is removed", "it has left" if has_left else "it was down")
        elif member.state in _WORDS:
            self._say(member.node, _WORDS[member.state], "")

    def _say(self, node: NodeIdentity, what: str, reason: str) -> None:
        # A broker that is DOWN needs an operator, or had one.
        (self._log.warn if what == _DOWN else self._log.info)(
            "{name} ({uid:016x}{own}) {what}{colon}{reason}",
            name=node.name,
            uid=node.uid,
            own=", this broker" if node == self._own else "",
            what=what,
            colon=": " if reason else "",
            reason=reason,
        )
