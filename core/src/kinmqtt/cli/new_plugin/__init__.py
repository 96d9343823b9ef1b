"""``kinmqtt new-plugin``: creates a plugin as a distribution that installs and passes its contract suite.

The templates next to this module are files that contain the names ``plugin_name``, ``plugin-name`` and
``PluginName``; those shared by all families are in ``templates/common``.
"""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from kinmqtt.builtins import BUILTINS
from kinmqtt.hooks.discovery import RESERVED_NAMES
from kinmqtt_spi.commands import COMMAND_GROUP
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.markers import ENTRY_POINT_GROUP

SUFFIX = ".in"
"""The suffix of all templates, so that tools do not take them for Python files."""

OURS: Final = frozenset(
    {
        "akka_like_cluster",
        "auth_file",
        "bridge_http",
        "bridge_kafka",
        "bridge_mqtt",
        "bridge_rabbitmq",
        "core",
        "event_kafka",
        "example_guard",
        "kafka_kit",
        "metrics",
        "redis_session",
        "rules",
        "sentinel_limiter",
        "spi",
    }
)
"""Names of kinmqtt's own distributions, installed or not."""

LONGEST_NAME: Final = 100
"""Maximum length of a name: files, folders and wheels add to it, and may have 255 bytes."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_WORDS = re.compile("plugin_name|plugin-name|PluginName|plugin_family")


def write(name: str, family: str, directory: Path) -> list[str]:
    """Write a new plugin into a new or empty directory; return the lines to show.

    On failure nothing is written. Raises :class:`~kinmqtt_spi.errors.AssemblyError` for an invalid or used name, and
    for a directory in use.
    """
    _check(name)
    try:
        in_use = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    except OSError as error:
        raise AssemblyError(f"{directory} can't be written: {error.strerror or error}") from error
    if in_use:
        raise AssemblyError(f"{directory} exists already and is not empty; name another with --directory")
    files = list(rendered(name, family))
    target = directory.resolve()
    beside = target.parent / f".{target.name}.{token_hex(4)}"
    written = []
    try:
        for place, text in files:
            file = beside / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            written.append(directory / place)
        _put(beside, target)
    except OSError as error:
        raise AssemblyError(f"{directory} can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return [
        *(f"written: {file}" for file in written),
        "try it:",
        f'  pip install -e "{directory}[test]"',
        f"  pytest {directory}",
        "  kinmqtt plugins",
    ]


def _put(beside: Path, target: Path) -> None:
    """Move the files to their place: by one rename, unless the directory is the current one."""
    if target.exists() and target.samefile(Path.cwd()):
        # Replacing the current directory would leave the shell in a deleted one.
        for entry in sorted(beside.iterdir()):
            entry.rename(target / entry.name)
        return
    if target.exists():
        target.rmdir()
    beside.rename(target)


def rendered(name: str, family: str) -> Iterator[tuple[str, str]]:
    """Yield each file of a new plugin: its path in the distribution, and its text."""
    templates = files(__package__).joinpath("templates")
    found = {
        place: text for folder in ("common", family) for place, text in _templates(templates.joinpath(folder), "")
    }
    for place, text in sorted(found.items()):
        yield _named(place.removesuffix(SUFFIX), name, family), _named(text, name, family)


def _templates(folder: Any, place: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{place}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            yield place + entry.name, entry.read_text(encoding="utf-8")


def _named(text: str, name: str, family: str) -> str:
    words = name.split("_")
    put = {
        "plugin_name": name,
        "plugin-name": "-".join(words),
        "PluginName": "".join(word.capitalize() for word in words),
        "plugin_family": family,
    }
    # In one pass, because the name may contain one of these words.
    return _WORDS.sub(lambda match: put[match[0]], text)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise AssemblyError(f"{name!r} can't name a plugin: use small letters, digits and _, beginning with a letter")
    if len(name) > LONGEST_NAME:
        raise AssemblyError(f"{name[:20]!r}… can't name a plugin: it has more than {LONGEST_NAME} characters")
    if name in RESERVED_NAMES or name in BUILTINS or keyword.iskeyword(name):
        raise AssemblyError(f"{name!r} can't name a plugin: it is reserved by the broker or by Python")
    distribution = f"kinmqtt-{name.replace('_', '-')}"
    if name in OURS:
        raise AssemblyError(f"{name!r} can't name a plugin: {distribution} is kinmqtt's own; take another name")
    installed = _installed(name, distribution)
    if installed is not None:
        raise AssemblyError(f"{name!r} can't name a plugin: {installed}; use another name, or uninstall it")


def _installed(name: str, distribution: str) -> str | None:
    """Describe what is installed under that name."""
    try:
        return f"{distribution} {version(distribution)} is installed, and would be replaced"
    except PackageNotFoundError:
        pass
    for group, what in ((ENTRY_POINT_GROUP, "plugin"), (COMMAND_GROUP, "command")):
        for point in entry_points(group=group, name=name):
            owner = f"{point.dist.name} {point.dist.version}" if point.dist else "what is installed here"
            return f"{owner} has a {what} of that name"
    return None
