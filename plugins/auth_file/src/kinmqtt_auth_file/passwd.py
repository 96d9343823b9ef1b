"""``kinmqtt passwd``: adds, changes, removes, checks and lists the users of a password file."""

from __future__ import annotations

import getpass
import select
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from kinmqtt_auth_file.file_writer import (
    NO_SUCH_FILE,
    locked,
    replace,
    shown,
    users_in,
    with_hashes,
    with_user,
    without_user,
)
from kinmqtt_auth_file.files import counted
from kinmqtt_auth_file.hashes import (
    ENDS_WITH_ZERO,
    MAX_ITERATIONS,
    OWASP,
    PBKDF2_ITERATIONS,
    Argon2id,
    Argon2Settings,
    Kind,
    PasswordHash,
    Pbkdf2,
)
from kinmqtt_auth_file.passwords import parse_passwords, problem_with_user
from kinmqtt_auth_file.settings import AuthFileSettings
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, parse, read_file

LONGEST_PASSWORD_BYTES: Final = 65535
"""The longest password that CONNECT can carry (section 3.1.3.6)."""

_SECTION: Final = ("plugins", "auth_file")


class UsageError(Exception):
    """The command was called incorrectly."""


class Pipe(Protocol):
    """The source of a password: a raw stream whose ``read`` returns the available bytes."""

    def read(self, size: int, /) -> bytes | None: ...

    def fileno(self) -> int: ...


def _standard_input() -> Pipe:
    try:
        return open(0, "rb", buffering=0, closefd=False)
    except OSError:
        raise UsageError("standard input is closed") from None


