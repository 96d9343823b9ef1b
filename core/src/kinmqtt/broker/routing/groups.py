"""Shared subscriptions: each message is delivered to one member of the group (section 4.8.2)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from kinmqtt.broker.forwarding.node_link import NodeLink
from kinmqtt.broker.routing.target import Target, target_of
from kinmqtt.broker.session.session import Session
from kinmqtt_spi.services.subscription import Subscriber

GroupKey = tuple[str, str]
"""The group's name and its topic filter."""


class Group:
    """One shared subscription; all fan-outs of topics that match its filter refer to this object."""

    __slots__ = (
        "_candidates",
        "_connected",
        "_scores",
        "_targets",
        "filter",
        "members",
        "moved",
        "name",
        "nodes",
        "turn",
    )

    def __init__(self, name: str, filter: str) -> None:
        self.name = name
        self.filter = filter
        self.members: dict[str, Subscriber] = {}
        """By client id, in the order in which they joined."""
        self.moved: list[str] = []
        """The client ids of members that have moved to another node a while ago, whose routes may not be known."""
        self._connected: set[str] = set()
        self._candidates: tuple[Subscriber, ...] | None = None
        self._targets: dict[str, Target] = {}
        self.turn = 0
        """Counts messages; it decides which member is next."""
        self.nodes: dict[NodeLink, int] | None = None
        """Other nodes with members, each with the number of connected ones; ``None`` if there are none."""
        self._scores: dict[NodeLink | None, int] = {}
        """By node, ``None`` for this one: how much of a turn each is owed."""

    def add(self, member: Subscriber, connected: bool) -> None:
        """Add a member, or replace its subscription."""
        client_id = member.client_id
        self.members[client_id] = member
        self._targets.pop(client_id, None)
        self._candidates = None
        if connected:
            self._connected.add(client_id)

    @property
    def weight(self) -> int:
        """The number of connected members on this node."""
        return len(self._connected)

    def set_node(self, link: NodeLink, weight: int | None) -> None:
        """Set the number of connected members on another node; ``None`` if it has no members any more."""
        nodes = dict(self.nodes or {})
        nodes.pop(link, None)
        if weight is not None:
            nodes[link] = weight
        self.nodes = nodes or None
        self._scores.clear()

    def elect(self, skipped: Set[NodeLink | None] = frozenset()) -> NodeLink | None:
        """Return the node that gets the next message; ``None`` for this one, or if no other has members.

        Nodes take turns by the number of their connected members (smooth weighted round-robin, as in nginx). Where no
        member is connected, nodes take turns.
        """
        weights: dict[NodeLink | None, int] = {}
        if self.members:
            weights[None] = len(self._connected)
        for link, connected in (self.nodes or {}).items():
            weights[link] = connected
        for node in skipped:
            weights.pop(node, None)
        living = {node: weight for node, weight in weights.items() if node is None or not node.is_gone}
        if living:
            # Else a node that is gone: the message waits until its members have a new owner.
            weights = living
        if not weights:
            return None
        total = sum(weights.values())
        scores = self._scores
        best: NodeLink | None = None
        highest: int | None = None
        for node, weight in weights.items():
            if total and not weight:
                continue
            scores[node] = score = scores.get(node, 0) + (weight if total else 1)
            if highest is None or score > highest:
                best, highest = node, score
        scores[best] -= total or len(weights)
        return best

    def remove(self, client_id: str) -> None:
        """Remove a member."""
        self.members.pop(client_id, None)
        self._targets.pop(client_id, None)
        self._connected.discard(client_id)
        self._candidates = None

    def connected(self, client_id: str) -> None:
        """Note that a member has a connection."""
        self._connected.add(client_id)
        self._candidates = None

    def disconnected(self, client_id: str) -> None:
        """Note that a member has lost its connection."""
        self._connected.discard(client_id)
        self._candidates = None

    @property
    def candidates(self) -> tuple[Subscriber, ...]:
        """The connected members, or all if none is connected; cached until the next change."""
        candidates = self._candidates
        if candidates is None:
            connected = self._connected
            if connected and len(connected) < len(self.members):
                candidates = tuple([member for id, member in self.members.items() if id in connected])
            else:
                candidates = tuple(self.members.values())
            self._candidates = candidates
        return candidates

    def members_from(self, start: int) -> Iterator[Subscriber]:
        """Yield all members, connected ones first, beginning with the one whose turn is ``start``."""
        candidates = self.candidates
        count = len(candidates)
        for number in range(count):
            yield candidates[(start + number) % count]
        if count < len(self.members):
            for client_id, member in tuple(self.members.items()):
                if client_id not in self._connected:
                    yield member

    def target(self, member: Subscriber, session: Session) -> Target:
        """Return the delivery target of a member."""
        target = self._targets.get(member.client_id)
        if target is None or target.session is not session:
            target = self._targets[member.client_id] = target_of(session, [member.subscription])
        return target
