"""Which files of a folder this process has open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_files(folder: Path) -> list[Path]:
    """Each as often as it is open, those that were removed since among them."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # That of the listing itself is closed by then.
            found.append(descriptor.readlink())
    return [file for file in found if file.is_relative_to(folder)]
