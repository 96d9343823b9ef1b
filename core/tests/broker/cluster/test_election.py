"""The node that serves a shared subscription: hook ``choose_node``."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core_harness.nodes import Nodes
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
