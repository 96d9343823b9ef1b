"""The default subscription index: a trie of topic levels; the cost of a match depends on the topic's levels."""

from __future__ import annotations

from kinmqtt.builtins._leaf import Leaf, LeafIndex, together
from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.subscription import Matches, SubscriptionIndex


class _Node:
    """One level. Wildcards have slots of their own, so that matching hashes only the topic's level."""

    __slots__ = ("children", "leaf", "multi", "single")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        """``None`` in most nodes, which are the last of their filter."""
        self.single: _Node | None = None
        """The node after a ``+`` here."""
        self.multi: Leaf | None = None
        """The leaf of the filter that ends with a ``#`` here."""
        self.leaf: Leaf | None = None
        """The leaf of the filter that ends here."""

    def is_empty(self) -> bool:
        return not self.children and self.single is None and self.multi is None and self.leaf is None


class TrieIndex(LeafIndex):
    """Matches wildcards level by level (section 4.7), without recursion, so filters may have any depth."""

    def __init__(self) -> None:
        super().__init__()
        self._root = _Node()

    def match(self, topic: str) -> Matches:
        found: list[Leaf] = []
        nodes = [self._root]
        wild = topic[:1] != "$"  # MQTT-4.7.2-1: no wildcard in the first place matches a topic with "$"
        for level in topic.split("/"):
            following: list[_Node] = []
            for node in nodes:
                if node.children is not None:
                    child = node.children.get(level)
                    if child is not None:
                        following.append(child)
                if wild:
                    if node.single is not None:
                        following.append(node.single)
                    if node.multi is not None:
                        found.append(node.multi)
            if not following:
                return together(found)
            nodes = following
            wild = True
        for node in nodes:
            if node.leaf is not None:
                found.append(node.leaf)
            if node.multi is not None:  # "a/#" matches "a" too (section 4.7.1.2)
                found.append(node.multi)
        return together(found)

    def _attach(self, leaf: Leaf) -> None:
        node = self._root
        levels = leaf.filter.split("/")
        many = levels[-1] == "#"
        for level in levels[:-1] if many else levels:
            if level == "+":
                if node.single is None:
                    node.single = _Node()
                node = node.single
                continue
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if many:
            node.multi = leaf
        else:
            node.leaf = leaf

    def _detach(self, leaf: Leaf) -> None:
        levels = leaf.filter.split("/")
        many = levels[-1] == "#"
        if many:
            levels.pop()
        path = [self._root]
        for level in levels:
            path.append(_child(path[-1], level))
        if many:
            path[-1].multi = None
        else:
            path[-1].leaf = None
        for level in reversed(levels):
            if not path.pop().is_empty():
                return
            _cut(path[-1], level)


def _child(node: _Node, level: str) -> _Node:
    """Return the child node, which exists because a filter leads through it."""
    child = node.single if level == "+" or node.children is None else node.children[level]
    assert child is not None
    return child


def _cut(node: _Node, level: str) -> None:
    if level == "+":
        node.single = None
    elif node.children is not None:
        del node.children[level]
        if not node.children:
            node.children = None


@hookimpl
def subscription_index(context: Context) -> SubscriptionIndex:
    """Return an index for every topic filter of MQTT."""
    return TrieIndex()
