"""What the report tells a person instead of a traceback."""

from __future__ import annotations

from kinmqtt_metrics.errors import CommandError


class ReportError(CommandError):
    """What is wrong, where, and how to mend it."""
