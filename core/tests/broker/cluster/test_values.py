"""What plugins have persisted on a node that is gone: the hook ``values_adopted``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_harness.nodes import Nodes
from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.services.plugin import Context


class Keeper:
    """A plugin that persists values."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.contexts: list[Context] = []
        self.adopted: list[Mapping[str, bytes]] = []
        self.found: list[Mapping[str, bytes]] = []

    @hookimpl
    def configure(self, context: Context) -> None:
        self.contexts.append(context)

    @hookimpl
    async def start(self, context: Context) -> None:
        self.found.append(await context.persisted())

    @hookimpl
    def values_adopted(self, values: Mapping[str, bytes]) -> None:
        self.adopted.append(values)
        if self.fails:
            raise ValueError("broken")


def cluster(count: int, **plugins: Keeper) -> Nodes:
    """Returns brokers that share these plugins' objects, as they share their stores."""
    return Nodes(count, plugins=plugins)


def test_values_adopted_brings_each_value_to_one_node() -> None:
    """Each plugin gets its own, once in the cluster; what the living have persisted stays theirs."""
    one, other = Keeper(), Keeper()
    nodes = cluster(3, one=one, other=other)
    for number, context in enumerate(one.contexts):
        context.persist(f"key{number}", b"%d" % number)
    other.contexts[2].persist("its", b"value")
    nodes.settle()
    nodes.kill(2)
    nodes.advance(1)

    assert one.adopted == [{"key2": b"2"}]
    assert other.adopted == [{"its": b"value"}]


def test_values_adopted_brings_each_value_once_when_two_nodes_are_gone_at_once() -> None:
    """Also if the end of the second one is known while the values of the first one are being adopted."""
    one = Keeper()
    nodes = cluster(3, one=one)
    for number, context in enumerate(one.contexts):
        context.persist(f"key{number}", b"%d" % number)
    nodes.settle()
    gone = [nodes.backends[number].me for number in (1, 2)]
    for number, node in zip((1, 2), gone, strict=True):
        nodes.kill(number, down=False)
        nodes.stores.sessions.bury(node)
    for node in gone:
        nodes.backends[0].listener.member_changed(Member(node, MemberState.DOWN))
    nodes.advance(2)

    assert sorted(key for values in one.adopted for key in values) == ["key1", "key2"]


def test_values_adopted_that_raises_harms_nobody() -> None:
    """It is counted, and the values are found at the next start of a broker that finds their owner gone."""
    bad, good = Keeper(fails=True), Keeper()
    nodes = cluster(2, bad=bad, good=good)
    for each in (bad, good):
        each.contexts[1].persist("key", b"x")
    nodes.settle()
    nodes.kill(1)
    nodes.advance(1)
    metrics: Any = nodes.brokers[0].assembly.metrics
    failures = metrics.sum("plugin.failures")
    nodes.kill(0)
    nodes.stores.sessions.bury(nodes.backends[0].me)
    nodes.add()

    assert good.adopted == [{"key": b"x"}]
    assert failures == 1
    assert bad.found[-1] == {"key": b"x"}


def test_persisted_values_are_those_of_this_node() -> None:
    """C12: a node that starts does not take what another one has, which is alive."""
    keeper = Keeper()
    nodes = cluster(1, keeper=keeper)
    keeper.contexts[0].persist("key", b"x")
    nodes.settle()
    nodes.add()

    assert keeper.found == [{}, {}]
