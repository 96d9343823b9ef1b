"""Which client ids a user may have: patterns, in which ``%u`` is the user name and a ``*`` at the end anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from kinmqtt_auth_file.passwords import has_control_characters

USER: Final = "%u"
ANYTHING: Final = "*"

MAX_NOTES: Final = 5
"""Of users whose client ids overlap: who reads one of them knows what to do about all."""


@frozen(slots=True)
class Pattern:
    """One pattern. What it says beside ``%u`` and the last ``*`` stands for itself, and so does a user's name."""

    text: str

    @property
    def is_open(self) -> bool:
        """Whether anything may stand behind it."""
        return self.text.endswith(ANYTHING)

    @property
    def is_personal(self) -> bool:
        """Whether it asks for the user name."""
        return USER in self.text

    def of(self, username: str | None) -> str | None:
        """What a client id of this user must be, or begin with; ``None`` where it asks for a name that is missing."""
        if self.is_personal and not username:
            return None
        return self.text.removesuffix(ANYTHING).replace(USER, username or "")

    def fits(self, client_id: str, username: str | None) -> bool:
        """Whether a client of this user may have this client id."""
        its = self.of(username)
        if its is None:
            return False
        return client_id.startswith(its) if self.is_open else client_id == its


def problem_with_pattern(text: str) -> str | None:
    """Why a text is no pattern, or not a safe one; ``None`` where it is."""
    if not text:
        return 'it is empty; "*" allows every client id'
    if ANYTHING in text[:-1]:
        return "a '*' stands for anything, and at the end only"
    if text.endswith(USER + ANYTHING):
        return f"another user's name may begin like this one's: put a sign in between, as in '{text[:-1]}-*'"
    if "%c" in text:
        return "there is no %c here, which is the client id in an acl_file; %u is the user name"
    if has_control_characters(text):
        return "it has control characters in it"
    return None


def check_patterns(instance: object, attribute: Any, value: Any) -> None:
    """Raise ``ValueError`` for what is no pattern: the validator of both settings."""
    by_user = value if isinstance(value, Mapping) else {None: value or ()}
    for user, patterns in by_user.items():
        for text in patterns:
            problem = problem_with_pattern(text)
            if problem is not None:
                whose = "" if user is None else f"user {user!r}: "
                raise ValueError(f"{whose}pattern {text!r}: {problem}")


class ClientIds:
    """Who may have which client ids."""

    def __init__(
        self, everybody: Sequence[str] | None = None, users: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """``everybody`` has the patterns for those who have none of their own in ``users``; ``None`` allows all."""
        self._everybody = None if everybody is None else tuple(map(Pattern, everybody))
        self._users = {user: tuple(map(Pattern, patterns)) for user, patterns in (users or {}).items()}

    def allows(self, client_id: str, username: str | None) -> bool:
        """Whether a client of this user, ``None`` for an anonymous one, may have this client id."""
        patterns = self._everybody if username is None else self._users.get(username, self._everybody)
        return patterns is None or any(each.fits(client_id, username) for each in patterns)

    def notes(self, users: Collection[str] | None) -> list[str]:
        """What an operator may want to look at; ``users`` are those of the password file, ``None`` without one."""
        if users is None:
            return []
        unknown = [
            f"plugins.auth_file.client_ids_of: there is no user {user!r} in the password file"
            for user in self._users
            if user not in users
        ]
        own = [user for user in users if user not in self._users]
        overlaps = [note for pattern in self._everybody or () for note in _overlaps(pattern, own)]
        more = [f"and {len(overlaps) - MAX_NOTES} overlaps more"] if len(overlaps) > MAX_NOTES else []
        return unknown + overlaps[:MAX_NOTES] + more


def _overlaps(pattern: Pattern, users: Sequence[str]) -> list[str]:
    """Users who may have another's client ids, because their names begin alike up to what stands behind the name."""
    if not (pattern.is_open and pattern.is_personal):
        return []
    by_beginning = {pattern.of(user): user for user in users}
    found = []
    for beginning, user in by_beginning.items():
        for end in range(1, len(beginning or "")):
            other = by_beginning.get((beginning or "")[:end])
            if other is not None:
                found.append(
                    f"plugins.auth_file.client_ids: by {pattern.text!r} user {other!r} may have the client ids of "
                    f"user {user!r}, which begin with {beginning!r}: choose a sign that no user name has"
                )
    return found
