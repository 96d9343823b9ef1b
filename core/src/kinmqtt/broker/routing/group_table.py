"""The shared subscriptions with members on any node, and what this node announces of them."""

from __future__ import annotations

from kinmqtt.broker.forwarding.announcer import Announcer
from kinmqtt.broker.forwarding.node_link import NodeLink
from kinmqtt.broker.routing.fanouts import Fanouts
from kinmqtt.broker.routing.groups import Group, GroupKey
from kinmqtt_spi.services.subscription import Subscriber


class GroupTable:
    """Keeps the groups of shared subscriptions, and the fan-outs that refer to them up to date."""

    __slots__ = ("_announcer", "_by_key", "_fanouts", "_keys_of")

    def __init__(self, by_key: dict[GroupKey, Group], fanouts: Fanouts, announcer: Announcer) -> None:
        """``by_key``, the groups by name and filter, is empty; ``fanouts`` reads it."""
        self._by_key = by_key
        self._fanouts = fanouts
        self._announcer = announcer
        self._keys_of: dict[str, set[GroupKey]] = {}
        """By client id: the groups to notify when the client connects or disconnects."""

    def get(self, key: GroupKey) -> Group | None:
        """Return a group with members on any node; ``None`` if there is none."""
        return self._by_key.get(key)

    def has_members(self, key: GroupKey) -> bool:
        """Return whether a group has members on this node."""
        group = self._by_key.get(key)
        return group is not None and bool(group.members)

    # Members on this node

    def join(self, key: GroupKey, member: Subscriber, connected: bool) -> None:
        """Add a member to a group, or replace its subscription."""
        self._group(key).add(member, connected)
        self._keys_of.setdefault(member.client_id, set()).add(key)

    def leave(self, key: GroupKey, client_id: str) -> None:
        """Remove a member from a group."""
        group = self._by_key.get(key)
        if group is None:
            return
        group.remove(client_id)
        self.announce_weight(key)
        self._end_if_empty(key, group)
        keys = self._keys_of[client_id]
        keys.discard(key)
        if not keys:
            del self._keys_of[client_id]

    def connected(self, client_id: str) -> None:
        """Note that a client has a connection."""
        for key in self._keys_of.get(client_id, ()):
            self._by_key[key].connected(client_id)
            self.announce_weight(key)

    def disconnected(self, client_id: str) -> None:
        """Note that a client has lost its connection."""
        for key in self._keys_of.get(client_id, ()):
            self._by_key[key].disconnected(client_id)
            self.announce_weight(key)

    def ending(self, client_id: str) -> None:
        """Note that a client's session is ending: other members get the messages."""
        for key in self._keys_of.get(client_id, ()):
            self._by_key[key].disconnected(client_id)

    def announce_weight(self, key: GroupKey) -> None:
        """Tell the other nodes how many members of a group are connected here."""
        group = self._by_key[key]
        if group.members or group.moved:
            self._announcer.weigh(group.filter, group.name, group.weight)

    # Members that have moved

    def member_moved(self, key: GroupKey, client_id: str) -> None:
        """Remember a member whose session has moved to another node, until :meth:`forget_moved_member`."""
        group = self._by_key.get(key)
        if group is None:
            return
        if not group.moved:
            # Until the others know the new owner's route, they must send here.
            self._announcer.subscribed(group.filter, group.name, 0, True)
        group.moved.append(client_id)
        self._fanouts.moved_groups[key] = group
        self._fanouts.filter_changed(group.filter)

    def forget_moved_member(self, key: GroupKey, client_id: str) -> None:
        """End what :meth:`member_moved` began."""
        group = self._by_key.get(key)
        if group is None or client_id not in group.moved:
            return
        group.moved.remove(client_id)
        if not group.moved:
            self._announcer.unsubscribed(group.filter, group.name)
            del self._fanouts.moved_groups[key]
            self._fanouts.filter_changed(group.filter)
        self._end_if_empty(key, group)

    # Other nodes

    def set_node(self, key: GroupKey, link: NodeLink, weight: int | None) -> None:
        """Set how many members of a group are connected on another node; ``None`` if it has no members."""
        group = self._by_key.get(key) if weight is None else self._group(key)
        if group is not None:
            group.set_node(link, weight)
            self._end_if_empty(key, group)

    def forget_node(self, link: NodeLink) -> None:
        """Remove a node that is gone from all groups."""
        for key, group in tuple(self._by_key.items()):
            if group.nodes is not None and link in group.nodes:
                self.set_node(key, link, None)

    def _group(self, key: GroupKey) -> Group:
        group = self._by_key.get(key)
        if group is None:
            group = self._by_key[key] = Group(*key)
            self._fanouts.group_began(key, group)
        return group

    def _end_if_empty(self, key: GroupKey, group: Group) -> None:
        if not group.members and group.nodes is None and not group.moved:
            del self._by_key[key]
            self._fanouts.group_ended(key)
