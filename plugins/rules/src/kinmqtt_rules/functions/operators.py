"""Operators, and their names as functions: three-valued logic, comparisons and arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kinmqtt_rules.functions._registry import (
    FUNCTIONS,
    MAX_TEXT,
    OPERATORS,
    SPARK_FINITE,
    TYPES,
    Kind,
    Mistyped,
    function,
    is_sound,
)
from kinmqtt_spi.topics import matches

_NUMBERS = TYPES[Kind.NUMBER]


@function("logic", Kind.BOOL, Kind.BOOL, gives=Kind.BOOL, is_operator=True, sees_null=True, name="and",
          example=("true AND NULL", None), spark="({0} AND {1})")  # fmt: skip
def and_(one: Any, two: Any) -> bool | None:
    """Whether both are true; false if one is false; else NULL."""
    if one is False or two is False:
        return False
    _check_bools(one, two)
    return True if one is True and two is True else None


@function("logic", Kind.BOOL, Kind.BOOL, gives=Kind.BOOL, is_operator=True, sees_null=True, name="or",
          example=("true OR NULL", True), spark="({0} OR {1})")  # fmt: skip
def or_(one: Any, two: Any) -> bool | None:
    """Whether one is true; false if both are false; else NULL."""
    if one is True or two is True:
        return True
    _check_bools(one, two)
    return False if one is False and two is False else None


def _check_bools(one: Any, two: Any) -> None:
    for value in (one, two):
        if value is not None and type(value) is not bool:
            raise Mistyped


@function("logic", Kind.BOOL, gives=Kind.BOOL, is_operator=True, name="not", example=("NOT true", False),
          spark="(NOT {0})")  # fmt: skip
def not_(one: bool) -> bool:
    """The opposite."""
    return not one


@function("logic", Kind.ANY, gives=Kind.BOOL, is_operator=True, sees_null=True,
          example=("true IS TRUE", True), spark="({0} <=> true)")  # fmt: skip
def is_true(one: Any) -> bool:
    """Whether it is true."""
    return one is True


@function("logic", Kind.ANY, gives=Kind.BOOL, is_operator=True, sees_null=True,
          example=("NULL IS FALSE", False), spark="({0} <=> false)")  # fmt: skip
def is_false(one: Any) -> bool:
    """Whether it is false."""
    return one is False


def _are_equal(one: Any, two: Any) -> bool:
    kind, other = type(one), type(two)
    if kind is other or (kind in _NUMBERS and other in _NUMBERS):
        if kind is list or kind is dict:
            raise Mistyped
        return bool(one == two)
    raise Mistyped


def _compared(one: Any, two: Any) -> tuple[Any, Any]:
    kind, other = type(one), type(two)
    if (kind is str and other is str) or (kind in _NUMBERS and other in _NUMBERS):
        return one, two
    raise Mistyped


def _comparison(name: str, sign: str, example: bool, compare: Callable[[Any, Any], bool], words: str) -> None:
    compare.__doc__ = words
    function(
        "comparison", Kind.ANY, Kind.ANY, gives=Kind.BOOL, name=name, example=(f"{name}(2, 1)", example),
        spark=f"({{0}} {sign} {{1}})",
    )(compare)  # fmt: skip
    OPERATORS[name] = FUNCTIONS[name]


def _greater(one: Any, two: Any) -> bool:
    kind, other = type(one), type(two)
    if (kind in _NUMBERS and other in _NUMBERS) or (kind is str and other is str):
        return bool(one > two)
    raise Mistyped


def _not_less(one: Any, two: Any) -> bool:
    first, second = _compared(one, two)
    return bool(first >= second)


def _less(one: Any, two: Any) -> bool:
    first, second = _compared(one, two)
    return bool(first < second)


def _not_greater(one: Any, two: Any) -> bool:
    first, second = _compared(one, two)
    return bool(first <= second)


_comparison("eq", "=", False, lambda one, two: _are_equal(one, two), "As `=`.")
_comparison("neq", "<>", True, lambda one, two: not _are_equal(one, two), "As `<>`.")
_comparison("gt", ">", True, _greater, "As `>`.")
_comparison("gte", ">=", True, _not_less, "As `>=`.")
_comparison("lt", "<", False, _less, "As `<`.")
_comparison("lte", "<=", False, _not_greater, "As `<=`.")


@function("comparison", Kind.ANY, Kind.ANY, gives=Kind.BOOL, sees_null=True, variadic=True, name="in",
          example=("in(2, 1, 2)", True), spark="({0} IN ({rest}))")  # fmt: skip
def in_(one: Any, *others: Any) -> bool | None:
    """Whether it equals one of the others, or an element of the one array behind it."""
    if len(others) == 1 and type(others[0]) is list:
        others = tuple(others[0])
    if one is None:
        return None
    is_unknown = False
    for other in others:
        if other is None:
            is_unknown = True
            continue
        try:
            if _are_equal(one, other):
                return True
        except Mistyped:
            is_unknown = True
    return None if is_unknown else False


@function("comparison", Kind.ANY, Kind.ANY, gives=Kind.BOOL, sees_null=True, variadic=True,
          example=("nin(3, 1, 2)", True), spark="({0} NOT IN ({rest}))")  # fmt: skip
def nin(one: Any, *others: Any) -> bool | None:
    """Whether it equals none of the others."""
    found = in_(one, *others)
    return None if found is None else not found


@function("comparison", Kind.ANY, Kind.ANY, Kind.ANY, gives=Kind.BOOL, example=("btw(2, 1, 3)", True))  # fmt: skip
def btw(one: Any, low: Any, high: Any) -> bool:
    """Whether it is at least the second and at most the third; NULL if one of them is NULL."""
    return _not_less(one, low) and _not_greater(one, high)


OPERATORS.update({name: FUNCTIONS[name] for name in ("in", "nin")})


class LikePattern:
    """A pattern of LIKE: its parts between ``%`` are searched one after the other, so it takes linear time."""

    def __init__(self, pattern: str) -> None:
        if not isinstance(pattern, str):
            raise ValueError("a pattern of LIKE is a text")
        parts = pattern.split("%")
        self._first, self._last = (self._part(part) for part in (parts[0], parts[-1]))
        self._middle = [self._part(part) for part in parts[1:-1] if part]
        self._is_exact = len(parts) == 1
        self._last_length = len(parts[-1])

    @staticmethod
    def _part(text: str) -> re.Pattern[str]:
        return re.compile("".join("." if sign == "_" else re.escape(sign) for sign in text), re.DOTALL)

    def matches(self, text: str) -> bool:
        """Tell whether a text matches."""
        if self._is_exact:
            return self._first.fullmatch(text) is not None
        found = self._first.match(text)
        end = len(text) - self._last_length
        if found is None or end < found.end():
            return False
        place = found.end()
        for part in self._middle:
            found = part.search(text, place, end)
            if found is None:
                return False
            place = found.end()
        return self._last.match(text, end) is not None


@function("comparison", Kind.TEXT, Kind.TEXT, gives=Kind.BOOL, is_operator=True, prepare={1: LikePattern},
          example=("'abc' LIKE 'a_%'", True), spark="({0} LIKE {1} ESCAPE '\\u0001')")  # fmt: skip
def like(text: str, pattern: LikePattern) -> bool:
    """Whether a text matches a pattern."""
    return pattern.matches(text)


@function("comparison", Kind.TEXT, Kind.TEXT, gives=Kind.BOOL, is_operator=True,
          example=("'t/1' =~ 't/+'", True))  # fmt: skip
def topic_matches(topic: str, filter: str) -> bool:
    """Whether a topic matches a filter."""
    return matches(filter, topic)


# Arithmetic


@function("arithmetic", Kind.ANY, Kind.ANY, gives=Kind.ANY, is_operator=True, example=("'a' + 'b'", "ab"),
          spark=SPARK_FINITE.replace("{0}", "({0} + {1})"))  # fmt: skip
def add(one: Any, two: Any) -> Any:
    """The sum of numbers, or two texts as one."""
    if type(one) is str and type(two) is str:
        if len(one) + len(two) > MAX_TEXT:
            raise ValueError("the text is too long")
        return one + two
    if type(one) in _NUMBERS and type(two) in _NUMBERS:
        total = one + two
        return total if is_sound(total) else None
    raise Mistyped


@function("arithmetic", Kind.NUMBER, Kind.NUMBER, gives=Kind.NUMBER, is_operator=True, example=("3 - 1", 2),
          spark=SPARK_FINITE.replace("{0}", "({0} - {1})"))  # fmt: skip
def subtract(one: Any, two: Any) -> Any:
    """The difference."""
    return one - two


@function("arithmetic", Kind.NUMBER, Kind.NUMBER, gives=Kind.NUMBER, is_operator=True, example=("3 * 2", 6),
          spark=SPARK_FINITE.replace("{0}", "({0} * {1})"))  # fmt: skip
def multiply(one: Any, two: Any) -> Any:
    """The product."""
    return one * two


@function("arithmetic", Kind.NUMBER, Kind.NUMBER, gives=Kind.NUMBER, is_operator=True, example=("3 / 2", 1.5),
          spark=SPARK_FINITE.replace("{0}", "try_divide({0}, {1})"))  # fmt: skip
def divide(one: Any, two: Any) -> float:
    """The quotient, never a whole number."""
    return float(one / two)


@function("arithmetic", Kind.INTEGER, Kind.INTEGER, gives=Kind.INTEGER, is_operator=True,
          example=("-7 div 2", -3), spark="(CASE WHEN {1} <> 0 THEN {0} div {1} END)")  # fmt: skip
def div(one: int, two: int) -> int:
    """The quotient of whole numbers, without its fraction."""
    quotient = abs(one) // abs(two)
    return quotient if (one < 0) is (two < 0) else -quotient


@function("math", Kind.INTEGER, Kind.INTEGER, gives=Kind.INTEGER, example=("mod(-7, 2)", -1),
          spark="(CASE WHEN {1} <> 0 THEN {0} % {1} END)")  # fmt: skip
def mod(one: int, two: int) -> int:
    """The remainder of whole numbers, with the sign of the first; also an operator."""
    rest = abs(one) % abs(two)
    return -rest if one < 0 else rest


OPERATORS["mod"] = FUNCTIONS["mod"]


@function("arithmetic", Kind.NUMBER, gives=Kind.NUMBER, is_operator=True, example=("-(1)", -1),
          spark="(- {0})")  # fmt: skip
def negate(one: Any) -> Any:
    """The negative."""
    return -one


@function("map and array", Kind.ANY, Kind.ANY, gives=Kind.ANY, is_operator=True, sees_null=True,
          example=("split('a,b', ',')[2]", "b"))  # fmt: skip
def item(of: Any, key: Any) -> Any:
    """What is at an index of an array, from 1 or from -1, or at a key of a map."""
    if type(of) is list and type(key) is int and key:
        return of[key - 1 if key > 0 else key]
    return of.get(key) if type(of) is dict and type(key) is str else None
