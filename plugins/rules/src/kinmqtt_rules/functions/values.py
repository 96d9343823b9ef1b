"""Functions on types, maps and arrays, JSON, codings and hashes."""

from __future__ import annotations

import binascii
import hashlib
import math
import zlib
from base64 import b64decode, b64encode
from typing import Any

from kinmqtt_rules.functions._registry import TYPES, Kind, Mistyped, function
from kinmqtt_rules.functions.bits import bits_of
from kinmqtt_rules.functions.printing import as_text
from kinmqtt_rules.json_values import NO_JSON, decoded, encoded, text_or_bytes

# Types


@function("type", Kind.ANY, gives=Kind.TEXT, name="str", example=("str(1.5)", "1.5"))
def str_(value: Any) -> str:
    """As a text: numbers, `true`, `false`, and maps and arrays in JSON."""
    return as_text(value)


@function("type", Kind.ANY, gives=Kind.BOOL, name="bool", example=("bool('true')", True))
def bool_(value: Any) -> bool:
    """True for true, `'true'` and 1, false for false, `'false'` and 0."""
    if type(value) not in (bool, int, str):
        raise Mistyped
    return {True: True, "true": True, False: False, "false": False}[value]


@function("type", Kind.ANY, gives=Kind.INTEGER, name="int", example=("int('12')", 12))
def int_(value: Any) -> int:
    """A whole number: of a text, of a number without its fraction, 1 for true and 0 for false."""
    if type(value) in (list, dict, bytes):
        raise Mistyped
    number: float = _number(value) if type(value) is str else value
    return math.trunc(number)


@function("type", Kind.ANY, gives=Kind.NUMBER, name="float", example=("float('1.5')", 1.5))
def float_(value: Any) -> float:
    """A number with a fraction: of a text or a number."""
    if type(value) not in (int, float, str):
        raise Mistyped
    return float(_number(value) if type(value) is str else value)


def _number(text: str) -> int | float:
    if len(text) > 100 or "_" in text:
        raise ValueError("it is no number")
    try:
        return int(text)
    except ValueError:
        return float(text)


@function("type", Kind.ANY, gives=Kind.BOOL, sees_null=True, example=("is_null(NULL)", True),
          spark="({0} IS NULL)")  # fmt: skip
def is_null(value: Any) -> bool:
    """Whether it is NULL."""
    return value is None


@function("type", Kind.ANY, gives=Kind.BOOL, sees_null=True, example=("is_num('1')", False))
def is_num(value: Any) -> bool:
    """Whether it is a number."""
    return type(value) in TYPES[Kind.NUMBER]


@function("type", Kind.ANY, gives=Kind.BOOL, sees_null=True, example=("is_str('1')", True))
def is_str(value: Any) -> bool:
    """Whether it is a text."""
    return type(value) is str


@function("type", Kind.ANY, gives=Kind.BOOL, sees_null=True, example=("is_array(split('a', ','))", True))
def is_array(value: Any) -> bool:
    """Whether it is an array."""
    return type(value) is list


@function("type", Kind.ANY, gives=Kind.BOOL, sees_null=True, example=("""is_map(json_decode('{}'))""", True))
def is_map(value: Any) -> bool:
    """Whether it is a map."""
    return type(value) is dict


@function("type", Kind.ANY, gives=Kind.ANY, sees_null=True, variadic=True, example=("coalesce(NULL, 1)", 1),
          spark="coalesce({all})")  # fmt: skip
def coalesce(*values: Any) -> Any:
    """The first that is not NULL."""
    return next((value for value in values if value is not None), None)


@function("type", Kind.ANY, Kind.ANY, gives=Kind.ANY, sees_null=True, example=("nvl(NULL, 1)", 1),
          spark="coalesce({all})")  # fmt: skip
def nvl(value: Any, other: Any) -> Any:
    """The first, or the second if the first is NULL."""
    return other if value is None else value


# Maps and arrays

_MAP = """json_decode('{"a": {"b": 1}}')"""


def _get(key: Any, of: Any) -> Any:
    for part in key.split(".") if type(key) is str else key:
        if type(of) is not dict:
            return None
        of = of.get(part)
    return of


@function("map and array", Kind.TEXT, Kind.MAP, Kind.ANY, gives=Kind.ANY, required=2,
          example=(f"map_get('a.b', {_MAP})", 1))  # fmt: skip
def map_get(key: str, of: dict[str, Any], default: Any = None) -> Any:
    """What is at a key, or at keys with dots between; else the default, or NULL."""
    found = _get(key, of)
    return default if found is None else found


@function("map and array", Kind.TEXT, Kind.MAP, Kind.ANY, gives=Kind.ANY, required=2,
          example=("""mget('a.b', json_decode('{"a.b": 1}'))""", 1))  # fmt: skip
def mget(key: str, of: dict[str, Any], default: Any = None) -> Any:
    """What is at a key, whose dots have no meaning; else the default, or NULL."""
    found = of.get(key)
    return default if found is None else found


@function("map and array", Kind.TEXT, Kind.ANY, Kind.MAP, gives=Kind.MAP,
          example=("map_put('a', 2, json_decode('{}'))", {"a": 2}))  # fmt: skip
def map_put(key: str, value: Any, of: dict[str, Any]) -> dict[str, Any]:
    """A map with another value at a key, or at keys with dots between."""
    first, dot, rest = key.partition(".")
    if not dot:
        return {**of, key: value}
    if key.count(".") > 20:
        raise ValueError("it would be nested too deep")
    inner = of.get(first)
    return {**of, first: map_put(rest, value, inner if type(inner) is dict else {})}


@function("map and array", Kind.MAP, gives=Kind.ARRAY, example=(f"map_keys({_MAP})", ["a"]))
def map_keys(of: dict[str, Any]) -> list[str]:
    """The keys."""
    return list(of)


