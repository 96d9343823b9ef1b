"""The interfaces of the service families, one module each."""

from __future__ import annotations

from typing import Final

FAMILIES: Final = (
    "authentication",
    "authorization",
    "subscription",
    "queue",
    "retain",
    "session",
    "event",
    "cluster",
    "metric",
    "limiter",
    "bridge",
)
"""The families' names: those of the modules here, of their hooks' and of their contract suites'."""
