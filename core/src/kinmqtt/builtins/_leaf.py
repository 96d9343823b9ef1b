"""Shared parts of the built-in subscription indexes: the subscriptions of one filter, and counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from kinmqtt_spi.services.subscription import Matches, Subscriber, SubscriptionIndex
from kinmqtt_spi.values import Subscription

NO_MATCHES = Matches()


class Leaf:
    """The subscriptions of one topic filter: plain ones by client id, shared ones by group and client id."""

    __slots__ = ("filter", "groups", "matches", "plain")

    def __init__(self, filter: str) -> None:
        self.filter = filter
        self.plain: dict[str, Subscriber] = {}
        self.groups: dict[str, dict[str, Subscriber]] | None = None
        """``None`` in most leaves, because most filters have no shared subscriptions."""
        self.matches: Matches | None = None
        """The matches of a topic that matches this filter only; ``None`` after a change, until rebuilt."""

    def __len__(self) -> int:
        return len(self.plain) + (sum(map(len, self.groups.values())) if self.groups else 0)

    def members(self, share_group: str | None) -> dict[str, Subscriber]:
        """Return the plain subscriptions, or those of a group, which is created if necessary."""
        if share_group is None:
            return self.plain
        if self.groups is None:
            self.groups = {}
        return self.groups.setdefault(share_group, {})

    def leave(self, client_id: str, share_group: str | None) -> bool:
        """Remove a subscription; return whether it existed."""
        if share_group is None:
            return self.plain.pop(client_id, None) is not None
        group = None if self.groups is None else self.groups.get(share_group)
        if self.groups is None or group is None or group.pop(client_id, None) is None:
            return False
        if not group:
            del self.groups[share_group]
            if not self.groups:
                self.groups = None
        return True

    def answer(self) -> Matches:
        """Return this leaf's part of a match; cached until the next change."""
        if self.matches is None:
            if self.groups is None:
                self.matches = Matches(tuple(self.plain.values()))
            else:
                groups = {(name, self.filter): tuple(group.values()) for name, group in self.groups.items()}
                self.matches = Matches(tuple(self.plain.values()), groups)
        return self.matches


def together(leaves: list[Leaf]) -> Matches:
    """Merge the matches of several filters."""
    if not leaves:
        return NO_MATCHES
    if len(leaves) == 1:
        return leaves[0].answer()
    subscribers: list[Subscriber] = []
    groups: dict[tuple[str, str], tuple[Subscriber, ...]] = {}
    for leaf in leaves:
        answer = leaf.answer()
        subscribers += answer.subscribers
        if answer.groups:
            groups.update(answer.groups)
    return Matches(tuple(subscribers), groups)


class LeafIndex(SubscriptionIndex):
    """An index with a leaf for each distinct filter; subclasses find a topic's leaves."""

    def __init__(self) -> None:
        self.generation = 0
        self._leaves: dict[str, Leaf] = {}
        self._count = 0

    def add(self, client_id: str, subscription: Subscription) -> bool:
        filter = subscription.filter
        leaf = self._leaves.get(filter)
        if leaf is None:
            leaf = Leaf(filter)
            self._attach(leaf)
            self._leaves[filter] = leaf
        members = leaf.members(subscription.share_group)
        known = members.get(client_id)
        if known is not None and known.subscription == subscription:
            return False
        members[client_id] = Subscriber(client_id, subscription)
        leaf.matches = None
        self.generation += 1
        if known is not None:
            return False
        self._count += 1
        return True

    def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
        leaf = self._leaves.get(filter)
        if leaf is None or not leaf.leave(client_id, share_group):
            return False
        leaf.matches = None
        self._count -= 1
        self.generation += 1
        if not leaf.plain and not leaf.groups:
            del self._leaves[filter]
            self._detach(leaf)
        return True

    def count(self) -> int:
        return self._count

    def distinct(self) -> int:
        """Return the number of distinct topic filters, in constant time."""
        return len(self._leaves)

    def filters(self) -> Iterator[tuple[str, int]]:
        """See :meth:`SubscriptionIndex.filters`; the filters are those at the time of the call."""
        return iter([(filter, len(leaf)) for filter, leaf in self._leaves.items()])

    @abstractmethod
    def _attach(self, leaf: Leaf) -> None:
        """Add a new filter's leaf to the index, or raise ``SubscriptionRefused``."""

    @abstractmethod
    def _detach(self, leaf: Leaf) -> None:
        """Remove a leaf without subscriptions from the index."""
