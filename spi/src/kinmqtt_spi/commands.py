"""Commands that a plugin adds to ``kinmqtt``: ``kinmqtt passwd`` comes with the plugin that keeps passwords.

An entry point in the group ``kinmqtt.commands`` names one; the entry point's name is the command's. It is loaded when
it is called for, or when the commands are listed, and needs no running broker.
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
        """Run it; answers the exit status: 0, 1 for what could not be done, 2 for a mistake in usage.

        :class:`~kinmqtt_spi.errors.SpiError` is shown as one line for each line of its text, and the status is 1.
        """
