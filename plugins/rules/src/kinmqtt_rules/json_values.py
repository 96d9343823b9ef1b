"""JSON as rules read and write it, the same with orjson and without."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

_fast_loads: Callable[[bytes], Any] | None
try:
    from orjson import loads as _fast_loads
except ImportError:  # the distribution's extra "fast" is not installed
    _fast_loads = None

NO_JSON: Final = object()
"""What :func:`decoded` answers for what is no JSON."""

_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 64) - 1
_FIRST_BYTES: Final = frozenset(b'{["-0123456789tfn \t\r\n')


def _integer(text: str) -> int | float:
    """As orjson, which has whole numbers of up to 64 bits."""
    number = int(text) if len(text) < 21 else _HIGHEST + 1
    return number if _LOWEST <= number <= _HIGHEST else _finite(text)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError("the number is too large")
    return number


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_constant)


def decoded(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8, or :data:`NO_JSON`. It never raises."""
    if not data or data[0] not in _FIRST_BYTES:
        return NO_JSON
    try:
        if _fast_loads is not None:
            return _fast_loads(data)
        value = _DECODER.decode(data.decode())
        if b"\\u" in data:
            encoded(value).encode()  # a half of a surrogate pair is no character
        return value
    except (ValueError, RecursionError):
        return NO_JSON


def value_of(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8; ``None`` for null, and for what is no JSON. It never raises."""
    if _fast_loads is not None and data and data[0] in _FIRST_BYTES:
        try:
            return _fast_loads(data)
        except ValueError:
            return None
    value = decoded(data)
    return None if value is NO_JSON else value


def encoded(value: Any) -> str:
    """Return a value as JSON without spaces; bytes that are no text are in base64.

    Raises ``RecursionError`` for a value that is nested too deep.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_other)


def _other(value: Any) -> str:
    if type(value) is bytes:
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def text_or_bytes(data: bytes) -> str | bytes:
    """Return the text of UTF-8, or else the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
