"""When a node's windows are closed: by its own clock, or because nothing more is heard of it.

Each node has a bound in event time. Windows that end at or before it are closed: they are in the tables, and what
comes for them is late. A node's bound follows its own records, so that one broker behind the others loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen


@frozen(slots=True)
class Node:
    """What is known of a node."""

    newest: int
    """The latest event time read; microseconds."""
    bound: int
    """Windows that end here or before are closed; microseconds."""
    heard_s: float
    """When a record was read last, by this machine's clock."""


@frozen(slots=True)
class Watermarks:
    """The rule. Times of windows in microseconds."""

    window: int
    watermark: int
    idle_s: float

    def start(self, t: int) -> int:
        """Where the window of ``t`` begins."""
        return t - t % self.window

    def after(
        self, nodes: Mapping[str, Node], newest: Mapping[str, int], now_s: float, since_s: float = 0.0
    ) -> dict[str, Node]:
        """What is known after a batch with these latest event times.

        Bounds never go back: neither when a clock does, nor when a larger watermark is asked for. Before ``since_s``
        nobody listened: silence is counted from there.
        """
        known = dict(nodes)
        for name, t in newest.items():
            before = known.get(name)
            latest = t if before is None else max(t, before.newest)
            bound = latest - self.watermark
            known[name] = Node(latest, bound if before is None else max(bound, before.bound), now_s)
        for name, node in nodes.items():
            if name not in newest and now_s - max(node.heard_s, since_s) >= self.idle_s:
                known[name] = self.closed(node)
        return known

    def closed(self, node: Node) -> Node:
        """A node of which no window is open."""
        return evolve(node, bound=max(node.bound, self.start(node.newest) + self.window))
