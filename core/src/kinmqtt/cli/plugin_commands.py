"""Commands of plugins: found by entry points, and loaded only if one of them may be meant."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from kinmqtt_spi.commands import COMMAND_GROUP, Command
from kinmqtt_spi.errors import AssemblyError

KNOWN: Final = {"passwd": "kinmqtt-auth-file"}
"""Commands of kinmqtt's own plugins, and the distributions to install for them."""


def add_plugin_commands(commands: Any, taken: Sequence[str], wanted: str | None) -> None:
    """Add the commands of all installed plugins; ``wanted`` is the command that the user typed.

    A command that can't be loaded is reported on standard error; the others still work. Raises
    :class:`~kinmqtt_spi.errors.AssemblyError` if two commands have the same name, or if the wanted one is in a
    distribution that is not installed.
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
        raise AssemblyError(f"the command {wanted!r} is part of {KNOWN[wanted]}: pip install {KNOWN[wanted]}")


def _add(commands: Any, point: EntryPoint, source: str) -> None:
    """Add one command; an error in a plugin's code is reported and does not affect other commands."""
    try:
        command: Command = point.load()
        if not all(hasattr(command, name) for name in ("summary", "add_arguments", "run")):
            raise TypeError("it is not a kinmqtt_spi.commands.Command")
        # Try it on a separate parser first, because a partly filled one can't be removed.
        command.add_arguments(ArgumentParser())
        parser = commands.add_parser(point.name, help=command.summary, description=command.summary)
        command.add_arguments(parser)
        parser.set_defaults(command=command.run)
    except Exception as error:
        text = f"the command {point.name!r} of {source} can't be loaded: {type(error).__name__}: {error}"
        print(f"kinmqtt: {text}", file=sys.stderr)
