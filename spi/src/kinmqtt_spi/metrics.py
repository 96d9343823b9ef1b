"""The registry of a broker's metrics: counted with plain integers, read as a snapshot."""

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
"""The label with the name of the plugin that a metric belongs to."""

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
        """See :meth:`Metrics.gauge`. A repeated call replaces ``read`` of the same gauge."""
        gauge = self._known_or_new(Gauge(name, unit, read, _frozen(labels)))
        gauge.read = read
        return gauge

    def histogram(
        self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Histogram:
        """See :meth:`Metrics.histogram`. Other bounds for an existing name raise ``ValueError``."""
        return self._known_or_new(Histogram(name, unit, bounds, _frozen(labels)))

    def snapshot(self, at: float, node: str) -> Snapshot:
        """Return all metrics; ``at`` is in seconds since the epoch. A gauge that raises is skipped and reported."""
        samples: list[Sample] = []
        for family in list(self._metrics.values()):
            for metric in list(family.values()):
                sample = self._sample(metric)
                if sample is not None:
                    samples.append(sample)
        return Snapshot(at, node, tuple(samples))

    def sum(self, name: str) -> float:
        """Return the sum of all counters or gauges with a name, whatever their labels; 0 for none.

        For a histogram, return the sum of its observations. A gauge that raises is skipped and reported.
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
            # Plugins may use the same name independently, because no plugin knows the names of others.
            if one.labels.get(PLUGIN) == plugin:
                if _type_text(one) != _type_text(new):
                    raise ValueError(f"metric {new.name} is a {_type_text(one)}, not a {_type_text(new)}")
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
        except Exception as error:  # a plugin's callable: its failure must not affect other metrics
            self._gauge_failed(metric.name, error)
            return None
        return GaugeSample(metric.name, metric.unit, metric.labels, value)


class Namespaced(Metrics):
    """One plugin's view of the metrics: every metric that it makes has the label ``plugin`` with its name."""

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


def _type_text(metric: Metric) -> str:
    """Return what metrics with the same name must have in common, as text."""
    sort = f"{type(metric).__name__.lower()} of {metric.unit}"
    return f"{sort} with bounds {metric.bounds}" if isinstance(metric, Histogram) else sort
