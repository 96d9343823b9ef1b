"""The expressions of a rule, checked: what compilers read. Positions do not count for equality."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from attrs import field, frozen

from kinmqtt_rules.functions import Function


@frozen(slots=True)
class Constant:
    """A number, a text, true, false or NULL."""

    value: object = field(eq=False)
    kind: type[object]
    text: str
    """The value in Python: 1, 1.0 and true are different constants."""
    offset: int = field(eq=False, default=0)


@frozen(slots=True)
class Name:
    """A field, an alias or the element of FOREACH."""

    name: str
    offset: int = field(eq=False, default=0)


@frozen(slots=True)
class Step:
    """A value within another: a key of a map, or an index of an array, from 1 or from -1."""

    of: Node
    key: str | int
    offset: int = field(eq=False, default=0)


@frozen(slots=True)
class Call:
    """A call of a function; operators are functions, too."""

    function: Function
    arguments: tuple[Node, ...]
    offset: int = field(eq=False, default=0)


@frozen(slots=True)
class Case:
    """The result of the first condition that is true."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node
    offset: int = field(eq=False, default=0)


Node: TypeAlias = Constant | Name | Step | Call | Case


def constant(value: object, offset: int = 0) -> Constant:
    """Return a constant."""
    return Constant(value, type(value), repr(value), offset)


def children(node: Node) -> Iterator[Node]:
    """Return the nodes directly within a node."""
    match node:
        case Step():
            yield node.of
        case Call():
            yield from node.arguments
        case Case():
            for condition, result in node.branches:
                yield condition
                yield result
            yield node.otherwise
