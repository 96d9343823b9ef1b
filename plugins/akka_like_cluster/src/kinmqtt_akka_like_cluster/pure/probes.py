"""Questions whether a member is alive, each answered by a heartbeat of this node's own."""

from __future__ import annotations

from typing import Final, TypeAlias

from attrs import Factory, define, frozen

from kinmqtt_akka_like_cluster.pure.gossip import NodeInfo

MOST_PURPOSES: Final = 256
"""How many questions may be open; further ones are not answered."""
AGAIN_S: Final = 0.5
"""How often a probe's heartbeat is repeated: one of them may be lost."""


@frozen(slots=True)
class ForWitness:
    """A member wants to know."""

    asker: int


@frozen(slots=True)
class ForNewcomer:
    """A newcomer has the name or the address of the probed member, and is welcome only if that one is dead."""

    info: NodeInfo


Purpose: TypeAlias = ForWitness | ForNewcomer


@frozen(slots=True)
class Verdict:
    """The end of a probe."""

    about: int
    is_alive: bool
    purposes: tuple[Purpose, ...]


@define(slots=True)
class _Probe:
    first_number: int
    """The number of its first heartbeat: the answer to an earlier one says nothing."""
    deadline_s: float
    again_s: float
    purposes: dict[Purpose, None] = Factory(dict)


class Probes:
    """The open probes. Times are monotonic, in seconds."""

    def __init__(self, pause_s: float) -> None:
        """``pause_s``: after so long without an answer the probed member counts as dead."""
        self._pause_s = pause_s
        self._probes: dict[int, _Probe] = {}

    def ask(self, about: int, purpose: Purpose, next_number: int, now: float) -> None:
        """Open a probe, or add a purpose to an open one. ``next_number``: that of the next heartbeat to be sent."""
        if sum(len(probe.purposes) for probe in self._probes.values()) >= MOST_PURPOSES:
            return
        probe = self._probes.get(about)
        if probe is None:
            probe = self._probes[about] = _Probe(next_number, now + self._pause_s, now)
        probe.purposes[purpose] = None

    def answered(self, about: int, number: int) -> Verdict | None:
        """Take the answer to a heartbeat; returns the verdict if it answers a probe."""
        probe = self._probes.get(about)
        if probe is None or number < probe.first_number:
            return None
        del self._probes[about]
        return Verdict(about, True, tuple(probe.purposes))

    def due(self, now: float) -> list[int]:
        """Return the members that must get a heartbeat now."""
        uids = [uid for uid, probe in self._probes.items() if now >= probe.again_s]
        for uid in uids:
            self._probes[uid].again_s = now + AGAIN_S
        return uids

    def repeat(self, about: int) -> None:
        """Send the heartbeat again at the next opportunity: the connection with the member was lost."""
        if about in self._probes:
            self._probes[about].again_s = float("-inf")

    def expired(self, now: float) -> list[Verdict]:
        """Return the verdicts about members that have not answered in time."""
        dead = [uid for uid, probe in self._probes.items() if now >= probe.deadline_s]
        return [Verdict(uid, False, tuple(self._probes.pop(uid).purposes)) for uid in dead]

    def postpone(self, lost_s: float) -> None:
        """Wait longer: this process stood still for ``lost_s`` seconds, and answers may not have been read yet."""
        for probe in self._probes.values():
            probe.deadline_s += lost_s
