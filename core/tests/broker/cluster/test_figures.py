"""``$SYS/brokers/`` and ``$SYS/cluster/``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from core_harness.house import House
from core_harness.nodes import Nodes
from kinmqtt.broker.cluster.figures import MAX_FIGURES_BYTES, topic_level
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.services.metric import SysScope, SysTopic

EVERY_10_S = BrokerSettings(sys_interval_s=10)


class Meter:
    """A plugin with topics of its own."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        return [
            SysTopic("$SYS/meter/here", lambda: "x" * self.size),
            SysTopic("$SYS/meter/all", lambda: "2", scope=SysScope.CLUSTER),
        ]


def shown(nodes: Nodes, number: int, filter: str) -> dict[str, str]:
    """The retained messages that a client of a node finds."""
    client = nodes.brokers[number].connect(f"watch-{filter}-{nodes.clock.now()}", 5).subscribe(filter)
    nodes.settle()
    return {topic: payload.decode() for topic, payload, _ in client.messages}


def test_each_node_shows_the_figures_of_all() -> None:
    """Under their names, with what they show below ``$SYS/broker/`` themselves."""
    nodes = Nodes(3, settings=EVERY_10_S)
    nodes.brokers[1].connect("c", 5)
    nodes.advance(11)

    for number in range(3):
        found = shown(nodes, number, "$SYS/brokers/+/clients/connected")
        assert found["$SYS/brokers/n2/clients/connected"] == "1"
        assert found.keys() == {f"$SYS/brokers/n{each}/clients/connected" for each in (1, 2, 3)}


def test_figures_of_a_node_that_is_gone_are_cleared() -> None:
    """Nobody takes the last figures of a dead node for its present ones."""
    nodes = Nodes(3, settings=EVERY_10_S)
    nodes.advance(11)
    nodes.kill(2)
    nodes.settle()

    assert shown(nodes, 0, "$SYS/brokers/n3/#") == {}
    assert shown(nodes, 0, "$SYS/cluster/members/+").keys() == {f"$SYS/cluster/members/n{each}" for each in (1, 2)}


def test_the_cluster_is_shown() -> None:
    """The states of its members, and its figures."""
    nodes = Nodes(2, settings=EVERY_10_S)
    nodes.brokers[1].connect("s", 5).subscribe("a/b")
    nodes.advance(11)
    found = shown(nodes, 0, "$SYS/cluster/#")

    assert found["$SYS/cluster/members/n1"] == found["$SYS/cluster/members/n2"] == "up"
    assert found["$SYS/cluster/nodes/up"] == "2"
    assert found["$SYS/cluster/routes/others"] == "1"


def test_a_single_broker_shows_nothing_of_a_cluster() -> None:
    """Its ``$SYS`` is what it was before there were clusters."""
    house = House(settings=EVERY_10_S)
    house.advance(30)
    found = house.connect("late", 5).subscribe("$SYS/brokers/#").subscribe("$SYS/cluster/#")

    assert found.messages == []


def test_topics_of_plugins_are_shown_by_their_scope() -> None:
    """One of a node for each node; one of the cluster once."""
    nodes = Nodes(2, settings=EVERY_10_S, plugins={"meter": Meter()})
    nodes.advance(11)

    assert shown(nodes, 0, "$SYS/brokers/+/meter/#") == {
        "$SYS/brokers/n1/meter/here": "x",
        "$SYS/brokers/n2/meter/here": "x",
    }
    assert shown(nodes, 0, "$SYS/meter/#") == {"$SYS/meter/here": "x", "$SYS/meter/all": "2"}


def test_more_figures_than_fit_are_left_out() -> None:
    """The broker's own come first, and reach the others."""
    nodes = Nodes(2, settings=EVERY_10_S, plugins={"meter": Meter(MAX_FIGURES_BYTES)})
    nodes.advance(11)
    found = shown(nodes, 0, "$SYS/brokers/n2/#")

    assert "$SYS/brokers/n2/clients/connected" in found
    assert "$SYS/brokers/n2/meter/here" not in found


@pytest.mark.parametrize(
    "figures",
    [
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"a": 1}',
        b'{"a/#": "1"}',
        b'{"": "1"}',
        b'{"$SYS/a": "1"}',
        json.dumps({"a": "x" * MAX_FIGURES_BYTES}).encode(),
    ],
)
def test_malformed_figures_are_refused(figures: bytes) -> None:
    """They are another program's, or too large."""
    nodes = Nodes(2)
    listener = nodes.backends[0].listener
    with pytest.raises(MalformedBatch):
        listener._figures.received(nodes.backends[1].me, figures)  # type: ignore[attr-defined]


def test_a_name_is_one_level_of_a_topic() -> None:
    """Whatever it contains."""
    assert topic_level("n/1+#%\0\x7f") == "n%2F1%2B%23%25%00%7F"
    assert topic_level("köln-1.example") == "köln-1.example"
