"""Sums of an interval: exact, bounded, and kept where there is no room for them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from test_sampling import Taker

from kinmqtt_metrics.aggregation import NAMES_BYTES, Sum, Sums, largest, tell_traffic
from kinmqtt_metrics.record import OTHERS, as_told
from kinmqtt_spi.services.metric import Traffic, TrafficSnapshot


def dropped(client: str, reason: str = "offline") -> Sum:
    """A message that did not reach a client."""
    return Sum("dropped", client, "", reason)


def test_events_of_one_sort_are_one_record() -> None:
    """However many there were; keys that say nothing are left out."""
    taker = Taker()
    sums = Sums(taker, 10)
    for client in ("a", "b", "a"):
        sums.count(dropped(client))
    sums.count(Sum("limited", "a", "", "drop", (("by", "rule"),)))
    sums.tell(9)
    sums.tell(10)

    assert taker.records == [
        {"t": 9, "kind": "event", "name": "dropped", "delta": 2, "client": "a", "reason": "offline"},
        {"t": 9, "kind": "event", "name": "dropped", "delta": 1, "client": "b", "reason": "offline"},
        {"t": 9, "kind": "event", "name": "limited", "labels": {"by": "rule"}, "delta": 1}
        | {"client": "a", "reason": "drop"},
    ]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["offline", "expired"]))), st.integers(1, 5))
def test_sums_are_bounded_and_exact(events: list[tuple[str, str]], limit: int) -> None:
    """Beyond the bound clients are the others, and no event is lost, nor its reason."""
    taker = Taker()
    sums = Sums(taker, limit)
    for client, reason in events:
        sums.count(dropped(client, reason))
    sums.tell(0)

    reasons: Counter[str] = Counter()
    for record in taker.records:
        reasons[record["reason"]] += record["delta"]
    assert reasons == Counter(reason for _, reason in events)
    assert sum(record["client"] != OTHERS for record in taker.records) <= limit


def test_one_event_does_not_take_the_room_of_another() -> None:
    """A flood of refused log-ins leaves drops as they are."""
    taker = Taker()
    sums = Sums(taker, 2)
    for number in range(100):
        sums.count(Sum("authentication_refused", f"c{number}", "", "banned"))
    sums.count(dropped("a"))
    sums.tell(0)

    assert [(r["name"], r["client"], r["delta"]) for r in taker.records] == [
        ("authentication_refused", "c0", 1),
        ("authentication_refused", "c1", 1),
        ("authentication_refused", OTHERS, 98),
        ("dropped", "a", 1),
    ]


def test_long_names_are_summed_up_sooner() -> None:
    """Clients choose names of 64 KB; what sums take in memory is bounded by bytes, too."""
    taker = Taker()
    sums = Sums(taker, 1000)
    for number in range(100):
        sums.count(dropped(f"{number:03d}" + "x" * 65_000))
    sums.tell(0)

    assert sum(len(record["client"]) for record in taker.records) <= NAMES_BYTES
    assert taker.records[-1]["client"] == OTHERS
    assert sum(record["delta"] for record in taker.records) == 100


@given(st.lists(st.sampled_from(["(others)", "((others))", "(others", "others)", "(a)", "others"]), unique=True))
def test_nobody_is_taken_for_the_others(names: list[str]) -> None:
    """Whatever clients call themselves, and topics: they are told apart from the others, and from each other."""
    taker = Taker()
    sums = Sums(taker, 10)
    for name in names:
        sums.count(Sum("retained", name, name, ""))
    taker.is_full = True
    sums.tell(0)
    taker.is_full = False
    sums.tell(1)
    tell_traffic(taker, TrafficSnapshot(1.0, "n", tuple(Traffic(name, name, 1, 1) for name in names)), 7)

    assert OTHERS not in {record[key] for record in taker.records for key in ("client", "topic")}
    told = [record["client"] for record in taker.records]
    assert len(set(told)) == len(names)
    assert told == [as_told(name) for name in names] * 2


def test_what_was_not_taken_is_told_with_the_next_interval() -> None:
    """The sums of what was dropped are exact, too."""
    taker = Taker()
    sums = Sums(taker, 10)
    sums.count(dropped("a"))
    taker.is_full = True
    sums.tell(0)
    taker.is_full = False
    sums.count(dropped("a"))
    sums.tell(1)

    assert [(record["t"], record["delta"]) for record in taker.records] == [(1, 2)]


# Traffic


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
    told = tell_traffic(taker, TrafficSnapshot(1.0, "n", (Traffic("c", "t", 2, 30),), 4, 50), 7)
    tell_traffic(taker, TrafficSnapshot(1.0, "n", ()), 8)
    taker.is_full = True
    untold = tell_traffic(taker, TrafficSnapshot(1.0, "n", (Traffic("c", "t", 2, 30),), 4, 50), 9)

    assert taker.records == [
        {"t": 7, "kind": "traffic", "delta": 2, "client": "c", "topic": "t", "bytes": 30},
        {"t": 7, "kind": "traffic", "delta": 4, "client": OTHERS, "topic": OTHERS, "bytes": 50},
    ]
    assert (told, untold) == ((0, 0), (6, 80))
