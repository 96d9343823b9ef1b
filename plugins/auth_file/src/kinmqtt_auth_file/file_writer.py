"""Changes a password file: one writer at a time, with atomic replacement for readers."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from kinmqtt_auth_file.hashes import ENDS_WITH_ZERO, PasswordHash, parse_hash
from kinmqtt_auth_file.passwords import problem_with_user
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.files import replace_file
from kinmqtt_spi.settings import check_regular

_WHITE = b" \t\n\v\f\r"

NEW_MODE = 0o600

NO_SUCH_FILE = "there is no such file; --create makes one"


def users_in(content: bytes) -> list[str]:
    """The user names in a file's content, in order, each once."""
    names = (_user_of(line) for line in _lines(content))
    return list(dict.fromkeys(name.decode(errors="backslashreplace") for name in names if name))


def shown(name: str) -> str:
    """A name for a terminal, with unprintable characters escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in name
    )


def with_user(content: bytes, user: str, hash: PasswordHash) -> bytes:
    """The content with this hash for the user, in place of the user's line or at the end.

    All other lines stay as they are. If the user has several lines, one remains.
    """
    made = f"{user}:{hash}".encode()
    lines: list[bytes] = []
    done = False
    for line in _lines(content):
        if _user_of(line) != user.encode(errors="surrogateescape"):
            lines.append(line)
        elif not done:
            done = True
            lines.append(made + _line_end(line))
    if not done:
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        lines.append(made + b"\n")
    return b"".join(lines)


def without_user(content: bytes, user: str) -> bytes | None:
    """The content without the user's lines; ``None`` if there are none."""
    lines = _lines(content)
    left = [line for line in lines if _user_of(line) != user.encode(errors="surrogateescape")]
    return None if len(left) == len(lines) else b"".join(left)


def with_hashes(content: bytes, name: str, make: Callable[[bytes], PasswordHash]) -> tuple[bytes, int]:
    """The content with every plain-text password hashed, and their number.

    Raises ``SettingsError`` for a line without a password or with a malformed hash.
    """
    lines: list[bytes] = []
    problems: list[str] = []
    count = 0
    for number, line in enumerate(_lines(content), 1):
        user = _user_of(line)
        plain = line.partition(b":")[2].strip(_WHITE)
        if user is None or _is_hash(plain):
            lines.append(line)
        elif not plain or plain.startswith((b"$6$", b"$7$", b"$argon2")):
            what = "is a malformed hash" if plain else "is empty"
            problems.append(f"{name}:{number}: the password of user {user.decode(errors='replace')!r} {what}")
        elif (problem := problem_with_user(user.decode(errors="surrogateescape"))) is not None:
            problems.append(f"{name}:{number}: {problem}")
        elif plain.endswith(b"\0"):
            problems.append(f"{name}:{number}: {ENDS_WITH_ZERO}")
        else:
            count += 1
            lines.append(user + b":" + str(make(plain)).encode() + _line_end(line))
    if problems:
        raise SettingsError(problems)
    return b"".join(lines), count


def _lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _line_end(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]


def _user_of(line: bytes) -> bytes | None:
    """The user of a line; ``None`` for comments, blank lines and lines without a colon."""
    if line.startswith(b"#") or b":" not in line:
        return None
    return line.partition(b":")[0].strip(_WHITE)


def _is_hash(text: bytes) -> bool:
    try:
        parse_hash(text.partition(b":")[0].strip(_WHITE).decode())
    except ValueError:
        return False
    return True


# On disk


@contextlib.contextmanager
def locked(path: Path, *, create: bool = False) -> Iterator[Path]:
    """Lock a file for editing and yield its path with symbolic links resolved; raises ``SettingsError``.

    Only regular files are accepted. The lock is on the file itself. If the file was replaced while this waited for
    the lock, the new file is locked.
    """
    path = Path(os.path.realpath(path))
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (os.O_CREAT | os.O_EXCL if create else 0)
    while True:
        with _os_errors_as_settings_errors(path):
            descriptor = os.open(path, flags, NEW_MODE)
        flags &= ~(os.O_CREAT | os.O_EXCL)
        try:
            check_regular(descriptor, str(path))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                yield path
                return
        finally:
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably, keeping its owner and mode; raises ``SettingsError`` on failure.

    The new content is fsynced before the rename, and the directory after it.
    """
    with _os_errors_as_settings_errors(path):
        os.stat(path)  # A file that is gone meanwhile must not be made again.
        replace_file(path, content)


@contextlib.contextmanager
def _os_errors_as_settings_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise SettingsError([f"{path}: the file exists already; leave out --create to add to it"]) from None
    except FileNotFoundError:
        raise SettingsError([f"{path}: {NO_SUCH_FILE}"]) from None
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror or error}"]) from None
