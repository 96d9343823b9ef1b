"""Sums of an interval: of what happens too often to be told of one by one, and of what clients published."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import evolve

from kinmqtt_metrics.record import EVENT, OTHERS, TRAFFIC, Record, as_told, memory_bytes

if TYPE_CHECKING:
    from kinmqtt_metrics.sampling import Offer
    from kinmqtt_spi.services.metric import TrafficSnapshot


NAMES_BYTES: Final = 4 << 20
"""What clients and topics of one event's sums may take in memory; they may choose names of 64 KB."""


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
    """Counts events until the interval ends; of each event no more than ``limit`` sums, and one of all others.

    Those are others too whose names would take more than :data:`NAMES_BYTES` with the ones before them.
    """

    def __init__(self, offer: Offer, limit: int) -> None:
        self._offer = offer
        self.limit = limit
        self._counts: dict[Sum, int] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """Of each event how many sums there are, and what their names take."""

    def count(self, sum: Sum, number: int = 1) -> None:
        """One more, or so many."""
        if sum.client[:1] == "(" or sum.topic[:1] == "(":
            sum = sum._replace(client=as_told(sum.client), topic=as_told(sum.topic))
        self._add(sum, number)

    def _add(self, sum: Sum, number: int) -> None:
        counts = self._counts
        known = counts.get(sum)
        if known is not None:
            counts[sum] = known + number
            return
        size, names_bytes = self._sizes.get(sum.name, (0, 0))
        names_bytes += memory_bytes(sum.client, sum.topic)
        if size >= self.limit or names_bytes > NAMES_BYTES:
            # Reasons and labels are words of the broker's and of its settings: what remains is bounded.
            sum = sum._replace(client=OTHERS, topic=OTHERS if sum.topic else "")
            counts[sum] = counts.get(sum, 0) + number
            return
        self._sizes[sum.name] = size + 1, names_bytes
        counts[sum] = number

    def tell(self, t: int) -> None:
        """Offer what was counted, as of ``t`` (microseconds). What was not taken stays, and counts on."""
        counts, self._counts, self._sizes = self._counts, {}, {}
        for sum, number in counts.items():
            if not self._offer(t, _event(sum, number), memory_bytes(sum.client, sum.topic)):
                self._add(sum, number)


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


def largest(traffic: TrafficSnapshot, limit: int) -> TrafficSnapshot:
    """The ``limit`` pairs with most bytes, and the others as a sum. It may be called in any thread."""
    pairs = traffic.pairs
    if len(pairs) <= limit:
        return traffic
    # By their place too: of two that are alike the first is told.
    order = nlargest(limit, zip((pair.bytes for pair in pairs), range(0, -len(pairs), -1), strict=True))
    told = tuple(pairs[-place] for _, place in order)
    messages = sum(pair.messages for pair in pairs) - sum(pair.messages for pair in told)
    size_bytes = sum(pair.bytes for pair in pairs) - sum(pair.bytes for pair in told)
    return with_others(evolve(traffic, pairs=told), messages, size_bytes)


def tell_traffic(offer: Offer, traffic: TrafficSnapshot, t: int) -> tuple[int, int]:
    """Offer what each client has published to each topic, and what the others have; ``t`` in microseconds.

    Answers the messages and bytes of what was not taken.
    """
    messages = size_bytes = 0
    for pair in traffic.pairs:
        record = _traffic(as_told(pair.client_id), as_told(pair.topic), pair.messages, pair.bytes)
        if not offer(t, record, memory_bytes(pair.client_id, pair.topic)):
            messages += pair.messages
            size_bytes += pair.bytes
    others = traffic.others_messages, traffic.others_bytes
    if others[0] and not offer(t, _traffic(OTHERS, OTHERS, *others)):
        messages += others[0]
        size_bytes += others[1]
    return messages, size_bytes


def with_others(traffic: TrafficSnapshot, messages: int, size_bytes: int) -> TrafficSnapshot:
    """A snapshot that tells so much more of the others."""
    if not messages:
        return traffic
    return evolve(
        traffic,
        others_messages=traffic.others_messages + messages,
        others_bytes=traffic.others_bytes + size_bytes,
    )


class Largest:
    """The largest pairs of a snapshot, found in another thread."""

    def __init__(self, traffic: TrafficSnapshot, limit: int) -> None:
        self._traffic: TrafficSnapshot | None = traffic
        self._limit = limit
        self.found: TrafficSnapshot | None = None
        """Set when they are."""
        self.error = ""
        """Why they can't be found."""

    def find(self) -> None:
        """In any thread. Raises nothing: nobody may be there to hear of it."""
        traffic = self._traffic
        if traffic is None:
            return
        try:
            self.found = largest(traffic, self._limit)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def take_back(self) -> TrafficSnapshot:
        """The snapshot, once: whoever finds something in it from now on does so for nothing."""
        traffic, self._traffic = self._traffic, None
        assert traffic is not None
        return traffic


def _traffic(client: str, topic: str, messages: int, size_bytes: int) -> Record:
    return {"kind": TRAFFIC, "delta": messages, "client": client, "topic": topic, "bytes": size_bytes}
