"""``kinmqtt cluster``: shows and steers the cluster of a running broker, makes its cookie, checks its settings."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kinmqtt_akka_like_cluster.checking import check
from kinmqtt_akka_like_cluster.control import ask
from kinmqtt_akka_like_cluster.settings import SECTION, AkkaSettings
from kinmqtt_spi.errors import SettingsError, SpiError
from kinmqtt_spi.settings import Document, parse

COOKIE_BYTES: Final = 32
ASK_LIMIT_S: Final = 60.0
DEFAULT_CONTROL: Final = "DATA/plugins/akka_like_cluster/control.sock, where DATA is broker.data"

_REQUESTS: Final[Mapping[str, tuple[str, str]]] = {
    "status": ("", "the cluster as the broker sees it; exit status 1 without a majority"),
    "members": ("", "all members, with state, reachability and links"),
    "routes": ("filter", "which brokers have subscribers: for a topic name, or below a filter"),
    "where": ("client", "which broker has a client's session"),
    "join": ("seed", "ask this seed too, while the broker waits for seeds"),
    "leave": ("", "stop the broker in good order"),
    "down": ("node", "declare a member dead that can't be reached, by name or uid: it never comes back"),
}
"""By request: its argument, and what it does."""


class Cluster:
    """The command ``kinmqtt cluster``."""

    summary = "shows and steers the cluster of a running broker (akka_like_cluster)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name, (argument, what) in _REQUESTS.items():
            action = actions.add_parser(name, help=what, description=what)
            if argument:
                action.add_argument(argument)
            if name == "down":
                action.add_argument("--force", action="store_true", help="also a member that can be reached")
            _add_socket(action)
            action.add_argument("--json", action="store_true", help="print the answer as JSON")
        keys = actions.add_parser("keys", help="write a new cookie, the secret of a cluster, into a file")
        keys.add_argument("path", type=Path)
        looks = actions.add_parser("check", help="check the settings, and whether the seeds let this broker in")
        looks.add_argument("-c", "--config", type=Path, required=True, help="the broker's settings file")

    def run(self, parsed: Namespace) -> int:
        """Run it. ``status`` returns 1 without a majority, ``check`` if a seed can't be used."""
        if parsed.action == "keys":
            return _make_cookie(parsed.path)
        if parsed.action == "check":
            return asyncio.run(_check(parsed.config))
        argument = _REQUESTS[parsed.action][0]
        request = {"command": parsed.action, **({argument: getattr(parsed, argument)} if argument else {})}
        if getattr(parsed, "force", False):
            request["force"] = True
        answer = ask(_socket(parsed), request, ASK_LIMIT_S)
        print(json.dumps(answer, indent=2) if parsed.json else _SHOWN.get(parsed.action, str)(answer))
        return 1 if parsed.action == "status" and not answer["majority"] else 0


def _add_socket(action: ArgumentParser) -> None:
    where = action.add_mutually_exclusive_group()
    where.add_argument("-c", "--config", type=Path, help=f"the broker's settings file, with {SECTION}.control")
    where.add_argument("--socket", type=Path, help="the broker's control socket; it logs where that is")


def _settings(path: Path) -> AkkaSettings:
    return parse(AkkaSettings, Document.read(path), ("plugins", "akka_like_cluster"))


async def _check(path: Path) -> int:
    # Of the plugins of this repository redis_session has an arbiter.
    plugins = Document.read(path).data.get("plugins", {})
    return await check(_settings(path), print, has_arbiter="redis_session" in plugins)


def _socket(parsed: Namespace) -> Path:
    if parsed.socket is not None:
        return Path(parsed.socket)
    if parsed.config is None:
        raise SpiError("name the broker: its settings file with -c FILE, or its control socket with --socket PATH")
    control = _settings(parsed.config).control
    if control is None:
        raise SpiError(
            f"{parsed.config}: {SECTION}.control is missing, so the socket is in the broker's data directory: "
            f"name it with --socket PATH; the broker logs it at its start: {DEFAULT_CONTROL}"
        )
    return control


def _make_cookie(path: Path) -> int:
    """Write a cookie that only this user can read. It replaces nothing."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(COOKIE_BYTES) + "\n")
    except OSError as error:
        raise SettingsError([f"{path}: can't be written: {error.strerror or error}"]) from None
    print(f"{path}: copy it to all brokers of the cluster, readable for their user only")
    return 0


# How answers are shown


def _show_status(answer: Mapping[str, Any]) -> str:
    rows = [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in answer.items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _show_members(answer: Sequence[Mapping[str, Any]]) -> str:
    names = ("node", "uid", "address", "state", "reachable", "votes", "phi", "round_trip_ms", "queued_bytes")
    return _table(names, answer)


def _show_routes(answer: Mapping[str, Any]) -> str:
    shown = _table(("node", "filter", "group", "qos"), answer["routes"])
    return f"{shown}\n… and more" if answer["more"] else shown


def _show_where(answer: Mapping[str, Any]) -> str:
    silent = f"; no answer from {', '.join(answer['silent'])}" if answer["silent"] else ""
    if answer["node"] is None:
        return f"no broker has it{silent}"
    connected = "connected" if answer["connected"] else "not connected"
    return f"{answer['node']} has it, {connected}, epoch {answer['epoch']}{silent}"


def _table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows under their names, in columns."""
    cells = [list(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


_SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "status": _show_status,
    "members": _show_members,
    "routes": _show_routes,
    "where": _show_where,
}

command = Cluster()
