"""Numbers within bytes, at any bit."""

from __future__ import annotations

import struct
from typing import Any, Final

_FLOATS: Final = {16: "e", 32: "f", 64: "d"}


def bits_of(
    data: bytes, start: int, length: int, kind: str = "integer", sign: str = "unsigned", order: str = "big"
) -> Any:
    """Return ``length`` bits from ``start`` on, which counts from 1, as a number or a text of digits.

    Raises ``ValueError`` if there are no such bits, or for a name that is unknown.
    """
    if start < 1 or length < 1 or start - 1 + length > 8 * len(data):
        raise ValueError("there are no such bits")
    if sign not in ("unsigned", "signed") or order not in ("big", "little") or length > 64:
        raise ValueError("there is no such number")
    first, last = (start - 1) // 8, (start - 2 + length) // 8
    window = int.from_bytes(data[first : last + 1], "big")
    number = (window >> (8 * (last + 1) - (start - 1 + length))) & ((1 << length) - 1)
    if kind == "bits":
        return f"{number:0{length}b}"
    if order == "little":
        if length % 8:
            raise ValueError("a little-endian number has whole bytes")
        number = int.from_bytes(number.to_bytes(length // 8, "big"), "little")
    if kind == "float":
        return _finite(struct.unpack(f">{_FLOATS[length]}", number.to_bytes(length // 8, "big"))[0])
    if kind != "integer":
        raise ValueError("there is no such type")
    if sign == "signed" and number >> (length - 1):
        number -= 1 << length
    if number >= 1 << 63:
        raise ValueError("the number is too large")
    return number


def _finite(number: float) -> float:
    if number - number != 0:
        raise ValueError("it is no number")
    return number
