"""Reads Mosquitto's ``password_file`` like Mosquitto 2.0, except that lines it would skip are errors here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import frozen

from kinmqtt_auth_file.hashes import OWASP, Argon2id, Argon2Settings, PasswordHash, parse_hash
from kinmqtt_spi.errors import SettingsError

MAX_PROBLEMS: Final = 20
"""The most errors reported for one file; it may be the wrong file altogether."""


@frozen(slots=True)
class Passwords:
    """The contents of a password file."""

    users: Mapping[str, PasswordHash]
    dummy: PasswordHash
    """Verified for unknown users: it costs as much as most of the file's hashes, and no password fits it."""

    @classmethod
    def of(cls, users: Mapping[str, PasswordHash], argon2: Argon2Settings = OWASP) -> Passwords:
        """The passwords of these users; ``argon2`` is the cost of the dummy hash if there are no users."""
        by_cost = {hash.cost: hash for hash in users.values()}
        costs = Counter(hash.cost for hash in users.values()).most_common(1)
        return cls(users, by_cost[costs[0][0]].dummy() if costs else Argon2id.costing(argon2))

    def get(self, username: str) -> PasswordHash:
        """The user's hash, or the dummy hash."""
        return self.users.get(username, self.dummy)


def parse_passwords(content: bytes, name: str, argon2: Argon2Settings = OWASP) -> Passwords:
    """Parse a file's content; raises ``SettingsError`` with the location of each error and how to fix it.

    If a user has two lines, the last one counts, as in Mosquitto.
    """
    users: dict[str, PasswordHash] = {}
    problems: list[str] = []
    for number, line in text_lines(content, name):
        if line.startswith("#") or not line.strip():
            continue
        try:
            user, hash = _entry(line)
        except ValueError as error:
            problems.append(f"{name}:{number}: {error}")
        else:
            users[user] = hash
    raise_if_any(problems)
    return Passwords.of(users, argon2)


def _entry(line: str) -> tuple[str, PasswordHash]:
    user, colon, rest = line.partition(":")
    if not colon:
        raise ValueError("expected user:hash, but there is no ':'; a comment has its '#' in the first column")
    user = trimmed(user)
    problem = problem_with_user(user)
    if problem is not None:
        raise ValueError(problem)
    # Text after a second ':' is ignored, as in Mosquitto.
    text = trimmed(rest.partition(":")[0])
    try:
        return user, parse_hash(text)
    except ValueError as error:
        fix = "write the line again with `kinmqtt passwd`"
        if text and not text.startswith("$"):
            fix = "`kinmqtt passwd --hash-plain` hashes such lines"
        raise ValueError(f"user {user!r}: {error}; {fix}") from None


def problem_with_user(user: str) -> str | None:
    """Why a user name is invalid for a client or for a line of the file; ``None`` if it is valid."""
    if not user:
        return "the user name is empty"
    if ":" in user:
        return f"the user name {user!r} contains a ':', which ends the name in the file"
    if user != trimmed(user):
        return f"the user name {user!r} begins or ends with a space, which readers of the file remove"
    if has_control_characters(user):
        return f"the user name {user!r} contains control characters"
    try:
        too_long = len(user.encode()) > 65535
    except UnicodeEncodeError:
        return f"the user name {user!r} is not UTF-8"
    return "the user name is longer than MQTT allows" if too_long else None


# Shared by both kinds of files


def text_lines(content: bytes, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, without line ends; raises ``SettingsError`` if they are not UTF-8."""
    if content.startswith(b"\xef\xbb\xbf"):
        raise SettingsError([f"{name}:1: the file begins with a byte order mark; save it as UTF-8 without one"])
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            yield number, line.rstrip(b"\r").decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8: byte 0x{line[error.start]:02x} in column {error.start + 1}; save the file as UTF-8"
            raise SettingsError([f"{name}:{number}: {problem}"]) from None


def trimmed(text: str) -> str:
    """Strip the white space of the C locale, like Mosquitto."""
    return text.strip(" \t\n\v\f\r")


def has_control_characters(text: str) -> bool:
    """Whether the text contains characters that MQTT discourages and Mosquitto refuses (section 1.5.4)."""
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def raise_if_any(problems: list[str]) -> None:
    """Raise ``SettingsError`` with the first problems, if there are any."""
    if len(problems) > MAX_PROBLEMS:
        problems = [*problems[:MAX_PROBLEMS], f"and {len(problems) - MAX_PROBLEMS} more lines"]
    if problems:
        raise SettingsError(problems)
