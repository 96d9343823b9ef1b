"""What the pipeline tells a person instead of a traceback."""

from __future__ import annotations

from kinmqtt_metrics.errors import CommandError


class PipelineError(CommandError):
    """What is wrong, where, and how to mend it."""
