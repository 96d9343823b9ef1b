"""The node that serves a shared subscription: hook ``choose_node``."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core_harness.nodes import Nodes
from kinmqtt.broker.forwarding.batch_format import NO_MEMBER, write_answer
from kinmqtt.broker.forwarding.forwarder import GROUPS_AT_ONCE
from kinmqtt.mqtt.packets import Puback
from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.cluster import NodeCandidate
from kinmqtt_spi.values import NodeIdentity


class Chooser:
    """A plugin that chooses by what the test gives it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.seen: list[tuple[str, str, list[tuple[str, int]]]] = []

    @hookimpl
    def choose_node(self, group: str, filter: str, candidates: Sequence[NodeCandidate]) -> NodeIdentity | None:
        self.seen.append((group, filter, [(each.node.name, each.connected) for each in candidates]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


def served(answer: object) -> tuple[list[int], Chooser]:
    """Publishes four messages on node 1; returns how many each node's member got, and the plugin."""
    chooser = Chooser(answer)
    nodes = Nodes(3, plugins={"chooser": chooser})
    members = [nodes.brokers[number].connect(f"m{number}", 5) for number in (0, 1)]
    for member in members:
        member.subscribe("$share/g/a/+", qos=1)
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(4):
        publisher.publish(f"a/{number % 2}", b"x", qos=number % 2)
        nodes.settle()
    return [len(member.messages) for member in members], chooser


@pytest.mark.parametrize(("node", "expected"), [(NodeIdentity("n1", 1), [4, 0]), (NodeIdentity("n2", 2), [0, 4])])
def test_the_chosen_node_serves_the_group(node: NodeIdentity, expected: list[int]) -> None:
    """Every message of it; the candidates are the nodes with members, this one first."""
    counts, chooser = served(node)

    assert counts == expected
    assert chooser.seen[0] == ("g", "a/+", [("n1", 1), ("n2", 1)])


@pytest.mark.parametrize("answer", [None, NodeIdentity("n3", 3), NodeIdentity("n2", 9), ValueError("broken"), 7])
def test_nodes_take_turns_without_a_valid_choice(answer: object) -> None:
    """Where a plugin abstains, raises, or names a node without members."""
    counts, _ = served(answer)

    assert counts == [2, 2]


def test_an_answer_counts_once_for_each_group_that_was_asked_for() -> None:
    """A node that names other groups, or one many times, makes nobody get a message that is not theirs."""
    nodes = Nodes(2)
    other = nodes.brokers[0].connect("other", 5).subscribe("$share/g/other", qos=1)
    nodes.brokers[1].connect("s", 5).subscribe("t", qos=1)
    nodes.settle()
    answer = write_answer([(0, NO_MEMBER, ("g", "other"))] * 50)
    nodes.backends[1].listener.received = lambda *_: answer  # type: ignore[method-assign]
    publisher = nodes.brokers[0].connect("p", 5).publish("t", b"x", qos=1)
    nodes.advance(1)

    assert other.messages == []
    assert len(publisher.of(Puback)) == 1


def test_a_message_of_very_many_groups_is_cut_into_several_runs() -> None:
    """Each group is served once."""
    nodes = Nodes(2)
    members = [nodes.brokers[1].connect(f"m{number}", 5) for number in range(20)]
    for number in range(GROUPS_AT_ONCE + 5):
        members[number % 20].subscribe(f"$share/g{number}/t", qos=1)
    nodes.settle()
    nodes.brokers[0].connect("p", 5).publish("t", b"x", qos=1)
    nodes.advance(1)

    assert sum(len(member.messages) for member in members) == GROUPS_AT_ONCE + 5
