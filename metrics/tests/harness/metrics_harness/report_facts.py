"""The facts of a report about a folder of tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from kinmqtt_metrics.report.aggregation import collect
from kinmqtt_metrics.report.database import Database
from kinmqtt_metrics.report.facts import Facts
from kinmqtt_metrics.report.progress import Progress


def facts_of(tables: Path, most_nodes: int = 8, **options: Any) -> Facts:
    """What is in these tables."""
    facts = collect(Database(tables, Progress(io.StringIO()), **options), most_nodes)
    assert facts is not None
    return facts
