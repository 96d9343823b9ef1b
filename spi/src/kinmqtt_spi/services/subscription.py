"""Subscription index: finds the subscribers of a topic name (section 4.7)."""

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
    """The subscribers of a topic. A client with overlapping filters appears once for each of them."""

    subscribers: tuple[Subscriber, ...] = ()
    """Non-shared subscriptions, in no particular order."""
    groups: Mapping[tuple[str, str], tuple[Subscriber, ...]] = field(factory=dict)
    """Shared subscriptions: the members of each (group, filter). One of them gets the message."""


class SubscriptionIndex(ABC):
    """Finds the subscriptions that match a topic. It is in memory, synchronous, and used in the reactor thread."""

    generation: int = 0
    """Increases with every change that could alter a match, for caches of matches."""

    @abstractmethod
    def add(self, client_id: str, subscription: Subscription) -> bool:
        """Add or replace a subscription. Returns ``True`` if the client had none for this filter and group.

        Raises :class:`~kinmqtt_spi.errors.SubscriptionRefused` for a filter that the index does not support.
        """

    @abstractmethod
    def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
        """Remove a subscription. Returns ``False`` if there was none."""

    @abstractmethod
    def match(self, topic: str) -> Matches:
        """Return the subscribers whose filter matches the topic name (section 4.7)."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of subscriptions."""

    @abstractmethod
    def filters(self) -> Iterator[tuple[str, int]]:
        """Yield each distinct topic filter with its number of subscriptions."""
