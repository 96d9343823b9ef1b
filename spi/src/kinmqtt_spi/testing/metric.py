"""The contracts of a registry of metrics, and of plugins that publish or take metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import pytest

from kinmqtt_spi.markers import NOTICE_LIMIT_S
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.metric import (
    CounterSample,
    GaugeSample,
    HistogramSample,
    Metrics,
    Snapshot,
    SysTopic,
    Traffic,
    TrafficSnapshot,
)
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, NOW
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver, NoAnswer, TurningDriver
from kinmqtt_spi.testing.hooks import Hooks

LABELS: Final[Mapping[str, str]] = {"kind": "a", "other": "ä b"}

EMPTY: Final = Snapshot(NOW, HERE.name, ())
FULL: Final = Snapshot(
    NOW + 10,
    HERE.name,
    (
        CounterSample("messages.received", "messages", {}, 0),
        CounterSample("messages.received", "messages", {"listener": 'tcp:1883 "\\\n'}, 1 << 70),
        GaugeSample("queue.size", "bytes", {"plugin": "ä"}, -0.5),
        GaugeSample("queue.age", "seconds", {}, float("inf")),
        GaugeSample("queue.ratio", "ratio", {}, float("nan")),
        HistogramSample("turn.duration", "seconds", {}, (0.001, 0.1), (1, 0, 2), 3.5),
    ),
)

NO_TRAFFIC: Final = TrafficSnapshot(NOW, HERE.name, ())
TRAFFIC: Final = TrafficSnapshot(
    NOW + 10,
    HERE.name,
    (
        Traffic("a", "t", 1, 4),
        Traffic("a", 'ä/"\\\n', 1 << 40, 1 << 50),
        Traffic('ä"\\ b', "t", 2, 0),
        Traffic("", "$SYS/t", 1, 9),
    ),
    7,
    700,
)


class MetricsContract(Contract):
    """Override the fixture ``metrics``: an empty registry, or a view of one."""

    @pytest.fixture
    def metrics(self) -> Metrics:
        """The metrics under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture metrics")

    @behaviour("METRIC-01")
    def test_metric_01_a_counter_begins_at_nothing(self, metrics: Metrics) -> None:
        """A counter starts at 0, counts by its ``value``, and has the given name, unit and labels."""
        counter = metrics.counter("queue.dropped", "messages", LABELS)
        first = counter.value
        counter.value += 3

        assert (first, counter.value) == (0, 3)
        assert (counter.name, counter.unit) == ("queue.dropped", "messages")
        assert LABELS.items() <= counter.labels.items()

    @behaviour("METRIC-02")
    def test_metric_02_asking_again_gives_the_same(self, metrics: Metrics) -> None:
        """The same name and labels, in any order, return the same object."""
        turned = dict(reversed(list(LABELS.items())))

        assert metrics.counter("a", "messages", LABELS) is metrics.counter("a", "messages", turned)
        assert metrics.gauge("b", "bytes", lambda: 1.0, LABELS) is metrics.gauge("b", "bytes", lambda: 1.0, turned)
        assert metrics.histogram("c", "seconds", (1, 2), LABELS) is metrics.histogram("c", "seconds", (1, 2), turned)

    @behaviour("METRIC-03")
    def test_metric_03_other_labels_are_another(self, metrics: Metrics) -> None:
        """Metrics with the same name and other labels are different ones."""
        found = [metrics.counter("a", "messages", labels) for labels in ({}, {"k": "a"}, {"k": "b"}, LABELS)]
        found[1].value += 1

        assert [counter.value for counter in found] == [0, 1, 0, 0]

    @behaviour("METRIC-04")
    def test_metric_04_a_gauge_is_read_when_looked_at(self, metrics: Metrics) -> None:
        """A gauge is not read when it is made, and returns the current value whenever it is read."""
        numbers = iter((1.5, 2.5))
        gauge = metrics.gauge("queue.size", "bytes", lambda: next(numbers), LABELS)

        assert (gauge.name, gauge.unit) == ("queue.size", "bytes")
        assert LABELS.items() <= gauge.labels.items()
        assert [gauge.read(), gauge.read()] == [1.5, 2.5]

    @behaviour("METRIC-05")
    def test_metric_05_a_histogram_counts_by_bounds(self, metrics: Metrics) -> None:
        """A histogram counts each value under the first bound that is not below it; the last bucket has no bound."""
        histogram = metrics.histogram("turn.duration", "seconds", (1, 2.5), LABELS)
        for value in (0, 1, 1.5, 2.5, 2.6, 100):
            histogram.observe(value)

        assert list(histogram.bounds) == [1, 2.5]
        assert histogram.counts == [2, 2, 2]
        assert histogram.sum == pytest.approx(107.6)
        assert LABELS.items() <= histogram.labels.items()

    @behaviour("METRIC-06")
    def test_metric_06_bounds_rise(self, metrics: Metrics) -> None:
        """A histogram without bounds, or whose bounds do not increase, raises ``ValueError``."""
        for number, bounds in enumerate(((), (2, 1), (1, 1))):
            with pytest.raises(ValueError):
                metrics.histogram(f"turn.duration{number}", "seconds", bounds)

    @behaviour("METRIC-07")
    def test_metric_07_a_name_has_one_unit(self, metrics: Metrics) -> None:
        """An existing name with another unit raises ``ValueError``, also with other labels; the metric stays."""
        counter = metrics.counter("a", "messages")
        metrics.gauge("b", "messages", lambda: 1.0)
        metrics.histogram("c", "seconds", (1,))

        for again in (
            lambda: metrics.counter("a", "bytes"),
            lambda: metrics.counter("a", "bytes", LABELS),
            lambda: metrics.gauge("b", "bytes", lambda: 1.0),
            lambda: metrics.histogram("c", "bytes", (1,)),
        ):
            with pytest.raises(ValueError):
                again()
        assert metrics.counter("a", "messages") is counter

    @behaviour("METRIC-08")
    def test_metric_08_a_name_has_one_sort(self, metrics: Metrics) -> None:
        """An existing name with another type of metric raises ``ValueError``; the metric stays."""
        counter = metrics.counter("a", "messages")
        metrics.gauge("b", "messages", lambda: 1.0)

        for again in (
            lambda: metrics.gauge("a", "messages", lambda: 1.0),
            lambda: metrics.histogram("a", "messages", (1,)),
            lambda: metrics.counter("b", "messages", LABELS),
        ):
            with pytest.raises(ValueError):
                again()
        assert metrics.counter("a", "messages") is counter

    @behaviour("METRIC-15")
    def test_metric_15_labels_are_told_apart(self, metrics: Metrics) -> None:
        """Labels differ by every character, and by case; so do names."""
        labels = [
            *({"a": "b", "c": "d"}, {"a": "b,c=d"}, {"a": "b", "cd": ""}, {"a": "bcd"}, {"ab": "cd"}),
            *(
                {"a": 'b",c="d'},
                {"A": "bcd"},
                {"a": "BCD"},
                {"a": "bcd "},
                {"a": "b", "c": "D"},
                {"a": "d", "c": "b"},
            ),
        ]
        found = [metrics.counter("queue.size", "messages", each) for each in labels]
        found += [metrics.counter(name, "messages", labels[0]) for name in ("queue.size_a", "queue_size", "queue")]
        for number, counter in enumerate(found):
            counter.value += number + 1

        assert [counter.value for counter in found] == list(range(1, len(found) + 1))

    @behaviour("METRIC-16")
    def test_metric_16_each_has_its_own_numbers(self, metrics: Metrics) -> None:
        """Gauges and histograms with the same name and other labels have their own values."""
        gauges = [
            metrics.gauge("b", "bytes", lambda: 1.0, {"k": "a"}),
            metrics.gauge("b", "bytes", lambda: 2.0, {"k": "b"}),
        ]
        histograms = [metrics.histogram("c", "seconds", (1, 2), {"k": each}) for each in "ab"]
        histograms[0].observe(1)

        assert [gauge.read() for gauge in gauges] == [1.0, 2.0]
        assert [histogram.counts for histogram in histograms] == [[1, 0, 0], [0, 0, 0]]
        assert [histogram.sum for histogram in histograms] == [1, 0]


