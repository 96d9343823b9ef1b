"""Elects the node that serves a shared subscription: nodes take turns, or plugins choose (hook ``choose_node``)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from kinmqtt.broker.forwarding.node_link import NodeLink
from kinmqtt.broker.routing.groups import Group, GroupKey
from kinmqtt.broker.runtime import Runtime
from kinmqtt_spi.services.cluster import NodeCandidate


class Election:
    """Chooses among the nodes with members of a shared subscription."""

    __slots__ = ("_runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def elect(self, group: Group, skipped: Set[NodeLink | None] = frozenset()) -> NodeLink | None:
        """Return the node that gets the next message; ``None`` for this one, or if no other has members.

        ``skipped`` nodes have said that they have none.
        """
        nodes = group.nodes
        if nodes is None:
            return None
        hook = self._runtime.hooks.choose_node
        if hook.active:
            candidates = [NodeCandidate(link.node, weight) for link, weight in nodes.items() if link not in skipped]
            if group.members:
                candidates.insert(0, NodeCandidate(self._runtime.node, group.weight))
            chosen = hook(group.name, group.filter, tuple(candidates))
            if chosen == self._runtime.node:
                return None
            for link in nodes:
                if link.node == chosen and link not in skipped:
                    return link
        return group.elect(skipped)

    def elect_all(self, groups: Sequence[Group]) -> tuple[dict[NodeLink, list[GroupKey]], list[GroupKey]]:
        """Return some shared subscriptions by the nodes that are elected, and those whose turn is here."""
        elected: dict[NodeLink, list[GroupKey]] = {}
        here: list[GroupKey] = []
        for group in groups:
            link = self.elect(group)
            if link is None:
                here.append((group.name, group.filter))
            else:
                elected.setdefault(link, []).append((group.name, group.filter))
        return elected, here
