"""Reads and evaluates Mosquitto's ``acl_file`` like Mosquitto 2.0.

A client's own ``topic`` lines come first; lines before any ``user`` line are for clients without a user name. Among
them ``deny`` takes precedence, wherever it is. Only if no line matches are the ``pattern`` lines evaluated, in the
same way: so a user's own right takes precedence over a pattern that denies. A client with a ``+`` or ``#`` in its
user name or client id gets no rights from patterns. A client whose name begins with ``$`` gets none from patterns
that begin with that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from attrs import frozen

from kinmqtt_auth_file.passwords import has_control_characters, problem_with_user, raise_if_any, text_lines, trimmed
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Authorization, Cache
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Decision, Verdict

CACHED_CLIENTS: Final = 4096
"""The most clients whose patterns are cached with their names filled in."""

CACHED_ANSWERS: Final = 32_768
"""The most cached answers. Clients choose topics, so the memory for them must be bounded."""

LONGEST_CACHED: Final = 1024
"""The longest topic whose answer is cached, in characters."""

_PLACEHOLDER: Final = re.compile("%[uc]")

_BRIDGE_STATE: Final = "$SYS/broker/connection/+/state"
"""The only topics below ``$SYS`` that a rule may allow writing to: bridges publish their state there."""


class Access(Enum):
    """The access that a line grants or denies."""

    READ = "read"
    WRITE = "write"
    READWRITE = "readwrite"
    DENY = "deny"


@frozen(slots=True)
class Rule:
    """One ``topic`` or ``pattern`` line."""

    access: Access
    filter: str
    line: int


class _Rules:
    """Rules by access; exact topics are looked up in a dict, filters with wildcards are tried in turn."""

    __slots__ = ("_by_access",)

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_access: dict[Access, tuple[dict[str, Rule], list[Rule]]] = {
            access: ({}, []) for access in (Access.DENY, Access.READ, Access.WRITE)
        }
        for rule in rules:
            both = rule.access is Access.READWRITE
            for access in (Access.READ, Access.WRITE) if both else (rule.access,):
                exact, wild = self._by_access[access]
                if "+" in rule.filter or "#" in rule.filter:
                    wild.append(rule)
                else:
                    exact.setdefault(rule.filter, rule)

    def decide(self, access: Access, topic: str) -> Rule | None:
        """The rule that decides; ``None`` if none matches."""
        return self._find(Access.DENY, topic) or self._find(access, topic)

    def _find(self, access: Access, topic: str) -> Rule | None:
        exact, wild = self._by_access[access]
        found = exact.get(topic)
        if found is None and wild:
            found = next((rule for rule in wild if matches(rule.filter, topic)), None)
        return found


_NO_RULES: Final = _Rules(())


_Answers: TypeAlias = dict[tuple[str | None, str, str], Decision]
"""By user name, client id and topic."""


_ALLOWED: Final = Authorization(Verdict.ALLOW, cache=Cache.TOPIC)
"""Rules do not depend on QoS and RETAIN, so an answer for a topic is valid until the rules change."""


def _denied(text: str) -> Authorization:
    return Authorization(Verdict.DENY, ReasonCode.NOT_AUTHORIZED, text, Cache.TOPIC)


class Acl:
    """An access control list in memory."""

    def __init__(
        self,
        name: str,
        topics: Mapping[str | None, Sequence[Rule]],
        patterns: Sequence[Rule] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """``topics`` has the rules by user, ``None`` for clients without a name; ``name`` is the file's."""
        self.notes = tuple(notes)
        """Warnings for the operator."""
        self._name = name
        self._topics = {user: _Rules(rules) for user, rules in topics.items()}
        self._patterns = tuple(patterns)
        self._filled: dict[tuple[str | None, str], _Rules] = {}
        self._reads: _Answers = {}
        self._writes: _Answers = {}
        self.count = sum(len(rules) for rules in topics.values()) + len(self._patterns)
        """The number of rules."""

    def may_write(self, username: str | None, client_id: str, topic: str) -> Decision:
        """Whether a client may publish to a topic; an empty user name counts as none, as in Mosquitto."""
        answer = self._writes.get((username, client_id, topic))
        return self._answer(self._writes, Access.WRITE, username, client_id, topic) if answer is None else answer

    def may_read(self, username: str | None, client_id: str, topic: str) -> Decision:
        """Whether a client may receive messages of a topic."""
        answer = self._reads.get((username, client_id, topic))
        return self._answer(self._reads, Access.READ, username, client_id, topic) if answer is None else answer

    def _answer(
        self, answers: _Answers, access: Access, username: str | None, client_id: str, topic: str
    ) -> Decision:
        answer = self._decide(username or None, client_id, access, topic)
        if len(topic) <= LONGEST_CACHED:
            if len(answers) >= CACHED_ANSWERS:
                answers.clear()
            answers[username, client_id, topic] = answer
        return answer

    def _decide(self, username: str | None, client_id: str, access: Access, topic: str) -> Decision:
        if _is_closed(access, topic):
            return _denied(f"topics such as {topic[:40]!r} are reserved for the broker")
        rule = self._topics.get(username, _NO_RULES).decide(access, topic)
        if rule is None and self._patterns:
            rule = self._patterns_for(username, client_id).decide(access, topic)
        if rule is None:
            return _denied(f"no rule of {self._name} allows it")
        if rule.access is Access.DENY:
            return _denied(f"denied by {self._name}, line {rule.line}")
        return _ALLOWED

    def _patterns_for(self, username: str | None, client_id: str) -> _Rules:
        key = (username, client_id)
        rules = self._filled.get(key)
        if rules is None:
            if len(self._filled) >= CACHED_CLIENTS:
                self._filled.clear()
            rules = self._filled[key] = _filled_in(self._patterns, username, client_id)
        return rules


