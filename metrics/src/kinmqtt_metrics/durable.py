"""Files that survive a power failure: written beside their place, brought to the disk, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. Raises ``OSError``."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and bring their names to the disk. Raises ``OSError``."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder that is on the disk, and bring the new name to the disk. Raises ``OSError``."""
    source.rename(target)
    sync(target.parent)


def replace_text(path: Path, text: str) -> None:
    """Write a whole file, or leave what is there. Follows links and keeps the file's permissions. Raises ``OSError``.

    The text is UTF-8; line endings stay as they are. Half of a surrogate pair is written as its number.
    """
    path = path.resolve()
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(handle, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(handle, mode)
            os.fsync(handle)
        rename(Path(name), path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
