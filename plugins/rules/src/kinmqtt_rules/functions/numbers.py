"""Mathematical functions, and those on bits."""

from __future__ import annotations

import math
from typing import Any

from kinmqtt_rules.functions._registry import Kind, function

_NUMBER = (Kind.NUMBER,)
_IN_64_BITS = "(CASE WHEN abs({{0}}) < 9223372036854775808D THEN {} END)"
"""A format for a whole number in Spark, which has the nearest one in place of what is too large, or fails."""


@function("math", *_NUMBER, gives=Kind.NUMBER, name="abs", example=("abs(-12)", 12), spark="abs({0})")
def _abs(number: Any) -> Any:
    """The absolute value."""
    return abs(number)


@function("math", *_NUMBER, gives=Kind.INTEGER, example=("ceil(1.2)", 2), spark=_IN_64_BITS.format("ceil({0})"))
def ceil(number: float) -> int:
    """The next whole number that is not smaller."""
    return math.ceil(number)


@function("math", *_NUMBER, gives=Kind.INTEGER, example=("floor(-1.2)", -2), spark=_IN_64_BITS.format("floor({0})"))
def floor(number: float) -> int:
    """The next whole number that is not greater."""
    return math.floor(number)


@function("math", *_NUMBER, gives=Kind.INTEGER, name="round", example=("round(2.5)", 3),
          spark=_IN_64_BITS.format("CAST(round({0}) AS BIGINT)"))  # fmt: skip
def _round(number: Any) -> int:
    """The nearest whole number; a half goes away from zero."""
    if isinstance(number, int):
        return number
    whole = math.floor(abs(number))
    rounded = whole + (abs(number) - whole >= 0.5)
    return int(rounded if number >= 0 else -rounded)


@function("math", *_NUMBER, gives=Kind.NUMBER, example=("sqrt(9)", 3.0),
          spark="(CASE WHEN {0} >= 0 THEN sqrt({0}) END)")  # fmt: skip
def sqrt(number: Any) -> float:
    """The square root."""
    return math.sqrt(number)


@function("math", Kind.NUMBER, Kind.NUMBER, gives=Kind.NUMBER, example=("power(2, 3)", 8.0))
def power(base: Any, exponent: Any) -> float:
    """The power."""
    return math.pow(base, exponent)


@function("math", *_NUMBER, gives=Kind.NUMBER, example=("exp(0)", 1.0))
def exp(number: Any) -> float:
    """The exponential function."""
    return math.exp(number)


@function("math", *_NUMBER, gives=Kind.NUMBER, example=("log(1)", 0.0),
          spark="(CASE WHEN {0} > 0 THEN ln({0}) END)")  # fmt: skip
def log(number: Any) -> float:
    """The natural logarithm."""
    return math.log(number)


# Bits

_TWO = (Kind.INTEGER, Kind.INTEGER)


@function("bits", *_TWO, gives=Kind.INTEGER, example=("bitand(10, 8)", 8), spark="({0} & {1})")
def bitand(one: int, two: int) -> int:
    """The bits that both have."""
    return one & two


@function("bits", *_TWO, gives=Kind.INTEGER, example=("bitor(10, 8)", 10), spark="({0} | {1})")
def bitor(one: int, two: int) -> int:
    """The bits that one has."""
    return one | two


@function("bits", *_TWO, gives=Kind.INTEGER, example=("bitxor(10, 8)", 2), spark="({0} ^ {1})")
def bitxor(one: int, two: int) -> int:
    """The bits that only one has."""
    return one ^ two


@function("bits", Kind.INTEGER, gives=Kind.INTEGER, example=("bitnot(10)", -11), spark="(~ {0})")
def bitnot(one: int) -> int:
    """The opposite bits."""
    return ~one


@function("bits", *_TWO, gives=Kind.INTEGER, example=("bitsl(8, 2)", 32))
def bitsl(number: int, places: int) -> int:
    """Shifted to the left by up to 63 places."""
    return number << _places(places)


@function("bits", *_TWO, gives=Kind.INTEGER, example=("bitsr(8, 2)", 2))
def bitsr(number: int, places: int) -> int:
    """Shifted to the right by up to 63 places."""
    return number >> _places(places)


def _places(places: int) -> int:
    if not 0 <= places < 64:
        raise ValueError("so many places can't be shifted by")
    return places
