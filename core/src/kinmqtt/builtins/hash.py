"""A subscription index for exact topic filters only: the fastest one without wildcards."""

from __future__ import annotations

from kinmqtt.builtins._leaf import NO_MATCHES, Leaf, LeafIndex
from kinmqtt_spi import ReasonCode, hookimpl
from kinmqtt_spi.errors import SubscriptionRefused
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.subscription import Matches, SubscriptionIndex


class HashIndex(LeafIndex):
    """Matches with one look-up, independent of the number of levels and filters."""

    def match(self, topic: str) -> Matches:
        leaf = self._leaves.get(topic)
        return NO_MATCHES if leaf is None else leaf.answer()

    def _attach(self, leaf: Leaf) -> None:
        if "+" in leaf.filter or "#" in leaf.filter:
            raise SubscriptionRefused(
                f"the hash index supports no wildcards, but {leaf.filter!r} has one",
                ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
            )

    def _detach(self, leaf: Leaf) -> None:
        """Do nothing: the leaf was found only through the base class's dict."""


@hookimpl
def subscription_index(context: Context) -> SubscriptionIndex:
    """Return an index for topic filters without wildcards."""
    return HashIndex()
