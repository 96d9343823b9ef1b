"""Finds the supported Pythons of a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator

Version = tuple[int, int]


def installed(versions: Iterable[Version]) -> list[tuple[str, str]]:
    """Return version and path of one Python for each of these versions that this machine has, in their order."""
    pairs = []
    for version in versions:
        path = next((path for path in candidates(version) if runs(path, version)), None)
        if path is not None:
            pairs.append((f"{version[0]}.{version[1]}", path))
    return pairs


def candidates(version: Version) -> Iterator[str]:
    """Yield where a Python of a version may be: this one, the one on the path, and those that pyenv made."""
    name = f"python{version[0]}.{version[1]}"
    if sys.version_info[:2] == version:
        # A venv's own interpreter may be the one that runs this file; its base makes others.
        yield getattr(sys, "_base_executable", sys.executable)
    on_path = shutil.which(name)
    if on_path is not None:
        yield on_path
    versions = os.path.join(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    # Releases only: neither environments of pyenv's nor versions before their release. The newest first.
    release = re.compile(rf"{version[0]}\.{version[1]}\.(\d+)$")
    matches = [match for match in map(release.match, listed(versions)) if match is not None]
    for match in sorted(matches, key=lambda match: -int(match.group(1))):
        yield os.path.join(versions, match.group(), "bin", name)


def listed(folder: str) -> list[str]:
    """Return the names in a folder, none where there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def runs(path: str, version: Version) -> bool:
    """Return whether a program is a Python of that version that works: pyenv's stand-ins may lead to nothing."""
    probe = [path, "-c", f"import sys; sys.exit(sys.version_info[:2] != {version})"]
    try:
        return subprocess.call(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False
