"""Sums of an interval: of what happens too often to be told of one by one, and of what clients published."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

from kinmqtt_metrics.record import EVENT, OTHERS, TRAFFIC, Record

if TYPE_CHECKING:
    from kinmqtt_metrics.sampling import Offer
    from kinmqtt_spi.services.metric import Traffic


class Sum(NamedTuple):
    """What is counted together."""

    name: str
    """One of the events."""
    client: str
    topic: str
    reason: str
    labels: tuple[tuple[str, str], ...] = ()
    """Of which there are few: plugins, rules, words."""


class Sums:
    """Counts events until the interval ends; of each event no more than ``limit`` sums, and one of all others."""

    def __init__(self, offer: Offer, limit: int) -> None:
        self._offer = offer
        self.limit = limit
        self._counts: dict[Sum, int] = {}
        self._sizes: dict[str, int] = {}

    def count(self, sum: Sum, number: int = 1) -> None:
        """One more, or so many."""
        counts = self._counts
        known = counts.get(sum)
        if known is not None:
            counts[sum] = known + number
            return
        size = self._sizes.get(sum.name, 0)
        if size >= self.limit:
            # Reasons and labels are words of the broker's and of its settings: what remains is bounded.
            sum = sum._replace(client=OTHERS, topic=OTHERS if sum.topic else "")
            counts[sum] = counts.get(sum, 0) + number
            return
        self._sizes[sum.name] = size + 1
        counts[sum] = number

    def tell(self, t: int) -> None:
        """Offer what was counted, as of ``t`` (microseconds). What was not taken stays, and counts on."""
        counts, self._counts, self._sizes = self._counts, {}, {}
        for sum, number in counts.items():
            if not self._offer(t, _event(sum, number)):
                self.count(sum, number)


def _event(sum: Sum, number: int) -> Record:
    record: Record = {"kind": EVENT, "name": sum.name}
    if sum.labels:
        record["labels"] = dict(sum.labels)
    record["delta"] = number
    if sum.client:
        record["client"] = sum.client
    if sum.topic:
        record["topic"] = sum.topic
    if sum.reason:
        record["reason"] = sum.reason
    return record


def tell_traffic(offer: Offer, pairs: Sequence[Traffic], limit: int, t: int) -> None:
    """Offer what each client published to each topic, of the ``limit`` pairs with most bytes; of the others a sum."""
    told = pairs
    if len(pairs) > limit:
        order = nlargest(limit, range(len(pairs)), key=lambda number: pairs[number].bytes)
        told = [pairs[number] for number in order]
    for pair in told:
        offer(t, _traffic(pair.client_id, pair.topic, pair.messages, pair.bytes))
    if len(told) < len(pairs):
        messages = sum(pair.messages for pair in pairs) - sum(pair.messages for pair in told)
        size_bytes = sum(pair.bytes for pair in pairs) - sum(pair.bytes for pair in told)
        offer(t, _traffic(OTHERS, OTHERS, messages, size_bytes))


def _traffic(client: str, topic: str, messages: int, size_bytes: int) -> Record:
    return {"kind": TRAFFIC, "delta": messages, "client": client, "topic": topic, "bytes": size_bytes}
