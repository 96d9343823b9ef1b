"""Commands that plugins bring: found by their entry points, and loaded where one of them may be meant."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from kinmqtt_spi.commands import COMMAND_GROUP, Command
from kinmqtt_spi.errors import AssemblyError

KNOWN: Final = {"passwd": "kinmqtt-auth-file"}
"""Commands of plugins of ours that may not be installed, and what they come with."""


def add_plugin_commands(commands: Any, taken: Sequence[str], wanted: str | None) -> None:
    """Add every installed plugin's commands to those there are; ``wanted`` is the one that was typed.

    One that can't be loaded is said so on standard error, and the others are there. Raises
    :class:`~kinmqtt_spi.errors.AssemblyError` where two commands have one name, and where the wanted one comes with
    a distribution that is not installed.
    """
    owners = dict.fromkeys(taken, "the broker itself")
    for point in sorted(entry_points(group=COMMAND_GROUP), key=lambda point: point.name):
        source = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
        if point.name in owners:
            raise AssemblyError(
                f"{source} brings a command {point.name!r}, and so does {owners[point.name]}; uninstall one of them"
            )
        owners[point.name] = source
        _add(commands, point, source)
    if wanted in KNOWN and wanted not in owners:
        raise AssemblyError(f"the command {wanted!r} comes with {KNOWN[wanted]}: pip install {KNOWN[wanted]}")


def _add(commands: Any, point: EntryPoint, source: str) -> None:
    """Add one command; what goes wrong in a plugin's code is told, and is no other command's harm."""
    try:
        command: Command = point.load()
        if not all(hasattr(command, name) for name in ("summary", "add_arguments", "run")):
            raise TypeError("it is no kinmqtt_spi.commands.Command")
        # Tried on a parser of its own first: one that is half filled can't be taken back.
        command.add_arguments(ArgumentParser())
        parser = commands.add_parser(point.name, help=command.summary, description=command.summary)
        command.add_arguments(parser)
        parser.set_defaults(command=command.run)
    except Exception as error:
        text = f"the command {point.name!r} of {source} can't be loaded: {type(error).__name__}: {error}"
        print(f"kinmqtt: {text}", file=sys.stderr)
