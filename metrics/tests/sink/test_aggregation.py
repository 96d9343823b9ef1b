"""Counts of an interval: exact, bounded, and kept where there is no room for them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.aggregation import NAMES_BYTES, EventCounts, EventKey
from kinmqtt_metrics.record import OTHERS, as_told
from kinmqtt_metrics.traffic import report_traffic
from kinmqtt_spi.services.metric import Traffic, TrafficSnapshot
from metrics_harness.taker import Taker


def dropped(client: str, reason: str = "offline") -> EventKey:
    """A message that did not reach a client."""
    return EventKey("dropped", client, "", reason)


def test_events_of_one_sort_are_one_record() -> None:
    """However many there were; keys that say nothing are left out."""
    taker = Taker()
    sums = EventCounts(taker, 10)
    for client in ("a", "b", "a"):
        sums.count(dropped(client))
    sums.count(EventKey("limited", "a", "", "drop", (("by", "rule"),)))
    sums.flush(9)
    sums.flush(10)

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
    sums = EventCounts(taker, limit)
    for client, reason in events:
        sums.count(dropped(client, reason))
    sums.flush(0)

    reasons: Counter[str] = Counter()
    for record in taker.records:
        reasons[record["reason"]] += record["delta"]
    assert reasons == Counter(reason for _, reason in events)
    assert sum(record["client"] != OTHERS for record in taker.records) <= limit


def test_one_event_does_not_take_the_room_of_another() -> None:
    """A flood of refused log-ins leaves drops as they are."""
    taker = Taker()
    sums = EventCounts(taker, 2)
    for number in range(100):
        sums.count(EventKey("authentication_refused", f"c{number}", "", "banned"))
    sums.count(dropped("a"))
    sums.flush(0)

    assert [(r["name"], r["client"], r["delta"]) for r in taker.records] == [
        ("authentication_refused", "c0", 1),
        ("authentication_refused", "c1", 1),
        ("authentication_refused", OTHERS, 98),
        ("dropped", "a", 1),
    ]


def test_long_names_are_summed_up_sooner() -> None:
    """Clients choose names of 64 KB; what sums take in memory is bounded by bytes, too."""
    taker = Taker()
    sums = EventCounts(taker, 1000)
    for number in range(100):
        sums.count(dropped(f"{number:03d}" + "x" * 65_000))
    sums.flush(0)

    assert sum(len(record["client"]) for record in taker.records) <= NAMES_BYTES
    assert taker.records[-1]["client"] == OTHERS
    assert sum(record["delta"] for record in taker.records) == 100


@given(st.lists(st.sampled_from(["(others)", "((others))", "(others", "others)", "(a)", "others"]), unique=True))
def test_nobody_is_taken_for_the_others(names: list[str]) -> None:
    """Whatever clients call themselves, and topics: they are told apart from the others, and from each other."""
    taker = Taker()
    sums = EventCounts(taker, 10)
    for name in names:
        sums.count(EventKey("retained", name, name, ""))
    taker.is_full = True
    sums.flush(0)
    taker.is_full = False
    sums.flush(1)
    report_traffic(taker, TrafficSnapshot(1.0, "n", tuple(Traffic(name, name, 1, 1) for name in names)), 7)

    assert OTHERS not in {record[key] for record in taker.records for key in ("client", "topic")}
    told = [record["client"] for record in taker.records]
    assert len(set(told)) == len(names)
    assert told == [as_told(name) for name in names] * 2


def test_what_was_not_taken_is_told_with_the_next_interval() -> None:
    """The sums of what was dropped are exact, too."""
    taker = Taker()
    sums = EventCounts(taker, 10)
    sums.count(dropped("a"))
    taker.is_full = True
    sums.flush(0)
    taker.is_full = False
    sums.count(dropped("a"))
    sums.flush(1)

    assert [(record["t"], record["delta"]) for record in taker.records] == [(1, 2)]
