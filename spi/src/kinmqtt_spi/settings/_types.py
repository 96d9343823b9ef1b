"""Converts a field's annotation to its shape; raises ``TypeError`` for an unsupported type."""

from __future__ import annotations

import enum
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from kinmqtt_spi.settings._fields import Rule, rule_of
from kinmqtt_spi.settings._sections import Section, field_of, fields_of
from kinmqtt_spi.settings._shapes import Choice, Either, FilePath, Items, Number, Plain, Shape, Table
from kinmqtt_spi.settings._units import UNITS

_PLAIN = {bool: "true or false", str: "a string"}


def section_of(cls: type[Any], within: tuple[type[Any], ...] = ()) -> Section:
    """Return the shape of a settings class; ``TypeError`` names a field of an unsupported type."""
    if cls in within:
        raise TypeError(f"{cls.__name__} contains itself, which settings can't")
    fields = []
    for attribute in fields_of(cls):
        try:
            shape = _shape_of_field(attribute, (*within, cls))
        except _Unsupported as error:
            raise TypeError(f"{cls.__name__}.{attribute.name}: {error}") from None
        fields.append(field_of(attribute, shape))
    return Section(cls, tuple(fields))


class _Unsupported(Exception):
    """The type of a field, or its declaration, makes no sense for a setting."""


def _shape_of_field(attribute: attrs.Attribute[Any], within: tuple[type[Any], ...]) -> Shape:
    rule = rule_of(attribute)
    shape = _Compiler(rule, within).shape(attribute.type)
    leaves = list(_leaves(shape))
    if rule.others and not isinstance(shape, Table):
        raise _Unsupported("only a dict has all other keys")
    limited = rule.minimum is not None or rule.maximum is not None
    if limited and not any(isinstance(leaf, Number) for leaf in leaves):
        raise _Unsupported("only numbers have a minimum or maximum")
    if rule.one_of is not None and not any(isinstance(leaf, Choice) for leaf in leaves):
        raise _Unsupported("one_of is for strings and numbers")
    return shape


def _leaves(shape: Shape) -> list[Shape]:
    match shape:
        case Items() | Table():
            return _leaves(shape.item)
        case Either():
            return [leaf for member in shape.members for leaf in _leaves(member)]
        case _:
            return [shape]


class _Compiler:
    """Converts the annotation of one field to a shape."""

    def __init__(self, rule: Rule, within: tuple[type[Any], ...]) -> None:
        self._rule = rule
        self._within = within

    def shape(self, annotation: Any) -> Shape:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self.shape(arguments[0])
        if origin is Literal:
            return _choice(annotation, [(value, value) for value in arguments if value is not None])
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin in (list, frozenset) or (origin is tuple and arguments[1:] == (Ellipsis,)):
            return Items(self.shape(arguments[0]), origin)
        if origin is dict and arguments[0] is str:
            return Table(self.shape(arguments[1]))
        if isinstance(annotation, type) and origin is None:
            return self._class(annotation)
        raise _Unsupported(f"the type {annotation} is not supported in settings")

    def _union(self, arguments: tuple[Any, ...]) -> Shape:
        members = [self.shape(argument) for argument in arguments if argument is not type(None)]
        # Numbers first, whole ones before others: 5 is an int where both are asked for, "8 MiB" a size.
        members.sort(key=lambda shape: 2 if not isinstance(shape, Number) else not shape.whole)
        return members[0] if len(members) == 1 else Either(tuple(members))

    def _class(self, cls: type[Any]) -> Shape:
        rule = self._rule
        if rule.one_of is not None and cls in (str, int, float):
            return Choice(tuple((value, value) for value in rule.one_of))
        if cls in _PLAIN:
            return Plain(cls, _PLAIN[cls])
        if cls in (int, float):
            unit = UNITS.get(rule.unit or "")
            return Number(cls is int, rule.minimum, rule.maximum, rule.finite, unit)
        if cls is Path:
            return FilePath()
        if issubclass(cls, enum.Enum):
            return _choice(cls, [(member.value, member) for member in cls])
        if attrs.has(cls):
            return section_of(cls, self._within)
        raise _Unsupported(f"the type {cls.__name__} is not supported in settings")


def _choice(annotation: Any, options: list[tuple[Any, Any]]) -> Shape:
    if not options or not all(type(written) in (str, int, float, bool) for written, _ in options):
        raise _Unsupported(f"{annotation} has values that TOML can't say")
    return Choice(tuple(options))
