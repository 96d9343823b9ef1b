"""A subscription index for exact topic filters only: the fastest where nobody uses wildcards."""

from __future__ import annotations

from kinmqtt.builtins._leaf import NO_MATCHES, Leaf, LeafIndex
from kinmqtt_spi import ReasonCode, hookimpl
from kinmqtt_spi.errors import SubscriptionRefused
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.subscription import Matches, SubscriptionIndex


class HashIndex(LeafIndex):
    """One look-up for each match, whatever the number of levels and filters."""

    def match(self, topic: str) -> Matches:
        leaf = self._leaves.get(topic)
        return NO_MATCHES if leaf is None else leaf.answer()

    def _attach(self, leaf: Leaf) -> None:
        if "+" in leaf.filter or "#" in leaf.filter:
            raise SubscriptionRefused(
                f"the hash index takes no wildcards, and {leaf.filter!r} has one",
                ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
            )

    def _detach(self, leaf: Leaf) -> None:
        """The leaf was found through the dict of leaves alone."""


@hookimpl
def subscription_index(context: Context) -> SubscriptionIndex:
    """An index for topic filters without wildcards."""
    return HashIndex()
