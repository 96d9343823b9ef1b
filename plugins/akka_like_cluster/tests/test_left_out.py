"""Members that the core takes no more: it has as many others as it can."""

from __future__ import annotations

from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.settings import AkkaSettings
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.mesh.backend import MeshBackend
from kinmqtt_spi.services.cluster import GONE, Member, MemberState
from kinmqtt_spi.testing.build import HERE
from kinmqtt_spi.testing.cluster_base import News
from kinmqtt_spi.values import NodeIdentity

FIRST, SECOND, THIRD, FOURTH = (NodeIdentity(f"other{number}", 1000 + number) for number in range(1, 5))


class Full(News):
    """A core that takes two other nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[NodeIdentity] = []

    def member_changed(self, member: Member) -> None:
        if member.state in GONE and member.node in self.others:
            self.others.remove(member.node)
        elif member.state not in GONE and member.node not in (HERE, *self.others):
            if len(self.others) == 2:
                raise ServiceUnavailable("2 others are the most")
            self.others.append(member.node)
        super().member_changed(member)


def begun() -> tuple[AkkaBackend, Full, BareContext]:
    """A backend that knows of four others, two more than its core takes."""
    core = Full()
    context = BareContext("akka_like_cluster", AkkaSettings(), node=HERE)
    backend = AkkaBackend(context, AkkaSettings())
    MeshBackend.start(backend, HERE, core)
    for node in (FIRST, SECOND, THIRD, FOURTH):
        backend.member_changed(Member(node, MemberState.JOINING), f"127.0.0.1:{node.uid}")
        backend.member_changed(Member(node, MemberState.UP), f"127.0.0.1:{node.uid}")
    return backend, core, context


def test_a_member_that_was_left_out_is_offered_again_when_another_has_gone() -> None:
    """One place, one member: the one that has waited longest, as it is now."""
    backend, core, _ = begun()
    assert core.others == [FIRST, SECOND]

    backend.member_changed(Member(FIRST, MemberState.REMOVED, False), "")

    assert core.others == [SECOND, THIRD]
    assert [each.node for each in backend.members()] == [HERE, SECOND, THIRD]
    assert backend._states.keys() == {SECOND, THIRD}


def test_a_member_that_has_gone_is_not_offered_again() -> None:
    """The next one takes the place."""
    backend, core, _ = begun()

    backend.member_changed(Member(THIRD, MemberState.REMOVED, False), "")
    backend.member_changed(Member(SECOND, MemberState.DOWN, False), "127.0.0.1:1002")

    assert core.others == [FIRST, FOURTH]


def test_who_is_left_out_is_told_once() -> None:
    """A change of such a member, or a place that another one takes, is no news."""
    backend, _, context = begun()

    backend.member_changed(Member(FOURTH, MemberState.LEAVING), "127.0.0.1:1004")
    backend.member_changed(Member(FIRST, MemberState.REMOVED, False), "")

    assert context.log.texts("error") == [
        "node other3 is left out: 2 others are the most",
        "node other4 is left out: 2 others are the most",
    ]