@function("map and array", Kind.INTEGER, Kind.ARRAY, gives=Kind.ANY, example=("nth(2, split('a,b', ','))", "b"))
def nth(place: int, of: list[Any]) -> Any:
    """The element at a place, from 1."""
    return of[place - 1] if place > 0 else None


@function("map and array", Kind.ARRAY, gives=Kind.INTEGER, example=("length(split('a,b', ','))", 2))
def length(of: list[Any]) -> int:
    """The number of elements."""
    return len(of)


@function("map and array", Kind.INTEGER, Kind.ANY, Kind.ARRAY, gives=Kind.ARRAY, required=2,
          example=("sublist(2, 2, split('a,b,c', ','))", ["b", "c"]))  # fmt: skip
def sublist(*arguments: Any) -> list[Any]:
    """So many elements, from the first or from a place: `sublist(2, array)`, `sublist(2, 3, array)`."""
    *numbers, of = arguments
    if type(of) is not list or any(type(number) is not int for number in numbers):
        raise Mistyped
    start, count = (1, numbers[0]) if len(numbers) == 1 else numbers
    if start < 1 or count < 0:
        raise ValueError("there is no such part")
    return of[start - 1 : start - 1 + count]


@function("map and array", Kind.ARRAY, gives=Kind.ANY, example=("first(split('a,b', ','))", "a"))
def first(of: list[Any]) -> Any:
    """The first element."""
    return of[0]


@function("map and array", Kind.ARRAY, gives=Kind.ANY, example=("last(split('a,b', ','))", "b"))
def last(of: list[Any]) -> Any:
    """The last element."""
    return of[-1]


@function("map and array", Kind.ANY, Kind.ARRAY, gives=Kind.BOOL, example=("contains('b', split('a,b', ','))", True))
def contains(value: Any, of: list[Any]) -> bool:
    """Whether an array has an element of the same type and value."""
    return any(type(each) is type(value) and each == value for each in of)


# JSON and codings


@function("coding", Kind.TEXT, gives=Kind.ANY, example=("json_decode('[1]')", [1]))
def json_decode(text: str) -> Any:
    """The value of a JSON text."""
    value = decoded(text.encode())
    if value is NO_JSON:
        raise ValueError("it is no JSON")
    return value


@function("coding", Kind.ANY, gives=Kind.TEXT, example=("json_encode('a')", '"a"'))
def json_encode(value: Any) -> str:
    """As JSON."""
    return encoded(value)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@function("coding", Kind.BINARY, gives=Kind.TEXT, example=("base64_encode('some')", "c29tZQ=="))
def base64_encode(value: str | bytes) -> str:
    """In base64."""
    return b64encode(_bytes(value)).decode()


@function("coding", Kind.TEXT, gives=Kind.BINARY, example=("base64_decode('c29tZQ==')", "some"))
def base64_decode(text: str) -> str | bytes:
    """What a base64 text stands for."""
    return text_or_bytes(b64decode(text, validate=True))


@function("coding", Kind.TEXT, gives=Kind.BINARY, example=("hexstr2bin('6162')", "ab"))
def hexstr2bin(text: str) -> str | bytes:
    """What a text of hexadecimal digits stands for."""
    return text_or_bytes(binascii.unhexlify(text))


@function("coding", Kind.BINARY, gives=Kind.TEXT, example=("bin2hexstr('ab')", "6162"))
def bin2hexstr(value: str | bytes) -> str:
    """In hexadecimal digits, with capital letters."""
    return _bytes(value).hex().upper()


_SUBBITS = (Kind.BINARY, Kind.INTEGER, Kind.INTEGER, Kind.TEXT, Kind.TEXT, Kind.TEXT)


@function("coding", *_SUBBITS, gives=Kind.ANY, required=2, example=("subbits('a', 1, 4)", 6))
def subbits(value: str | bytes, *arguments: Any) -> Any:
    """Bits as a number: `subbits(bytes, length)`, `subbits(bytes, start, length[, 'integer' or 'float' or 'bits'[, 'unsigned' or 'signed'[, 'big' or 'little']]])`; `start` from 1."""  # noqa: E501
    start, length, *how = (1, *arguments) if len(arguments) == 1 else arguments
    return bits_of(_bytes(value), start, length, *how)


# Hashes


@function("hash", Kind.BINARY, gives=Kind.TEXT, example=("md5('a')", hashlib.md5(b"a").hexdigest()), spark="md5({0})")
def md5(value: str | bytes) -> str:
    """The MD5 hash in hexadecimal digits."""
    return hashlib.md5(_bytes(value), usedforsecurity=False).hexdigest()


@function(
    "hash", Kind.BINARY, gives=Kind.TEXT, example=("sha('a')", hashlib.sha1(b"a").hexdigest()), spark="sha1({0})"
)
def sha(value: str | bytes) -> str:
    """The SHA-1 hash in hexadecimal digits."""
    return hashlib.sha1(_bytes(value), usedforsecurity=False).hexdigest()


@function("hash", Kind.BINARY, gives=Kind.TEXT, example=("sha256('a')", hashlib.sha256(b"a").hexdigest()),
          spark="sha2({0}, 256)")  # fmt: skip
def sha256(value: str | bytes) -> str:
    """The SHA-256 hash in hexadecimal digits."""
    return hashlib.sha256(_bytes(value)).hexdigest()


@function("hash", Kind.BINARY, gives=Kind.INTEGER, example=("crc32('a')", zlib.crc32(b"a")), spark="crc32({0})")
def crc32(value: str | bytes) -> int:
    """The CRC-32 checksum."""
    return zlib.crc32(_bytes(value))
