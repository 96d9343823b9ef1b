"""Counts of events that are too frequent for a record each: one record an interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kinmqtt_metrics.record import EVENT, OTHERS, Record, as_told, memory_bytes

if TYPE_CHECKING:
    from kinmqtt_metrics.sampling import Offer


NAMES_BYTES: Final = 4 << 20
"""What clients and topics of one event's sums may take in memory; they may choose names of 64 KB."""


class EventKey(NamedTuple):
    """What is counted together."""

    name: str
    """One of the events."""
    client: str
    topic: str
    reason: str
    labels: tuple[tuple[str, str], ...] = ()
    """Of which there are few: plugins, rules, words."""


class EventCounts:
    """Counts events until the interval ends; of each event no more than ``limit`` sums, and one of all others.

    Those are others too whose names would take more than :data:`NAMES_BYTES` with the ones before them.
    """

    def __init__(self, offer: Offer, limit: int) -> None:
        self._offer = offer
        self.limit = limit
        self._counts: dict[EventKey, int] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """Of each event how many sums there are, and what their names take."""

    def count(self, key: EventKey, number: int = 1) -> None:
        """One more, or so many."""
        if key.client[:1] == "(" or key.topic[:1] == "(":
            key = key._replace(client=as_told(key.client), topic=as_told(key.topic))
        self._add(key, number)

    def _add(self, key: EventKey, number: int) -> None:
        counts = self._counts
        known = counts.get(key)
        if known is not None:
            counts[key] = known + number
            return
        size, names_bytes = self._sizes.get(key.name, (0, 0))
        names_bytes += memory_bytes(key.client, key.topic)
        if size >= self.limit or names_bytes > NAMES_BYTES:
            # Reasons and labels are words of the broker's and of its settings: what remains is bounded.
            key = key._replace(client=OTHERS, topic=OTHERS if key.topic else "")
            counts[key] = counts.get(key, 0) + number
            return
        self._sizes[key.name] = size + 1, names_bytes
        counts[key] = number

    def flush(self, t: int) -> None:
        """Offer what was counted, as of ``t`` (microseconds). What was not taken stays, and counts on."""
        counts, self._counts, self._sizes = self._counts, {}, {}
        for key, number in counts.items():
            if not self._offer(t, _event(key, number), memory_bytes(key.client, key.topic)):
                self._add(key, number)


def _event(key: EventKey, number: int) -> Record:
    record: Record = {"kind": EVENT, "name": key.name}
    if key.labels:
        record["labels"] = dict(key.labels)
    record["delta"] = number
    if key.client:
        record["client"] = key.client
    if key.topic:
        record["topic"] = key.topic
    if key.reason:
        record["reason"] = key.reason
    return record
