"""Samples become records whose deltas add up, whatever is dropped."""

from __future__ import annotations

from itertools import accumulate
from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.sampling import Sampling
from kinmqtt_spi.services.metric import CounterSample, GaugeSample, HistogramSample, Sample, Snapshot
from metrics_harness.taker import Taker


def snapshot(*samples: Sample) -> Snapshot:
    """Of a moment that does not matter."""
    return Snapshot(1.5, "n", samples)


def counter(value: int, **labels: str) -> CounterSample:
    """A counter's sample."""
    return CounterSample("messages.dropped", "messages", labels, value)


def test_a_counter_says_how_far_it_has_come() -> None:
    """Each of its labels by itself; the first since nothing."""
    taker = Taker()
    sampling = Sampling(taker)
    sampling.take(snapshot(counter(5, reason="a"), counter(0, reason="b")), 7)
    sampling.take(snapshot(counter(5, reason="a"), counter(2, reason="b")), 8)

    common = {"kind": "counter", "name": "messages.dropped", "unit": "messages"}
    assert taker.records == [
        {"t": 7, **common, "labels": {"reason": "a"}, "value": 5, "delta": 5},
        {"t": 8, **common, "labels": {"reason": "a"}, "value": 5, "delta": 0},
        {"t": 8, **common, "labels": {"reason": "b"}, "value": 2, "delta": 2},
    ]


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1))
def test_the_deltas_add_up(steps: list[tuple[int, bool]]) -> None:
    """To the last value that was taken, whichever samples between were dropped."""
    taker = Taker()
    sampling = Sampling(taker)
    for value, (_, is_full) in zip(accumulate(step for step, _ in steps), steps, strict=True):
        taker.is_full = is_full
        sampling.take(snapshot(counter(value)), 0)

    found = taker.records
    assert all(
        record["value"] == total
        for record, total in zip(found, accumulate(record["delta"] for record in found), strict=True)
    )


@given(st.lists(st.tuples(st.tuples(*[st.integers(0, 9)] * 3), st.booleans()), min_size=1))
def test_the_buckets_add_up(steps: list[tuple[tuple[int, ...], bool]]) -> None:
    """Those of a histogram, too."""
    taker = Taker()
    sampling = Sampling(taker)
    counts = (0, 0, 0)
    last = counts
    for more, is_full in steps:
        counts = tuple(map(sum, zip(counts, more, strict=True)))  # type: ignore[assignment]
        taker.is_full = is_full
        sampling.take(snapshot(HistogramSample("turn", "seconds", {}, (1.0, 2.0), counts, float(sum(counts)))), 0)
        if not is_full:
            last = counts

    total = tuple(map(sum, zip(*(record["counts"] for record in taker.records), strict=True))) or (0, 0, 0)
    assert total == last
    assert sum(record["sum"] for record in taker.records) == sum(last)


def test_what_json_can_not_say_is_left_out() -> None:
    """A gauge that is no number says nothing; a counter beyond 64 bits stays at their end; buckets are joined."""
    taker = Taker()
    Sampling(taker).take(
        snapshot(
            GaugeSample("a", "ratio", {}, nan),
            GaugeSample("b", "ratio", {}, inf),
            GaugeSample("c", "ratio", {}, -1),
            counter(1 << 70),
            HistogramSample("d", "seconds", {}, (1.0, inf), (1, 2, 3), inf),
        ),
        0,
    )

    gauge, counted, histogram = taker.records
    assert (gauge["name"], gauge["number"]) == ("c", -1.0)
    assert counted["value"] == counted["delta"] == (1 << 63) - 1
    assert (histogram["bounds"], histogram["counts"]) == ((1.0,), (1, 5))
    assert "sum" not in histogram


def test_a_histogram_with_other_bounds_is_another() -> None:
    """What was counted under other bounds can't be taken from it."""
    taker = Taker()
    sampling = Sampling(taker)
    sampling.take(snapshot(HistogramSample("d", "seconds", {}, (1.0,), (1, 2), 3.0)), 0)
    sampling.take(snapshot(HistogramSample("d", "seconds", {}, (1.0, 2.0), (1, 2, 2), 4.0)), 0)

    assert [record["counts"] for record in taker.records] == [(1, 2), (1, 2, 2)]


def test_labels_are_not_those_of_the_snapshot() -> None:
    """A record is written later, when somebody may have changed what the sample was made of."""
    taker = Taker()
    labels = {"reason": "a"}
    Sampling(taker).take(snapshot(CounterSample("x", "y", labels, 1)), 0)
    labels["reason"] = "b"

    assert taker.records[0]["labels"] == {"reason": "a"}


@given(st.lists(st.tuples(st.integers(-5, 20), st.booleans()), min_size=1))
def test_a_counter_that_goes_back_has_begun_anew(steps: list[tuple[int, bool]]) -> None:
    """No delta is negative; since the counter went back last they add up to its value, and that it did is told."""
    taker = Taker()
    sampling = Sampling(taker)
    for value, is_full in steps:
        taker.is_full = is_full
        sampling.take(snapshot(counter(value)), 0)

    total = 0
    for record in taker.records:
        assert record["delta"] >= 0 and record["value"] >= 0
        total = record["value"] if record["value"] == record["delta"] else total + record["delta"]
        assert total == record["value"]


def test_where_a_counter_goes_back_is_told_with_its_value() -> None:
    """What it had counted before is not taken back, and what it counts after is told whole."""
    taker = Taker()
    sampling = Sampling(taker)
    for value in (5, 2, 0, 0, 3):
        sampling.take(snapshot(counter(value)), 0)

    assert [(record["value"], record["delta"]) for record in taker.records] == [(5, 5), (2, 2), (0, 0), (3, 3)]


@given(st.lists(st.tuples(st.tuples(*[st.integers(0, 9)] * 3), st.booleans()), min_size=1))
def test_a_histogram_that_goes_back_has_begun_anew(steps: list[tuple[tuple[int, ...], bool]]) -> None:
    """No bucket is negative, whichever of them went back, and the sum is that of what the buckets tell."""
    taker = Taker()
    sampling = Sampling(taker)
    for counts, is_full in steps:
        taker.is_full = is_full
        sampling.take(snapshot(HistogramSample("h", "seconds", {}, (1.0, 2.0), counts, float(sum(counts)))), 0)

    for record in taker.records:
        assert min(record["counts"]) >= 0
        assert record["sum"] == sum(record["counts"])
