"""Errors that the commands print as one sentence instead of a traceback."""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130
"""The exit status after ^C, as shells have it: 128, and the number of SIGINT."""

ENDED: Final = "kinmqtt-metrics: ended by ^C"


class CommandError(Exception):
    """A command failed. The text says what is wrong, where, and how to fix it."""


class PipelineError(CommandError):
    """``kinmqtt-metrics pipeline`` failed."""


class UnpublishedError(PipelineError):
    """A batch counts, but not all of its files are moved to where readers look: a run that begins does it first."""


class LearningError(CommandError):
    """``kinmqtt-metrics rules`` failed."""


class ReportError(CommandError):
    """``kinmqtt-metrics report`` failed."""


class SparkError(CommandError):
    """Spark is not installed, did not start, or can't use a path."""
