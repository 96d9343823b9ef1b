"""What clients published, by client and topic: a record for each of the largest pairs, and one for all others."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Final

from attrs import evolve

from kinmqtt_metrics.record import OTHERS, TRAFFIC, Record, as_told, memory_bytes

if TYPE_CHECKING:
    from kinmqtt_metrics.sampling import Offer
    from kinmqtt_spi.services.metric import TrafficSnapshot
    from kinmqtt_spi.services.plugin import Context

SORTED_AT_ONCE: Final = 5000
"""Clients with their topics; more are sorted in a thread, for they would hold up the reactor for milliseconds."""

FIND_S: Final = 30.0
"""How long that thread may take, or have no time, before what it was to sort is told as a sum."""


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


def report_traffic(offer: Offer, traffic: TrafficSnapshot, t: int) -> tuple[int, int]:
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


class LargestPairs:
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


class TrafficReporter:
    """Reports the traffic of each interval. A large snapshot is sorted in a thread; its records come later."""

    def __init__(self, context: Context, offer: Offer) -> None:
        self._context = context
        self._offer = offer
        self._finding: LargestPairs | None = None
        """Under way in a thread,"""
        self._finding_since = 0.0
        """which was asked at this moment of the broker's clock."""
        self._told_unfound = False
        self._untold = (0, 0)
        """Messages and bytes of traffic that no record told of, for the queue was full."""

    def sample(self, traffic: TrafficSnapshot, limit: int) -> None:
        """Report a snapshot: ``limit`` pairs, and the sum of the others."""
        self.finish()
        if self._finding is not None:
            # The thread is an interval behind: nobody waits for it, and no second one begins.
            limit = 0
        elif len(traffic.pairs) > SORTED_AT_ONCE:
            # What it finds is told at the timer's next turn. Events don't wait for it in the plugin's mailbox.
            finding = self._finding = LargestPairs(traffic, limit)
            self._finding_since = self._context.clock.monotonic()
            try:
                self._context.in_thread(finding.find)
            except Exception as error:
                self._not_found(finding, f"{type(error).__name__}: {error}")
            return
        self._report(largest(traffic, limit))

    def finish(self, is_last: bool = False) -> None:
        """Tell what the thread has found, once it has; where it can't find it, or takes too long, all of it as a sum.

        What is the last is found here and now: there is nobody any more whom that would hold up.
        """
        finding = self._finding
        if finding is None:
            return
        if is_last and finding.found is None:
            finding.find()
        if finding.found is not None:
            self._finding = None
            self._told_unfound = False
            self._report(finding.found)
        elif finding.error:
            self._not_found(finding, finding.error)
        elif self._context.clock.monotonic() - self._finding_since >= FIND_S:
            self._not_found(finding, f"no thread was free within {FIND_S:g} s")

    def _not_found(self, finding: LargestPairs, why: str) -> None:
        # It may find it yet, where it was only late: nobody asks for that any more.
        self._finding = None
        if not self._told_unfound:
            self._told_unfound = True
            self._context.log.error(
                "the largest pairs of the traffic can't be found, only its sum is reported: {why}", why=why
            )
        self._report(largest(finding.take_back(), 0))

    def _report(self, traffic: TrafficSnapshot) -> None:
        # What found the queue full is told with the others, later: which clients it was is lost, and no message.
        self._untold = report_traffic(self._offer, with_others(traffic, *self._untold), int(traffic.at * 1e6))
