"""Traffic of an interval: bounded, and nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.record import OTHERS
from kinmqtt_metrics.traffic import largest, report_traffic
from kinmqtt_spi.services.metric import Traffic, TrafficSnapshot
from metrics_harness.taker import Taker


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=30), st.integers(1, 40), st.integers(0, 3)
)
def test_the_largest_are_told_and_nothing_is_lost(counts: list[tuple[int, int]], limit: int, others: int) -> None:
    """At most so many pairs, those with most bytes; messages and bytes add up."""
    pairs = tuple(Traffic(f"c{n}", "t", messages, size) for n, (messages, size) in enumerate(counts))
    told = largest(TrafficSnapshot(1.0, "n", pairs, others, others * 10), limit)

    assert sorted(pair.bytes for pair in told.pairs) == sorted(pair.bytes for pair in pairs)[-limit:]
    assert set(told.pairs) <= set(pairs) and len(set(told.pairs)) == len(told.pairs)
    assert sum(pair.messages for pair in told.pairs) + told.others_messages == sum(m for m, _ in counts) + others
    assert sum(pair.bytes for pair in told.pairs) + told.others_bytes == sum(b for _, b in counts) + others * 10


def test_traffic_is_a_record_for_each_pair() -> None:
    """And one of all others, where there are any."""
    taker = Taker()
    told = report_traffic(taker, TrafficSnapshot(1.0, "n", (Traffic("c", "t", 2, 30),), 4, 50), 7)
    report_traffic(taker, TrafficSnapshot(1.0, "n", ()), 8)
    taker.is_full = True
    untold = report_traffic(taker, TrafficSnapshot(1.0, "n", (Traffic("c", "t", 2, 30),), 4, 50), 9)

    assert taker.records == [
        {"t": 7, "kind": "traffic", "delta": 2, "client": "c", "topic": "t", "bytes": 30},
        {"t": 7, "kind": "traffic", "delta": 4, "client": OTHERS, "topic": OTHERS, "bytes": 50},
    ]
    assert (told, untold) == ((0, 0), (6, 80))
