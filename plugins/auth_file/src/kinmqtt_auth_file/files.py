"""The password file and the ACL file: their paths and their contents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from kinmqtt_auth_file.acl import Acl, parse_acl
from kinmqtt_auth_file.hashes import Argon2Settings
from kinmqtt_auth_file.passwords import Passwords, parse_passwords
from kinmqtt_auth_file.settings import AuthFileSettings
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.files import FileWatch
from kinmqtt_spi.settings import read_file


@frozen(slots=True)
class Files:
    """The paths of the files; ``None`` for a file that is not configured."""

    passwords: Path | None
    acl: Path | None

    def names(self) -> str:
        """The paths, for log lines."""
        return " and ".join(str(path) for path in (self.passwords, self.acl) if path is not None)

    def watch(self, argon2: Argon2Settings) -> FileWatch[Contents]:
        """A watch on both files."""
        paths = (path for path in (self.passwords, self.acl) if path is not None)
        return FileWatch(paths, lambda: self.read(argon2))

    def read(self, argon2: Argon2Settings) -> Contents:
        """Read both files; blocks. Raises ``SettingsError`` with all errors in both."""
        problems: list[str] = []
        passwords: Passwords | None = None
        acl: Acl | None = None
        if self.passwords is not None:
            try:
                passwords = parse_passwords(read_file(self.passwords), str(self.passwords), argon2)
            except SettingsError as error:
                problems.extend(error.problems)
        if self.acl is not None:
            try:
                acl = parse_acl(read_file(self.acl), str(self.acl), self.acl.name)
            except SettingsError as error:
                problems.extend(error.problems)
        if problems:
            raise SettingsError(problems)
        notes = [] if acl is None else list(acl.notes)
        if self.passwords is not None and _is_world_accessible(self.passwords):
            notes.append(
                f"{self.passwords}: all users of this machine can read it; `chmod o= {self.passwords}` fixes that"
            )
        return Contents(passwords, acl, tuple(notes))


def files_of(settings: AuthFileSettings) -> Files:
    """The files that the settings name; raises ``NotConfigured`` if there are none."""
    if settings.password_file is None and settings.acl_file is None:
        raise NotConfigured("plugins.auth_file has neither password_file nor acl_file")
    return Files(_absolute(settings.password_file), _absolute(settings.acl_file))


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


@frozen(slots=True)
class Contents:
    """The contents of the files."""

    passwords: Passwords | None
    acl: Acl | None
    notes: tuple[str, ...] = ()
    """Warnings for the operator."""

    def summary(self) -> str:
        """The number of users and rules, for log lines."""
        parts: Sequence[str] = [
            *([counted(len(self.passwords.users), "user")] if self.passwords is not None else []),
            *([counted(self.acl.count, "rule")] if self.acl is not None else []),
        ]
        return " and ".join(parts)


def counted(count: int, what: str) -> str:
    """A count with its noun, in singular or plural."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _is_world_accessible(path: Path) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o007)
    except OSError:
        return False
