"""Values of a line, checked one by one: what JSON says, and which type each field has."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final


class JsonObject(dict[str, Any]):
    """A JSON object that knows which of its keys it had twice."""

    __slots__ = ("twice",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice: set[str] = set()
        if len(self) != len(pairs):
            known: set[str] = set()
            for name, _ in pairs:
                (self.twice if name in known else known).add(name)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


DECODER: Final = json.JSONDecoder(object_pairs_hook=JsonObject, parse_constant=_no_constant)


def brief(value: object) -> str:
    text = ascii(value) if not isinstance(value, str) else repr(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 80 else text[:79] + "…"


def _integer(bits: int) -> Callable[[Any], int]:
    least = -(1 << bits - 1)

    def check(value: Any) -> int:
        if type(value) is not int:
            raise TypeError
        if not least <= value < -least:
            raise OverflowError
        return value

    return check


def _double(value: Any) -> float:
    if type(value) is not int and type(value) is not float:
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise OverflowError
    return number


def _string(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    # Half of a surrogate pair is no text.
    value.encode()
    return value


def labels_of(value: Any) -> dict[str, str]:
    if not isinstance(value, JsonObject) or value.twice:
        raise TypeError
    return {_string(name): _string(said) for name, said in value.items() if said is not None}


def _list_of(check: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def checks(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError
        return [check(one) for one in value]

    return checks


CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _integer(32),
    "bigint": _integer(64),
    "string": _string,
    "double": _double,
    "map<string,string>": labels_of,
    "array<double>": _list_of(_double),
    "array<bigint>": _list_of(_integer(64)),
}
