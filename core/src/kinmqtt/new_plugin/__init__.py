"""``kinmqtt new-plugin``: the beginning of a plugin, as a distribution that installs and passes its contract suite.

The templates beside this module are files with the names ``plugin_name``, ``plugin-name`` and ``PluginName`` in them;
those that all families share are in ``templates/common``.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from kinmqtt.plugins.builtin import BUILTINS
from kinmqtt.plugins.discovery import RESERVED_NAMES
from kinmqtt_spi.errors import AssemblyError

SUFFIX = ".in"
"""Of every template, so that no tool takes one for what it will become."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write(name: str, family: str, directory: Path) -> list[str]:
    """Write a plugin of that name into a directory that is new, or empty; answers what to tell.

    Raises :class:`~kinmqtt_spi.errors.AssemblyError` for a name that no plugin can have, and a directory in use.
    """
    _check(name)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise AssemblyError(f"{directory} exists already and is not empty; name another with --directory")
    written = []
    try:
        for target, text in rendered(name, family):
            file = directory / target
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            written.append(file)
    except OSError as error:
        raise AssemblyError(f"{directory} can't be written: {error.strerror or error}") from error
    return [
        *(f"written: {file}" for file in written),
        "try it:",
        f'  pip install -e "{directory}[test]"',
        f"  pytest {directory}",
        "  kinmqtt plugins",
    ]


def rendered(name: str, family: str) -> Iterator[tuple[str, str]]:
    """Every file of a new plugin: its place in the distribution, and its text."""
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
    return (
        text.replace("plugin_name", name)
        .replace("plugin-name", "-".join(words))
        .replace("PluginName", "".join(word.capitalize() for word in words))
        .replace("plugin_family", family)
    )


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise AssemblyError(f"{name!r} can't name a plugin: use small letters, digits and _, beginning with a letter")
    if name in RESERVED_NAMES or name in BUILTINS or keyword.iskeyword(name):
        raise AssemblyError(f"{name!r} can't name a plugin: the broker, or Python, uses it for something else")
