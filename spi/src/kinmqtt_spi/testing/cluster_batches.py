"""The contract of a cluster backend: batches of messages between two nodes."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import pytest

from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterBackend, Guarantee, LinkState, RouteChange
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster_base import LIMIT_S, Late, NodesContract, Pair, failing, is_up, recording, wait
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import Maybe

MIB: Final = 1 << 20
BATCHES: Final = (b"", b"\0", b"batch\r\n", bytes(range(256)), bytes(MIB))


class BatchesContract(NodesContract):
    """Batches reach the other node whole, and those of ``deliver`` once and answered."""

    @behaviour("CLUSTER-10", needs="has_peers")
    def test_cluster_10_batches_come_whole(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Batches arrive as the bytes that were sent, with their node and whether ``deliver`` sent them.

        The answer of ``deliver`` is the other node's, unread. Both may be empty or have a MiB.
        """
        pair = self._pair(cluster_backend, drive)
        pair.others.commit = lambda batch: batch[::-1]
        pushed = [pair.here.push(THERE, batch) for batch in BATCHES]
        answers = [drive(pair.here.deliver(THERE, batch, 1)) for batch in BATCHES]
        wait(lambda: len(pair.others.batches) >= 2 * len(BATCHES), drive)

        assert pushed == [True] * len(BATCHES)
        assert answers == [batch[::-1] for batch in BATCHES]
        assert sorted((batch, assured) for _, batch, assured in pair.others.batches) == sorted(
            (batch, assured) for batch in BATCHES for assured in (False, True)
        )
        assert {origin for origin, _, _ in pair.others.batches} == {HERE}
        assert {type(data) for data in (*pair.others.payloads, *answers)} == {bytes}
        assert pair.news.batches == []
        self._end(pair, drive)

    @behaviour("CLUSTER-11", needs="has_peers")
    def test_cluster_11_acknowledged_means_committed(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``deliver`` completes only after the other node has committed the messages."""
        pair = self._pair(cluster_backend, drive)
        events: list[str] = []
        pair.others.commit = lambda batch: Late(recording(events, "committed", b"yes"))

        answer = drive(pair.here.deliver(THERE, b"batch", 1))
        events.append("answered")

        assert answer == b"yes"
        assert events == ["committed", "answered"]
        self._end(pair, drive)

    @behaviour("CLUSTER-12", needs="has_peers")
    def test_cluster_12_a_failed_commit_is_told(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """If the other node can't commit, ``deliver`` fails with ServiceUnavailable, and not as if it were gone.

        Later batches are accepted again.
        """
        pair = self._pair(cluster_backend, drive)
        fail = failing(ServiceUnavailable("the disk is full"))
        commits: list[Callable[[bytes], Maybe[bytes]]] = [lambda batch: fail(), lambda batch: Late(fail)]
        for commit in commits:
            pair.others.commit = commit
            with pytest.raises(ServiceUnavailable) as raised:
                drive(pair.here.deliver(THERE, b"refused", 1))
            assert not isinstance(raised.value, NodeGone)

        pair.others.commit = lambda batch: b"committed"
        assert drive(pair.here.deliver(THERE, b"accepted", 1)) == b"committed"
        self._end(pair, drive)

    @behaviour("CLUSTER-19", needs="has_peers")
    def test_cluster_19_a_link_tells_how_it_does(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """The link to a reachable node has credit, and valid numbers."""
        pair = self._pair(cluster_backend, drive)
        link = pair.here.link(THERE)

        assert isinstance(link, LinkState)
        assert link.credit_bytes > 0
        assert link.queued_bytes >= 0
        assert isfinite(link.round_trip_s)
        assert link.round_trip_s >= 0
        self._end(pair, drive)

    @behaviour("CLUSTER-20", needs="can_stall")
    def test_cluster_20_a_full_link_takes_no_more(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """The queue of a link is limited, and so is its credit. It recovers when the node does.

        The batches that it accepted arrive in order.
        """
        pair = self._pair(cluster_backend, drive)
        credit = pair.here.link(THERE).credit_bytes
        go_on = self.stall(pair.there)
        accepted, refused = _fill(pair)
        full = pair.here.link(THERE)
        go_on()
        size = len(accepted[0])
        wait(lambda: pair.here.link(THERE).credit_bytes >= size, drive)
        last = b"last".ljust(size)
        pushed = pair.here.push(THERE, last)
        wait(lambda: last in pair.others.payloads, drive)

        assert refused
        assert full.credit_bytes < size
        assert full.queued_bytes <= credit + size
        assert pushed is True
        assert [batch for batch in pair.others.payloads if batch not in refused] == [*accepted, last]
        self._end(pair, drive)

    @behaviour("CLUSTER-21", needs="has_peers")
    def test_cluster_21_a_publisher_is_heard_in_order(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """With ORDER_PER_PUBLISHER, batches for a node arrive in the order of the calls.

        Those of ``push`` and of ``deliver`` do not overtake each other.
        """
        if Guarantee.ORDER_PER_PUBLISHER not in cluster_backend.guarantees:
            pytest.skip("the backend does not guarantee ORDER_PER_PUBLISHER")
        pair = self._pair(cluster_backend, drive)
        answers: list[Maybe[bytes]] = []
        for number in range(1, 9, 2):
            pair.here.push(THERE, b"%d" % number)
            answers.append(pair.here.deliver(THERE, b"%d" % (number + 1), 1))
        for answer in answers:
            drive(answer)

        assert pair.others.payloads == [b"%d" % number for number in range(1, 9)]
        self._end(pair, drive)

    @behaviour("CLUSTER-23", needs="has_peers")
    def test_cluster_23_nothing_goes_to_who_is_gone(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Batches and questions for a node that has left fail with NodeGone, and no barrier waits for it."""
        pair = self._pair(cluster_backend, drive)
        self._gone(pair, drive)
        pair.here.routes_update(1, [RouteChange("a")], [])

        with pytest.raises(NodeGone):
            pair.here.push(THERE, b"pushed")
        with pytest.raises(NodeGone):
            drive(pair.here.deliver(THERE, b"delivered", 1))
        with pytest.raises(NodeGone):
            drive(pair.here.ask(THERE, "method", b"", LIMIT_S))
        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        drive(pair.here.stop())

    @behaviour("CLUSTER-27", needs="can_stall")
    def test_cluster_27_a_batch_is_dropped_whole(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``push`` returns True for a batch within the link's credit, and the batch arrives.

        It returns False for a batch that the link does not accept, and no part of it arrives.
        """
        pair = self._pair(cluster_backend, drive)
        go_on = self.stall(pair.there)
        accepted, refused = _fill(pair)
        go_on()
        drive(pair.here.deliver(THERE, b"last", 1))
        wait(lambda: len(pair.others.batches) > len(accepted), drive)

        assert refused
        assert sorted(pair.others.payloads) == sorted([*accepted, b"last"])
        self._end(pair, drive)

    @behaviour("CLUSTER-28", needs="can_stall")
    def test_cluster_28_a_stalled_node_is_waited_for(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """``deliver`` to a node that is stalled, and is a member, never ends because of time.

        It reaches the node once, and returns its answer, when the node goes on.
        """
        pair = self._pair(cluster_backend, drive)
        pair.others.commit = lambda batch: b"late"
        go_on = self.stall(pair.there)
        waited: list[Maybe[Any]] = [
            pair.here.deliver(THERE, b"batch", 1),
            self._after(clock, self.stall_s, go_on),
        ]
        [answer, _] = drive.together(waited)
        drive(pair.here.deliver(THERE, b"last", 1))

        assert answer == b"late"
        assert pair.others.payloads == [b"batch", b"last"]
        self._end(pair, drive)

    @behaviour("CLUSTER-29", needs="has_peers")
    def test_cluster_29_who_is_gone_answers_nothing(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A ``deliver`` that the other node has not answered fails with NodeGone when that node leaves."""
        pair = self._pair(cluster_backend, drive)
        commit, give = self.held(drive)
        pair.others.commit = lambda batch: commit
        answer = pair.here.deliver(THERE, b"batch", 1)
        wait(lambda: pair.others.payloads == [b"batch"], drive)
        self._gone(pair, drive)

        with pytest.raises(NodeGone) as raised:
            drive(answer)
        assert THERE.name in str(raised.value)
        give(b"too late")
        drive(pair.here.stop())

    @behaviour("CLUSTER-30", needs="can_cut")
    def test_cluster_30_a_lost_connection_loses_nothing(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """If connections are lost, each batch of ``deliver`` still reaches the node once, and is answered.

        It does not matter whether the batch or its answer was on its way. With ORDER_PER_PUBLISHER they are in order.
        """
        pair = self._pair(cluster_backend, drive)
        pair.others.commit = lambda batch: Late(lambda: b"answer to " + batch, looks=20)
        batches = [b"%d" % number for number in range(12)]
        answers: list[Maybe[bytes]] = []
        for number, batch in enumerate(batches):
            answers.append(pair.here.deliver(THERE, batch, 1))
            if number % 4 == 1:  # While these are committed.
                drive(self._pause(clock, number * self.pace_s))
            if number % 2 == 1:  # Or while they are on their way.
                self.cut(pair.here)
        results = drive.together(answers)

        ordered = Guarantee.ORDER_PER_PUBLISHER in cluster_backend.guarantees
        received = pair.others.payloads
        assert results == [b"answer to " + batch for batch in batches]
        assert (received if ordered else sorted(received, key=int)) == batches
        self._end(pair, drive)

    @behaviour("CLUSTER-31", needs="has_peers")
    def test_cluster_31_each_batch_has_its_own_answer(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Each ``deliver`` returns the answer to its own batch, in whatever order the other node commits them.

        If one can't be committed, only that one fails.
        """
        pair = self._pair(cluster_backend, drive)
        fail = failing(ServiceUnavailable("the disk is full"))

        def commit(batch: bytes) -> Maybe[bytes]:
            number = int(batch)
            answer = recording([], "", b"answer to " + batch)
            if number % 4 == 3:
                return answer()
            return Late(fail if number % 4 == 1 else answer, looks=200 - 20 * number)

        pair.others.commit = commit
        answers = [pair.here.deliver(THERE, b"%d" % number, 1) for number in range(8)]
        results: list[bytes | None] = []
        for answer in answers:
            try:
                results.append(drive(answer))
            except ServiceUnavailable:
                results.append(None)

        assert results == [None if number % 4 == 1 else b"answer to %d" % number for number in range(8)]
        self._end(pair, drive)

    @behaviour("CLUSTER-32", needs="has_peers")
    def test_cluster_32_an_unreadable_batch_is_not_acknowledged(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A batch for which the other node's listener raises MalformedBatch is not acknowledged.

        Both nodes stay members, and later calls in both directions complete.
        """
        pair = self._pair(cluster_backend, drive)
        broken = True

        def commit(batch: bytes) -> bytes:
            if broken and batch == b"malformed":
                raise MalformedBatch("this is no batch")
            return b"read"

        pair.others.commit = commit
        pair.here.push(THERE, b"malformed")
        answer = pair.here.deliver(THERE, b"malformed", 1)
        wait(lambda: b"malformed" in pair.others.payloads, drive)
        drive(self._pause(clock, 1.0))
        broken = False
        try:
            acknowledged = drive(answer)
        except (ServiceUnavailable, MalformedBatch):
            acknowledged = b"read"  # A backend that sends it again, instead, has this answer now.

        assert acknowledged == b"read"
        assert drive(pair.here.deliver(THERE, b"later", 1)) == b"read"
        assert drive(pair.there.deliver(HERE, b"back", 1)) == b""
        assert drive(pair.here.ask(THERE, "method", b"", LIMIT_S)) == b""
        wait(lambda: is_up(pair.here, THERE) and is_up(pair.there, HERE), drive)
        self._end(pair, drive)


def _fill(pair: Pair) -> tuple[list[bytes], list[bytes]]:
    """Push more batches than the link to a stalled node accepts; returns those accepted and those refused."""
    credit = pair.here.link(THERE).credit_bytes
    size = min(max(credit // 32, 8), MIB)
    accepted: list[bytes] = []
    refused: list[bytes] = []
    for number in range(credit // size + 3):
        batch = b"%08d" % number + bytes(size - 8)
        fits = pair.here.link(THERE).credit_bytes >= size
        pushed = pair.here.push(THERE, batch)
        assert pushed or not fits, "a batch within the link's credit was refused"
        (accepted if pushed else refused).append(batch)
    return accepted, refused
