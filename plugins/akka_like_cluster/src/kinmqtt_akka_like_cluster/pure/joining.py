"""The way of a process into a cluster: what it asks the seeds, and what a member answers to such a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt_akka_like_cluster.pure.effects import JoinRefused, SendTo, WaitingForSeeds
from kinmqtt_akka_like_cluster.pure.gossip import MOST_MEMBERS, NodeAddress, NodeInfo
from kinmqtt_akka_like_cluster.pure.membership import Membership
from kinmqtt_akka_like_cluster.pure.messages import Join, Left, Refused
from kinmqtt_akka_like_cluster.pure.versions import HIGHEST_VERSION, LOWEST_VERSION
from kinmqtt_spi.services.cluster import MAX_OTHER_NODES

ASK_AGAIN_S: Final = 1.0
"""How often the seeds are asked."""
REPORT_S: Final = 30.0
"""How often it is reported that no seed has answered."""
REFUSED_PAUSE_S: Final = 10.0
"""How long a process that was refused waits before it asks again."""
REPORT_AGAIN_S: Final = 60.0
"""How often the same refusal is reported."""


class Joining:
    """A process that is no member yet. Times are monotonic, in seconds."""

    def __init__(self, join: Join, seeds: Sequence[NodeAddress], form_after_s: float) -> None:
        """Only the first one of ``seeds`` may form a cluster alone, after ``form_after_s`` without a refusal."""
        self._join = join
        self._form_after_s = form_after_s
        self._is_first = False
        self._others: tuple[NodeAddress, ...] = ()
        self._begun_s: float | None = None
        """When all present seeds have been asked; ``None`` before that, and after a refusal."""
        self._waiting_since_s: float | None = None
        self._ask_s = float("-inf")
        self._report_s = float("inf")
        self._ask_to_form_s = float("-inf")
        self._reason = ""
        """Why this process was refused last."""
        self._report_reason_s = float("-inf")
        self._not_yet: set[int] = set()
        self.replace_seeds(seeds)

    def replace_seeds(self, seeds: Sequence[NodeAddress]) -> None:
        """Use these seeds from now on. A new one is asked at the next tick, and has ``form_after_s`` to answer."""
        own = self._join.info.address
        others = tuple(dict.fromkeys(seed for seed in seeds if seed != own))
        if not set(others) <= set(self._others):
            self._begun_s = None
            self._ask_s = float("-inf")
        self._is_first = bool(seeds) and seeds[0] == own
        self._others = others

    def tick(self, now: float) -> list[SendTo | WaitingForSeeds]:
        """Ask the seeds, if it is time to."""
        if self._waiting_since_s is None:
            self._waiting_since_s = now
            self._report_s = now + REPORT_S
        effects: list[SendTo | WaitingForSeeds] = []
        if now >= self._ask_s:
            self._ask_s = now + ASK_AGAIN_S
            if self._begun_s is None:
                self._begun_s = now
            effects += (SendTo(seed, self._join) for seed in self._others)
        if now >= self._report_s:
            self._report_s = now + REPORT_S
            effects.append(WaitingForSeeds(self._others, now - self._waiting_since_s, len(self._not_yet)))
            self._not_yet.clear()
        return effects

    def may_form(self, now: float) -> bool:
        """Tell whether this process may form a cluster alone: at once if it is the only seed."""
        if not self._is_first or self._begun_s is None:
            return False
        return not self._others or now - self._begun_s >= self._form_after_s

    def asks_to_form(self, now: float) -> bool:
        """Tell whether the arbiter is to be asked now: it is asked again and again, as the seeds are."""
        if now < self._ask_to_form_s:
            return False
        self._ask_to_form_s = now + ASK_AGAIN_S
        return True

    def must_not_form(self) -> None:
        """Note that a cluster has members somewhere: all seeds get ``form_after_s`` to answer again."""
        self._begun_s = None

    def refused(self, reason: str, now: float) -> list[JoinRefused]:
        """Take a refusal: there is a cluster, so none is formed, and the seeds are left in peace for a while."""
        if self._begun_s is None:
            return []
        self._begun_s = None
        self._ask_s = now + REFUSED_PAUSE_S
        if reason == self._reason and now < self._report_reason_s:
            return []
        self._reason = reason
        self._report_reason_s = now + REPORT_AGAIN_S
        return [JoinRefused(reason)]

    def not_yet(self, uid: int) -> None:
        """Take the answer of a seed that is no member itself."""
        if len(self._not_yet) < MOST_MEMBERS:
            self._not_yet.add(uid)

    def farewell(self) -> list[SendTo]:
        """Return messages for the case that a seed's welcome is on its way: this process ends."""
        return [] if self._waiting_since_s is None else [SendTo(seed, Left()) for seed in self._others]

    def postpone(self, lost_s: float) -> None:
        """Wait longer: this process stood still for ``lost_s`` seconds, and answers may not have been read yet."""
        if self._begun_s is not None:
            self._begun_s += lost_s


def refusal(join: Join, sender: int, membership: Membership, settings: bytes) -> Refused | None:
    """Return why a process can't become a member, whoever else is one; ``None`` if it can.

    ``sender``: the uid that the connection was made with; ``settings``: the digest of this member's settings.
    """
    info = join.info
    if info.uid != sender:
        return Refused(f"the connection is that of the uid {sender:016x}, but {info} asks to join over it")
    if join.lowest > HIGHEST_VERSION or join.highest < LOWEST_VERSION:
        return Refused(
            f"{info} speaks the versions {join.lowest} to {join.highest} of the protocol, this cluster "
            f"{LOWEST_VERSION} to {HIGHEST_VERSION}: update the older one, one release at a time"
        )
    if join.settings != settings:
        return Refused(
            f"{info} differs from this cluster in what all members must share: downing, quorum, stable_after_s, or "
            "whether the brokers share their stores; make them equal"
        )
    if len(membership.records) > MAX_OTHER_NODES and info.uid not in membership.records:
        return Refused(f"the cluster has {len(membership.records)} members, and no more are possible: remove one")
    return None


def conflict(info: NodeInfo, alive: NodeInfo) -> Refused:
    """Return the refusal of a process that has the name or the address of a member that is alive."""
    return Refused(
        f"{info} has the name or the address of {alive}, which is alive: "
        "give each broker a name and an address of its own, or stop the other one"
    )


def unsettled(info: NodeInfo, rival: NodeInfo) -> Refused:
    """Return the refusal of a process that would replace a member in the middle of a split.

    The member may have helped to decide the split, on the other side, before it died. Without its vote this side
    might go on too.
    """
    return Refused(
        f"{info} would take the place of {rival}, but others are unreachable too, and it is not decided yet which "
        "side of the cluster goes on: wait until it is"
    )
