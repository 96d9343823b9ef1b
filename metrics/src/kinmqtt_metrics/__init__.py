"""The data pipeline of kinmqtt: a sink for metrics and events in the broker, and what Spark makes of them.

The broker imports this package and nothing of Spark; what needs Spark is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinmqtt_metrics._plugin import MetricsSink

__all__ = ["MetricsSink"]


def __getattr__(name: str) -> object:
    # Whoever reads the landing folder, a worker of Spark's above all, has no use for the broker's half.
    if name == "MetricsSink":
        from kinmqtt_metrics._plugin import MetricsSink

        return MetricsSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
