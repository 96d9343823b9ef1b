"""The lease that several nodes of one process share."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster_lease import MemoryClusterLease
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.testing import faults as faults_module
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.faults import Faults

faulty: Any = faults_module.faulty
"""Untyped, because mypy takes no abstract class for its interface."""


def test_the_store_names_the_holder() -> None:
    """A test sees who has the lease at any time, without asking for it."""
    clock = TurnableClock()
    lease = MemoryClusterLease(clock)

    holders = [lease.holder]
    lease.acquire(HERE, 10.0)
    clock.advance(9.9)
    holders.append(lease.holder)
    clock.advance(0.1)
    holders.append(lease.holder)
    lease.acquire(THERE, 10.0)
    holders.append(lease.holder)
    lease.release(THERE)

    assert [*holders, lease.holder] == [None, HERE, None, THERE, None]


def test_steps_of_the_wall_clock_change_nothing() -> None:
    """The lease lasts as long as it should although a time server sets the clock."""
    clock = TurnableClock()
    lease = MemoryClusterLease(clock)
    lease.acquire(HERE, 10.0)

    clock.step(3600.0)
    clock.step(-7200.0)

    assert lease.holder == HERE


def test_a_lost_answer_may_have_taken_the_lease() -> None:
    """Behind faults a node is told that the store can't say, and others see that it has the lease."""
    lease, faults = MemoryClusterLease(TurnableClock()), Faults()
    view = faulty(lease, ClusterLease, faults)
    faults.fail()
    faults.fail(done=True)

    for _ in range(2):
        with pytest.raises(ServiceUnavailable):
            view.acquire(HERE, 10.0)

    assert lease.acquire(THERE, 10.0) is False


@pytest.mark.parametrize("ttl_s", [0.0, -0.5, float("inf"), float("nan")])
def test_an_impossible_time_is_named(ttl_s: float) -> None:
    """The error says what was given."""
    with pytest.raises(ValueError, match=f"positive, finite number of seconds, not {ttl_s!r}"):
        MemoryClusterLease(TurnableClock()).acquire(HERE, ttl_s)
