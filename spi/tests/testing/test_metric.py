"""The reference metrics keep their contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.metrics import MetricRegistry, Namespaced
from kinmqtt_spi.testing.metric import MetricsContract
from spi_harness.broken_metric_plugin import SoundPlugin


class TestMetricRegistry(MetricsContract):
    """The registry."""

    @pytest.fixture
    def metrics(self) -> MetricRegistry:
        return MetricRegistry()


class TestNamespaced(MetricsContract):
    """A plugin's face to it."""

    @pytest.fixture
    def metrics(self) -> Namespaced:
        return Namespaced(MetricRegistry(), "plugin")


class TestSoundPlugin(SoundPlugin):
    """A plugin that publishes and takes metrics: what the doubles are made from."""
