"""Which twin of the message path is imported: the one compiled from its source (``setup.py``), or the source itself.

The compiled one counts only while it is of the very source that lies beside it, and ``KINMQTT_PURE=1`` in the
environment passes it over. Nothing of kinmqtt may be imported here: this decides how.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType

NOTE = "compiled.sha256"
"""The file in the package that says of which sources the compiled modules are: lines as sha256sum writes them."""


def write_note(folder: Path, sources: Path, paths: Iterable[str]) -> None:
    """Note in a package's folder which sources were compiled; ``paths`` are theirs within it."""
    lines = (f"{_digest(sources / path)}  {path}\n" for path in paths)
    (folder / NOTE).write_text("".join(lines), encoding="ascii")


def choose(folder: Path) -> str:
    """See to it that the right twin of the package in a folder is imported; answers which, and why, in few words."""
    try:
        note = (folder / NOTE).read_text(encoding="ascii")
    except FileNotFoundError:
        return "plain Python"
    why = None
    if os.environ.get("KINMQTT_PURE"):
        why = "plain Python, as KINMQTT_PURE asks"
    elif not _is_of(folder, note):
        why = "plain Python: what was compiled is of other sources"
    if why is None:
        # An interpreter of another version finds nothing that was compiled for it.
        finder = FileFinder(str(folder / "mqtt"), (ExtensionFileLoader, EXTENSION_SUFFIXES))
        return "compiled" if finder.find_spec("framing") else "plain Python: it was compiled for another interpreter"
    sys.meta_path.insert(0, SourceOnly(folder.name))
    return why


class SourceOnly:
    """Finds a package's modules as source, whatever else lies there."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."
        self._finders: dict[str, FileFinder] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is (PEP 451)."""
        if not name.startswith(self._prefix):
            return None
        for folder in path or ():
            finder = self._finders.get(folder)
            if finder is None:
                finder = self._finders[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
            spec = finder.find_spec(name)
            if spec is not None:
                return spec
        return None


def _is_of(folder: Path, note: str) -> bool:
    try:
        return all(_digest(folder / path) == digest for digest, path in map(str.split, note.splitlines()))
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
