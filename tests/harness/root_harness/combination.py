"""What the name of a tox environment says must be installed in it, and what is."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[3]

FOLDERS = sorted(
    (path.parent for path in (*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("metrics/pyproject.toml"))),
    key=lambda folder: folder.name,
)


def has_a_plugin(folder: Path) -> bool:
    """Tell whether a distribution has a plugin; what several plugins share has none."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return "kinmqtt.plugins" in project.get("entry-points", {})


PLUGINS = tuple(folder.name for folder in FOLDERS if has_a_plugin(folder))
"""The plugins of this repository, by the names of their folders, which are those of their entry points."""

_FOLDERS = {
    "kinmqtt": ROOT,
    "kinmqtt-spi": ROOT / "spi",
    "kinmqtt-core": ROOT / "core",
    **{f"kinmqtt-{folder.name.replace('_', '-')}": folder for folder in FOLDERS},
}
"""Where each distribution of this repository is made."""

OLDEST = ROOT / "tests" / "combinations" / "oldest.txt"
"""The oldest releases that are promised to work, as constraints for pip."""

STORES = {"memory": (), "redis": ("redis_session",)}
"""The stores over which the same tests run, with the plugins that each needs."""

_PYTHON = re.compile(r"py3(\d+)")


@frozen(slots=True)
class Combination:
    """One environment, as its name has it: ``py311-auth_file-sentinel_limiter``, ``alone-auth_file``, ``oldest``."""

    plugins: tuple[str, ...]
    python: tuple[int, int] | None = None
    """``None`` where the name does not say."""
    core: bool = True
    oldest: bool = False
    store: str | None = None
    """Over which store the brokers of tests run; ``None`` where the name does not say."""

    @classmethod
    def named(cls, name: str, plugins: Sequence[str] = PLUGINS) -> Combination:
        """The combination of a name; raises ``ValueError`` for a part that is none."""
        chosen: list[str] = []
        python: tuple[int, int] | None = None
        store: str | None = None
        parts = name.split("-")
        for part in parts:
            match = _PYTHON.fullmatch(part)
            if match:
                python = (3, int(match[1]))
            elif part in plugins:
                chosen.append(part)
            elif part in STORES:
                store = part
                chosen += STORES[part]
            elif part not in ("alone", "oldest", "newest", "all"):
                raise ValueError(
                    f"{name!r}: {part!r} is neither a plugin of this repository nor a part that is known"
                )
        whole = not {"oldest", "newest", "all"}.isdisjoint(parts)
        return cls(tuple(plugins) if whole else tuple(chosen), python, "alone" not in parts, "oldest" in parts, store)


@frozen(slots=True)
class Installed:
    """What there is."""

    python: tuple[int, int]
    plugins: frozenset[str]
    """Of ours: by entry point."""
    versions: Mapping[str, str] = field(factory=dict)
    """Distribution names in small letters, with their versions."""
    store: str = "memory"
    """Over which store the brokers of tests run."""

    @classmethod
    def here(cls) -> Installed:
        """This interpreter's environment."""
        versions = {each.name.lower(): each.version for each in metadata.distributions() if each.name}
        found = {point.name for point in metadata.entry_points(group="kinmqtt.plugins")}
        store = os.environ.get("KINMQTT_TEST_STORE", "memory")
        return cls((sys.version_info[0], sys.version_info[1]), frozenset(found), versions, store)


def problems(wanted: Combination, there: Installed, oldest: Mapping[str, str]) -> list[str]:
    """What is not as the name says, one sentence each; ``oldest`` are the pinned releases."""
    found = []
    if wanted.python not in (None, there.python):
        found.append(f"this is Python {there.python[0]}.{there.python[1]}")
    found += [f"plugin {name} is missing" for name in sorted(set(wanted.plugins) - there.plugins)]
    found += [f"plugin {name} is installed" for name in sorted(there.plugins - set(wanted.plugins))]
    if wanted.core != ("kinmqtt-core" in there.versions):
        found.append("the core is missing" if wanted.core else "the core is installed")
    if wanted.store not in (None, there.store):
        found.append(f"the brokers of tests run over {there.store}")
    if wanted.oldest:
        found += [
            f"{name} is {there.versions[name]}, not {version}"
            for name, version in oldest.items()
            if name in there.versions and there.versions[name] != version
        ]
    return found


def strangers(found: Iterable[metadata.Distribution], wheels: Path | None) -> list[str]:
    """Which of ours are not what is here, one sentence each: installed from this checkout, or from those wheels."""
    return [
        f"{each.name} {each.version} in {each.locate_file('')}: {why}"
        for each in found
        if each.name and re.match(r"kinmqtt($|[-_.])", each.name.lower())
        for why in [_is_strange(each, wheels)]
        if why is not None
    ]


def _is_strange(distribution: metadata.Distribution, wheels: Path | None) -> str | None:
    folder = _FOLDERS.get(re.sub(r"[-_.]+", "-", distribution.name.lower()))
    if folder is None:
        return "no distribution of this checkout has that name"
    if Path(str(distribution.locate_file(""))).resolve() in (folder, folder / "src"):
        return None  # What is found beside the sources, where they are on the path.
    came_from = json.loads(distribution.read_text("direct_url.json") or "{}")
    if wheels is None:
        editable = came_from.get("dir_info", {}).get("editable", False)
        if not editable or came_from["url"].rstrip("/") != folder.as_uri():
            return f"not installed as editable from {folder}"
        return None
    if came_from.get("dir_info", {}).get("editable", False):
        return "editable, and not from a wheel"
    stem = f"{distribution.name.lower().replace('-', '_')}-{distribution.version}"
    built = list(wheels.glob(f"{stem}-*.whl"))
    if len(built) != 1:
        return f"{len(built)} wheels of it are in {wheels}"
    with zipfile.ZipFile(built[0]) as wheel:
        record = wheel.read(f"{stem}.dist-info/RECORD").decode()
    missing = _hashed(record) - _hashed(distribution.read_text("RECORD") or "")
    return f"not as in {built[0]}: {', '.join(sorted(missing)[:3])}" if missing else None


def _hashed(record: str) -> set[str]:
    """The lines of a record that have a hash."""
    return {line for line in record.splitlines() if line and not line.endswith(",,")}


def oldest_releases(text: str) -> dict[str, str]:
    """The pins of a constraints file."""
    pins = (line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    return {name.lower(): version for name, version in pins}
