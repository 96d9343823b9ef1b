"""What the commands tell a person instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """What is wrong, where, and how to mend it."""
