"""The metrics of one broker: made once, counted with plain integers, read as a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from kinmqtt_spi.services.metric import (
    Counter,
    CounterSample,
    Gauge,
    GaugeSample,
    Histogram,
    HistogramSample,
    Metrics,
    Sample,
    Snapshot,
)
from kinmqtt_spi.values import NO_ATTRIBUTES

Metric: TypeAlias = Counter | Gauge | Histogram
M = TypeVar("M", Counter, Gauge, Histogram)

PLUGIN = "plugin"
"""The label that says whose a metric is."""

_Labels: TypeAlias = tuple[tuple[str, str], ...]


def _ignore(name: str, error: Exception) -> None:
    """Leave a gauge's error unreported."""


class MetricRegistry(Metrics):
    """All metrics by name and labels.

    ``gauge_failed`` is called with the name and the error of a gauge that raised while it was read.
    """

    def __init__(self, gauge_failed: Callable[[str, Exception], object] = _ignore) -> None:
        self._metrics: dict[str, dict[_Labels, Metric]] = {}
        self._gauge_failed = gauge_failed

    def counter(self, name: str, unit: str, labels: Mapping[str, str] = NO_ATTRIBUTES) -> Counter:
        return self._known_or_new(Counter(name, unit, _frozen(labels)))

    def gauge(
        self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Gauge:
        """See :meth:`Metrics.gauge`; asking again hands the same gauge its new ``read``."""
        gauge = self._known_or_new(Gauge(name, unit, read, _frozen(labels)))
        gauge.read = read
        return gauge

    def histogram(
        self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Histogram:
        """See :meth:`Metrics.histogram`; other bounds for a name that exists raise ``ValueError``."""
        return self._known_or_new(Histogram(name, unit, bounds, _frozen(labels)))

    def snapshot(self, at: float, node: str) -> Snapshot:
        """All metrics now; ``at`` in seconds since the epoch. A raising gauge is left out and reported."""
        samples: list[Sample] = []
        for family in list(self._metrics.values()):
            for metric in list(family.values()):
                sample = self._sample(metric)
                if sample is not None:
                    samples.append(sample)
        return Snapshot(at, node, tuple(samples))

    def sum(self, name: str) -> float:
        """The values of all counters or gauges of a name together, whatever their labels; 0 for none.

        Of a histogram, the sum of what was observed. A raising gauge is left out and reported.
        """
        total: float = 0
        for metric in list(self._metrics.get(name, {}).values()):
            sample = self._sample(metric)
            if isinstance(sample, HistogramSample):
                total += sample.sum
            elif sample is not None:
                total += sample.value
        return total

    def _known_or_new(self, new: M) -> M:
        family = self._metrics.setdefault(new.name, {})
        plugin = new.labels.get(PLUGIN)
        for one in family.values():
            # What others call by the same name is theirs: no plugin knows which names are taken.
            if one.labels.get(PLUGIN) == plugin:
                if _sort(one) != _sort(new):
                    raise ValueError(f"metric {new.name} is a {_sort(one)}, not a {_sort(new)}")
                break
        known = family.setdefault(tuple(sorted(new.labels.items())), new)
        assert isinstance(known, type(new))
        return known

    def _sample(self, metric: Metric) -> Sample | None:
        if isinstance(metric, Counter):
            return CounterSample(metric.name, metric.unit, metric.labels, metric.value)
        if isinstance(metric, Histogram):
            return HistogramSample(
                metric.name, metric.unit, metric.labels, metric.bounds, tuple(metric.counts), metric.sum
            )
        try:
            value = metric.read()
        except Exception as error:  # a plugin's callable: whatever it raises must not cost the other metrics
            self._gauge_failed(metric.name, error)
            return None
        return GaugeSample(metric.name, metric.unit, metric.labels, value)


class Namespaced(Metrics):
    """One plugin's face to the metrics: every metric it makes carries the label ``plugin`` with its name."""

    def __init__(self, metrics: Metrics, plugin: str) -> None:
        self._metrics = metrics
        self._plugin = plugin

    def counter(self, name: str, unit: str, labels: Mapping[str, str] = NO_ATTRIBUTES) -> Counter:
        return self._metrics.counter(name, unit, self._labels(labels))

    def gauge(
        self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Gauge:
        return self._metrics.gauge(name, unit, read, self._labels(labels))

    def histogram(
        self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Histogram:
        return self._metrics.histogram(name, unit, bounds, self._labels(labels))

    def _labels(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        return {**labels, PLUGIN: self._plugin}


def _frozen(labels: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(labels)) if labels else NO_ATTRIBUTES


def _sort(metric: Metric) -> str:
    """What metrics of one name must share."""
    sort = f"{type(metric).__name__.lower()} of {metric.unit}"
    return f"{sort} with bounds {metric.bounds}" if isinstance(metric, Histogram) else sort
