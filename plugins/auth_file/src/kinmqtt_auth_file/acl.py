"""Mosquitto's ``acl_file``: what it says, and what Mosquitto 2.0 makes of it.

A client's own ``topic`` lines come first, those before any ``user`` line being for clients without a user name.
Among them ``deny`` beats the rest, wherever it stands. Only where none of them fits are the ``pattern`` lines looked
at, in the same way: so a user's own right beats a pattern that denies. Whoever has a ``+`` or ``#`` in the user name
or client id gets nothing from patterns, and whose name begins with ``$`` no right from one that begins with the name.
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
"""Whose patterns are kept with their names filled in."""

CACHED_ANSWERS: Final = 32_768
"""Clients choose topics, so the memory for them is bounded."""

LONGEST_CACHED: Final = 1024
"""Characters of a topic whose answer is kept."""

_PLACEHOLDER: Final = re.compile("%[uc]")

_BRIDGE_STATE: Final = "$SYS/broker/connection/+/state"
"""What may be written below ``$SYS``, where a rule says so: bridges tell there that they are connected."""


class Access(Enum):
    """What a line gives, or that it takes."""

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
    """Rules by what they do; those without wildcards are found at once, the others are tried in turn."""

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
        """The rule that decides; ``None`` where none fits."""
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
"""Rules know nothing of QoS and RETAIN: what they say of a topic holds until they change."""


def _denied(text: str) -> Authorization:
    return Authorization(Verdict.DENY, ReasonCode.NOT_AUTHORIZED, text, Cache.TOPIC)


class Acl:
    """What an access control list says. Every answer comes from memory."""

    def __init__(
        self,
        name: str,
        topics: Mapping[str | None, Sequence[Rule]],
        patterns: Sequence[Rule] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """``topics`` has the rules of each user, ``None`` being clients without a name; ``name`` is the file's."""
        self.notes = tuple(notes)
        """What an operator may want to look at."""
        self._name = name
        self._topics = {user: _Rules(rules) for user, rules in topics.items()}
        self._patterns = tuple(patterns)
        self._filled: dict[tuple[str | None, str], _Rules] = {}
        self._reads: _Answers = {}
        self._writes: _Answers = {}
        self.count = sum(len(rules) for rules in topics.values()) + len(self._patterns)
        """How many rules there are."""

    def may_write(self, username: str | None, client_id: str, topic: str) -> Decision:
        """Whether a client may publish to a topic; an empty user name is none, as for Mosquitto."""
        answer = self._writes.get((username, client_id, topic))
        return self._answer(self._writes, Access.WRITE, username, client_id, topic) if answer is None else answer

    def may_read(self, username: str | None, client_id: str, topic: str) -> Decision:
        """Whether a client may have a message of a topic."""
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
            return _denied(f"topics such as {topic[:40]!r} are the broker's own")
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
    """Whether no rule opens a topic: Mosquitto goes by how it begins, so that ``$SYSTEM`` falls under it too."""
    if not topic.startswith("$"):
        return False
    if topic.startswith("$SYS"):
        return access is Access.WRITE and not matches(_BRIDGE_STATE, topic)
    return topic.startswith("$share")


def _filled_in(patterns: Sequence[Rule], username: str | None, client_id: str) -> _Rules:
    """The patterns for one client; none where its names would be wildcards."""
    names = {"%u": username, "%c": client_id}
    if any(sign in (name or "") for name in names.values() for sign in "+#"):
        return _NO_RULES
    filled = []
    for rule in patterns:
        if username is None and "%u" in rule.filter:
            continue
        # In one pass, so that a user named "%c" is not taken for a placeholder.
        filter = _PLACEHOLDER.sub(lambda match: names[match[0]] or "", rule.filter)
        if filter.startswith("$") and not rule.filter.startswith("$") and rule.access is not Access.DENY:
            continue  # Nobody opens the topics of the broker's to itself by what it is called.
        filled.append(Rule(rule.access, filter, rule.line))
    return _Rules(filled)


# Reading


def parse_acl(content: bytes, name: str, short_name: str | None = None) -> Acl:
    """Read a file's content; ``SettingsError`` locates each line that is wrong and says how to mend it.

    ``short_name`` is what clients are told.
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
    """What the lines so far have said."""

    def __init__(self) -> None:
        self.topics: dict[str | None, list[Rule]] = {}
        self.patterns: list[Rule] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._user: str | None = None

    def take(self, number: int, line: str) -> None:
        """Take one line; ``ValueError`` says what is wrong with it."""
        # Spaces may stand in front of a word, and no tabs.
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
            raise ValueError("expected `user NAME`, and there is no name")
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
            # One word is the topic, whatever it says.
            filter = first
        _check_filter(word, filter)
        rule = Rule(access, filter, number)
        if word == "topic":
            self.topics.setdefault(self._user, []).append(rule)
            return
        self.patterns.append(rule)
        if not _PLACEHOLDER.search(filter):
            self.notes.append(f"{number}: the pattern {filter!r} has neither %u nor %c: it holds for everybody")


def _unknown(word: str, line: str) -> str:
    text = f"a line begins with user, topic or pattern, not with {word.strip()[:40]!r}"
    if line.lstrip().startswith("#"):
        return f"{text}; a comment has its '#' in the first column"
    if "\t" in word:
        return f"{text}; write spaces in place of tabs"
    if word.lower() in ("user", "topic", "pattern"):
        return f"{text}; write it in lower case"
    return text


def _access(word: str) -> Access:
    try:
        return Access(word)
    except ValueError:
        kinds = "read, write, readwrite or deny"
        raise ValueError(
            f"{word[:40]!r} is no access, which is {kinds}; a topic with a space in it needs one in front"
        ) from None


def _check_filter(word: str, filter: str) -> None:
    if not filter:
        raise ValueError(f"expected `{word} [read|write|readwrite|deny] TOPIC`, and there is no topic")
    if has_control_characters(filter):
        raise ValueError(f"the topic {filter[:80]!r} has control characters in it; write spaces in place of tabs")
    if len(filter.encode()) > 65535:
        raise ValueError("the topic is longer than MQTT can say")
    levels = filter.split("/")
    if any(level != "+" and "+" in level for level in levels):
        raise ValueError(f"{filter[:80]!r} is no topic filter: a '+' stands for a whole level")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise ValueError(f"{filter[:80]!r} is no topic filter: a '#' stands for all further levels, at the end")
