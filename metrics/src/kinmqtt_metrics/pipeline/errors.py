"""What the commands tell a person instead of a traceback."""

from __future__ import annotations


class PipelineError(Exception):
    """What is wrong, where, and how to mend it."""
