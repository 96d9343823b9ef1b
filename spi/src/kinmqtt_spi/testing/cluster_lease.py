"""The contract of the lease that decides a split of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.contract import Contract, many
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import NodeIdentity

TTL_S: Final = 60.0
"""How long the lease lasts in most tests. Ends of leases and calls are 5 s apart: real time may pass between."""
BEFORE_S: Final = 50.0
"""Time after which the lease still lasts."""
AFTER_S: Final = 20.0
"""Time that ends the lease after :data:`BEFORE_S` have passed."""

AT_ONCE: Final = 7
"""How many nodes call at once."""


class ClusterLeaseContract(Contract):
    """Override the fixture ``cluster_lease``: a lease that nobody holds, as the node ``HERE`` uses it.

    Where each node has an object of its own, override :meth:`peer` too; and :meth:`pass_time` where the store does
    not go by the fixture ``clock``.
    """

    can_fail = False
    """Whether the suite may make the store fail for all nodes: override :meth:`failing`."""
    survives_restart = False
    """Whether the lease is in a store that outlives the processes of nodes: override :meth:`reopened`."""

    @pytest.fixture
    def cluster_lease(self) -> ClusterLease:
        """The lease under test."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture cluster_lease")

    def peer(self, cluster_lease: ClusterLease) -> ClusterLease:
        """The same lease as another node uses it. The default is for nodes that use one object."""
        return cluster_lease

    def pass_time(self, clock: TurnableClock, seconds: float) -> None:
        """Let time pass for the store."""
        clock.advance(seconds)

    def failing(self, cluster_lease: ClusterLease) -> Callable[[], object]:
        """Make the store fail from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    def reopened(self, cluster_lease: ClusterLease, drive: Driver) -> ClusterLease:
        """End the process of the node ``HERE`` without a release, and open the lease again."""
        raise NotImplementedError(f"{type(self).__name__} sets survives_restart, and does not override reopened")

    # One holder

    @behaviour("LEASE-01")
    def test_lease_01_a_free_lease_is_taken(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """A node that asks for a lease that nobody holds has it: ``acquire`` returns ``True``."""
        assert drive(cluster_lease.acquire(HERE, TTL_S)) is True

    @behaviour("LEASE-02")
    def test_lease_02_another_node_is_refused(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """While a node holds the lease ``acquire`` returns ``False`` for others, and the holder keeps it."""
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))

        refused = [drive(peer.acquire(THERE, TTL_S)) for _ in range(2)]
        renewed = drive(cluster_lease.acquire(HERE, TTL_S))

        assert (refused, renewed) == ([False, False], True)
        assert drive(peer.acquire(THERE, TTL_S)) is False

    @behaviour("LEASE-03")
    def test_lease_03_a_later_process_is_another_node(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """A later process of the holder's node, with the same name and another uid, does not hold the lease."""
        drive(cluster_lease.acquire(HERE, TTL_S))

        assert drive(self.peer(cluster_lease).acquire(NodeIdentity(HERE.name, 0x01D), TTL_S)) is False

    @behaviour("LEASE-04")
    def test_lease_04_one_of_many_has_it(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """Of nodes that call at the same moment one has the lease, and it is the one that can renew it."""
        views = (cluster_lease, self.peer(cluster_lease))
        nodes = [NodeIdentity(f"n{uid}", uid) for uid in range(1, AT_ONCE + 1)]

        answers = drive.together(views[node.uid % 2].acquire(node, TTL_S) for node in nodes)
        later = [drive(views[node.uid % 2].acquire(node, TTL_S)) for node in nodes]

        assert sorted(answers) == [False] * (AT_ONCE - 1) + [True]
        assert later == answers

    # Its end

    @behaviour("LEASE-05")
    def test_lease_05_it_ends(self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock) -> None:
        """The lease ends ``ttl_s`` after it was taken, and not before; then another node may have it."""
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))

        self.pass_time(clock, BEFORE_S)
        before = drive(peer.acquire(THERE, TTL_S))
        self.pass_time(clock, AFTER_S)
        after = drive(peer.acquire(THERE, TTL_S))

        assert (before, after) == (False, True)
        assert drive(cluster_lease.acquire(HERE, TTL_S)) is False

    @behaviour("LEASE-06")
    def test_lease_06_a_renewal_counts(
        self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock
    ) -> None:
        """After a renewal the lease ends ``ttl_s`` after that, with the renewal's ``ttl_s``, longer or shorter."""
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))
        self.pass_time(clock, BEFORE_S)
        drive(cluster_lease.acquire(HERE, TTL_S))
        self.pass_time(clock, BEFORE_S)
        renewed = drive(peer.acquire(THERE, TTL_S))
        drive(cluster_lease.acquire(HERE, TTL_S))
        drive(cluster_lease.acquire(HERE, AFTER_S / 2))
        self.pass_time(clock, AFTER_S)

        assert renewed is False
        assert drive(peer.acquire(THERE, TTL_S)) is True

    @behaviour("LEASE-07")
    def test_lease_07_a_refusal_changes_nothing(
        self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock
    ) -> None:
        """An ``acquire`` that is refused does not change when the lease ends, neither to later nor to earlier."""
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))
        self.pass_time(clock, BEFORE_S)
        drive(peer.acquire(THERE, 10 * TTL_S))
        self.pass_time(clock, AFTER_S)
        ended = drive(peer.acquire(THERE, TTL_S))
        drive(cluster_lease.acquire(HERE, AFTER_S / 2))
        self.pass_time(clock, AFTER_S)

        assert ended is True
        assert drive(cluster_lease.acquire(HERE, TTL_S)) is False

    @behaviour("LEASE-08")
    def test_lease_08_who_lost_it_asks_again(
        self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock
    ) -> None:
        """A node whose lease has ended may have it again if nobody took it meanwhile."""
        drive(cluster_lease.acquire(HERE, TTL_S))
        self.pass_time(clock, BEFORE_S + AFTER_S)

        assert drive(cluster_lease.acquire(HERE, TTL_S)) is True
        assert drive(self.peer(cluster_lease).acquire(THERE, TTL_S)) is False

    @behaviour("LEASE-09")
    def test_lease_09_a_time_must_be_possible(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """A ``ttl_s`` that is zero, negative, infinite or no number raises ValueError, and takes nothing."""
        for ttl_s in (0.0, -1.0, inf, -inf, nan):
            with pytest.raises(ValueError):
                drive(cluster_lease.acquire(HERE, ttl_s))

        assert drive(self.peer(cluster_lease).acquire(THERE, TTL_S)) is True

    # Its release

    @behaviour("LEASE-10")
    def test_lease_10_a_released_lease_is_free(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """After ``release`` by its holder, another node has the lease at once."""
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))
        drive(cluster_lease.release(HERE))

        assert drive(peer.acquire(THERE, TTL_S)) is True
        assert drive(cluster_lease.acquire(HERE, TTL_S)) is False

    @behaviour("LEASE-11")
    def test_lease_11_nobody_releases_anothers(
        self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock
    ) -> None:
        """``release`` by a node that does not hold the lease, or has lost it, does nothing."""
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))
        drive(peer.release(THERE))
        drive(peer.release(NodeIdentity(HERE.name, 0x01D)))
        held = drive(peer.acquire(THERE, TTL_S))
        self.pass_time(clock, BEFORE_S + AFTER_S)
        drive(peer.acquire(THERE, TTL_S))
        drive(cluster_lease.release(HERE))

        assert held is False
        assert drive(cluster_lease.acquire(HERE, TTL_S)) is False

    @behaviour("LEASE-12")
    def test_lease_12_nothing_may_be_released(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """``release`` of a lease that nobody holds, and a second one, raise nothing."""
        drive(cluster_lease.release(HERE))
        drive(cluster_lease.acquire(HERE, TTL_S))
        drive(cluster_lease.release(HERE))
        drive(cluster_lease.release(HERE))

        assert drive(self.peer(cluster_lease).acquire(THERE, TTL_S)) is True

    # Failures and restarts

    @behaviour("LEASE-13", needs="can_fail")
    def test_lease_13_a_failure_is_no_answer(self, cluster_lease: ClusterLease, drive: Driver) -> None:
        """While the store fails both calls raise ServiceUnavailable, for the holder too.

        When it is back, the holder can renew the lease, and others can't take it.
        """
        peer = self.peer(cluster_lease)
        drive(cluster_lease.acquire(HERE, TTL_S))
        mend = self.failing(cluster_lease)

        for view, node in ((cluster_lease, HERE), (peer, THERE)):
            with pytest.raises(ServiceUnavailable):
                drive(view.acquire(node, TTL_S))
        with pytest.raises(ServiceUnavailable):
            drive(peer.release(THERE))
        mend()

        assert drive(peer.acquire(THERE, TTL_S)) is False
        assert drive(cluster_lease.acquire(HERE, TTL_S)) is True

    @behaviour("LEASE-14", needs="survives_restart")
    def test_lease_14_it_outlives_its_holder(
        self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock
    ) -> None:
        """If the holder's process ends without a release, the lease lasts until its time is over."""
        drive(cluster_lease.acquire(HERE, TTL_S))
        again = self.reopened(cluster_lease, drive)

        before = drive(again.acquire(THERE, TTL_S))
        self.pass_time(clock, BEFORE_S + AFTER_S)

        assert before is False
        assert drive(again.acquire(THERE, TTL_S)) is True

    # At random

    @behaviour("LEASE-15")
    def test_lease_15_at_most_one_holds_it(
        self, cluster_lease: ClusterLease, drive: Driver, clock: TurnableClock
    ) -> None:
        """With random calls of several nodes, and random pauses, each answer is that of one lease with one holder."""
        nodes = (HERE, THERE, NodeIdentity(HERE.name, 3))
        views = (cluster_lease, self.peer(cluster_lease), cluster_lease)

        @settings(
            max_examples=50, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(_steps())
        def run(steps: list[tuple[str, int, float]]) -> None:
            for node, view in zip(nodes, views, strict=True):
                drive(view.release(node))
            holder, now_s, ends_s = -1, 0.0, 0.0
            for call, number, seconds in steps:
                if call == "pass time":
                    self.pass_time(clock, seconds)
                    now_s += seconds
                elif call == "release":
                    drive(views[number].release(nodes[number]))
                    ends_s = 0.0 if holder == number else ends_s
                else:
                    expected = holder == number or now_s >= ends_s
                    assert drive(views[number].acquire(nodes[number], seconds)) is expected
                    if expected:
                        holder, ends_s = number, now_s + seconds

        run()


def _steps() -> st.SearchStrategy[list[tuple[str, int, float]]]:
    """Calls of three nodes, and pauses of 20 s; no lease ends within 5 s of a call."""
    number = st.integers(0, 2)
    acquire = st.tuples(st.just("acquire"), number, st.sampled_from([35.0, 95.0]))
    release = st.tuples(st.just("release"), number, st.just(0.0))
    pauses = st.tuples(st.just("pass time"), st.just(0), st.just(20.0))
    return many(acquire | release | pauses)
