"""What names in a rule stand for, what calls may look like, and how large expressions may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.functions import TYPES, Function
from kinmqtt_rules.tree import Call, Case, Constant, Name, Node, Step, children
from kinmqtt_spi.settings import did_you_mean

MAX_NODES: Final = 2000
"""The largest expression, aliases written out."""

MAX_DEPTH: Final = 100

_KIND_NAMES: Final[Mapping[type[object], str]] = {int: "number", float: "number", str: "text", bool: "bool"}


class Scope:
    """The names of one rule, and the checks that all of its expressions need."""

    def __init__(self, sql: str, fields: Sequence[str]) -> None:
        self.sql = sql
        self._fields = fields
        self._aliases: dict[tuple[str, ...], Node] = {}
        self._costs: dict[int, tuple[int, int, Node]] = {}
        """Size and depth of nodes, by identity; the node is stored, so that its identity stays its own."""
        self.start = 0
        """Where the present expression begins."""
        self.element: str | None = None
        """The name of FOREACH's element, where there is one."""
        self._gone: str | None = None
        """The name of the element, where there is none any more."""

    def forget_element(self) -> None:
        """Have no element of FOREACH from here on, also not behind an alias."""
        self._gone, self.element = self.element, None

    def add_alias(self, path: tuple[str, ...], node: Node) -> None:
        """Let a path stand for a value from here on."""
        self._aliases[path] = node

    def fail(self, where: exp.Expr | int, text: str) -> RuleError:
        """Return the error about a node of sqlglot, or about an offset."""
        return RuleError(self.sql, where if isinstance(where, int) else self.offset(where), text)

    def offset(self, parsed: exp.Expr) -> int:
        """Return where a node begins; nodes without a place are where the expression begins."""
        starts = [each.meta["start"] for each in parsed.walk() if "start" in each.meta]
        return int(min(starts)) if starts else self.start

    def measure(self, node: Node, parsed: exp.Expr) -> tuple[int, int]:
        """Return size and depth of a node; raises :class:`RuleError` if they are too large."""
        known = self._costs.get(id(node))
        if known is None:
            inner = [self.measure(child, parsed) for child in children(node)]
            size = 1 + sum(cost[0] for cost in inner)
            deep = 1 + max((cost[1] for cost in inner), default=0)
            if isinstance(node, Case):
                deep += len(node.branches)  # each is within what follows it
            if size > MAX_NODES or deep > MAX_DEPTH:
                raise self.fail(parsed, "the expression is too large, or nested too deep")
            known = self._costs[id(node)] = (size, deep, node)
        return known[0], known[1]

    def call(self, function: Function, arguments: Sequence[Node], offset: int) -> Call:
        """Return a call; raises :class:`RuleError` for constants that it can't have."""
        for place, argument in enumerate(arguments):
            self._check_argument(function, place, argument, offset)
        return Call(function, tuple(arguments), offset)

    def _check_argument(self, function: Function, place: int, argument: Node, offset: int) -> None:
        where = argument.offset or offset
        prepare = function.prepare.get(place)
        if prepare is not None:
            if not isinstance(argument, Constant):
                raise self.fail(where, f"argument {place + 1} of {function.name} must be a constant")
            try:
                prepare(argument.value)
            except ValueError as error:
                raise self.fail(where, f"{function.name}: {error}") from None
        elif isinstance(argument, Constant) and not function.sees_null and argument.value is not None:
            kind = function.kind_of(place)
            if type(argument.value) not in TYPES[kind]:
                found = _KIND_NAMES[type(argument.value)]
                raise self.fail(where, f"argument {place + 1} of {function.name} is a {kind.value}, not a {found}")

    def name(self, keys: Sequence[str], offset: int) -> Node:
        """Return what a path stands for: an alias, the element of FOREACH, or a field."""
        for length in range(len(keys), 0, -1):
            alias = self._aliases.get(tuple(keys[:length]))
            if alias is not None:
                if self._gone is not None and _names(alias, self._gone):
                    raise self.fail(
                        offset, f"{'.'.join(keys)!r} is of an element, and WHERE is about the message: write INCASE"
                    )
                return steps(alias, keys[length:], offset)
        if keys[0] != self.element and keys[0] not in self._fields:
            known = [*self._fields, *(path[0] for path in self._aliases), *([self.element] if self.element else ())]
            hint = did_you_mean(keys[0], known)
            if "payload" in self._fields:
                hint += f"; a part of the payload is payload.{keys[0]}"
            raise self.fail(offset, f"unknown field {keys[0]!r}{hint}")
        return steps(Name(keys[0], offset), keys[1:], offset)


def _names(node: Node, name: str) -> bool:
    """Tell whether a name is in an expression."""
    return (isinstance(node, Name) and node.name == name) or any(_names(child, name) for child in children(node))


def steps(node: Node, keys: Sequence[str | int], offset: int) -> Node:
    """Return what is at keys or indexes within a node."""
    for key in keys:
        node = Step(node, key, offset)
    return node
