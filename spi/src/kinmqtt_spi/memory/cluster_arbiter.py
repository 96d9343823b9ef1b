"""An arbiter in memory that several nodes of one process share, for tests and simulations of a cluster."""

from __future__ import annotations

from kinmqtt_spi.services.cluster import ClusterArbiter, check_term


class MemoryClusterArbiter(ClusterArbiter):
    """The arbiter of a cluster whose nodes are in one process: all of them use this object.

    For nodes that can't reach it, or whose answers are lost, put :func:`kinmqtt_spi.testing.faults.faulty` before it.
    """

    def __init__(self) -> None:
        self._term = 0
        self._side = 0

    def term(self) -> int:
        return self._term

    def decide(self, term: int, side: int) -> bool:
        check_term(term, side)
        if term > self._term:
            self._term, self._side = term, side
        return (term, side) == (self._term, self._side)
