"""A cluster of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kinmqtt_spi.errors import NodeGone
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.services.cluster import Guarantee, HandOff, Member, MemberState, RouteChange
from kinmqtt_spi.values import NodeIdentity

HERE = NodeIdentity("here", 1)
ELSEWHERE = NodeIdentity("elsewhere", 0xAB)


class Listener:
    """Keeps what it is told of members; a single node has no other news."""

    shares_stores = False

    arbiter = None

    def __init__(self) -> None:
        self.members: list[Member] = []

    def member_changed(self, member: Member) -> None:
        self.members.append(member)

    def received(self, origin: object, batch: object, assured: object) -> bytes:
        raise AssertionError

    def asked(self, origin: object, method: object, data: object) -> bytes:
        raise AssertionError

    def routes_changed(self, node: object, version: object, added: object, removed: object) -> None:
        raise AssertionError

    def expelled(self, reason: object) -> None:
        raise AssertionError(reason)

    def session_claimed(self, client_id: object, epoch: object, owner: object) -> None:
        raise AssertionError

    def handing(self, client_id: object, epoch: object, origin: object) -> HandOff:
        raise AssertionError

    def owned(self) -> Iterable[tuple[str, int]]:
        raise AssertionError

    def epoch_of(self, client_id: object) -> int | None:
        raise AssertionError


def test_a_single_node_announces_itself() -> None:
    """The node joins, is UP when the broker is, says when it leaves, and is the only member."""
    listener, cluster = Listener(), SingleNode()
    before = cluster.members()

    cluster.start(HERE, listener)
    joining = cluster.members()
    cluster.up()
    up = cluster.members()
    cluster.leave(1.0)
    cluster.stop()
    cluster.up()
    cluster.leave(1.0)

    assert (before, cluster.members()) == ((), ())
    assert (joining, up) == ((Member(HERE, MemberState.JOINING),), (Member(HERE, MemberState.UP),))
    states = [MemberState.JOINING, MemberState.UP, MemberState.LEAVING]
    assert listener.members == [Member(HERE, state) for state in states]


def test_nobody_lags_behind() -> None:
    """Routes are known everywhere at once, and a claim has nobody to wait for."""
    cluster = SingleNode()
    cluster.start(HERE, Listener())

    cluster.routes_update(1, [RouteChange("a")], [])
    laggards = cluster.route_barrier(1, 5.0)
    cluster.claim("c", 1, HERE)
    cluster.release("c", 1)

    assert laggards == ()
    assert cluster.locate("c") is None
    assert cluster.guarantees == (
        Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: cluster.push(ELSEWHERE, b"batch"),
        lambda cluster: cluster.deliver(ELSEWHERE, b"batch", 1),
        lambda cluster: cluster.link(ELSEWHERE),
        lambda cluster: cluster.hand_off("c", 1, ELSEWHERE),
        lambda cluster: cluster.ask(ELSEWHERE, "method", b"", 1.0),
    ],
)
def test_what_is_meant_for_another_node_fails_by_its_name(call: Callable[[SingleNode], object]) -> None:
    """Nothing is swallowed: a message for a node that is not there must not be acknowledged."""
    cluster = SingleNode()
    cluster.start(HERE, Listener())

    with pytest.raises(NodeGone, match=r"elsewhere \(00000000000000ab\)"):
        call(cluster)
