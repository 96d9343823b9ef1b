"""Warns of rules by user name in a broker that accepts anonymous clients, whose user names are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import fields, has

from kinmqtt.broker.assembly import Assembly
from kinmqtt.builtins import ANONYMOUS

_ASKING: Final = (
    "connect_received",
    "choose_server",
    "acquire",
    "initial_subscriptions",
    "publish_received",
    "subscribing",
    "delivering",
)
"""Hooks with the client as an argument: a plugin with one of them may have rules by user in its settings."""

_KEYS: Final = ("user", "username")
_PLACEHOLDERS: Final = ("${username}", "%u")


def notes_on_users(assembly: Assembly) -> list[str]:
    """Return a line for the operator if plugins have rules by user beside `anonymous`; else none."""
    listeners = [plan.name for plan in assembly.listeners if _is_open(assembly, plan.settings.authenticators)]
    rules = [*_rules_by_user(assembly)]
    if not listeners or not rules:
        return []
    return [
        f"anonymous accepts clients at {', '.join(listeners)} and ignores their user names, which are not verified: "
        f"rules by user name in {', '.join(rules)} do not apply to them"
    ]


def _is_open(assembly: Assembly, named: Sequence[str] | None) -> bool:
    """Return whether a listener with these authenticators uses `anonymous`."""
    if ANONYMOUS not in assembly.manager.active:
        return False
    asked = assembly.default_authenticators if named is None else named
    return asked is None or ANONYMOUS in asked


def _rules_by_user(assembly: Assembly) -> Iterator[str]:
    manager = assembly.manager
    authorize = {each.plugin for hook in ("authorize", "authorize_receive") for each in manager.implementations(hook)}
    told = {each.plugin for hook in _ASKING for each in manager.implementations(hook)}
    for name in manager.active:
        if name in authorize and not manager.is_builtin(name):
            # An authorizer's rules are unknown here; most are by user.
            yield name
        elif name in told and _speaks_of_users(assembly.contexts[name].settings):
            yield name
    if _speaks_of_users(assembly.settings.response_information):
        yield "broker.response_information"


def _speaks_of_users(value: Any, key: str = "") -> bool:
    """Return whether settings name a user, count by users, or have a placeholder for a user's name."""
    if isinstance(value, str):
        return bool(value) and (key in _KEYS or value == "username" or any(sign in value for sign in _PLACEHOLDERS))
    if isinstance(value, Mapping):
        return any(_speaks_of_users(each, str(name)) for name, each in value.items())
    if isinstance(value, Sequence | set | frozenset):
        return any(_speaks_of_users(each, key) for each in value)
    if has(type(value)):
        return any(_speaks_of_users(getattr(value, each.name), each.name) for each in fields(type(value)))
    return False