class MetricPluginContract(Contract):
    """Override the fixture ``metric_plugin``: a plugin that publishes below ``$SYS/``, or takes snapshots.

    It is configured, and started if it must be.
    """

    publishes = True
    """Whether it implements ``sys_topics``."""
    samples = True
    """Whether it implements ``sampled``."""
    takes_traffic = False
    """Whether it implements ``traffic_sampled``."""
    can_fail = False
    """Whether the suite may make what takes the snapshots fail: override :meth:`failing`."""

    @pytest.fixture
    def metric_plugin(self) -> Any:
        """The plugin under test."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture metric_plugin")

    def failing(self, plugin: Any) -> None:
        """Make the destination of snapshots unreachable."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    @behaviour("METRIC-09", needs="publishes")
    def test_metric_09_topics_are_below_sys(self, metric_plugin: Any) -> None:
        """Every topic is below ``$SYS/``, and is a valid topic name."""
        for each in _topics(metric_plugin):
            assert each.topic.startswith("$SYS/")
            assert len(each.topic) > len("$SYS/")
            assert not set(each.topic) & set("+#\0")
            assert len(each.topic.encode()) <= 65_535

    @behaviour("METRIC-10", needs="publishes")
    def test_metric_10_no_topic_is_named_twice(self, metric_plugin: Any) -> None:
        """No topic is named twice."""
        names = [each.topic for each in _topics(metric_plugin)]

        assert len(names) == len(set(names))

    @behaviour("METRIC-11", needs="publishes")
    def test_metric_11_each_can_be_read(self, metric_plugin: Any) -> None:
        """Each topic can be read repeatedly, and its value is text."""
        for each in _topics(metric_plugin):
            for _ in range(3):
                text = each.read()
                assert isinstance(text, str)
                text.encode()

    @behaviour("METRIC-12", needs="samples")
    def test_metric_12_every_snapshot_is_taken(self, metric_plugin: Any, drive: Driver) -> None:
        """Every snapshot is accepted without an error: an empty one, and all kinds of numbers and labels."""
        hooks = Hooks(metric_plugin)
        for snapshot in (EMPTY, FULL, FULL, EMPTY):
            drive(hooks.call("sampled", snapshot=snapshot))

    @behaviour("METRIC-13", needs="samples")
    def test_metric_13_a_snapshot_is_left_as_it_is(self, metric_plugin: Any, drive: Driver) -> None:
        """The plugin does not change a snapshot, which goes to several plugins."""
        snapshot = deepcopy(FULL)
        drive(Hooks(metric_plugin).call("sampled", snapshot=snapshot))

        assert repr(snapshot) == repr(FULL)

    @behaviour("METRIC-14", needs="can_fail")
    def test_metric_14_a_failure_has_an_end(self, metric_plugin: Any, drive: Driver, clock: TurnableClock) -> None:
        """If the destination is unreachable, the plugin raises within the time limit of a notice."""
        self.failing(metric_plugin)
        begun = clock.monotonic()

        with pytest.raises(Exception) as raised:
            _within(drive, clock)(Hooks(metric_plugin).call("sampled", snapshot=FULL))

        assert not isinstance(raised.value, NoAnswer)
        assert clock.monotonic() - begun <= NOTICE_LIMIT_S

    @behaviour("METRIC-17", needs="takes_traffic")
    def test_metric_17_traffic_is_taken(self, metric_plugin: Any, drive: Driver) -> None:
        """Every traffic snapshot is accepted without an error, also an empty one, and is not changed."""
        hooks = Hooks(metric_plugin)
        for snapshot in (NO_TRAFFIC, TRAFFIC, TRAFFIC, NO_TRAFFIC):
            before = repr(snapshot)
            drive(hooks.call("traffic_sampled", traffic=snapshot))

            assert repr(snapshot) == before


def _topics(plugin: Any) -> Sequence[SysTopic]:
    topics: Sequence[SysTopic] = Hooks(plugin).call("sys_topics")
    assert topics, "the plugin names no topic: give it a case in which it does, or set publishes to False"
    return topics


def _within(drive: Driver, clock: TurnableClock) -> Driver:
    """Waits, and advances the clock meanwhile, if it is the plugin's clock."""
    return TurningDriver(clock, lambda: clock.advance(0.1)) if isinstance(drive, TurningDriver) else drive
