"""The metric registry, and the face a plugin sees of it."""

from __future__ import annotations

import pytest

from kinmqtt_spi.metrics import MetricRegistry, Namespaced
from kinmqtt_spi.services.metric import CounterSample, GaugeSample, HistogramSample, Snapshot


def test_the_same_name_and_labels_give_the_same_object() -> None:
    """Whoever asks again counts on, whatever the order of the labels; other labels count apart."""
    metrics = MetricRegistry()

    one = metrics.counter("sent", "messages", {"a": "1", "b": "2"})
    same = metrics.counter("sent", "messages", {"b": "2", "a": "1"})
    other = metrics.counter("sent", "messages")

    assert one is same
    assert one is not other
    assert metrics.histogram("took", "seconds", [1.0]) is metrics.histogram("took", "seconds", [1.0])


def test_a_gauge_asked_for_again_reads_anew() -> None:
    """A plugin that was reloaded is not read through what it was before."""
    metrics = MetricRegistry()
    gauge = metrics.gauge("size", "entries", lambda: 1)

    again = metrics.gauge("size", "entries", lambda: 2)

    assert again is gauge
    assert gauge.read() == 2


def test_one_name_is_one_sort_of_metric() -> None:
    """Another sort, unit or other bounds for a known name is a mistake, whatever the labels."""
    metrics = MetricRegistry()
    metrics.counter("sent", "messages")
    metrics.histogram("took", "seconds", [1.0])

    with pytest.raises(ValueError, match="counter of messages"):
        metrics.counter("sent", "bytes", {"a": "1"})
    with pytest.raises(ValueError, match="not a gauge"):
        metrics.gauge("sent", "messages", lambda: 0)
    with pytest.raises(ValueError, match="bounds"):
        metrics.histogram("took", "seconds", [2.0], {"a": "1"})


def test_plugins_need_not_know_what_others_call_their_metrics() -> None:
    """The same name is each one's own, with the unit and the sort that it likes."""
    registry = MetricRegistry()
    one, two = Namespaced(registry, "one"), Namespaced(registry, "two")

    one.gauge("failing", "flag", lambda: 1)
    two.gauge("failing", "addresses", lambda: 7)
    registry.counter("failing", "stores")

    with pytest.raises(ValueError, match="not a counter"):
        two.counter("failing", "addresses")
    assert {(sample.labels.get("plugin"), sample.unit) for sample in registry.snapshot(0.0, "n").samples} == {
        ("one", "flag"),
        ("two", "addresses"),
        (None, "stores"),
    }


def test_a_snapshot_holds_every_value() -> None:
    """A snapshot is made of plain values that later counting does not change."""
    metrics = MetricRegistry()
    counter = metrics.counter("sent", "messages", {"qos": "1"})
    metrics.gauge("open", "connections", lambda: 3)
    histogram = metrics.histogram("took", "seconds", [1.0, 2.0])
    counter.value += 2
    histogram.observe(1.0)
    histogram.observe(5.0)

    snapshot = metrics.snapshot(at=7.0, node="n")
    counter.value += 1
    histogram.observe(1.0)

    assert snapshot == Snapshot(
        7.0,
        "n",
        (
            CounterSample("sent", "messages", {"qos": "1"}, 2),
            GaugeSample("open", "connections", {}, 3),
            HistogramSample("took", "seconds", {}, (1.0, 2.0), (1, 0, 1), 6.0),
        ),
    )


def test_a_raising_gauge_is_left_out_and_reported() -> None:
    """One broken gauge costs its own value and no other."""
    failures: list[tuple[str, str]] = []
    metrics = MetricRegistry(lambda name, error: failures.append((name, repr(error))))

    def broken() -> float:
        raise OSError("gone")

    metrics.gauge("broken", "things", broken)
    metrics.gauge("fine", "things", lambda: 1)

    snapshot = metrics.snapshot(0.0, "n")

    assert [sample.name for sample in snapshot.samples] == ["fine"]
    assert metrics.sum("broken") == 0
    assert failures == [("broken", "OSError('gone')")] * 2


def test_sums_go_over_all_labels() -> None:
    """The sum of a name is that of all its label sets; a name nobody made sums to 0."""
    metrics = MetricRegistry()
    for qos in ("0", "1"):
        metrics.counter("sent", "messages", {"qos": qos}).value += 2
    metrics.gauge("open", "connections", lambda: 3)
    metrics.histogram("took", "seconds", [1.0]).observe(0.5)

    sums = [metrics.sum(name) for name in ("sent", "open", "took", "nothing")]

    assert sums == [4, 3, 0.5, 0]


def test_labels_are_the_registrys_own() -> None:
    """A caller's dict may change later without renaming the metric."""
    labels = {"a": "1"}
    counter = MetricRegistry().counter("sent", "messages", labels)

    labels["a"] = "2"

    assert counter.labels == {"a": "1"}


def test_a_plugins_metrics_carry_its_name() -> None:
    """Two plugins may use one metric name; neither can write under the other's."""
    registry = MetricRegistry()
    one, two = Namespaced(registry, "one"), Namespaced(registry, "two")

    counters = [one.counter("calls", "calls", {"plugin": "two"}), two.counter("calls", "calls")]
    gauge = one.gauge("size", "entries", lambda: 0)
    histogram = one.histogram("took", "seconds", [1.0], {"a": "1"})

    assert [counter.labels for counter in counters] == [{"plugin": "one"}, {"plugin": "two"}]
    assert (gauge.labels, histogram.labels) == ({"plugin": "one"}, {"plugin": "one", "a": "1"})
