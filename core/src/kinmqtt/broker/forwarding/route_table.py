"""The routes of the other nodes: which of them have subscribers of a topic, and members of shared subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt.broker.filter_table import FilterTable
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster import MAX_OTHER_NODES, RouteChange

SWEPT_AT_ONCE: Final = 2000
"""The most filters that one call of :meth:`RouteTable.sweep` looks at."""

GroupMembers = dict[int, tuple[int, int]]
"""By node number: the highest QoS granted to a member of the group, and the number of connected members."""


class Groups:
    """The shared subscriptions of one filter on other nodes."""

    __slots__ = ("by_name", "filter")

    def __init__(self, filter: str) -> None:
        self.filter = filter
        self.by_name: dict[str, GroupMembers] = {}


class RouteTable:
    """Routes by filter; a node is a number below :data:`MAX_OTHER_NODES`.

    A filter's nodes are one integer: bit N for a route of node N, and bit N + 64 if it has a subscriber above QoS 0.
    """

    __slots__ = ("_alive", "_free", "_groups", "_masks", "_plain", "_unswept", "routes")

    def __init__(self) -> None:
        self._plain = FilterTable()
        self._groups = FilterTable()
        """By filter: its :class:`Groups`."""
        self._masks: dict[int, int] = {}
        """Equal masks share one object: there are few, and a million routes."""
        self._alive = 0
        self._free = list(range(MAX_OTHER_NODES - 1, -1, -1))
        self._unswept: dict[int, list[str]] = {}
        """By number of a removed node: filters that may still have its routes."""
        self.routes = [0] * MAX_OTHER_NODES
        """The number of routes by node."""

    def __len__(self) -> int:
        """Return the number of routes of all nodes."""
        return sum(self.routes)

    def add_node(self) -> int:
        """Return the number of a new node; raises ServiceUnavailable for too many."""
        if not self._free:
            self._sweep_all()
        if not self._free:
            raise ServiceUnavailable(f"this node can have {MAX_OTHER_NODES} other nodes, and has as many")
        node = self._free.pop()
        self._alive |= 1 << node
        return node

    def remove_node(self, node: int) -> None:
        """Remove a node: its routes match no more. :meth:`sweep` frees their memory, bit by bit."""
        self._alive &= ~(1 << node)
        self.routes[node] = 0
        self._unswept[node] = [*self._plain.filters(), *self._groups.filters()]

    def sweep(self) -> bool:
        """Remove some routes of removed nodes; returns whether there are more."""
        for node in list(self._unswept):
            filters = self._unswept[node]
            for _ in range(min(len(filters), SWEPT_AT_ONCE)):
                self._forget(node, filters.pop())
            if filters:
                return True
            del self._unswept[node]
            self._free.append(node)
            return bool(self._unswept)
        return False

    def _sweep_all(self) -> None:
        while self.sweep():
            pass

    def _forget(self, node: int, filter: str) -> None:
        self._set_plain(node, filter, -1)
        groups = self._groups.get(filter)
        if isinstance(groups, Groups):
            for name in list(groups.by_name):
                self._set_group(node, filter, name, None)

    def put(self, node: int, route: RouteChange) -> None:
        """Add a route of a node, or replace it."""
        if route.share_group is None:
            added = self._set_plain(node, route.filter, route.qos)
        else:
            added = self._set_group(node, route.filter, route.share_group, (route.qos, route.weight))
        self.routes[node] += added

    def remove(self, node: int, route: RouteChange) -> None:
        """Remove a route of a node."""
        if route.share_group is None:
            added = self._set_plain(node, route.filter, -1)
        else:
            added = self._set_group(node, route.filter, route.share_group, None)
        self.routes[node] += added

    def _set_plain(self, node: int, filter: str, qos: int) -> int:
        """Set a node's route, or remove it if ``qos`` is -1; returns by how much their number grew."""
        found = self._plain.get(filter)
        mask = found if isinstance(found, int) else 0
        bit = 1 << node
        had = mask & bit
        mask &= ~(bit | bit << MAX_OTHER_NODES)
        if qos >= 0:
            mask |= bit
            if qos:
                mask |= bit << MAX_OTHER_NODES
        if not mask:
            self._plain.put(filter, None)
        else:
            self._plain.put(filter, self._masks.setdefault(mask, mask))
        return (qos >= 0) - (had != 0)

    def _set_group(self, node: int, filter: str, name: str, member: tuple[int, int] | None) -> int:
        groups = self._groups.get(filter)
        if not isinstance(groups, Groups):
            if member is None:
                return 0
            groups = Groups(filter)
            self._groups.put(filter, groups)
        members = groups.by_name.get(name)
        if member is not None:
            if members is None:
                members = groups.by_name[name] = {}
            is_new = node not in members
            members[node] = member
            return int(is_new)
        if members is None or members.pop(node, None) is None:
            return 0
        if not members:
            del groups.by_name[name]
            if not groups.by_name:
                self._groups.put(filter, None)
        return -1

    def nodes_for(self, topic: str) -> Sequence[tuple[int, bool]]:
        """Return the nodes with subscribers of a topic, and whether one of them was granted more than QoS 0."""
        union = 0
        for mask in self._plain.match(topic):
            if isinstance(mask, int):
                union |= mask
        nodes = union & self._alive
        found = []
        while nodes:
            bit = nodes & -nodes
            nodes ^= bit
            found.append((bit.bit_length() - 1, bool(union & bit << MAX_OTHER_NODES)))
        return found

    def groups_for(self, topic: str) -> dict[tuple[str, str], GroupMembers]:
        """Return the shared subscriptions of a topic, by name and filter, with the nodes that have members."""
        if not len(self._groups):
            return {}
        made: dict[tuple[str, str], GroupMembers] = {}
        for groups in self._groups.match(topic):
            if isinstance(groups, Groups):
                for name, members in groups.by_name.items():
                    living = self._living(members)
                    if living:
                        made[(name, groups.filter)] = living
        return made

    def _living(self, members: GroupMembers) -> GroupMembers:
        alive = self._alive
        return {node: member for node, member in members.items() if alive >> node & 1}
