"""A lease in memory that several nodes of one process share, for tests and simulations of a cluster."""

from __future__ import annotations

from math import isfinite

from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.values import NodeIdentity


class MemoryClusterLease(ClusterLease):
    """The lease of a cluster whose nodes are in one process: all of them use this object.

    For nodes that can't reach it, or whose answers are lost, put :func:`kinmqtt_spi.testing.faults.faulty` before it.
    """

    def __init__(self, clock: Clock) -> None:
        """``clock`` is the store's clock."""
        self._clock = clock
        self._holder: NodeIdentity | None = None
        self._ends_at = 0.0

    @property
    def holder(self) -> NodeIdentity | None:
        """The node that has the lease now; ``None`` if nobody has."""
        return self._holder if self._clock.monotonic() < self._ends_at else None

    def acquire(self, holder: NodeIdentity, ttl_s: float) -> bool:
        if not (isfinite(ttl_s) and ttl_s > 0):
            raise ValueError(f"a lease must last a positive, finite number of seconds, not {ttl_s!r}")
        current = self.holder
        if current is not None and current.uid != holder.uid:
            return False
        self._holder = holder
        self._ends_at = self._clock.monotonic() + ttl_s
        return True

    def release(self, holder: NodeIdentity) -> None:
        if self._holder is not None and self._holder.uid == holder.uid:
            self._holder = None
