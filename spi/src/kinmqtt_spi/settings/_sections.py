"""Settings classes: the shapes of their fields, and building an instance from a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import attrs
from attrs import frozen

from kinmqtt_spi.settings._fields import MASK, Rule, rule_of
from kinmqtt_spi.settings._reader import REFUSED, Place, Reader
from kinmqtt_spi.settings._shapes import Either, Shape
from kinmqtt_spi.settings._units import UNITS
from kinmqtt_spi.settings._words import did_you_mean


@frozen(slots=True)
class Field:
    """A field of a settings class, ready to be read."""

    key: str
    shape: Shape
    rule: Rule
    attribute: attrs.Attribute[Any]

    @property
    def required(self) -> bool:
        """Tell whether the key is required."""
        return self.attribute.default is attrs.NOTHING

    def words(self) -> str:
        """Describe the field's values; a unit that the type does not imply comes last."""
        unit = self.rule.unit
        return self.shape.words() + (f", {unit}" if unit and unit not in UNITS else "")


@frozen(slots=True)
class Section(Shape):
    """A settings class: a table whose keys are the class's fields."""

    has_parts = True

    cls: type[Any]
    fields: tuple[Field, ...]

    @property
    def others(self) -> Field | None:
        """Return the field that has all keys that no other field has, if there is one."""
        return next((field for field in self.fields if field.rule.others), None)

    def words(self) -> str:
        return "a table"

    def takes(self, value: Any) -> bool:
        return type(value) is dict

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        if not self.takes(value):
            return reader.refuse(place, self.words(), value)
        before = len(reader.problems)
        others = self.others
        self._report_keys(value, place, reader)
        results = {
            field.key: reader.read(field.shape, value[field.key], place.child(field.key, field.rule.secret))
            for field in self.fields
            if field.key in value and field is not others
        }
        if others is not None:
            named = {field.key for field in self.fields if field is not others}
            rest = {key: element for key, element in value.items() if key not in named}
            results[others.key] = reader.read(others.shape, rest, place)
        return self._build(results, place, reader, sound=len(reader.problems) == before)

    def _report_keys(self, table: Mapping[str, Any], place: Place, reader: Reader) -> None:
        """Report unknown keys and missing required keys."""
        known = [field.key for field in self.fields]
        for key in table:
            if key not in known and self.others is None:
                place_of_key = reader.elsewhere(key) if reader.elsewhere is not None else None
                hint = f"; it belongs to {place_of_key}" if place_of_key else did_you_mean(key, known)
                reader.at_key((*place.path, key), f"unknown key{hint}")
        for field in self.fields:
            if field.required and field.key not in table:
                reader.at_key((*place.path, field.key), f"required key is missing ({field.words()})")

    def _build(self, values: dict[str, Any], place: Place, reader: Reader, *, sound: bool) -> Any:
        """Build the instance; if that fails, run every field's validator, to report all errors."""
        text = None
        if sound:
            try:
                return self.cls(**values)
            except ValueError as error:
                text = _text(error)
        secrets = {text for f in self.fields for text in _hidden(values.get(f.key), place.secret or f.rule.secret)}
        found = list(self._complaints(values))
        for key, complaint in found:
            others = self.others
            path = place.path if others is not None and key == others.key else (*place.path, key)
            reader.at_value(path, _one_line(complaint, secrets))
        if text is not None and not found:  # the class itself has objections, in __attrs_post_init__
            reader.at_key(place.path, _one_line(text, secrets))
        return REFUSED

    def _complaints(self, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Return key and text for each validator that rejects its field.

        Validators get a stand-in with the valid fields only. A validator that reads an invalid field reports nothing:
        that field has its own problem already.
        """
        instance = object.__new__(self.cls)
        for field in self.fields:
            value = values.get(field.key, default_of(field.attribute))
            if value is not attrs.NOTHING and value is not REFUSED:
                object.__setattr__(instance, field.attribute.name, value)
        for field in self.fields:
            if field.attribute.validator is None or not hasattr(instance, field.attribute.name):
                continue
            try:
                field.attribute.validator(instance, field.attribute, getattr(instance, field.attribute.name))
            except ValueError as error:
                yield field.key, _text(error)
            except AttributeError:
                continue


def sections_in(shape: Shape) -> Iterator[Section]:
    """Return the settings classes that a value of this shape may have."""
    for member in shape.members if isinstance(shape, Either) else (shape,):
        if isinstance(member, Section):
            yield member


def default_of(attribute: attrs.Attribute[Any]) -> Any:
    """Return the default; ``NOTHING`` if there is none or if it depends on the instance."""
    default = cast(Any, attribute.default)
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class, typed as a function
        return attrs.NOTHING if default.takes_self else default.factory()
    return default


def _text(error: ValueError) -> str:
    """Return the message alone: attrs' own validators pass the field and the value as further arguments."""
    return str(error.args[0]) if error.args else "not valid"


def _one_line(text: str, secrets: Iterable[str]) -> str:
    # Masked first: a secret may have line breaks of its own.
    for secret in sorted(secrets, key=len, reverse=True):
        # Within a word a short one would tell more by its holes than it hides.
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)" if len(secret) < 6 else re.escape(secret), MASK, text)
    return " ".join(text.split())


def _hidden(value: Any, secret: bool) -> Iterator[str]:
    """Return the texts that must not appear in a message, as ``str`` and ``repr`` would show them."""
    if isinstance(value, Mapping):
        for element in value.values():
            yield from _hidden(element, secret)
    elif isinstance(value, list | tuple | frozenset):
        for element in value:
            yield from _hidden(element, secret)
    elif attrs.has(type(value)):
        for attribute in attrs.fields(type(value)):
            yield from _hidden(getattr(value, attribute.name), secret or rule_of(attribute).secret)
    elif secret and value not in (None, "", REFUSED):
        yield str(value)
        yield repr(str(value))[1:-1]


def fields_of(cls: type[Any]) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields that a settings section may set, with their types resolved."""
    if not attrs.has(cls):
        raise TypeError(f"{cls.__name__} is not an attrs class")
    attrs.resolve_types(cls)
    return tuple(attribute for attribute in attrs.fields(cls) if attribute.init)


def field_of(attribute: attrs.Attribute[Any], shape: Shape) -> Field:
    """Return the field for an attribute, under the name of the constructor's argument."""
    return Field(attribute.alias or attribute.name, shape, rule_of(attribute), attribute)
