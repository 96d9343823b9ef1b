"""Leases that break one promise each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster_lease import MemoryClusterLease
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.testing.cluster_base import Late
from kinmqtt_spi.testing.cluster_lease import ClusterLeaseContract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import NodeIdentity


class LeaseStore(MemoryClusterLease):
    """A store that may fail, and outlives the processes of nodes."""

    is_away = False

    def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
        self._check()
        return super().acquire(holder, ttl_s)

    def release(self, holder: NodeIdentity) -> None:
        self._check()
        super().release(holder)

    def _check(self) -> None:
        if self.is_away:
            raise ServiceUnavailable("the store is away")


class SoundLease(ClusterLeaseContract):
    """``double`` is the lease of all nodes, which breaks nothing here."""

    can_fail = survives_restart = True
    double: type[LeaseStore] = LeaseStore

    @pytest.fixture
    def cluster_lease(self, clock: TurnableClock) -> ClusterLease:
        return self.double(clock)

    def failing(self, cluster_lease: Any) -> Callable[[], object]:
        cluster_lease.is_away = True
        return lambda: setattr(cluster_lease, "is_away", False)

    def reopened(self, cluster_lease: ClusterLease, drive: Driver) -> ClusterLease:
        return cluster_lease


class TestLEASE_01_RefusesTheFirst(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            had = self.holder
            return super().acquire(holder, ttl_s) and had is not None


class TestLEASE_01_AnswersTheHolder(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return super().acquire(holder, ttl_s) and self.holder


class TestLEASE_02_GoesToTheLast(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            self._holder = holder
            return super().acquire(holder, ttl_s)


class TestLEASE_02_IsTakenOnce(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return self.holder is None and super().acquire(holder, ttl_s)


class TestLEASE_02_IsLostByARefusal(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            has_it = super().acquire(holder, ttl_s)
            if not has_it:
                self._holder = None
            return has_it


class TestLEASE_03_GoesByNames(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return super().acquire(_by_name(holder), ttl_s)


class TestLEASE_04_LooksFirst(SoundLease):
    class double(LeaseStore):
        async def acquire(self, holder: NodeIdentity, ttl_s: float) -> bool:  # type: ignore[override]
            if self.holder not in (None, holder):
                return False
            await Late(lambda: None)
            self._holder = holder
            return bool(super().acquire(holder, ttl_s))


class TestLEASE_04_AnswersForTheLast(SoundLease):
    class double(LeaseStore):
        asked: NodeIdentity

        async def acquire(self, holder: NodeIdentity, ttl_s: float) -> bool:  # type: ignore[override]
            self.asked = holder
            await Late(lambda: None)
            return bool(super().acquire(self.asked, ttl_s))


class TestLEASE_05_LastsForEver(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return super().acquire(holder, ttl_s * 1000)


class TestLEASE_05_EndsEarly(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return super().acquire(holder, ttl_s / 2)


class TestLEASE_05_GoesBackToTheFirst(SoundLease):
    class double(LeaseStore):
        first: NodeIdentity | None = None

        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            self.first = self.first or holder
            if holder == self.first:
                self._holder = holder
            return super().acquire(holder, ttl_s)


class TestLEASE_06_KeepsItsFirstEnd(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            had, ends_at = self.holder, self._ends_at
            has_it = super().acquire(holder, ttl_s)
            if has_it and had is not None:
                self._ends_at = ends_at
            return has_it


class TestLEASE_06_NeverEndsEarlier(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            had, ends_at = self.holder, self._ends_at
            has_it = super().acquire(holder, ttl_s)
            if has_it and had is not None:
                self._ends_at = max(self._ends_at, ends_at)
            return has_it


class TestLEASE_07_IsProlonged(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            has_it = super().acquire(holder, ttl_s)
            self._ends_at = max(self._ends_at, self._clock.monotonic() + ttl_s)
            return has_it


class TestLEASE_07_IsShortened(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            has_it = super().acquire(holder, ttl_s)
            self._ends_at = min(self._ends_at, self._clock.monotonic() + ttl_s)
            return has_it


class TestLEASE_08_IsLostForGood(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            had_it = self._holder == holder and self.holder is None
            return not had_it and super().acquire(holder, ttl_s)


class TestLEASE_08_IsHadInName(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return self._holder == holder or super().acquire(holder, ttl_s)


class TestLEASE_09_TakesAnyTime(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return super().acquire(holder, ttl_s if ttl_s > 0 else 0.001)


class TestLEASE_09_TakesItBeforeItLooks(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            if self.holder is None:
                super().acquire(holder, 1.0)
            return super().acquire(holder, ttl_s)


class TestLEASE_10_KeepsIt(SoundLease):
    class double(LeaseStore):
        def release(self, holder: NodeIdentity) -> None:
            """Let it end by itself."""


class TestLEASE_11_IsReleasedByAnybody(SoundLease):
    class double(LeaseStore):
        def release(self, holder: NodeIdentity) -> None:
            self._holder = None


class TestLEASE_11_IsReleasedByWhoHadIt(SoundLease):
    class double(LeaseStore):
        first: NodeIdentity | None = None

        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            self.first = self.first or holder
            return super().acquire(holder, ttl_s)

        def release(self, holder: NodeIdentity) -> None:
            if holder == self.first:
                self._holder = None


class TestLEASE_11_IsReleasedByALaterProcess(SoundLease):
    class double(LeaseStore):
        def release(self, holder: NodeIdentity) -> None:
            if self._holder is not None and self._holder.name == holder.name:
                self._holder = None


class TestLEASE_12_WantsAHolder(SoundLease):
    class double(LeaseStore):
        def release(self, holder: NodeIdentity) -> None:
            if self.holder is None:
                raise ValueError("nobody has it")
            super().release(holder)


class TestLEASE_13_SaysNo(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return not self.is_away and super().acquire(holder, ttl_s)


class TestLEASE_13_BelievesItsHolder(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return self.holder == holder or super().acquire(holder, ttl_s)


class TestLEASE_13_ReleasesInSilence(SoundLease):
    class double(LeaseStore):
        def release(self, holder: NodeIdentity) -> None:
            if not self.is_away:
                super().release(holder)


class TestLEASE_13_IsFreeAfterwards(SoundLease):
    class double(LeaseStore):
        def _check(self) -> None:
            if self.is_away:
                self._holder = None
            super()._check()


class TestLEASE_14_EndsWithItsHolder(SoundLease):
    def reopened(self, cluster_lease: Any, drive: Driver) -> ClusterLease:
        cluster_lease._holder = None
        return cluster_lease  # type: ignore[no-any-return]


class TestLEASE_14_IsHeldByTheDead(SoundLease):
    def reopened(self, cluster_lease: Any, drive: Driver) -> ClusterLease:
        cluster_lease._ends_at = float("inf")
        return cluster_lease  # type: ignore[no-any-return]


class TestLEASE_15_IsReleasedByTheThird(SoundLease):
    class double(LeaseStore):
        releases = 0

        def release(self, holder: NodeIdentity) -> None:
            self.releases += 1
            if self.releases > 3 and holder.uid == 3:
                self._holder = None
            super().release(holder)


class TestLEASE_15_ForgetsLongLeases(SoundLease):
    class double(LeaseStore):
        def acquire(self, holder: NodeIdentity, ttl_s: float) -> Any:
            return super().acquire(holder, min(ttl_s, 38.0))


def _by_name(node: NodeIdentity) -> NodeIdentity:
    return NodeIdentity(node.name, hash(node.name))
