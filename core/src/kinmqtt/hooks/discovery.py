"""Finds plugins: the built-ins and the entry points of installed distributions."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attrs import field, frozen

from kinmqtt.builtins import BUILTINS
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.markers import ENTRY_POINT_GROUP

RESERVED_NAMES = frozenset({"order", "only", "disabled"})
"""Keys of the settings' ``[plugins]`` table; no plugin can have such a name."""


@frozen(slots=True)
class Candidate:
    """A plugin that can be used."""

    name: str
    source: str
    """Where it comes from: ``built-in``, or distribution and version."""
    target: str
    """``module`` or ``module:attribute``."""
    builtin: bool
    plugin: Any = field(default=None, eq=False, repr=False)
    """The plugin object, if it is given directly instead of imported."""

    def load(self) -> Any:
        """Import the plugin and, if it is a class, create its only instance.

        Raises :class:`AssemblyError` with the plugin's name for any error of the import.
        """
        if self.plugin is not None:
            return self.plugin
        module, _, attribute = self.target.partition(":")
        try:
            plugin: Any = import_module(module)
            for part in filter(None, attribute.split(".")):
                plugin = getattr(plugin, part)
            return plugin() if inspect.isclass(plugin) else plugin
        except Exception as error:
            raise AssemblyError(
                f"plugin {self.name!r} ({self.source}) can't be loaded from {self.target}: "
                f"{type(error).__name__}: {error}; repair it, uninstall it, or leave it out with -P no:{self.name}"
            ) from error


def builtin_candidates() -> list[Candidate]:
    """Return the plugins that are part of the core."""
    return [Candidate(name, "built-in", target, True) for name, target in BUILTINS.items()]


def installed_candidates(found: Iterable[EntryPoint] | None = None) -> list[Candidate]:
    """Return the plugins of installed distributions, by name.

    Raises :class:`AssemblyError` if two plugins have the same name: pluggy would skip one of them silently.
    """
    points = entry_points(group=ENTRY_POINT_GROUP) if found is None else found
    candidates: dict[str, Candidate] = {}
    for point in sorted(points, key=lambda point: point.name):
        distribution = point.dist
        source = f"{distribution.name} {distribution.version}" if distribution else "unknown distribution"
        candidate = Candidate(point.name, source, point.value, False)
        _check_name(candidate)
        twin = candidates.get(point.name)
        if twin is not None and twin != candidate:
            raise AssemblyError(
                f"two plugins are named {point.name!r}: one of {twin.source} ({twin.target}) and one of "
                f"{source} ({point.value}); uninstall one of them"
            )
        candidates[point.name] = candidate
    return list(candidates.values())


def _check_name(candidate: Candidate) -> None:
    if candidate.name in RESERVED_NAMES:
        raise AssemblyError(
            f"{candidate.source} names a plugin {candidate.name!r}, which is a key of the settings; rename it"
        )
    if candidate.name in BUILTINS:
        raise AssemblyError(
            f"{candidate.source} names a plugin {candidate.name!r}, the name of a built-in; rename it"
        )
