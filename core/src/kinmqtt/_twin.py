"""Which twin of the message path is imported: the one compiled from its source (``setup.py``), or the source itself.

The compiled one counts only while it is whole and of the very sources that are imported, and ``KINMQTT_PURE=1`` in
the environment passes it over. Nothing of kinmqtt may be imported here: this decides how.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

NOTES = "compiled-*.sha256"

NOTE = NOTES.replace("*", str(sys.implementation.cache_tag))
"""The file in the package that says what this interpreter's compiled modules are, and of which sources.

Its lines are as sha256sum writes them, with paths from the folder that a package lies in; the last one, of ``-``,
is of the lines before it.
"""


def asks_for_source() -> bool:
    """Whether the environment wants nothing compiled; neither ``0`` nor nothing asks for that."""
    return os.environ.get("KINMQTT_PURE", "") not in ("", "0")


def digests(*packages: Path) -> dict[str, str]:
    """The digest of every source of some packages: a compiled module has constants of others built in."""
    # What isn't named like a module is an editor's.
    sources = ((package, path) for package in packages for path in package.rglob("*.py") if path.stem.isidentifier())
    return {path.relative_to(package.parent).as_posix(): _digest(path) for package, path in sources}


def write_note(folder: Path, sources: Mapping[str, str], made: Iterable[str]) -> None:
    """Note in a package's folder of which sources the extension modules are that lie there or beside the folder."""
    lines = {**sources, **{path: _digest(folder.parent / path) for path in made}}
    text = "".join(f"{digest}  {path}\n" for path, digest in sorted(lines.items()))
    # An import that comes in between finds the whole note or none.
    whole = folder / f"{NOTE}.{os.getpid()}"
    whole.write_bytes(f"{text}{_digest_of(text)}  -\n".encode())
    whole.replace(folder / NOTE)


def choose(folder: Path) -> str:
    """See to it that the right twin of the package in a folder is imported; answers which, and why, in few words."""
    why = _why_source(folder)
    if why is None:
        return "compiled"
    # Without a note as well: extension modules of whatever origin may lie there.
    sys.meta_path.insert(0, SourceOnly(folder.name))
    return why


def _why_source(folder: Path) -> str | None:
    try:
        note = (folder / NOTE).read_bytes()
    except FileNotFoundError:
        others = any(folder.glob(NOTES))
        return "plain Python: it was compiled for another interpreter" if others else "plain Python"
    except OSError:
        return "plain Python: the note of what was compiled can't be read"
    if asks_for_source():
        return "plain Python, as KINMQTT_PURE asks"
    try:
        lines = _lines(note.decode())
        # One tag may be several interpreters', with and without debugging or for another machine.
        if not any(path.endswith(EXTENSION_SUFFIXES[0]) for path in lines):
            return "plain Python: it was compiled for another interpreter"
        if _are_there(folder, lines):
            return None
    except (OSError, ValueError, ImportError):
        # What a note names is gone, or it is none.
        pass
    return "plain Python: what was compiled is of other sources"


def _lines(note: str) -> dict[str, str]:
    """The digests that a note has, by path."""
    *lines, last = note.splitlines(keepends=True)
    if last != f"{_digest_of(''.join(lines))}  -\n":
        raise ValueError("a piece of a note")
    return {path: digest for digest, path in (line.rstrip("\n").split("  ", 1) for line in lines)}


def _are_there(folder: Path, lines: Mapping[str, str]) -> bool:
    """Whether what an import would find is what was noted."""
    roots = {folder.name: str(folder.parent)}
    for path, digest in lines.items():
        top = path.partition("/")[0]
        if top not in roots:
            roots[top] = _root(top.partition(".")[0])
        if _digest(f"{roots[top]}/{path}") != digest:
            return False
    return True


def _root(name: str) -> str:
    """The folder that a package or a module is imported from; nothing is imported here."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    folder = os.path.dirname(spec.origin)
    return folder if spec.submodule_search_locations is None else os.path.dirname(folder)


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


def _digest(path: Path | str) -> str:
    digest = sha256()
    with open(path, "rb", buffering=0) as file:
        # New memory for the whole of a large extension module takes longer than its digest.
        while piece := file.read(65536):
            digest.update(piece)
    return digest.hexdigest()


def _digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()
