"""Forms: convert one type of value to JSON values and back; see :mod:`kinmqtt_spi.plain`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from kinmqtt_spi.properties import NO_PROPERTIES, Properties, PropertyValues

Plain: TypeAlias = Any
"""A JSON value: a dict with strings as keys, a list, a string, a number, a boolean or ``None``."""


class Form(ABC):
    """Converts one type of value."""

    @abstractmethod
    def write(self, value: Any, place: str) -> Plain:
        """Return the plain form."""

    @abstractmethod
    def read(self, plain: Plain, place: str) -> Any:
        """Return the value; raises ``ValueError`` with the place."""


class TextForm(Form):
    def write(self, value: Any, place: str) -> Plain:
        return str.__str__(value)

    def read(self, plain: Plain, place: str) -> str:
        if not isinstance(plain, str):
            raise _wrong(place, "a string", plain)
        return plain


class FlagForm(Form):
    def write(self, value: Any, place: str) -> Plain:
        return bool(value)

    def read(self, plain: Plain, place: str) -> bool:
        if not isinstance(plain, bool):
            raise _wrong(place, "true or false", plain)
        return plain


class WholeForm(Form):
    """A whole number within bounds."""

    def __init__(self, lowest: int = 0, highest: int | None = None) -> None:
        self._lowest = lowest
        self._highest = highest

    def write(self, value: Any, place: str) -> Plain:
        return int(value)

    def read(self, plain: Plain, place: str) -> int:
        if not isinstance(plain, int) or isinstance(plain, bool):
            raise _wrong(place, "a whole number", plain)
        if plain < self._lowest or (self._highest is not None and plain > self._highest):
            bounds = (
                f"not below {self._lowest}" if self._highest is None else f"from {self._lowest} to {self._highest}"
            )
            raise ValueError(f"{place}: expected a whole number {bounds}, not {plain}")
        return plain


class TimeForm(Form):
    """Seconds."""

    def write(self, value: Any, place: str) -> Plain:
        return _finite(float(value), place)

    def read(self, plain: Plain, place: str) -> float:
        if not isinstance(plain, int | float) or isinstance(plain, bool):
            raise _wrong(place, "a number of seconds", plain)
        try:
            return _finite(float(plain), place)
        except OverflowError:
            raise ValueError(f"{place}: the number is too large") from None


class BytesForm(Form):
    def write(self, value: Any, place: str) -> Plain:
        return b64encode(value).decode("ascii")

    def read(self, plain: Plain, place: str) -> bytes:
        if not isinstance(plain, str):
            raise _wrong(place, "a string of base64", plain)
        try:
            return b64decode(plain, validate=True)
        except ValueError as error:
            raise ValueError(f"{place}: expected base64: {error}") from None


class OneOfForm(Form):
    """A member of an enum, by its value."""

    def __init__(self, enum: type[Enum]) -> None:
        self._enum = enum

    def write(self, value: Any, place: str) -> Plain:
        return value.value

    def read(self, plain: Plain, place: str) -> Enum:
        for member in self._enum:
            if isinstance(plain, str) and member.value == plain:
                return member
        words = ", ".join(f'"{member.value}"' for member in self._enum)
        raise ValueError(f"{place}: expected one of {words}")


class OptionalForm(Form):
    def __init__(self, form: Form) -> None:
        self._form = form

    def write(self, value: Any, place: str) -> Plain:
        return None if value is None else self._form.write(value, place)

    def read(self, plain: Plain, place: str) -> Any:
        return None if plain is None else self._form.read(plain, place)


class SeveralForm(Form):
    """A tuple of values of one type."""

    def __init__(self, form: Form) -> None:
        self._form = form

    def write(self, value: Any, place: str) -> Plain:
        return [self._form.write(each, f"{place}[{number}]") for number, each in enumerate(value)]

    def read(self, plain: Plain, place: str) -> tuple[Any, ...]:
        if not isinstance(plain, list):
            raise _wrong(place, "a list", plain)
        return tuple(self._form.read(each, f"{place}[{number}]") for number, each in enumerate(plain))


class PairForm(Form):
    """Two strings: a user property."""

    def write(self, value: Any, place: str) -> Plain:
        return [TEXT.write(each, place) for each in value]

    def read(self, plain: Plain, place: str) -> tuple[str, str]:
        if not isinstance(plain, list) or len(plain) != 2:
            raise _wrong(place, "a list of two strings", plain)
        first, second = (TEXT.read(each, f"{place}[{number}]") for number, each in enumerate(plain))
        return first, second


class TextsForm(Form):
    """Strings by name."""

    def write(self, value: Any, place: str) -> Plain:
        for name, each in value.items():
            if not isinstance(each, str):
                raise ValueError(f"{place}.{name}: expected a string, not a {type(each).__name__}")
        return {_key(name, place): str.__str__(each) for name, each in value.items()}

    def read(self, plain: Plain, place: str) -> dict[str, str]:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        return {name: TEXT.read(each, f"{place}.{name}") for name, each in plain.items()}


class PropertiesForm(Form):
    """The properties that are present, by name, in their order."""

    def write(self, value: Any, place: str) -> Plain:
        return {name: _PROPERTIES[name].write(each, f"{place}.{name}") for name, each in value.present.items()}

    def read(self, plain: Plain, place: str) -> Properties:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        present: dict[str, Any] = {}
        for name, each in plain.items():
            if name not in _PROPERTIES:
                raise ValueError(f"{place}: no such MQTT property: {name}")
            present[name] = _PROPERTIES[name].read(each, f"{place}.{name}")
        return Properties.from_wire(present) if present else NO_PROPERTIES


class DataForm(Form):
    """The data of an event: JSON values and bytes.

    Bytes are an object with the only key ``$base64``. A mapping that looks like that itself, or like what is
    said of it here, is wrapped: an object with the only key ``$object``. Tuples and sets come back as lists.
    """

    def write(self, value: Any, place: str) -> Plain:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place}: expected a mapping, not a {type(value).__name__}")
        return {
            _key(name, place): self._write(each, f"{place}.{name}") for name, each in value.items()
        }  # an event's data is an object in any case, and needs no wrapping

    def read(self, plain: Plain, place: str) -> dict[str, object]:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        return {name: self._read(each, f"{place}.{name}") for name, each in plain.items()}

    def _write(self, value: Any, place: str) -> Plain:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum) and not isinstance(value, int | str):
            return self._write(value.value, place)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return _finite(float(value), place)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return {_BASE64: BYTES.write(value, place)}
        if isinstance(value, Mapping):
            written = self.write(value, place)
            return {_OBJECT: written} if written.keys() in _WRAPPED else written
        if isinstance(value, set | frozenset):
            return self._write(sorted(value, key=repr), place)
        if isinstance(value, Sequence):
            return [self._write(each, f"{place}[{number}]") for number, each in enumerate(value)]
        raise ValueError(f"{place}: a {type(value).__name__} is no plain value")

    def _read(self, plain: Plain, place: str) -> object:
        if isinstance(plain, dict):
            if plain.keys() == {_BASE64}:
                return BYTES.read(plain[_BASE64], place)
            if plain.keys() == {_OBJECT}:
                return self.read(plain[_OBJECT], place)
            return self.read(plain, place)
        if isinstance(plain, list):
            return [self._read(each, f"{place}[{number}]") for number, each in enumerate(plain)]
        if isinstance(plain, float):
            return _finite(plain, place)
        if plain is None or isinstance(plain, bool | int | str):
            return plain
        raise ValueError(f"{place}: a {type(plain).__name__} is no plain value")


class RecordForm(Form):
    """A value with named fields."""

    def __init__(self, made: type[Any], name: str, **fields: Form) -> None:
        self.name = name
        self._made = made
        self._fields = fields

    def write(self, value: Any, place: str) -> Plain:
        return {name: form.write(getattr(value, name), f"{place}.{name}") for name, form in self._fields.items()}

    def read(self, plain: Plain, place: str) -> Any:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        for name in plain:
            if name not in self._fields:
                raise ValueError(f"{place}.{name} is no known field")
        found: dict[str, Any] = {}
        for name, form in self._fields.items():
            if name not in plain:
                raise ValueError(f"{place}.{name} is missing")
            found[name] = form.read(plain[name], f"{place}.{name}")
        return self._made(**found)


_WORDS: Final[Mapping[type[Any], str]] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def _wrong(place: str, expected: str, plain: Plain) -> ValueError:
    # The text names only the type of the wrong value, because the value may be a payload or a password.
    return ValueError(f"{place}: expected {expected}, not {_WORDS.get(type(plain), type(plain).__name__)}")


def _finite(value: float, place: str) -> float:
    if not isfinite(value):
        raise ValueError(f"{place}: expected a finite number, not {value}")
    return value


def _key(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{place}: expected strings as keys, not a {type(name).__name__}")
    return str.__str__(name)


_BASE64: Final = "$base64"
_OBJECT: Final = "$object"
_WRAPPED: Final = ({_BASE64}, {_OBJECT})


TEXT: Final = TextForm()
MAYBE_TEXT: Final = OptionalForm(TEXT)
FLAG: Final = FlagForm()
COUNT: Final = WholeForm()
QOS: Final = WholeForm(0, 2)
UINT32: Final = WholeForm(0, 0xFFFF_FFFF)
PACKET_ID: Final = WholeForm(1, 0xFFFF)
IDENTIFIER: Final = WholeForm(1, 268_435_455)
VERSION: Final = WholeForm(3, 5)
TIME: Final = TimeForm()
MAYBE_TIME: Final = OptionalForm(TIME)
BYTES: Final = BytesForm()


def _property(type_: Any) -> Form:
    """Return the form of a property of this type."""
    if get_origin(type_) is tuple:
        return SeveralForm(COUNT if get_args(type_)[0] is int else PairForm())
    forms: Mapping[Any, Form] = {int: UINT32, str: TEXT, bytes: BYTES}
    return forms[type_]


_PROPERTIES: Final[Mapping[str, Form]] = {
    name: _property(type_) for name, type_ in get_type_hints(PropertyValues).items()
}
