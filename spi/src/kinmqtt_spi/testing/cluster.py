"""The contract of a cluster backend: alone and with a second node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from kinmqtt_spi.errors import NodeGone
from kinmqtt_spi.services.cluster import ClusterBackend, Guarantee, Located, Member, MemberState, RouteChange
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE
from kinmqtt_spi.testing.cluster_base import LIMIT_S, Gate, HandOffState, Late, News, Pair, ReceivedHandOff
from kinmqtt_spi.testing.cluster_batches import BatchesContract
from kinmqtt_spi.testing.cluster_pairs import PairsContract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import NodeIdentity

__all__ = ["ClusterBackendContract", "Gate", "HandOffState", "Late", "News", "Pair", "ReceivedHandOff"]

NOWHERE: Final = NodeIdentity("nowhere", 0xBAD)
"""A node that is no member."""


class ClusterBackendContract(PairsContract, BatchesContract):
    """Override the fixture ``cluster_backend``: a backend that was not started."""

    @behaviour("CLUSTER-01")
    def test_cluster_01_it_is_told_when_it_is_up(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """This node is JOINING after ``start`` and UP after ``up``, and the listener was notified of both."""
        news = News()
        drive(cluster_backend.start(HERE, news))
        started = news.states_of(HERE)
        drive(cluster_backend.up())

        assert started[-1:] == [MemberState.JOINING]
        assert MemberState.UP not in started
        assert news.states_of(HERE)[-1] is MemberState.UP
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-02")
    def test_cluster_02_it_is_a_member(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``members`` has this node, JOINING and later UP, reachable, once."""
        drive(cluster_backend.start(HERE, News()))
        joining = [each for each in cluster_backend.members() if each.node == HERE]
        drive(cluster_backend.up())

        assert joining == [Member(HERE, MemberState.JOINING)]
        assert [each for each in cluster_backend.members() if each.node == HERE] == [Member(HERE, MemberState.UP)]
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-03")
    def test_cluster_03_alone_no_route_is_waited_for(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Without other nodes a barrier has no laggards, and routes can be announced before and after ``up``."""
        drive(cluster_backend.start(HERE, News()))
        cluster_backend.routes_update(1, [RouteChange("a/#"), RouteChange("b", "group")], [])
        drive(cluster_backend.up())
        cluster_backend.routes_update(2, [], [RouteChange("a/#")])

        assert list(drive(cluster_backend.route_barrier(2, LIMIT_S))) == []
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-04")
    def test_cluster_04_nobody_has_to_let_go(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A claim of a client id without an owner, or owned by an earlier process of this node, completes."""
        self._started(cluster_backend, drive)
        for epoch, owner in enumerate((None, HERE, NodeIdentity(HERE.name, 0x01D)), 1):
            drive(cluster_backend.claim("client", epoch, owner))
            cluster_backend.release("client", epoch)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-05")
    def test_cluster_05_an_unknown_node_is_named(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Calls for a node that is no member raise NodeGone, which names that node."""
        self._started(cluster_backend, drive)
        calls: list[Callable[[], object]] = [
            lambda: cluster_backend.push(NOWHERE, b"batch"),
            lambda: drive(cluster_backend.deliver(NOWHERE, b"batch", 1)),
            lambda: cluster_backend.link(NOWHERE),
            lambda: drive(cluster_backend.hand_off("client", 1, NOWHERE)),
            lambda: drive(cluster_backend.ask(NOWHERE, "method", b"", LIMIT_S)),
        ]
        for call in calls:
            with pytest.raises(NodeGone) as raised:
                call()
            assert NOWHERE.name in str(raised.value)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-06")
    def test_cluster_06_leaving_is_told(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``leave`` notifies the listener that this node is LEAVING, and completes."""
        news = self._started(cluster_backend, drive)
        drive(cluster_backend.leave(LIMIT_S))

        assert MemberState.LEAVING in news.states_of(HERE)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-07")
    def test_cluster_07_it_stops_again(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A second stop, or a stop without leaving, raises nothing, and nothing is reported any more."""
        news = self._started(cluster_backend, drive)
        drive(cluster_backend.stop())
        told = news.reports
        drive(cluster_backend.stop())

        assert news.reports == told

    @behaviour("CLUSTER-08")
    def test_cluster_08_it_says_what_it_promises(self, cluster_backend: ClusterBackend) -> None:
        """``guarantees`` has the backend's guarantees before it is started."""
        assert isinstance(cluster_backend.guarantees, Guarantee)

    @behaviour("CLUSTER-39")
    def test_cluster_39_an_epoch_is_not_forgotten(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``locate`` returns None where the session store knows owners, else the owner and an epoch above all claims.

        A client id that was never claimed has no owner. The epoch does not fall when the claim is released.
        """
        news = self._started(cluster_backend, drive)
        before = drive(cluster_backend.locate("client"))
        epoch = 7 if before is None else before.epoch + 7
        drive(cluster_backend.claim("client", epoch, None))
        news.owns.append(("client", epoch))
        cluster_backend.register("client", epoch)
        cluster_backend.end_claim("client")
        claimed = drive(cluster_backend.locate("client"))
        cluster_backend.end_claim("client")
        news.owns.clear()
        cluster_backend.release("client", epoch)
        released = drive(cluster_backend.locate("client"))
        cluster_backend.end_claim("client")

        if before is None:
            assert (claimed, released) == (None, None)
        else:
            assert isinstance(before, Located)
            assert before.owner is None
            assert before.epoch >= 0
            assert claimed is not None
            assert claimed.owner == HERE
            assert claimed.epoch >= epoch
            assert released is not None
            assert released.owner is None
            assert released.epoch >= epoch
        drive(cluster_backend.stop())
