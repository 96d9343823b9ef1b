"""Checks whether files in settings can be read, and folders written to."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings._fields import rule_of
from kinmqtt_spi.settings._files import check_regular
from kinmqtt_spi.settings._keys import KeyPath

_O_TMPFILE = getattr(os, "O_TMPFILE", 0)


def path_problems(instance: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Return key path and text for each file or folder of a settings instance that can't be used."""
    for attribute in attrs.fields(type(instance)):
        key = (*path, attribute.alias or attribute.name)
        value = getattr(instance, attribute.name)
        kind = rule_of(attribute).path
        if kind is not None and value is not None:
            problem = problem_with_file(value) if kind == "file" else problem_with_folder(value)
            if problem is not None:
                yield key, problem
        elif attrs.has(type(value)):
            yield from path_problems(value, key)


def problem_with_file(path: Path) -> str | None:
    """Return why a file can't be read, in words that begin with its name; ``None`` if it can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        # Relative to the settings file, as many expect, it is not.
        relative = "" if path.is_absolute() else f"; a relative path starts at the working directory, {Path.cwd()}"
        return f"{path}: there is no such file{relative}"
    except OSError as error:
        return f"{path}: can't be read: {error.strerror or error}"
    try:
        check_regular(descriptor, str(path))
    except SettingsError as error:
        return error.problems[0]
    finally:
        os.close(descriptor)
    return None


def problem_with_folder(path: Path) -> str | None:
    """Return why a folder can't be written to or made; ``None`` if it can."""
    if path.exists() and not path.is_dir():
        return f"{path}: is a file, not a folder"
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        _try_to_write(nearest)
    except OSError as error:
        what = "can't be written to" if nearest == path else f"can't be made in {nearest}"
        return f"{path}: {what}: {error.strerror or error}"
    return None


def _try_to_write(folder: Path) -> None:
    """Raise ``OSError`` if no file can be made in a folder; the test file is removed at once."""
    if _O_TMPFILE:
        try:
            os.close(os.open(folder, _O_TMPFILE | os.O_RDWR, 0o600))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                raise
        else:
            return
    # A file system without nameless files, or one that takes no files at all, as /proc.
    os.rmdir(tempfile.mkdtemp(dir=folder))
