"""Patterns of the client ids that a user may have: ``%u`` is the user name, a ``*`` at the end matches anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from kinmqtt_auth_file.passwords import has_control_characters

USER: Final = "%u"
ANYTHING: Final = "*"

MAX_NOTES: Final = 5
"""The most warnings about users whose client ids overlap; one shows what to do about all."""


@frozen(slots=True)
class Pattern:
    """One pattern. Apart from ``%u`` and a final ``*`` it is literal, and so are user names."""

    text: str

    @property
    def is_open(self) -> bool:
        """Whether it ends with ``*``."""
        return self.text.endswith(ANYTHING)

    @property
    def is_personal(self) -> bool:
        """Whether it contains the user name."""
        return USER in self.text

    def of(self, username: str | None) -> str | None:
        """The client id of this user, or its beginning; ``None`` if a required user name is missing."""
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
    """Why a text is not a safe pattern; ``None`` if it is."""
    if not text:
        return 'it is empty; "*" allows every client id'
    if ANYTHING in text[:-1]:
        return "a '*' is only allowed at the end"
    if text.endswith(USER + ANYTHING):
        return f"another user's name may begin like this one's: put a separator in between, as in '{text[:-1]}-*'"
    if "%c" in text:
        return "%c, the client id in an acl_file, is not available here; %u is the user name"
    if has_control_characters(text):
        return "it contains control characters"
    return None


def check_patterns(instance: object, attribute: Any, value: Any) -> None:
    """Raise ``ValueError`` for an invalid pattern: the validator of both settings."""
    by_user = value if isinstance(value, Mapping) else {None: value or ()}
    for user, patterns in by_user.items():
        for text in patterns:
            problem = problem_with_pattern(text)
            if problem is not None:
                whose = "" if user is None else f"user {user!r}: "
                raise ValueError(f"{whose}pattern {text!r}: {problem}")


class ClientIds:
    """Decides which client ids a user may have."""

    def __init__(
        self, everybody: Sequence[str] | None = None, users: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """``everybody`` has the patterns for users without patterns in ``users``; ``None`` allows all client ids."""
        self._everybody = None if everybody is None else tuple(map(Pattern, everybody))
        self._users = {user: tuple(map(Pattern, patterns)) for user, patterns in (users or {}).items()}

    def allows(self, client_id: str, username: str | None) -> bool:
        """Whether a client of this user (``None`` for an anonymous one) may have this client id."""
        patterns = self._everybody if username is None else self._users.get(username, self._everybody)
        return patterns is None or any(each.fits(client_id, username) for each in patterns)

    def notes(self, users: Collection[str] | None) -> list[str]:
        """Warnings for the operator; ``users`` are those of the password file, ``None`` without a file."""
        if users is None:
            return []
        unknown = [
            f"plugins.auth_file.client_ids_of: there is no user {user!r} in the password file"
            for user in self._users
            if user not in users
        ]
        own = [user for user in users if user not in self._users]
        overlaps = [note for pattern in self._everybody or () for note in _overlaps(pattern, own)]
        more = [f"and {len(overlaps) - MAX_NOTES} more overlaps"] if len(overlaps) > MAX_NOTES else []
        return unknown + overlaps[:MAX_NOTES] + more


def _overlaps(pattern: Pattern, users: Sequence[str]) -> list[str]:
    """Warnings for users who may have another's client ids, because that user's name begins with theirs."""
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
                    f"user {user!r}, which begin with {beginning!r}: choose a separator that no user name contains"
                )
    return found
