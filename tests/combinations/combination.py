"""What the name of a tox environment says must be installed in it, and what is."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
PLUGINS = tuple(folder.name for folder in FOLDERS)
"""The plugins of this repository, by the names of their folders, which are those of their entry points."""

OLDEST = ROOT / "tests" / "combinations" / "oldest.txt"
"""The oldest releases that are promised to work, as constraints for pip."""

_PYTHON = re.compile(r"py3(\d+)")


@frozen(slots=True)
class Combination:
    """One environment, as its name has it: ``py311-auth_file-sentinel_limiter``, ``alone-auth_file``, ``oldest``."""

    plugins: tuple[str, ...]
    python: tuple[int, int] | None = None
    """``None`` where the name does not say."""
    core: bool = True
    oldest: bool = False

    @classmethod
    def named(cls, name: str, plugins: Sequence[str] = PLUGINS) -> Combination:
        """The combination of a name; raises ``ValueError`` for a part that is none."""
        chosen: list[str] = []
        python: tuple[int, int] | None = None
        parts = name.split("-")
        for part in parts:
            match = _PYTHON.fullmatch(part)
            if match:
                python = (3, int(match[1]))
            elif part in plugins:
                chosen.append(part)
            elif part not in ("alone", "oldest", "newest", "all"):
                raise ValueError(
                    f"{name!r}: {part!r} is neither a plugin of this repository nor a part that is known"
                )
        whole = not {"oldest", "newest", "all"}.isdisjoint(parts)
        return cls(tuple(plugins) if whole else tuple(chosen), python, "alone" not in parts, "oldest" in parts)


@frozen(slots=True)
class Installed:
    """What there is."""

    python: tuple[int, int]
    plugins: frozenset[str]
    """Of ours: by entry point."""
    versions: Mapping[str, str] = field(factory=dict)
    """Distribution names in small letters, with their versions."""

    @classmethod
    def here(cls) -> Installed:
        """This interpreter's environment."""
        versions = {each.name.lower(): each.version for each in metadata.distributions() if each.name}
        found = {point.name for point in metadata.entry_points(group="kinmqtt.plugins")}
        return cls((sys.version_info[0], sys.version_info[1]), frozenset(found), versions)


def problems(wanted: Combination, there: Installed, oldest: Mapping[str, str]) -> list[str]:
    """What is not as the name says, one sentence each; ``oldest`` are the pinned releases."""
    found = []
    if wanted.python not in (None, there.python):
        found.append(f"this is Python {there.python[0]}.{there.python[1]}")
    found += [f"plugin {name} is missing" for name in sorted(set(wanted.plugins) - there.plugins)]
    found += [f"plugin {name} is installed" for name in sorted(there.plugins - set(wanted.plugins))]
    if wanted.core != ("kinmqtt-core" in there.versions):
        found.append("the core is missing" if wanted.core else "the core is installed")
    if wanted.oldest:
        found += [
            f"{name} is {there.versions[name]}, not {version}"
            for name, version in oldest.items()
            if name in there.versions and there.versions[name] != version
        ]
    return found


def oldest_releases(text: str) -> dict[str, str]:
    """The pins of a constraints file."""
    pins = (line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    return {name.lower(): version for name, version in pins}
