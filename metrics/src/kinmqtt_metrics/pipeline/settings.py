"""What a run of the pipeline is told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from attrs import Factory, frozen

from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.number_arguments import WEEK_S, YEAR_S, Number

BOUNDS: Final = {
    "trigger_s": Number(0, 86_400, "seconds"),
    "window_s": Number(1, WEEK_S, "seconds", whole=True),
    "watermark_s": Number(0, YEAR_S, "seconds"),
    "idle_s": Number(0, math.inf, "seconds"),
    "ahead_s": Number(0, YEAR_S, "seconds"),
    "top": Number(0, 10_000, whole=True),
    "storm_connects": Number(1, 1_000_000_000, whole=True),
    "storm_client": Number(1, 1_000_000_000, whole=True),
    "segments": Number(1, 100_000, whole=True),
    "records": Number(1, 100_000_000, whole=True),
}
"""In which the numbers below have sense."""


@frozen(slots=True)
class Topic:
    """Where records are in Kafka."""

    servers: str
    """Some of Kafka's brokers, as ``host:port``, separated by commas."""
    name: str = "kinmqtt.metrics"
    config: Path | None = None
    """A file with further properties of Kafka's clients: encryption, the user."""


@frozen(slots=True)
class PipelineSettings:
    """``kinmqtt-metrics pipeline run --help`` says what each means. Raises :class:`PipelineError` for a wrong one."""

    landing: Path | None
    """Nothing with :attr:`topic`."""
    tables: Path | str
    """A folder of this machine, or the URL of one on a file system that Hadoop speaks with."""
    once: bool = False
    final: bool = False
    trigger_s: float = 2.0
    window_s: int = 10
    watermark_s: float = 10.0
    idle_s: float = 300.0
    ahead_s: float = 3600.0
    top: int = 20
    storm_connects: int = 100
    storm_client: int = 5
    segments: int = 200
    """The most that a batch reads,"""
    records: int = 200_000
    """and from a topic."""
    topic: Topic | None = None
    master: str = "local[2]"
    conf: dict[str, str] = Factory(dict)
    """Of Spark; stands above what the pipeline sets itself."""

    @property
    def local(self) -> Path | None:
        """The folder of the tables, if it is one of this machine."""
        return self.tables if isinstance(self.tables, Path) else None

    def __attrs_post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            problem = bounds.problem(getattr(self, name))
            if problem is not None:
                raise PipelineError(f"{name} {problem}")
