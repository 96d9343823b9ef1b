"""Environment variables that override settings: ``KINMQTT__BROKER__MAX_INFLIGHT=5``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kinmqtt_spi.settings._keys import KeyPath
from kinmqtt_spi.settings._reader import Problem, Variable
from kinmqtt_spi.settings._sections import Section, sections_in
from kinmqtt_spi.settings._shapes import Either, Shape, Table
from kinmqtt_spi.settings._types import section_of
from kinmqtt_spi.settings._words import dotted, folded, nearest

_SEPARATOR = "__"


class Overrides:
    """The variables of one section, each with the path of its setting."""

    def __init__(self, section: Section, path: KeyPath, data: Any, environ: Mapping[str, str], prefix: str) -> None:
        self.variables: dict[KeyPath, Variable] = {}
        self.problems: list[Problem] = []
        for name, segments in _named(environ, prefix):
            rest = _within(segments, path)
            target = _target(section, rest, data) if rest else None
            if target is not None:
                self._take((*path, *target), Variable(name, environ[name]))

    def _take(self, path: KeyPath, variable: Variable) -> None:
        if path in self.variables:
            other = self.variables[path].name
            text = f"{variable.name}: {dotted(path)}: {other} sets this too"
            self.problems.append(Problem(True, 0, 0, text))
        else:
            self.variables[path] = variable

    def apply(self, path: KeyPath, data: Any) -> Any:
        """Return the table with the variables' values, outer tables before inner ones."""
        table: Any = data
        for target in sorted(self.variables, key=len):
            table = _with(table, target[len(path) :], self.variables[target].value)
        return table


def unknown_environment(
    environ: Mapping[str, str], sections: Iterable[tuple[KeyPath, type[Any]]], *, prefix: str = "KINMQTT"
) -> list[str]:
    """Return one problem for each variable with the prefix that sets nothing in any of the sections.

    ``sections`` has the path and the settings class of everything that will be parsed.
    """
    shapes = [(path, section_of(cls)) for path, cls in sections]
    known = [_SEPARATOR.join([*map(str, path), *keys]) for path, section in shapes for keys in _settable(section)]
    problems = []
    for name, segments in _named(environ, prefix):
        rests = ((section, _within(segments, path)) for path, section in shapes)
        if all(not rest or _target(section, rest, {}) is None for section, rest in rests):
            # Long names look alike where only their beginnings do, so they must be rather similar.
            near = nearest(_SEPARATOR.join(segments), known, cutoff=0.75)
            hint = "" if near is None else f"; did you mean {_variable(prefix, near)}?"
            problems.append(f"{name}: sets nothing{hint}")
    return problems


def _variable(prefix: str, keys: str) -> str:
    return f"{prefix}{_SEPARATOR}{keys}".replace("-", "_").upper()


def _with(table: Any, path: KeyPath, value: Any) -> Any:
    """Return a copy of the table with the value at the path, and tables on the way to it."""
    if not path:
        return value
    if not isinstance(table, dict):
        return table  # something else is in a table's place, which reading is going to report
    return {**table, path[0]: _with(table.get(path[0], {}), path[1:], value)}


def _named(environ: Mapping[str, str], prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Return the variables with the prefix, by name, and the parts of their names after it."""
    start = folded(prefix + _SEPARATOR)
    for name in sorted(environ):
        if folded(name).startswith(start):
            yield name, folded(name)[len(start) :].split(_SEPARATOR)


def _within(segments: list[str], path: KeyPath) -> list[str]:
    """Return the segments after the path; nothing if they lead elsewhere."""
    here = [folded(str(part)) for part in path]
    return segments[len(here) :] if segments[: len(here)] == here else []


def _target(shape: Shape, segments: list[str], data: Any) -> KeyPath | None:
    """Return the path of the setting that the segments name; ``None`` if there is none."""
    if not segments:
        return ()
    first, *rest = segments
    for section in sections_in(shape):
        for field in section.fields:
            if field is section.others:
                inner = _target(field.shape, segments, data)
                if inner is not None:
                    return inner
            elif folded(field.key) == first:
                inner = _target(field.shape, rest, _get(data, field.key))
                return None if inner is None else (field.key, *inner)
    for table in _tables_in(shape):
        if not first:
            continue
        key = next((key for key in _keys(data) if folded(key) == first), first)
        inner = _target(table.item, rest, _get(data, key))
        return None if inner is None else (key, *inner)
    return None


def _tables_in(shape: Shape) -> Iterator[Table]:
    for member in shape.members if isinstance(shape, Either) else (shape,):
        if isinstance(member, Table):
            yield member


def _settable(section: Section) -> Iterator[list[str]]:
    """Return the keys that lead to each field, for suggestions."""
    for field in section.fields:
        yield [field.key]
        for inner in sections_in(field.shape):
            yield from ([field.key, *keys] for keys in _settable(inner))


def _keys(data: Any) -> Iterable[str]:
    return data if isinstance(data, dict) else ()


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None
