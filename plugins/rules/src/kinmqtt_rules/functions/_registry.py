"""How functions are declared, and bound to a rule: arguments are checked, so bodies see what they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from attrs import field, frozen

MAX_TEXT: Final = 1 << 20
"""The longest text that a function makes, in characters."""

LOWEST_INTEGER: Final = -(1 << 63)
HIGHEST_INTEGER: Final = (1 << 63) - 1
"""The bounds of whole numbers; results beyond them are NULL."""

SPARK_FINITE: Final = "nullif(nullif({0}, double('Infinity')), double('-Infinity'))"
"""A format for a number in Spark that is NULL if it is infinite."""

Body: TypeAlias = Callable[..., Any]


class Kind(Enum):
    """What a value is."""

    NUMBER = "number"
    INTEGER = "whole number"
    TEXT = "text"
    BOOL = "bool"
    BINARY = "text or bytes"
    ARRAY = "array"
    MAP = "map"
    ANY = "any"


TYPES: Final[Mapping[Kind, frozenset[type[object]]]] = {
    Kind.NUMBER: frozenset((int, float)),
    Kind.INTEGER: frozenset((int,)),
    Kind.TEXT: frozenset((str,)),
    Kind.BOOL: frozenset((bool,)),
    Kind.BINARY: frozenset((str, bytes)),
    Kind.ARRAY: frozenset((list,)),
    Kind.MAP: frozenset((dict,)),
    Kind.ANY: frozenset((int, float, str, bool, bytes, list, dict)),
}
"""The Python types of each kind. NULL is ``None``, and of no kind."""

NO_RESULT: Final = (ArithmeticError, ValueError, LookupError, RecursionError)
"""What a body raises if there is no result: it is NULL."""

_NOTHING_PREPARED: Final[Mapping[int, Callable[[Any], object]]] = MappingProxyType({})


class Mistyped(Exception):
    """Raised by a body for arguments that do not go together: the result is NULL, and counted."""


class Tally:
    """Counts one rule's arguments of a wrong type."""

    __slots__ = ("mistyped",)

    def __init__(self) -> None:
        self.mistyped = 0


@frozen(slots=True, eq=False)
class Function:
    """A function or operator of rules."""

    name: str
    group: str
    parameters: tuple[Kind, ...]
    """Those that may be left out are last."""
    required: int
    result: Kind
    call: Body
    help: str
    example: tuple[str, object]
    """SQL and its value."""
    variadic: bool = False
    """Whether the last parameter may be repeated."""
    sees_null: bool = False
    """Whether the body gets any values, NULL included, and no argument is checked."""
    timed: bool = False
    """Whether the body gets the moment, in seconds since the epoch, as its first argument."""
    prepare: Mapping[int, Callable[[Any], object]] = field(default=_NOTHING_PREPARED)
    """Parameters that must be constants, and what makes the argument of the constant; it raises ``ValueError``."""
    spark: str | None = None
    """The call in Spark SQL, a format with ``{0}``, ``{1}`` or ``{all}``; ``None`` if Spark has none that agrees."""

    def kind_of(self, place: int) -> Kind:
        """Return the kind of an argument."""
        return self.parameters[min(place, len(self.parameters) - 1)]

    def takes(self, count: int) -> bool:
        """Tell whether it can be called with so many arguments."""
        return self.required <= count and (self.variadic or count <= len(self.parameters))

    @property
    def signature(self) -> str:
        """The call as documentation shows it."""
        texts = [kind.value for kind in self.parameters]
        if self.variadic:
            texts.append("…")
        shown = ", ".join(texts[: self.required])
        rest = texts[self.required :]
        separator = ", " if shown and rest else ""
        return f"{self.name}({shown}{'[' if rest else ''}{separator}{', '.join(rest)}{']' if rest else ''})"


FUNCTIONS: Final[dict[str, Function]] = {}
"""The functions that rules can call, by name."""

OPERATORS: Final[dict[str, Function]] = {}
"""What the compiler uses for operators, by a name of ours."""


def function(
    group: str,
    *parameters: Kind,
    gives: Kind,
    example: tuple[str, object],
    name: str = "",
    required: int | None = None,
    is_operator: bool = False,
    **options: Any,
) -> Callable[[Body], Body]:
    """Declare a function; its docstring's first line is the documentation. ``required`` defaults to all."""

    def declare(body: Body) -> Body:
        made = Function(
            name or body.__name__.strip("_"),
            group,
            parameters,
            len(parameters) if required is None else required,
            gives,
            body,
            (body.__doc__ or "").strip().split("\n")[0],
            example,
            **options,
        )
        (OPERATORS if is_operator else FUNCTIONS)[made.name] = made
        return body

    return declare


def is_sound(number: int | float) -> bool:
    """Tell whether a number is one that rules have: 64 bits, no infinity and no NaN."""
    if isinstance(number, float):
        return math.isfinite(number)
    return LOWEST_INTEGER <= number <= HIGHEST_INTEGER


def bind(function: Function, count: int, tally: Tally) -> Callable[..., Any]:
    """Return a call with ``count`` arguments that never raises for them: it counts mistyped ones in ``tally``."""
    call = _guarded(function, tally)
    if function.sees_null:
        return call
    types = [None if place in function.prepare else TYPES[function.kind_of(place)] for place in range(count)]
    if count == 1 and types[0] is not None and not function.timed:
        return _unary(call, types[0], tally)
    if count == 2 and types[0] is not None and types[1] is not None and not function.timed:
        return _binary(call, types[0], types[1], tally)
    return _checked(call, types, int(function.timed), tally)


def _guarded(function: Function, tally: Tally) -> Callable[..., Any]:
    body = function.call
    is_number = function.result in (Kind.NUMBER, Kind.INTEGER)
    is_text = function.result in (Kind.TEXT, Kind.BINARY)

    def call(*arguments: Any) -> Any:
        try:
            result = body(*arguments)
        except NO_RESULT:
            return None
        except Mistyped:
            tally.mistyped += 1
            return None
        if is_text:
            return result if result is None or len(result) <= MAX_TEXT else None
        return result if not is_number or result is None or is_sound(result) else None

    return call


def _unary(call: Callable[..., Any], types: frozenset[type[object]], tally: Tally) -> Callable[..., Any]:
    def unary(one: Any) -> Any:
        if type(one) in types:
            return call(one)
        if one is not None:
            tally.mistyped += 1
        return None

    return unary


def _binary(
    call: Callable[..., Any], first: frozenset[type[object]], second: frozenset[type[object]], tally: Tally
) -> Callable[..., Any]:
    def binary(one: Any, two: Any) -> Any:
        if type(one) in first and type(two) in second:
            return call(one, two)
        if one is not None and two is not None:
            tally.mistyped += 1
        return None

    return binary


def _checked(
    call: Callable[..., Any], types: Sequence[frozenset[type[object]] | None], skipped: int, tally: Tally
) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        for argument, allowed in zip(arguments[skipped:], types, strict=True):
            if allowed is not None and type(argument) not in allowed:
                if None not in arguments:
                    tally.mistyped += 1
                return None
        return call(*arguments)

    return checked
