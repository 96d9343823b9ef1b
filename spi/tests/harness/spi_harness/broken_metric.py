"""Metrics that break one promise each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.metric import Counter, Gauge, Histogram
from kinmqtt_spi.testing.metric import MetricsContract
from kinmqtt_spi.values import NO_ATTRIBUTES


class _Broken(MetricsContract):
    """``double`` is the registry."""

    double: type[MetricRegistry]

    @pytest.fixture
    def metrics(self) -> MetricRegistry:
        return self.double()


class TestMETRIC_01_ForgetsLabels(_Broken):
    class double(MetricRegistry):
        def counter(self, name: str, unit: str, labels: Mapping[str, str] = NO_ATTRIBUTES) -> Counter:
            return super().counter(name, unit)


class TestMETRIC_02_MakesANewOne(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            super()._known_or_new(new)
            return new


class TestMETRIC_02_LooksAtTheOrder(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            super()._known_or_new(new)
            return self._metrics[new.name].setdefault(tuple(new.labels.items()), new)


class TestMETRIC_03_OneForEachName(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            known = super()._known_or_new(new)
            return next(iter(self._metrics[new.name].values()), known)


class TestMETRIC_04_ReadsOnce(_Broken):
    class double(MetricRegistry):
        def gauge(
            self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
        ) -> Gauge:
            value = read()
            return super().gauge(name, unit, lambda: value, labels)


class _Below(Histogram):
    __slots__ = ()

    def observe(self, value: float) -> None:
        self.counts[sum(bound <= value for bound in self.bounds)] += 1
        self.sum += value


class TestMETRIC_05_ABoundIsAbove(_Broken):
    class double(MetricRegistry):
        def histogram(
            self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
        ) -> Histogram:
            return self._known_or_new(_Below(name, unit, bounds, dict(labels)))


class TestMETRIC_06_SortsThem(_Broken):
    class double(MetricRegistry):
        def histogram(
            self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
        ) -> Histogram:
            return super().histogram(name, unit, sorted({*bounds, 1.0}), labels)


class TestMETRIC_07_TakesAnyUnit(_Broken):
    class double(MetricRegistry):
        def counter(self, name: str, unit: str, labels: Mapping[str, str] = NO_ATTRIBUTES) -> Counter:
            return super().counter(name, "messages", labels)


class TestMETRIC_07_ReplacesIt(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            try:
                return super()._known_or_new(new)
            except ValueError:
                del self._metrics[new.name]
                raise


class TestMETRIC_08_MakesBoth(_Broken):
    class double(MetricRegistry):
        def gauge(
            self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
        ) -> Gauge:
            return Gauge(name, unit, read, labels)


class TestMETRIC_15_JoinsLabels(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            super()._known_or_new(new)
            key = ",".join(f"{name}={value}" for name, value in sorted(new.labels.items()))
            return self._metrics[new.name].setdefault(((key, ""),), new)


class TestMETRIC_15_LabelsHaveNoCase(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            super()._known_or_new(new)
            key = tuple(sorted((name.lower(), value.lower()) for name, value in new.labels.items()))
            return self._metrics[new.name].setdefault((("", ""), *key), new)


class TestMETRIC_15_LooksAtTheValues(_Broken):
    class double(MetricRegistry):
        def _known_or_new(self, new: Any) -> Any:
            super()._known_or_new(new)
            key = tuple(("", value) for value in sorted(new.labels.values()))
            return self._metrics[new.name].setdefault((("", ""), *key), new)


class TestMETRIC_16_SharesCounts(_Broken):
    class double(MetricRegistry):
        def histogram(
            self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
        ) -> Histogram:
            first = super().histogram(name, unit, bounds)
            histogram = super().histogram(name, unit, bounds, labels)
            histogram.counts = first.counts
            return histogram


class TestMETRIC_16_ReadsTheLastGauge(_Broken):
    class double(MetricRegistry):
        last: Callable[[], float]

        def gauge(
            self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
        ) -> Gauge:
            self.last = read
            return super().gauge(name, unit, lambda: self.last(), labels)
