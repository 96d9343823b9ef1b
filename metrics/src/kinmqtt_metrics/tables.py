"""What the pipeline makes: the tables, their columns, and where their files lie.

.. code-block:: text

    tables/
      rates/batch-0000000012.parquet              whole: made in a step and moved here
      rates/batch-0000000012-closed-0001.parquet  of silent nodes' windows that were closed after that batch
      rates/batch-0000000012-final.parquet        of windows that were closed at the end of a run, after that batch
      raw/batch-0000000012-0001.parquet           of a large batch ``raw`` has several files
      .pipeline/v1/…                              Spark's checkpoint, and the steps: what the pipeline needs to go on

All ``batch-*.parquet`` of a folder together are the table: each row once, for every reader of Parquet. Times are UTC.
A window is in a table when it is closed, and whole then. This module imports neither Spark nor Arrow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import frozen

from kinmqtt_metrics.record import FIELDS

OWN: Final = ".pipeline"
"""What the pipeline needs for itself, below the folder of the tables."""

STATE: Final = f"{OWN}/v1"
"""The checkpoint, below the folder of the tables. An aggregate that changes takes another number."""

_WINDOW: Final = {"window_start": "timestamp", "window_s": "int", "node": "string"}
_METRIC: Final = _WINDOW | {"name": "string", "unit": "string", "labels": "map<string,string>"}
_PERCENTILES: Final = {"p50": "double", "p95": "double", "p99": "double"}


@frozen(slots=True)
class Table:
    """One table."""

    name: str
    text: str
    """What a row says."""
    columns: dict[str, str]
    """Names and types, in Spark's words."""

    def folder(self, tables: Path) -> Path:
        """Where its files lie."""
        return tables / self.name

    def files(self, tables: Path) -> list[Path]:
        """All of its files, in order."""
        return sorted(self.folder(tables).glob("batch-*.parquet"))


RAW: Final = Table(
    "raw",
    "All records, each once, with their time; captured messages included.",
    FIELDS | {"at": "timestamp"},
)
RATES: Final = Table(
    "rates",
    "The increase of a counter in a window: bytes, packets, messages, drops by reason.",
    _METRIC | {"delta": "bigint", "samples": "bigint"},
)
GAUGES: Final = Table(
    "gauges",
    "The values of a gauge in a window. `sketch` is a KLL sketch of them; sketches of windows and nodes merge.",
    _METRIC
    | {"samples": "bigint", "min": "double", "max": "double", "mean": "double"}
    | _PERCENTILES
    | {"sketch": "binary"},
)
HISTOGRAMS: Final = Table(
    "histograms",
    "The observations of a histogram in a window. `counts` with the same `bounds` add up over windows and nodes; "
    "percentiles are interpolated within a bucket.",
    _METRIC
    | {"samples": "bigint", "bounds": "array<double>", "counts": "array<bigint>"}
    | {"sum": "double", "observations": "bigint"}
    | _PERCENTILES,
)
EVENTS: Final = Table(
    "events",
    "How often an event happened in a window, and to about how many clients.",
    _WINDOW | {"name": "string", "reason": "string", "events": "bigint", "clients": "bigint"},
)
CONNECTIONS: Final = Table(
    "connections",
    "The length in seconds of connections that ended in a window, by the reason of their end; with a KLL sketch.",
    _WINDOW
    | {"reason": "string", "connections": "bigint", "sum_s": "double", "max_s": "double"}
    | {"p50_s": "double", "p95_s": "double", "p99_s": "double", "sketch": "binary"},
)
RECONNECTS: Final = Table(
    "reconnects",
    "How often clients connected in a window, and whether that is a storm: `connects` of `clients`; `client` "
    "connected most often (`most`).",
    _WINDOW | {"connects": "bigint", "clients": "bigint", "client": "string", "most": "bigint", "storm": "boolean"},
)
TOP_CLIENTS: Final = Table(
    "top_clients",
    "The clients that published most in a window, by bytes; `rank` from 1; rank 0 is the sum of all others.",
    _WINDOW | {"rank": "int", "client": "string", "messages": "bigint", "bytes": "bigint"},
)
TOP_TOPICS: Final = Table(
    "top_topics",
    "The topics with the most traffic in a window, by bytes; `rank` from 1; rank 0 is the sum of all others.",
    _WINDOW | {"rank": "int", "topic": "string", "messages": "bigint", "bytes": "bigint"},
)
DROPS: Final = Table(
    "drops",
    "Messages that did not reach a client in a window, exact: from the broker's own counters.",
    _WINDOW | {"reason": "string", "messages": "bigint"},
)
REFUSALS: Final = Table(
    "refusals",
    "Refusals in a window: `name` is an event (authentication_refused, authorization_refused, limited), `by` the "
    "plugin or the rule. One answer is one refusal, for any number of messages; delays are in `events` only.",
    _WINDOW | {"name": "string", "by": "string", "reason": "string", "refusals": "bigint"},
)
USUAL: Final = Table(
    "usual",
    "Messages and bytes that a client published in a window, by topic. Limits are learned from it.",
    _WINDOW | {"client": "string", "topic": "string", "messages": "bigint", "bytes": "bigint"},
)
LATE: Final = Table(
    "late",
    "Records that came after their window was closed: they are in `raw` and in no other table.",
    {"batch": "bigint", "node": "string", "boot": "string", "kind": "string", "records": "bigint"},
)
REJECTED: Final = Table(
    "rejected",
    "Lines and files that could not be read: the file, the number of the line (0: the whole file), the reason, and "
    "the beginning of the line. For a record with an impossible time: node-boot, and its seq.",
    {"batch": "bigint", "file": "string", "line": "bigint", "why": "string", "text": "string"},
)

TABLES: Final = (
    RAW,
    RATES,
    GAUGES,
    HISTOGRAMS,
    EVENTS,
    CONNECTIONS,
    RECONNECTS,
    TOP_CLIENTS,
    TOP_TOPICS,
    DROPS,
    REFUSALS,
    USUAL,
    LATE,
    REJECTED,
)
