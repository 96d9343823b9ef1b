"""What the command tells a person instead of a traceback."""

from __future__ import annotations


class ReportError(Exception):
    """What is wrong, where, and how to mend it."""
