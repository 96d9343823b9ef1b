"""The plugin keeps what any plugin promises, and what one promises that publishes and takes metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics.settings import MetricsSettings
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.testing.driving import TurningDriver
from kinmqtt_spi.testing.metric import MetricPluginContract
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Maybe, NodeIdentity


class TestPlugin(PluginContract):
    """The sink, with everything it can tell of."""

    reloads = True
    can_fail = True

    @pytest.fixture
    def plugin(self, tmp_path: Path) -> PluginCase:
        """Below the folder that is the broker's where a test says so."""
        self.numbers = count(1)
        landing = f'landing = "{tmp_path / "plugins" / "metrics" / "landing"}"\n'
        return PluginCase(
            make=MetricsSink,
            name="metrics",
            section=landing + 'capture = ["a/#"]\nevents = ["connected", "dropped"]\n',
            changed=landing + 'capture = ["a/#"]\nevents = ["connected", "dropped"]\nroll_s = 3\nmax_pairs = 7\n',
        )

    def context(self, case: PluginCase, settings: Any, **more: Any) -> BareContext:
        """Each is another broker: they share the folder."""
        number = next(self.numbers)
        return BareContext(case.name, settings, node=NodeIdentity(f"node-{number}", number), **more)

    def probe(self, plugin: Any) -> object:
        """The settings that it goes by: what it tells is of its work, which a thread does at its own pace."""
        return plugin.settings

    def failing(self, plugin: Any, context: BareContext) -> None:
        """A file lies where the folder should be."""
        landing: Path = context.settings.landing
        landing.parent.mkdir(parents=True, exist_ok=True)
        landing.write_text("")


class TestMetrics(MetricPluginContract):
    """The sink as one that publishes below ``$SYS`` and takes snapshots."""

    takes_traffic = True

    @pytest.fixture
    def metric_plugin(self, tmp_path: Path) -> Iterator[MetricsSink]:
        """One that was started."""
        clock = TurnableClock()
        drive: Callable[[Maybe[None]], None] = TurningDriver(clock)
        sink = MetricsSink()
        context = BareContext("metrics", MetricsSettings(landing=tmp_path), clock=clock)
        sink.configure(context)
        drive(sink.start(context))
        yield sink
        drive(sink.stop())
