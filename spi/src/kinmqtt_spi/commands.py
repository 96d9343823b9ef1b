"""Commands that a plugin adds to ``kinmqtt``, for example ``kinmqtt passwd``.

An entry point in the group ``kinmqtt.commands`` declares a command; its name is the command's name. It is loaded when
the command is called or listed. It needs no running broker.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final, Protocol

COMMAND_GROUP: Final = "kinmqtt.commands"


class Command(Protocol):
    """One command: an object, or a module with these names."""

    summary: str
    """One line for the list of commands."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, parsed: Namespace) -> int:
        """Run the command; return the exit status: 0, 1 for a failure, 2 for wrong usage.

        For :class:`~kinmqtt_spi.errors.SpiError` each line of its text is printed, and the status is 1.
        """
