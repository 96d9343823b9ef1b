"""Subscription index: from a topic name to everybody who wants it (section 4.7)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from attrs import field, frozen

from kinmqtt_spi.values import Subscription


@frozen(slots=True)
class Subscriber:
    """One client's subscription, as found by a match."""

    client_id: str
    subscription: Subscription


@frozen(slots=True)
class Matches:
    """Whoever wants a topic. A client with overlapping filters appears once for each of them."""

    subscribers: tuple[Subscriber, ...] = ()
    """Plain subscriptions, in no particular order."""
    groups: Mapping[tuple[str, str], tuple[Subscriber, ...]] = field(factory=dict)
    """Shared subscriptions: (group, filter) to its members, of whom each message goes to one."""


class SubscriptionIndex(ABC):
    """Finds the subscriptions that match a topic. In memory and synchronous; called on the reactor thread only."""

    generation: int = 0
    """Goes up with every change that could alter the answer of a match: caches of matches compare it."""

    @abstractmethod
    def add(self, client_id: str, subscription: Subscription) -> bool:
        """Add or replace a subscription; ``True`` if the client had none for this filter and group.

        Raises :class:`~kinmqtt_spi.errors.SubscriptionRefused` for a filter that the index does not take.
        """

    @abstractmethod
    def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
        """Remove a subscription; ``False`` if there was none."""

    @abstractmethod
    def match(self, topic: str) -> Matches:
        """Everybody whose filter matches the topic name, by the rules of section 4.7."""

    @abstractmethod
    def count(self) -> int:
        """How many subscriptions there are."""

    @abstractmethod
    def filters(self) -> Iterator[tuple[str, int]]:
        """Every distinct topic filter with its number of subscriptions, for routes and for people."""
