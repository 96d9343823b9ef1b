"""The arguments of ``kinmqtt outbox``; every other command loads this module too, so it imports nothing heavy."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ACTIONS: Final = {
    "list": "show the outboxes, and how much is in each",
    "export": "write an outbox's messages as lines of JSON; nothing is removed",
    "drop": "remove an outbox with its messages",
    "unpark": "put the parked messages back into their sink's outbox",
}


def add_outbox(
    commands: Any, add_settings: Callable[[ArgumentParser], None], command: Callable[[Namespace], int]
) -> None:
    """Add the command; ``add_settings`` adds the options that name the settings."""
    outbox = commands.add_parser("outbox", help="list, export, drop or unpark the messages in outboxes")
    actions = outbox.add_subparsers(required=True, metavar="ACTION")
    for name, summary in ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary)
        action.set_defaults(command=command, action=name, parser=action)
        add_settings(action)
        if name == "list":
            action.add_argument("--json", action="store_true", help="print the answer as JSON")
        else:
            action.add_argument("name", metavar="NAME", help="the outbox: NAME, PLUGIN:NAME or NODE/PLUGIN/NAME")
        if name in ("export", "drop"):
            action.add_argument("--parked", action="store_true", help="the parked messages instead of the others")
        if name == "export":
            action.add_argument("--to", type=Path, metavar="FILE", help="a new file (default: standard output)")
        if name == "drop":
            action.add_argument("--yes", action="store_true", help="do not ask for the number of messages")
