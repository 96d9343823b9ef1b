"""Rows of the state: what a window holds of a key."""

from __future__ import annotations

from typing import Final

COUNTER, EVENT, TRAFFIC, GAUGE, CONNECTION, HISTOGRAM = range(1, 7)
"""Families of keys."""

COLUMNS: Final = {
    "family": "int",
    "start": "bigint",
    "node": "string",
    "k1": "string",
    "k2": "string",
    "k3": "string",
    "k4": "string",
    "labels": "string",
    "bounds": "array<double>",
    "bucket": "int",
    "n": "bigint",
    "a": "bigint",
    "b": "bigint",
    "low": "double",
    "high": "double",
    "total": "double",
    "sketch": "binary",
    "p50": "double",
    "p95": "double",
    "p99": "double",
}
"""A row of the state. By family, with the window's start in microseconds:

==========  ======  =========  ======  ====  =================================================================
family      k1      k2         k3      k4    measures
==========  ======  =========  ======  ====  =================================================================
counter     name    unit                     n samples, a sum of deltas (with ``labels``)
event       name    reason     client  by    a how many it stands for
traffic     client  topic                    a messages, b bytes
gauge       name    unit                     n samples, low, high, total, sketch (with ``labels``)
connection  reason                           n connections, high, total seconds, sketch
histogram   name    unit                     of ``bucket`` -1: n samples, total; of the others: a observations
==========  ======  =========  ======  ====  =================================================================

``labels`` are JSON with keys in order: Spark groups by texts faster than by maps.
"""

STATE_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

SUMS: Final = "sums"
VALUES: Final = "values"
BUCKETS: Final = "buckets"

_KEY: Final = ("family", "start", "node", "k1", "k2")

SCHEMAS: Final = {
    SUMS: {name: COLUMNS[name] for name in (*_KEY, "k3", "k4", "labels", "n", "a", "b")},
    VALUES: {name: COLUMNS[name] for name in (*_KEY, "labels")} | {"number": "double"},
    BUCKETS: {name: COLUMNS[name] for name in (*_KEY, "labels", "bounds", "bucket", "n", "a", "total")},
}
"""What a task makes of a batch's records, of three kinds: sums, single values, and buckets of histograms."""
