"""Where a settings key is known that stands in the wrong table: asked only when there is a mistake to explain."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from attrs import fields, has

from kinmqtt.hooks.discovery import Candidate, builtin_candidates, installed_candidates
from kinmqtt.settings import (
    BrokerSettings,
    LimitSettings,
    ListenerLimitSettings,
    ListenerSettings,
    TlsSettings,
    WebSocketSettings,
)
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.services.event import HoldBounds

_CORE: Final[dict[str, type[Any]]] = {
    "broker": BrokerSettings,
    "limits": LimitSettings,
    "events": HoldBounds,
    "listeners.NAME": ListenerSettings,
    "listeners.NAME.tls": TlsSettings,
    "listeners.NAME.websocket": WebSocketSettings,
    "listeners.NAME.limits": ListenerLimitSettings,
}

MOST: Final = 3
"""Places that a message names."""


def belongs_to(key: str) -> str | None:
    """The tables that have a key, as ``plugins.auth_file.password_file``; ``None`` where none has."""
    places = _places().get(key, ())
    core = [place for place in places if not place.startswith("plugins.")]
    # A plugin's key of the same name is seldom meant.
    places = core or places
    return " or ".join(places[:MOST]) or None


@cache
def _places() -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for table, settings_class in _CORE.items():
        _add(places, table, settings_class)
    try:
        candidates: Iterable[Candidate] = [*installed_candidates(), *builtin_candidates()]
    except SpiError:
        candidates = builtin_candidates()
    for candidate in candidates:
        _add(places, f"plugins.{candidate.name}", _settings_class(candidate))
    return places


def _add(places: dict[str, list[str]], table: str, settings_class: type[Any] | None) -> None:
    if settings_class is not None and has(settings_class):
        for attribute in fields(settings_class):
            if attribute.init:
                key = attribute.alias or attribute.name
                places.setdefault(key, []).append(f"{table}.{key}")


def _settings_class(candidate: Candidate) -> type[Any] | None:
    """A plugin's settings class; a plugin that fails has its own message, when it is to be used."""
    try:
        ask = getattr(candidate.load(), "settings_class", None)
        found = None if ask is None else ask()
    except Exception:
        return None
    return found if isinstance(found, type) else None
