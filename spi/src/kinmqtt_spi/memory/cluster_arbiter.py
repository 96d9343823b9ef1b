"""An arbiter in memory that several nodes of one process share, for tests and simulations of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter, check_note, check_term


class MemoryClusterArbiter(ClusterArbiter):
    """The arbiter of a cluster whose nodes are in one process: all of them use this object.

    For nodes that can't reach it, or whose answers are lost, put :func:`kinmqtt_spi.testing.faults.faulty` before it.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        """``now`` returns the time in seconds, by which notes end."""
        self._now = now
        self._term = 0
        self._side = 0
        self._ends_s: dict[str, float] = {}
        """When each note about a member ends, by its address."""

    def term(self) -> int:
        return self._term

    def decide(self, term: int, side: int) -> bool:
        check_term(term, side)
        if term > self._term:
            self._term, self._side = term, side
        return (term, side) == (self._term, self._side)

    def members(self) -> Sequence[str]:
        now = self._now()
        self._ends_s = {address: end_s for address, end_s in self._ends_s.items() if end_s > now}
        return tuple(self._ends_s)

    def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> bool:
        check_note(address, limit_s)
        if only_first and set(self.members()) - {address}:
            return False
        self._ends_s[address] = self._now() + limit_s
        return True

    def forget_member(self, address: str) -> None:
        self._ends_s.pop(address, None)
