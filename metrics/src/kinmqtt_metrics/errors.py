"""What the commands tell a person instead of a traceback."""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130
"""The exit status after ^C, as shells have it: 128, and the number of SIGINT."""

ENDED: Final = "kinmqtt-metrics: ended by ^C"


class CommandError(Exception):
    """What is wrong, where, and how to mend it."""
