"""The hooks of the cluster, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import succeed

from core_harness.batches import batch_of
from core_harness.house import House
from kinmqtt.broker.lifecycle import STOP_LIMIT_S
from kinmqtt.settings.broker import BrokerSettings
from kinmqtt_spi import Message, hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.services.cluster import ClusterListener, Member, MemberState, RouteChange
from kinmqtt_spi.values import MessageId, NodeIdentity

OTHER = NodeIdentity("other", 9)


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


class Backend(SingleNode):
    """A backend that the test speaks for."""

    def __init__(self) -> None:
        super().__init__()
        self.news: ClusterListener
        self.did: list[object] = []
        self.leave_s = 0.0

    def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
        self.news = listener
        self.did.append("start")
        super().start(node, listener)

    def routes_update(self, version: int, added: Any, removed: Any) -> None:
        self.did.append((list(added), list(removed)))

    def up(self) -> None:
        self.did.append("up")
        super().up()

    def leave(self, deadline_s: float) -> None:
        self.did.append("leave")
        self.leave_s = deadline_s
        super().leave(deadline_s)

    def stop(self) -> None:
        self.did.append("stop")
        super().stop()


class Provider:
    """Provides the cluster backend."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    @hookimpl
    def cluster_backend(self, context: Any) -> Any:
        return self.backend() if callable(self.backend) else self.backend


# cluster_backend


def test_cluster_backend_of_the_only_plugin_is_used() -> None:
    """The plugin's backend is started, learns what this node's subscribers want, and is stopped."""
    backend = Backend()
    house = House(plugins={"cluster": Provider(backend)})

    house.connect("c").subscribe("a").unsubscribe("a")
    house.result(house.broker.stop())

    assert house.assembly.providers["cluster"] == "cluster"
    assert backend.did == [
        "start",
        "up",
        ([RouteChange("a", qos=0)], []),
        ([], [RouteChange("a")]),
        "leave",
        "stop",
    ]


@pytest.mark.parametrize(("leave_s", "limit_s"), [(60.0, 60.0), (1.0, STOP_LIMIT_S)])
def test_cluster_backend_may_hand_sessions_off_as_long_as_clients_may_take(leave_s: float, limit_s: float) -> None:
    """The operator decides how long a planned leave takes; the least is what any service gets to stop."""
    backend = Backend()
    house = House(settings=BrokerSettings(leave_s=leave_s), plugins={"cluster": Provider(backend)})

    house.result(house.broker.stop())

    assert backend.leave_s == limit_s


def test_cluster_backend_brings_messages_of_other_nodes() -> None:
    """They go to this node's subscribers, under the id they have."""
    backend = Backend()
    house = House(plugins={"cluster": Provider(backend)})
    sub = house.connect("sub").subscribe("t", 1)

    answers: list[bytes] = []
    answer: Any = backend.news.received(OTHER, batch_of(Message("t", b"x", 1, id=MessageId(9, 1))), True)
    answer.addCallback(answers.append)
    house.settle()

    assert sub.messages == [("t", b"x", 1)]
    assert answers == [b""]


def test_cluster_backend_takes_sessions_away() -> None:
    """A client whose session another node has claimed is disconnected here."""
    backend = Backend()
    house = House(plugins={"cluster": Provider(backend)})
    peer = house.connect("c", clean_start=False)

    backend.news.session_claimed("c", 2, OTHER)
    house.settle()

    assert peer.closed
    assert house.broker.client("c") is None


@pytest.mark.parametrize("backend", [broken, lambda: None, lambda: object(), lambda: succeed(SingleNode())])
def test_cluster_backend_that_fails_stops_the_assembly(backend: Callable[[], Any]) -> None:
    """A plugin that raises, or answers anything but a backend, keeps the broker from starting, and is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad'"):
        House(plugins={"bad": Provider(backend)})


# cluster_arbiter


class ArbiterProvider:
    """Provides an arbiter in memory."""

    def __init__(self) -> None:
        self.arbiter = MemoryClusterArbiter()

    @hookimpl
    def cluster_arbiter(self, context: Any) -> MemoryClusterArbiter:
        return self.arbiter


def arbiter_of(plugins: dict[str, Any], **more: Any) -> tuple[object, House]:
    """The arbiter that a cluster backend gets from a broker with these plugins, and the broker."""
    backend = Backend()
    house = House(plugins={"cluster": Provider(backend), **plugins}, **more)
    return backend.news.arbiter, house


def test_cluster_arbiter_of_the_only_plugin_reaches_the_backend() -> None:
    """The backend that decides a split finds it at its listener; the broker says who provides it."""
    plugin = ArbiterProvider()

    arbiter, house = arbiter_of({"arbiter": plugin})

    assert arbiter is plugin.arbiter
    assert house.assembly.providers["arbiter"] == "arbiter"


def test_cluster_arbiter_is_optional() -> None:
    """Without a plugin that provides one the backend finds none, and the broker starts."""
    arbiter, house = arbiter_of({})

    assert arbiter is None
    assert "arbiter" not in house.assembly.providers


def test_cluster_arbiter_of_the_named_plugin_is_used() -> None:
    """Of two plugins the settings' one provides it; without a name the broker says what to write."""
    plugins = {"one": ArbiterProvider(), "two": ArbiterProvider()}

    arbiter, _ = arbiter_of(plugins, services={"arbiter": "two"})

    assert arbiter is plugins["two"].arbiter
    with pytest.raises(
        AssemblyError, match=r"'one' and 'two' both provide the arbiter service; name one: services\.arbiter = 'one'"
    ):
        arbiter_of(plugins)


def test_cluster_arbiter_must_be_provided_by_the_named_plugin() -> None:
    """A name that leads to no arbiter keeps the broker from starting: a split would be decided without one."""
    with pytest.raises(AssemblyError, match=r"services\.arbiter names plugin 'cluster', which does not provide that"):
        arbiter_of({"one": ArbiterProvider()}, services={"arbiter": "cluster"})


# cluster_member


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, MemberState, bool]] = []

    @hookimpl
    def cluster_member(self, member: Member) -> None:
        self.told.append((member.node.name, member.state, member.reachable))


def test_cluster_member_is_told_of_each_change() -> None:
    """This node's own changes, and those of the others, in the order in which the backend reports them."""
    backend, one, two = Backend(), Diary(), Diary()
    house = House(plugins={"cluster": Provider(backend), "one": one, "two": two})

    backend.news.member_changed(Member(OTHER, MemberState.UP))
    backend.news.member_changed(Member(OTHER, MemberState.UP, reachable=False))
    house.settle()

    assert one.told == [
        ("test", MemberState.JOINING, True),
        ("test", MemberState.UP, True),
        ("other", MemberState.UP, True),
        ("other", MemberState.UP, False),
    ]
    assert two.told == one.told


def test_cluster_member_that_raises_harms_nobody() -> None:
    """The broker starts, other plugins are told, and the failure is counted."""

    class Broken:
        @hookimpl
        def cluster_member(self) -> None:
            broken()

    diary = Diary()
    house = House(plugins={"broken": Broken(), "diary": diary})

    assert diary.told == [("test", MemberState.JOINING, True), ("test", MemberState.UP, True)]
    assert house.assembly.metrics.sum("plugin.failures") == 2
