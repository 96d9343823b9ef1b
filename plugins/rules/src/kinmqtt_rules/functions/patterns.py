"""Regular expressions that can't take exponential time."""

from __future__ import annotations

import re
from typing import Final

MAX_SUBJECT: Final = 4096
"""The longest text that patterns are applied to, in characters."""

MAX_OF_THREE: Final = 256
"""The longest text for patterns that take time that grows with its cube."""

MAX_PATTERN: Final = 500

FREE_WAYS: Final = 16
"""The ways through short repetitions and alternatives that do not count; more count as the text's length does."""

_CLASS: Final = re.compile(r"\[\^?\]?(?:[^\\\]]|\\.)*\]")
_REPEATS: Final = re.compile(r"[*+?]|\{[0-9]*,?[0-9]*\}")
_SHORT: Final = re.compile(r"\{[0-9]?,?[0-9]\}|\?")
_RANGE: Final = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}")
_LITERAL: Final = re.compile(r"(?:\\([^0-9A-Za-z])|([^\\\[\](){}.^$|*+?]))(?![*?{])")
_CODE: Final = re.compile(r"\\[xuUN0]")
_BOUNDED: Final = re.compile(r"\{[0-9]{1,3}\}|\?")


class SafePattern:
    """A pattern without what lets a backtracking search take exponential time.

    Raises ``ValueError`` for back-references, look-around, and for groups that are repeated and have alternatives or
    repetitions within, and for too many repetitions that may give back what they took: each multiplies the time by
    the length of the text.
    """

    def __init__(self, pattern: object) -> None:
        if not isinstance(pattern, str):
            raise ValueError("a pattern is a text")
        if len(pattern) > MAX_PATTERN:
            raise ValueError(f"the pattern has more than {MAX_PATTERN} characters")
        _check(pattern)
        try:
            self._compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"the pattern is invalid: {error}") from None
        power = _power(pattern) + _power_of_ways(pattern)
        if power > 3:
            raise ValueError(
                "the pattern may take too long: too many of its repetitions or alternatives may match what is behind "
                "them; "
                "begin it with ^, or use [^…] or LIKE"
            )
        self._longest = MAX_OF_THREE if power == 3 else MAX_SUBJECT

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match; raises ``ValueError`` for a text that is too long."""
        return self._compiled.search(self._bounded(text))

    def replace(self, text: str, new: str) -> str:
        """Return the text with ``new`` for each match."""
        return self._compiled.sub(lambda found: new, self._bounded(text))

    def _bounded(self, text: str) -> str:
        if len(text) > self._longest:
            raise ValueError(f"the text has more than {self._longest} characters")
        return text


def _check(pattern: str) -> None:
    groups: list[bool] = []
    """Of each open group whether something in it makes a repetition of it dangerous."""
    place = 0
    closed_a_dangerous = False
    while place < len(pattern):
        sign = pattern[place]
        follows, closed_a_dangerous = closed_a_dangerous, False
        if sign == "\\":
            if place + 1 < len(pattern) and pattern[place + 1] in "123456789":
                raise ValueError("a pattern can't refer back to a group")
            place += 2
        elif sign == "[":
            found = _CLASS.match(pattern, place)
            if found is None:
                raise ValueError("the pattern is invalid: a set has no end")
            place = found.end()
        elif sign == "(":
            if pattern.startswith("(?", place) and not pattern.startswith("(?:", place):
                raise ValueError("of the groups that begin with (? only (?: may be used")
            groups.append(False)
            place += 3 if pattern.startswith("(?:", place) else 1
        elif sign == ")":
            closed_a_dangerous = bool(groups) and groups.pop()
            if groups and closed_a_dangerous:
                groups[-1] = True
            place += 1
        elif sign == "|":
            groups[-1:] = [True] * bool(groups)
            place += 1
        elif (repeat := _REPEATS.match(pattern, place)) is not None:
            is_one_or_none = _BOUNDED.fullmatch(repeat[0]) is not None
            if follows and repeat[0] != "?":
                raise ValueError("a group with alternatives or repetitions can't be repeated")
            if not (is_one_or_none and repeat[0] != "?"):
                groups[-1:] = [True] * bool(groups)
            place = repeat.end()
            if pattern[place : place + 1] == "?":
                place += 1
        else:
            place += 1


def _power(pattern: str) -> int:
    """Return the power of the text's length that a search of a valid pattern may take, from above."""
    power = 0 if pattern.startswith("^") and "|" not in pattern else 1
    settled = False
    place = 0
    atom = ""
    has_codes = _CODE.search(pattern) is not None
    while place < len(pattern):
        sign = pattern[place]
        repeat = _REPEATS.match(pattern, place)
        if repeat is not None:
            place = repeat.end() + pattern.startswith("?", repeat.end())
            if _SHORT.fullmatch(repeat[0]) is None and _behind(pattern, place) < len(
                pattern
            ):  # the last one succeeds
                is_settled = _is_settled(atom, pattern, place)
                settled |= is_settled
                power += not is_settled
            continue
        found = _CLASS.match(pattern, place) if sign == "[" else None
        end = place + 1 + (sign == "\\") if found is None else found.end()
        atom = "" if sign in "()|" or has_codes else pattern[place:end]
        place = end
    return power + settled  # those that are settled take their time one after the other


def _power_of_ways(pattern: str) -> int:
    """Return the power of :data:`MAX_OF_THREE` that the ways through what :func:`_power` does not count may reach.

    Twenty times ``a?`` are a million ways through a text of twenty letters.
    """
    ways = 1
    alternatives = [1]
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        repeat = _REPEATS.match(pattern, place)
        if repeat is not None:
            place = repeat.end() + pattern.startswith("?", repeat.end())
            if _SHORT.fullmatch(repeat[0]) is not None:
                ways *= _ways(repeat[0])
            continue
        found = _CLASS.match(pattern, place) if sign == "[" else None
        place = place + 1 + (sign == "\\") if found is None else found.end()
        if sign == "(":
            place += 2 * pattern.startswith("?:", place)
            alternatives.append(1)
        elif sign == "|":
            alternatives[-1] += 1
        elif sign == ")":
            ways *= alternatives.pop()
    ways *= alternatives[0]
    power = 0
    while ways > FREE_WAYS:
        ways = -(-ways // MAX_OF_THREE)
        power += 1
    return power


def _ways(repeat: str) -> int:
    """Return how many numbers of times a short repetition allows."""
    found = _RANGE.fullmatch(repeat)
    if found is None:
        return 2
    low, comma, high = found.groups()
    return int(high or 9) - int(low or 0) + 1 if comma else 1


def _behind(pattern: str, place: int) -> int:
    """Return the place behind the ends of groups."""
    return len(pattern) - len(pattern[place:].lstrip(")"))


def _is_settled(atom: str, pattern: str, place: int) -> bool:
    """Tell whether a repetition never gives back what it took: the sign behind it is none of it."""
    literal = _LITERAL.match(pattern, _behind(pattern, place))
    return literal is not None and atom != "" and re.fullmatch(atom, literal[1] or literal[2]) is None
