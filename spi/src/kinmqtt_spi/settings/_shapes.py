"""The types of settings fields: how each is described, recognised and read.

Values are never coerced: a TOML value has exactly one Python type, which is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from attrs import frozen

from kinmqtt_spi.settings._reader import REFUSED, Place, Reader
from kinmqtt_spi.settings._units import Unit
from kinmqtt_spi.settings._words import did_you_mean, toml_value


class Shape:
    """The type of value of a field, or of an element of one."""

    has_parts: ClassVar[bool] = False
    """Whether a value consists of others, so that a problem may be with one of those."""

    def words(self) -> str:
        """Describe the expected value, for "expected …" and the documentation."""
        raise NotImplementedError

    def takes(self, value: Any) -> bool:
        """Tell whether a TOML value has the right type; ``read`` checks everything else."""
        raise NotImplementedError

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        """Return the value for the field, or ``REFUSED`` after reporting the problem."""
        raise NotImplementedError


@frozen(slots=True)
class Plain(Shape):
    """``bool`` and ``str``."""

    type: type[Any]
    noun: str

    def words(self) -> str:
        return self.noun

    def takes(self, value: Any) -> bool:
        return type(value) is self.type

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        return value if self.takes(value) else reader.refuse(place, self.noun, value)


@frozen(slots=True)
class FilePath(Shape):
    """``pathlib.Path``, written as a string."""

    def words(self) -> str:
        return "a path"

    def takes(self, value: Any) -> bool:
        return type(value) is str

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        # Path("") would quietly be the working directory; no path of any system has a NUL.
        if self.takes(value) and value and "\0" not in value:
            return Path(value)
        return reader.refuse(place, self.words(), value)


@frozen(slots=True)
class Number(Shape):
    """``int`` and ``float``, with optional limits and suffixes such as ``"8 MiB"``."""

    whole: bool
    minimum: float | None = None
    maximum: float | None = None
    finite: bool = True
    unit: Unit | None = None

    def words(self) -> str:
        text = "a whole number" if self.whole else "a number"
        if self.unit is not None:
            text += f" of {self.unit.plural}"
        text += self._limits()
        if self.unit is not None:
            text += f' or {self.unit.noun} like "{self.unit.example}"'
        return text

    def _limits(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f" from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f" not below {self.minimum}"
        return "" if self.maximum is None else f" not above {self.maximum}"

    def takes(self, value: Any) -> bool:
        kinds: list[type[Any]] = [int] if self.whole else [int, float]
        if self.unit is not None:
            kinds.append(str)
        return type(value) in kinds

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        if not self.takes(value):
            return reader.refuse(place, self.words(), value)
        if isinstance(value, str):
            return self._read_amount(value, place, reader)
        number = self._converted(value)
        return reader.refuse(place, self.words(), value) if number is None else number

    def holds(self, value: Any) -> bool:
        """Tell whether a value that code has made is such a number."""
        return type(value) in ((int,) if self.whole else (int, float)) and self._converted(value) is not None

    def _read_amount(self, value: str, place: Place, reader: Reader) -> Any:
        assert self.unit is not None
        amount = self.unit.amount(value)
        if amount is None:
            return reader.refuse(place, self.words(), value, f"; the suffixes are {self.unit.suffixes}")
        number = self._converted(amount)
        if number is None:
            more = "" if place.secret else f" ({float(amount):.15g} {self.unit.plural})"
            return reader.refuse(place, self.words(), value, more)
        return number

    def _converted(self, value: int | float | Fraction) -> int | float | None:
        """Return the number if it is within its limits; ``None`` if it is not, or not representable."""
        if self.whole:
            if value != int(value):
                return None
            number: int | float = int(value)
        else:
            try:
                number = float(value)
            except OverflowError:
                return None
            if self.finite and not math.isfinite(number):
                return None
        if self.minimum is not None and number < self.minimum:
            return None
        if self.maximum is not None and number > self.maximum:
            return None
        return number


@frozen(slots=True)
class Choice(Shape):
    """One of a few values: an ``enum.Enum`` (by value), a ``Literal``, or those of ``one_of``."""

    options: tuple[tuple[Any, Any], ...]
    """What TOML says and what the field then holds."""

    def words(self) -> str:
        names = ", ".join(toml_value(written) for written, _ in self.options)
        return names if len(self.options) == 1 else f"one of {names}"

    def takes(self, value: Any) -> bool:
        return any(type(written) is type(value) for written, _ in self.options)

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        for written, meant in self.options:
            if type(written) is type(value) and written == value:
                return meant
        hint = ""
        if isinstance(value, str) and not place.secret:
            hint = did_you_mean(value, (w for w, _ in self.options if isinstance(w, str)), quote='"')
        return reader.refuse(place, self.words(), value, hint)


@frozen(slots=True)
class Items(Shape):
    """``list``, ``tuple`` and ``frozenset``: a TOML array whose elements have one shape."""

    has_parts = True

    item: Shape
    build: Callable[[Iterable[Any]], Any]

    def words(self) -> str:
        return f"a list, each element {self.item.words()}"

    def takes(self, value: Any) -> bool:
        return type(value) is list

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        if not self.takes(value):
            return reader.refuse(place, self.words(), value)
        results = [reader.read(self.item, element, place.child(i)) for i, element in enumerate(value)]
        return REFUSED if any(r is REFUSED for r in results) else self.build(results)


@frozen(slots=True)
class Table(Shape):
    """``dict[str, T]``: a table with arbitrary keys."""

    has_parts = True

    item: Shape

    def words(self) -> str:
        return f"a table, each value {self.item.words()}"

    def takes(self, value: Any) -> bool:
        return type(value) is dict

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        if not self.takes(value):
            return reader.refuse(place, self.words(), value)
        results = {key: reader.read(self.item, element, place.child(key)) for key, element in value.items()}
        return REFUSED if any(r is REFUSED for r in results.values()) else results


@frozen(slots=True)
class Either(Shape):
    """A union: the first member that accepts the value and finds no problem in it."""

    members: tuple[Shape, ...]

    def words(self) -> str:
        return " or ".join(member.words() for member in self.members)

    def takes(self, value: Any) -> bool:
        return any(member.takes(value) for member in self.members)

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        found = []
        for member in self.members:
            if member.takes(value):
                result, problems = reader.attempt(member, value, place)
                if not problems:
                    return result
                found.append((member, problems))
        if len(found) == 1 and found[0][0].has_parts:
            reader.problems.extend(found[0][1])  # only this one was meant, and it knows which part is wrong
            return REFUSED
        return reader.refuse(place, self.words(), value)
