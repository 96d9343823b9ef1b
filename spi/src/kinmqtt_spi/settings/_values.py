"""Checks the values of settings that code has made: no file was read, so nothing has checked them."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from attrs import evolve

from kinmqtt_spi.settings._shapes import Choice, Number, Shape
from kinmqtt_spi.settings._types import section_of
from kinmqtt_spi.settings._words import got

_SHOWN: Final = bool | int | float | str | Enum


def problem_with(settings: Any) -> str | None:
    """Return what is wrong with the first number or choice outside of its field's bounds; ``None`` if none is.

    ``settings`` is an instance of a class whose fields are made with :func:`setting`. Secrets are not shown.
    """
    for field in section_of(type(settings)).fields:
        value = getattr(settings, field.attribute.name)
        expected = _expected(field.shape, value)
        if expected is not None:
            shown = got(value, field.rule.secret) if isinstance(value, _SHOWN) else f"a {type(value).__name__}"
            return f"{field.key} is {shown}, expected {expected}"
    return None


def _expected(shape: Shape, value: Any) -> str | None:
    """Return what was expected instead of a value; ``None`` if it fits."""
    if isinstance(shape, Choice):
        meant = [each for _, each in shape.options]
        fits = any(type(value) is type(each) and value == each for each in meant)
        return None if fits else f"one of {', '.join(map(str, meant))}"
    if isinstance(shape, Number):
        shape = evolve(shape, unit=None)
        return None if shape.holds(value) else shape.words()
    return None
