"""Samples of metrics and traffic for plugins, taken at each interval and once more when the broker stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kinmqtt.broker.routing.traffic import TrafficSampling
from kinmqtt_spi.metrics import MetricRegistry

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services


class Sampler:
    """Passes snapshots of metrics, and of traffic by client, to the plugins that want them."""

    def __init__(
        self, services: Services, metrics: MetricRegistry, call_soon: Callable[[Callable[[], object]], object]
    ) -> None:
        """``call_soon`` makes a call in the next reactor turn."""
        self._services = services
        self._metrics = metrics
        self._traffic_sampling = TrafficSampling(call_soon, self._notify_traffic)

    def sample(self) -> None:
        """Take one snapshot; metrics and traffic get the same time, so that both fall into one window."""
        runtime = self._services.runtime
        now = runtime.clock.now()
        runtime.count_discarded()
        if runtime.hooks.sampled.active:
            runtime.hooks.sampled(self._metrics.snapshot(now, runtime.node.name))
        if runtime.hooks.traffic_sampled.active:
            self._traffic_sampling.begin(now, self._services.connections)

    def finish(self) -> None:
        """Take the last snapshot, completing that of the traffic at once."""
        self.sample()
        self._traffic_sampling.finish()

    def _notify_traffic(self, at: float) -> None:
        runtime = self._services.runtime
        runtime.hooks.traffic_sampled(self._services.traffic.take_snapshot(at, runtime.node.name))