def _is_closed(access: Access, topic: str) -> bool:
    """Whether no rule can allow a topic. Mosquitto tests the beginning, so this includes ``$SYSTEM``."""
    if not topic.startswith("$"):
        return False
    if topic.startswith("$SYS"):
        return access is Access.WRITE and not matches(_BRIDGE_STATE, topic)
    return topic.startswith("$share")


def _filled_in(patterns: Sequence[Rule], username: str | None, client_id: str) -> _Rules:
    """The patterns for one client; no patterns if its names contain wildcards."""
    names = {"%u": username, "%c": client_id}
    if any(sign in (name or "") for name in names.values() for sign in "+#"):
        return _NO_RULES
    filled = []
    for rule in patterns:
        if username is None and "%u" in rule.filter:
            continue
        # In one pass, so that a user name "%c" is not replaced.
        filter = _PLACEHOLDER.sub(lambda match: names[match[0]] or "", rule.filter)
        if filter.startswith("$") and not rule.filter.startswith("$") and rule.access is not Access.DENY:
            continue  # A client's name must not give it access to the broker's own topics.
        filled.append(Rule(rule.access, filter, rule.line))
    return _Rules(filled)


# Parsing


def parse_acl(content: bytes, name: str, short_name: str | None = None) -> Acl:
    """Parse a file's content; raises ``SettingsError`` with the location of each error and how to fix it.

    ``short_name`` is the file's name in answers to clients.
    """
    reader = _Reader()
    for number, line in text_lines(content, name):
        try:
            reader.take(number, line)
        except ValueError as error:
            reader.problems.append(f"{name}:{number}: {error}")
    raise_if_any(reader.problems)
    notes = [f"{name}:{note}" for note in reader.notes]
    return Acl(short_name or name, reader.topics, reader.patterns, notes)


class _Reader:
    """Collects the rules and errors of the lines read so far."""

    def __init__(self) -> None:
        self.topics: dict[str | None, list[Rule]] = {}
        self.patterns: list[Rule] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._user: str | None = None

    def take(self, number: int, line: str) -> None:
        """Parse one line; raises ``ValueError`` if it is invalid."""
        # A line may begin with spaces, but not with tabs.
        stripped = line.lstrip(" ").rstrip(" \t\n\v\f\r")
        if line.startswith("#") or not stripped:
            return
        word, _, rest = stripped.partition(" ")
        rest = trimmed(rest)
        if word == "user":
            self._take_user(rest)
        elif word in ("topic", "pattern"):
            self._take_rule(number, word, rest)
        else:
            raise ValueError(_unknown(word, stripped))

    def _take_user(self, user: str) -> None:
        if not user:
            raise ValueError("expected `user NAME`, but there is no name")
        problem = problem_with_user(user) if ":" not in user else None
        if problem is not None:
            raise ValueError(problem)
        self._user = user

    def _take_rule(self, number: int, word: str, rest: str) -> None:
        first, _, second = rest.partition(" ")
        filter = trimmed(second)
        access = Access.READWRITE
        if filter:
            access = _access(first)
        else:
            # A single word is always the topic.
            filter = first
        _check_filter(word, filter)
        rule = Rule(access, filter, number)
        if word == "topic":
            self.topics.setdefault(self._user, []).append(rule)
            return
        self.patterns.append(rule)
        if not _PLACEHOLDER.search(filter):
            self.notes.append(f"{number}: the pattern {filter!r} has neither %u nor %c: it applies to all clients")


def _unknown(word: str, line: str) -> str:
    text = f"a line must begin with user, topic or pattern, not with {word.strip()[:40]!r}"
    if line.lstrip().startswith("#"):
        return f"{text}; a comment has its '#' in the first column"
    if "\t" in word:
        return f"{text}; write spaces instead of tabs"
    if word.lower() in ("user", "topic", "pattern"):
        return f"{text}; write it in lower case"
    return text


def _access(word: str) -> Access:
    try:
        return Access(word)
    except ValueError:
        kinds = "read, write, readwrite or deny"
        raise ValueError(
            f"{word[:40]!r} is not an access, which is {kinds}; a topic that contains a space needs one in front"
        ) from None


def _check_filter(word: str, filter: str) -> None:
    if not filter:
        raise ValueError(f"expected `{word} [read|write|readwrite|deny] TOPIC`, but there is no topic")
    if has_control_characters(filter):
        raise ValueError(f"the topic {filter[:80]!r} contains control characters; write spaces instead of tabs")
    if len(filter.encode()) > 65535:
        raise ValueError("the topic is longer than MQTT allows")
    levels = filter.split("/")
    if any(level != "+" and "+" in level for level in levels):
        raise ValueError(f"{filter[:80]!r} is not a topic filter: a '+' must be a whole level")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise ValueError(f"{filter[:80]!r} is not a topic filter: a '#' must be the whole last level")
