"""Documentation of a settings class: a table of its keys, and an example section."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs

from kinmqtt_spi.settings._fields import MASK
from kinmqtt_spi.settings._keys import KeyPath
from kinmqtt_spi.settings._sections import Field, Section, default_of, sections_in
from kinmqtt_spi.settings._shapes import Items, Shape, Table
from kinmqtt_spi.settings._types import section_of
from kinmqtt_spi.settings._words import bare_or_quoted, dotted, toml_value


class Row(NamedTuple):
    """A key of a settings class, in words."""

    key: str
    """Dotted where sections are nested; ``[]`` stands for any element, ``<name>`` for any key."""
    type: str
    default: str
    """As TOML; ``required`` where there is none, empty where the setting is off unless it is made."""
    unit: str
    help: str


def describe(cls: type[Any]) -> list[Row]:
    """Return one row for each key of the class and of inner classes, in the order of declaration."""
    return list(_rows(section_of(cls), "", None))


def as_toml(cls: type[Any], path: KeyPath = ()) -> str:
    """Return an example section: every key commented out, with its default, below its meaning.

    Without the ``#`` in front of keys and inner sections it has the defaults; keys without a default have their type
    in angle brackets.
    """
    return "\n\n".join(_blocks(section_of(cls), path, None)) + "\n"


def _rows(section: Section, prefix: str, default: Any) -> Iterator[Row]:
    for field in section.fields:
        value = _default(field, default)
        inner, suffix = _inner(field.shape)
        if field is section.others and inner is not None:
            yield from _rows(inner, f"{prefix}<name>.", None)
            continue
        if field.rule.help or not _is_table(field):
            yield _row(field, prefix, "" if _is_table(field) and value is not attrs.NOTHING else _shown(field, value))
        if inner is not None:
            yield from _rows(inner, f"{prefix}{field.key}{suffix}.", None if suffix else value)


def _row(field: Field, prefix: str, default: str) -> Row:
    rule = field.rule
    return Row(f"{prefix}{field.key}", field.shape.words(), default, rule.unit or "", rule.help)


def _inner(shape: Shape) -> tuple[Section | None, str]:
    """Return the settings class within a shape, if any, and how the path to it is written."""
    if isinstance(shape, Items | Table):
        inner, suffix = _inner(shape.item)
        return inner, ("[]" if isinstance(shape, Items) else ".<name>") + suffix
    return next(sections_in(shape), None), ""


def _is_table(field: Field) -> bool:
    """Tell whether the field is only an inner section, whose keys are described themselves."""
    return isinstance(field.shape, Section)


def _default(field: Field, instance: Any) -> Any:
    """Return the default: that of the outer class's default instance, else that of the field."""
    if attrs.has(type(instance)):
        return getattr(instance, field.attribute.name)
    return default_of(field.attribute)


def _shown(field: Field, value: Any) -> str:
    if field.required and value is attrs.NOTHING:
        return "required"
    if value is None or value is attrs.NOTHING:
        return ""
    return toml_value(MASK if field.rule.secret else value)


def _blocks(section: Section, path: KeyPath, default: Any) -> Iterator[str]:
    """Return the keys of a section, below its header, and then its inner sections."""
    values = [(field, _default(field, default)) for field in section.fields if field is not section.others]
    header = [f"[{dotted(path)}]"] if path else []
    yield "\n".join(header + [_example(field, value) for field, value in values if not _is_table(field)])
    for field, value in values:
        if isinstance(field.shape, Section):
            # The inner section may be one that is off unless it is there, so its header is commented out too.
            about = [_comment(field.rule.help)] if field.rule.help else []
            first, *others = _blocks(field.shape, (*path, field.key), value)
            yield "\n".join([*about, f"#{first}"])
            yield from others
    inner = None if section.others is None else _inner(section.others.shape)[0]
    if inner is not None:
        first, *others = _blocks(inner, (*path, "NAME"), None)
        yield f"#{first}"
        yield from others


def _example(field: Field, value: Any) -> str:
    about = field.rule.help.rstrip(".")
    words = field.words()
    text = f"{about}: {words}." if about else f"{words[0].upper()}{words[1:]}."
    shown = _shown(field, value)
    if not shown:
        text += " Not set by default."
    if shown in ("", "required"):
        shown = f"<{words}>"
    return f"{_comment(text)}\n#{bare_or_quoted(field.key)} = {shown}"


def _comment(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent="# ", subsequent_indent="# ")
