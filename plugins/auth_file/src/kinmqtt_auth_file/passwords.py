"""Mosquitto's ``password_file``, read as Mosquitto 2.0 reads it, but that a line it would drop is a mistake here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import frozen

from kinmqtt_auth_file.hashes import OWASP, Argon2id, Argon2Settings, PasswordHash, parse_hash
from kinmqtt_spi.errors import SettingsError

MAX_PROBLEMS: Final = 20
"""That are told of one file: nobody reads on, and a file may be the wrong one altogether."""


@frozen(slots=True)
class Passwords:
    """What a password file says."""

    users: Mapping[str, PasswordHash]
    nobody: PasswordHash
    """Verified in place of an unknown user's: it costs what most of the file's hashes cost, and none fits it."""

    @classmethod
    def of(cls, users: Mapping[str, PasswordHash], argon2: Argon2Settings = OWASP) -> Passwords:
        """The passwords of these users; ``argon2`` says what nobody's costs where there are none."""
        by_cost = {hash.cost: hash for hash in users.values()}
        costs = Counter(hash.cost for hash in users.values()).most_common(1)
        return cls(users, by_cost[costs[0][0]].nobodys() if costs else Argon2id.costing(argon2))

    def get(self, username: str) -> PasswordHash:
        """The user's hash, or nobody's."""
        return self.users.get(username, self.nobody)


def parse_passwords(content: bytes, name: str, argon2: Argon2Settings = OWASP) -> Passwords:
    """Read a file's content; ``SettingsError`` locates each line that is wrong and says how to mend it.

    Of two lines for one user the last holds, as for Mosquitto.
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
        raise ValueError("expected user:hash, and there is no ':'; a comment has its '#' in the first column")
    user = trimmed(user)
    problem = problem_with_user(user)
    if problem is not None:
        raise ValueError(problem)
    # What stands behind a second ':' is nobody's business, Mosquitto's neither.
    text = trimmed(rest.partition(":")[0])
    try:
        return user, parse_hash(text)
    except ValueError as error:
        mend = "write the line anew with `kinmqtt passwd`"
        if text and not text.startswith("$"):
            mend = "`kinmqtt passwd --hash-plain` hashes such lines"
        raise ValueError(f"user {user!r}: {error}; {mend}") from None


def problem_with_user(user: str) -> str | None:
    """Why no client can have this user name, or no line of a file; ``None`` where both can."""
    if not user:
        return "the user name is empty"
    if ":" in user:
        return f"the user name {user!r} has a ':' in it, which ends the name in the file"
    if user != trimmed(user):
        return f"the user name {user!r} has a space at an end, which readers of the file take away"
    if has_control_characters(user):
        return f"the user name {user!r} has control characters in it"
    try:
        too_long = len(user.encode()) > 65535
    except UnicodeEncodeError:
        return f"the user name {user!r} is not UTF-8"
    return "the user name is longer than MQTT can say" if too_long else None


# What both sorts of files have in common


def text_lines(content: bytes, name: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without line ends; ``SettingsError`` for what is no text in UTF-8."""
    if content.startswith(b"\xef\xbb\xbf"):
        raise SettingsError([f"{name}:1: the file begins with a byte order mark; save it as UTF-8 without one"])
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            yield number, line.rstrip(b"\r").decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8: byte 0x{line[error.start]:02x} in column {error.start + 1}; save the file as UTF-8"
            raise SettingsError([f"{name}:{number}: {problem}"]) from None


def trimmed(text: str) -> str:
    """Without the white space of C's locale at its ends, which is what Mosquitto takes away."""
    return text.strip(" \t\n\v\f\r")


def has_control_characters(text: str) -> bool:
    """Whether there is anything that MQTT discourages and Mosquitto refuses (section 1.5.4)."""
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def raise_if_any(problems: list[str]) -> None:
    """Raise what was found, or the first of it."""
    if len(problems) > MAX_PROBLEMS:
        problems = [*problems[:MAX_PROBLEMS], f"and {len(problems) - MAX_PROBLEMS} lines more"]
    if problems:
        raise SettingsError(problems)
