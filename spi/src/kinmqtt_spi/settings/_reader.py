"""Reads values with their places, and collects problems."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from attrs import define, evolve, field, frozen

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings._document import Document
from kinmqtt_spi.settings._keys import KeyPath
from kinmqtt_spi.settings._words import dotted, got

REFUSED: Final = object()
"""What reading answers instead of a value when it has reported a problem."""


@frozen(slots=True)
class Place:
    """A value's path, and whether it may be shown."""

    path: KeyPath
    secret: bool = False

    def child(self, key: str | int, secret: bool = False) -> Place:
        """Return a place within this one; everything within a secret is secret."""
        return Place((*self.path, key), self.secret or secret)


@frozen(slots=True)
class Variable:
    """An environment variable that sets the value at a path."""

    name: str
    text: str = field(repr=False)

    @property
    def value(self) -> Any:
        """Return the TOML value of the text, or else the text."""
        try:
            document = tomllib.loads(f"value = {self.text}")
        except (ValueError, RecursionError):
            return self.text
        return document["value"] if len(document) == 1 else self.text


@frozen(slots=True, order=True)
class Problem:
    """A problem, as one line for the operator; those of the file sort by position, before the environment's.

    A line or column of 0 is unknown.
    """

    in_environment: bool
    line: int
    column: int
    text: str


class Readable(Protocol):
    """The part of a type that the reader needs."""

    def read(self, value: Any, place: Place, reader: Reader) -> Any:
        """Return the value for the field, or ``REFUSED`` after reporting the problem."""


@define
class Reader:
    """Reads values and collects the problems."""

    document: Document
    variables: Mapping[KeyPath, Variable]
    problems: list[Problem]
    elsewhere: Callable[[str], str | None] | None = None
    """Answers where a key is known that is not known where it stands."""

    def read(self, shape: Readable, value: Any, place: Place) -> Any:
        """Read a value; a variable's text counts as a string if its TOML value does not fit.

        So a password of digits need not be quoted twice, for the shell and for TOML.
        """
        result, problems = self.attempt(shape, value, place)
        variable = self.variables.get(place.path)
        if problems and variable is not None and not isinstance(value, str):
            plain, further = self.attempt(shape, variable.text, place)
            if not further:
                return plain
        self.problems.extend(problems)
        return result

    def attempt(self, shape: Readable, value: Any, place: Place) -> tuple[Any, list[Problem]]:
        """Read a value, and keep the problems apart."""
        trial = evolve(self, problems=[])
        return shape.read(value, place, trial), trial.problems

    def refuse(self, place: Place, expected: str, value: Any, more: str = "") -> Any:
        """Report that a value is not the expected one."""
        self.at_value(place.path, f"expected {expected}, got {got(value, place.secret)}{more}")
        return REFUSED

    def at_key(self, path: KeyPath, text: str) -> None:
        """Report a problem with a key."""
        self._report(path, self.document.line(path), text)

    def at_value(self, path: KeyPath, text: str) -> None:
        """Report a problem with a value."""
        self._report(path, self.document.value_line(path), text)

    def finish(self) -> None:
        """Raise the problems, if any."""
        if self.problems:
            raise SettingsError(problem.text for problem in sorted(self.problems))

    def _report(self, path: KeyPath, position: tuple[int, int] | None, text: str) -> None:
        subject = f"{dotted(path)}: {text}" if path else text
        for length in range(len(path), 0, -1):
            if variable := self.variables.get(path[:length]):
                self.problems.append(Problem(True, 0, 0, f"{variable.name}: {subject}"))
                return
        line, column = position or self._header(path)
        where = ":".join(str(part) for part in (self.document.name, line, column) if part)
        self.problems.append(Problem(False, line, column, f"{where}: {subject}"))

    def _header(self, path: KeyPath) -> tuple[int, int]:
        """Return where a missing key would be: the line of its table, if there is one, and no column."""
        position = self.document.line(path[:-1])
        return (0, 0) if position is None else (position[0], 0)