class Passwd:
    """The command ``kinmqtt passwd``. Terminal and standard input are parameters, for tests."""

    summary = "add, change, remove, check and list the users of a password file"

    def __init__(
        self,
        ask: Callable[[str], str] = getpass.getpass,
        standard_input: Callable[[], Pipe] = _standard_input,
        is_terminal: Callable[[], bool] = lambda: sys.stdin.isatty(),
    ) -> None:
        self._ask = ask
        self._standard_input = standard_input
        self._is_terminal = is_terminal

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments. The password is not one of them: all users could read it in the process list."""
        parser.add_argument("file", metavar="FILE", type=Path, help="the password file")
        user = parser.add_argument(
            "user", metavar="USER", help="the user whose password is set; not for --list and --hash-plain"
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--create", action="store_true", help="create FILE, which must not exist yet")
        what.add_argument("--delete", action="store_true", help="remove USER")
        what.add_argument("--check", action="store_true", help="exit with 0 if the password is USER's, else with 1")
        what.add_argument("--list", action=_without(user), help="list the users")
        what.add_argument(
            "--hash-plain",
            action=_without(user),
            help="hash the plain-text passwords in FILE, like `mosquitto_passwd -U`; hashes stay as they are",
        )
        kinds = [Kind.ARGON2ID.value, Kind.PBKDF2_SHA512.value]
        parser.add_argument(
            "--hash", choices=kinds, default=kinds[0], help=f"{kinds[0]} is the default; Mosquitto reads {kinds[1]}"
        )
        parser.add_argument(
            "--iterations",
            type=int,
            default=PBKDF2_ITERATIONS,
            metavar="N",
            help=f"the cost of pbkdf2-sha512, by default {PBKDF2_ITERATIONS}",
        )
        parser.add_argument(
            "--password-stdin", action="store_true", help="read the password from standard input: one line"
        )
        parser.add_argument(
            "-c",
            "--config",
            type=Path,
            metavar="SETTINGS",
            help="the broker's settings, for the cost in plugins.auth_file.argon2",
        )

    def run(self, parsed: Namespace) -> int:
        """Run the command; returns the exit status."""
        try:
            self._check_usage(parsed)
            if parsed.list:
                return self._list(parsed)
            if parsed.check:
                return self._check(parsed)
            if parsed.delete:
                return self._delete(parsed)
            if parsed.hash_plain:
                return self._hash_plain(parsed)
            return self._set(parsed)
        except UsageError as error:
            print(f"kinmqtt passwd: {error}", file=sys.stderr)
            return 2

    def _check_usage(self, parsed: Namespace) -> None:
        without_user = parsed.list or parsed.hash_plain
        if without_user and parsed.user is not None:
            raise UsageError("--list and --hash-plain don't take a USER")
        if not without_user:
            problem = problem_with_user(parsed.user)
            if problem is None and parsed.user.startswith("#"):
                problem = f"the user name {parsed.user!r} begins with a '#', which makes its line a comment"
            if problem is not None and not parsed.delete:
                raise UsageError(problem)
        if not 1 <= parsed.iterations <= MAX_ITERATIONS:
            raise UsageError(f"--iterations must be from 1 to {MAX_ITERATIONS}")

    def _list(self, parsed: Namespace) -> int:
        for user in users_in(_content(parsed.file)):
            print(shown(user))
        return 0

    def _check(self, parsed: Namespace) -> int:
        passwords = parse_passwords(_content(parsed.file), str(parsed.file), _argon2(parsed))
        password = self._password(parsed, again=False)
        known = parsed.user in passwords.users
        if passwords.get(parsed.user).verify(password) and known:
            print(f"the password of {parsed.user!r} is right")
            return 0
        print(f"unknown user {parsed.user!r}, or wrong password")
        return 1

    def _delete(self, parsed: Namespace) -> int:
        with locked(parsed.file) as path:
            left = without_user(_content(path), parsed.user)
            if left is None:
                raise SettingsError([f"{parsed.file}: there is no user {parsed.user!r}"])
            replace(path, left)
        return 0

    def _hash_plain(self, parsed: Namespace) -> int:
        make = _maker(parsed)
        with locked(parsed.file) as path:
            content, count = with_hashes(_content(path), str(parsed.file), make)
            if count:
                replace(path, content)
        print(f"{counted(count, 'password')} hashed")
        return 0

    def _set(self, parsed: Namespace) -> int:
        make = _maker(parsed)
        if not parsed.create:
            _content(parsed.file)  # Fail before asking for a password if the file does not exist.
        hash = make(self._password(parsed, again=True))
        with locked(parsed.file, create=parsed.create) as path:
            replace(path, with_user(_content(path), parsed.user, hash))
        return 0

    def _password(self, parsed: Namespace, *, again: bool) -> bytes:
        if parsed.password_stdin:
            password = _one_line(self._standard_input())
        elif self._is_terminal():
            try:
                typed = self._ask("Password: ")
                is_other = again and self._ask("Once more: ") != typed
            except (EOFError, KeyboardInterrupt):
                raise UsageError("no password was typed; nothing has changed") from None
            if is_other:
                raise UsageError("the two passwords are different")
            password = typed.encode(errors="surrogateescape")
        else:
            raise UsageError("there is no terminal to ask for the password; --password-stdin reads standard input")
        if not password:
            raise UsageError("the password is empty")
        if len(password) > LONGEST_PASSWORD_BYTES:
            raise UsageError("the password is longer than MQTT allows")
        if password.endswith(b"\0"):
            raise UsageError(ENDS_WITH_ZERO)
        return password


def _without(user: Action) -> type[Action]:
    """The action of an option that takes no USER.

    USER is not declared as optional, because argparse would not find it after an option: ``FILE --delete USER``.
    """

    class WithoutUser(Action):
        def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
            super().__init__(option_strings, dest, nargs=0, default=False, help=help)

        def __call__(self, parser: ArgumentParser, namespace: Namespace, *_: object) -> None:
            setattr(namespace, self.dest, True)
            user.required = False

    return WithoutUser


def _one_line(stream: Pipe) -> bytes:
    """Read one line without waiting beyond its end; raises ``UsageError`` if more follows."""
    limit = LONGEST_PASSWORD_BYTES + 3
    read = b""
    while b"\n" not in read and len(read) < limit:
        piece = stream.read(limit - len(read))
        if piece is None:  # The stream is non-blocking.
            select.select([stream], [], [])
        elif piece:
            read += piece
        else:
            break
    line, end, more = read.partition(b"\n")
    if end and (more or _has_more(stream)):
        raise UsageError("there is more than one line on standard input")
    return line.removesuffix(b"\r")


def _has_more(stream: Pipe) -> bool:
    """Whether more input is available now. Does not wait for a writer that stays open without writing."""
    try:
        ready, _, _ = select.select([stream], [], [], 0)
    except (OSError, ValueError):  # Not a system file, so reading does not block.
        return bool(stream.read(1))
    return bool(ready and stream.read(1))


def _maker(parsed: Namespace) -> Callable[[bytes], PasswordHash]:
    if parsed.hash == Kind.PBKDF2_SHA512.value:
        return lambda password: Pbkdf2.of(password, parsed.iterations)
    argon2 = _argon2(parsed)
    return lambda password: Argon2id.of(password, argon2)


def _argon2(parsed: Namespace) -> Argon2Settings:
    if parsed.config is None:
        return OWASP
    settings: AuthFileSettings = parse(AuthFileSettings, Document.read(parsed.config), _SECTION)
    return settings.argon2


def _content(path: Path) -> bytes:
    return read_file(path, missing=NO_SUCH_FILE)


command = Passwd()
