"""What a run of the pipeline is told."""

from __future__ import annotations

from pathlib import Path

from attrs import Factory, frozen


@frozen(slots=True)
class PipelineSettings:
    """``kinmqtt-metrics pipeline run --help`` says what each means."""

    landing: Path
    tables: Path
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
    """The most that a batch reads."""
    master: str = "local[2]"
    conf: dict[str, str] = Factory(dict)
    """Of Spark; stands above what the pipeline sets itself."""
