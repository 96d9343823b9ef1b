"""A linear subscription index: too slow for a broker, simple enough to test other indexes against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kinmqtt_spi.services.subscription import Matches, Subscriber, SubscriptionIndex
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Subscription


class NaiveIndex(SubscriptionIndex):
    """Compares every subscription with the topic. It supports every filter."""

    def __init__(self) -> None:
        self.generation = 0
        self._subscriptions: dict[tuple[str, str, str | None], Subscription] = {}

    def add(self, client_id: str, subscription: Subscription) -> bool:
        key = (client_id, subscription.filter, subscription.share_group)
        known = self._subscriptions.get(key)
        if known != subscription:
            self._subscriptions[key] = subscription
            self.generation += 1
        return known is None

    def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
        if self._subscriptions.pop((client_id, filter, share_group), None) is None:
            return False
        self.generation += 1
        return True

    def match(self, topic: str) -> Matches:
        plain: list[Subscriber] = []
        groups: dict[tuple[str, str], tuple[Subscriber, ...]] = {}
        for (client_id, filter, group), subscription in self._subscriptions.items():
            if matches(filter, topic):
                subscriber = Subscriber(client_id, subscription)
                if group is None:
                    plain.append(subscriber)
                else:
                    groups[group, filter] = (*groups.get((group, filter), ()), subscriber)
        return Matches(tuple(plain), groups)

    def count(self) -> int:
        return len(self._subscriptions)

    def filters(self) -> Iterator[tuple[str, int]]:
        return iter(Counter(filter for _, filter, _ in self._subscriptions).items())
