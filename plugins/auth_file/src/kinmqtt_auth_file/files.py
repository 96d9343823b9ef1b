"""The files: what they look like from outside, and when a change of them is to be taken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attrs import frozen

from kinmqtt_auth_file.acl import Acl, parse_acl
from kinmqtt_auth_file.hashes import Argon2Settings
from kinmqtt_auth_file.passwords import Passwords, parse_passwords
from kinmqtt_spi.errors import SettingsError


class Look(NamedTuple):
    """What tells one state of a file from another without reading it."""

    modified_ns: int
    size_bytes: int
    inode: int


Looks = tuple[Look | None, ...]
"""One for each file, ``None`` where it can't be looked at."""


@frozen(slots=True)
class Files:
    """Where the files are; what is not kept in one is ``None``."""

    passwords: Path | None
    acl: Path | None

    def look(self) -> Looks:
        """What both look like now; blocks."""
        return tuple(_look(path) for path in (self.passwords, self.acl) if path is not None)

    def read(self, argon2: Argon2Settings) -> Contents:
        """Read both; blocks. Raises ``SettingsError`` with all that is wrong with either."""
        problems: list[str] = []
        before = self.look()
        passwords: Passwords | None = None
        acl: Acl | None = None
        if self.passwords is not None:
            try:
                passwords = parse_passwords(_content(self.passwords), str(self.passwords), argon2)
            except SettingsError as error:
                problems.extend(error.problems)
        if self.acl is not None:
            try:
                acl = parse_acl(_content(self.acl), str(self.acl), self.acl.name)
            except SettingsError as error:
                problems.extend(error.problems)
        if problems:
            raise SettingsError(problems)
        notes = [] if acl is None else list(acl.notes)
        if self.passwords is not None and _is_everybodys(self.passwords):
            notes.append(
                f"{self.passwords}: everybody on this machine may read it; `chmod o= {self.passwords}` mends that"
            )
        # What was looked at first may be older than what was read: then the next look differs, and all is read again.
        return Contents(passwords, acl, before, tuple(notes))


@frozen(slots=True)
class Contents:
    """What the files said, and what they looked like then."""

    passwords: Passwords | None
    acl: Acl | None
    looks: Looks
    notes: tuple[str, ...] = ()
    """What an operator may want to look at."""

    def words(self) -> str:
        """How much there is, in words."""
        parts: Sequence[str] = [
            *([counted(len(self.passwords.users), "user")] if self.passwords is not None else []),
            *([counted(self.acl.count, "rule")] if self.acl is not None else []),
        ]
        return " and ".join(parts)


class Settling:
    """Decides when a change is to be read: once it has looked the same twice.

    Who writes a file in place may be in the middle of it at the first look.
    """

    def __init__(self, taken: Looks) -> None:
        self._taken = taken
        self._last = taken

    def is_due(self, looks: Looks) -> bool:
        """Whether what the files look like now is new, and was the same at the look before."""
        same, self._last = looks == self._last, looks
        return same and looks != self._taken

    def taken(self, looks: Looks) -> None:
        """What looks like this was read, and holds."""
        self._taken = looks

    def wrong(self) -> None:
        """What was looked at last was read, and is wrong: it is not read again before it changes."""
        self._taken = self._last


def counted(count: int, what: str) -> str:
    """So many, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _look(path: Path) -> Look | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Look(status.st_mtime_ns, status.st_size, status.st_ino)


def _is_everybodys(path: Path) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o007)
    except OSError:
        return False


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SettingsError([f"{path}: there is no such file"]) from None
    except OSError as error:
        raise SettingsError([f"{path}: can't be read: {error.strerror or error}"]) from None
