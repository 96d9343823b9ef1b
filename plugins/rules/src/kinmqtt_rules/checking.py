"""Checks a rule's SQL, and makes of it what compilers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen
from sqlglot.tokenizer_core import Token

from kinmqtt_rules.dialect import parse_expression
from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.fields import EVENT_TOPICS, EVENTS, event_topic, fields_of
from kinmqtt_rules.filters import problem_with_source
from kinmqtt_rules.nodes import read, written_path
from kinmqtt_rules.scope import Scope
from kinmqtt_rules.statement import Item, Statement, cut
from kinmqtt_rules.tree import Name, Node
from kinmqtt_spi.settings import did_you_mean

ITEM: Final = "item"
"""The name of FOREACH's element, where there is no AS."""


@frozen(slots=True)
class Output:
    """A value of a row; without a node all fields."""

    path: tuple[str, ...]
    node: Node | None


@frozen(slots=True)
class CheckedRule:
    """A rule's SQL that makes sense."""

    sql: str
    filters: tuple[str, ...]
    """Topic filters of messages."""
    events: tuple[str, ...]
    """Topics of events, by their present names."""
    fields: tuple[str, ...]
    outputs: tuple[Output, ...]
    """What a row has. Without any, each element of FOREACH is a row."""
    where: Node | None
    foreach: Node | None
    element: str
    incase: Node | None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of a row's values; ``None`` if they depend on the element of FOREACH."""
        if not self.outputs:
            return None
        names = [output.path[:1] if output.node is not None else self.fields for output in self.outputs]
        return tuple(dict.fromkeys(name for several in names for name in several))

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of a row's values that are the message's topic, whichever of those with a name counts."""
        found: dict[str, bool] = {}
        for output in self.outputs:
            name = "topic" if output.node is None else output.path[0]
            is_topic = output.node is None or (output.node == Name("topic") and len(output.path) == 1)
            found[name] = found.get(name, True) and is_topic
        return tuple(name for name, is_topic in found.items() if is_topic)


def check(sql: str) -> CheckedRule:
    """Return the checked rule; raises :class:`RuleError` with the place of the first mistake."""
    statement = cut(sql)
    filters, events = _sources(statement)
    fields = tuple(fields_of((*filters, *events)))
    scope = Scope(sql, fields)
    foreach, element = None, ITEM
    if statement.foreach is not None:
        foreach = _expression(scope, statement.foreach.tokens)
        [element] = statement.foreach.alias or (ITEM,)
        if element in fields:
            raise scope.fail(statement.foreach.offset, f"{element!r} is a field: name the element otherwise")
        scope.element = element
    outputs = tuple(_output(scope, item) for item in statement.items)
    incase = _expression(scope, statement.incase) if statement.incase else None
    scope.forget_element()
    where = _expression(scope, statement.where) if statement.where else None
    return CheckedRule(sql, filters, events, fields, outputs, where, foreach, element, incase)


def _expression(scope: Scope, tokens: Sequence[Token]) -> Node:
    scope.start = tokens[0].start
    return read(scope, parse_expression(scope.sql, tokens))


def _output(scope: Scope, item: Item) -> Output:
    """Return a value of the row; its name stands for it from here on."""
    if item.is_star:
        return Output((), None)
    scope.start = item.offset
    parsed = parse_expression(scope.sql, item.tokens)
    node = read(scope, parsed)
    if item.alias:
        scope.add_alias(item.alias, node)
        return Output(item.alias, node)
    path = written_path(scope, parsed)
    if path is None:
        raise scope.fail(item.offset, "it has no name: write … AS name")
    return Output(path, node)


def _sources(statement: Statement) -> tuple[tuple[str, ...], tuple[str, ...]]:
    filters, events = [], []
    for source, offset in statement.sources:
        if source.startswith(EVENT_TOPICS):
            topic = event_topic(source)
            if topic is None:
                hint = did_you_mean(source, EVENTS)
                raise RuleError(statement.sql, offset, f"no events {source!r}{hint}; there are: {', '.join(EVENTS)}")
            events.append(topic.name)
        else:
            problem = problem_with_source(source)
            if problem is not None:
                raise RuleError(statement.sql, offset, f"{source!r} {problem}")
            filters.append(source)
    return tuple(dict.fromkeys(filters)), tuple(dict.fromkeys(events))
