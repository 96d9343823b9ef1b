"""Reads the nodes that sqlglot makes of an expression. Only those that are listed here are SQL of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from sqlglot import exp

from kinmqtt_rules.dialect import CASTS, NAME
from kinmqtt_rules.filters import problem_with_filter
from kinmqtt_rules.functions import FUNCTIONS, OPERATORS
from kinmqtt_rules.missing import reason_for_none
from kinmqtt_rules.scope import MAX_DEPTH, Scope
from kinmqtt_rules.tree import Case, Constant, Node, Step, constant

Make: TypeAlias = Callable[[Scope, Any, int], Node]
"""Makes a node of one of sqlglot, at a depth."""


def read(scope: Scope, parsed: exp.Expr, depth: int = 0) -> Node:
    """Return the checked expression; raises :class:`~kinmqtt_rules.errors.RuleError`."""
    rule = _NODES.get(type(parsed))
    if rule is None:
        raise scope.fail(parsed, f"{_shown(parsed)} has no meaning in rules")
    allowed, make = rule
    for name, value in parsed.args.items():
        if name not in allowed and value:
            raise scope.fail(parsed, f"{_shown(parsed)} has no meaning in rules")
    if depth > MAX_DEPTH:
        raise scope.fail(parsed, "the expression is nested too deep")
    made = make(scope, parsed, depth + 1)
    scope.measure(made, parsed)
    return made


def written_path(scope: Scope, parsed: exp.Expr) -> tuple[str, ...] | None:
    """Return the keys of a path, as it is written; ``None`` if it is none."""
    keys = _column_keys(scope, parsed)
    return None if keys is None else tuple(keys)


def _shown(parsed: exp.Expr) -> str:
    """Return a node's name in words of SQL."""
    names = {
        "Star": "*",
        "Alias": "a name without AS",
        "Subquery": "a query within a query",
        "Tuple": "a list of values",
    }
    name = type(parsed).__name__
    return names.get(name, name.upper())


def _literal(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    text, offset = str(parsed.this), scope.offset(parsed)
    if parsed.is_string:
        return constant(text, offset)
    try:
        number: int | float = int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise scope.fail(parsed, f"{text!r} is no number") from None
    if number - number != 0 or (isinstance(number, int) and number >= 1 << 63):
        raise scope.fail(parsed, f"the number {text[:30]} is too large")
    return constant(number, offset)


def _plain(name: exp.Expr) -> str:
    """Return a name as it was written."""
    return str(name.this).removeprefix(NAME)


def _column_keys(scope: Scope, parsed: exp.Expr) -> list[str] | None:
    """Return the keys of a column, or of a column and what is behind further dots."""
    if isinstance(parsed, exp.Dot) and isinstance(parsed.expression, exp.Identifier):
        keys = _column_keys(scope, parsed.this)
        return None if keys is None else [*keys, _plain(parsed.expression)]
    if not isinstance(parsed, exp.Column):
        return None
    parts = [parsed.args.get(name) for name in ("catalog", "db", "table", "this")]
    found = [part for part in parts if part is not None]
    if not all(isinstance(part, exp.Identifier) and _plain(part) for part in found):
        raise scope.fail(parsed, 'a part of a path is a name, as payload.a or payload."1"')
    return [_plain(part) for part in found]


def _column(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    keys = _column_keys(scope, parsed)
    if keys is not None:
        return scope.name(keys, scope.offset(parsed))
    assert isinstance(parsed, exp.Dot)
    if not isinstance(parsed.expression, exp.Identifier):
        raise scope.fail(parsed, "behind a dot there is a name")
    return Step(read(scope, parsed.this, depth), _plain(parsed.expression), scope.offset(parsed.expression))


def _bracket(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    of = read(scope, parsed.this, depth)
    if len(parsed.expressions) != 1:
        raise scope.fail(parsed, "there is one index in brackets")
    index = read(scope, parsed.expressions[0], depth)
    if not isinstance(index, Constant):
        return scope.call(OPERATORS["item"], (of, index), index.offset)
    if index.value == 0:
        raise scope.fail(index.offset, "indexes count from 1, or from -1 at the end")
    if type(index.value) not in (int, str):
        raise scope.fail(index.offset, "an index is a whole number, or the text of a key")
    return Step(of, index.value, index.offset)  # type: ignore[arg-type]  # one of the two types above


def _negative(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    inner = read(scope, parsed.this, depth)
    if isinstance(inner, Constant) and type(inner.value) in (int, float):
        return constant(-inner.value, max(0, inner.offset - 1))  # type: ignore[operator]  # a number
    return scope.call(OPERATORS["negate"], (inner,), inner.offset)


def _function(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    name = parsed.this
    if not isinstance(name, str):
        raise scope.fail(parsed, "a function has a plain name")
    name = name.removeprefix(NAME)
    if name.lower() == "cast":
        return _cast(scope, parsed, depth)
    function = FUNCTIONS.get(name.lower())
    if function is None:
        raise scope.fail(parsed, reason_for_none(name))
    arguments = [read(scope, each, depth) for each in parsed.expressions]
    if not function.takes(len(arguments)):
        raise scope.fail(parsed, f"{function.signature} can't have {len(arguments)} arguments")
    return scope.call(function, arguments, scope.offset(parsed))


def _operator(name: str) -> Make:
    def make(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
        operands = [parsed.this, parsed.expression]
        for operand in operands:
            if isinstance(operand, exp.Null) and name not in ("and", "or"):
                raise scope.fail(parsed, "it would always be NULL; write IS NULL or IS NOT NULL")
        one, two = (read(scope, operand, depth) for operand in operands)
        if name == "topic_matches" and isinstance(two, Constant) and isinstance(two.value, str):
            problem = problem_with_filter(two.value)
            if problem is not None:
                raise scope.fail(two.offset, f"{two.value!r} {problem}")
        return scope.call(OPERATORS[name], (one, two), one.offset)

    return make


def _logic(name: str) -> Make:
    """Return what reads AND or OR: a long chain becomes a tree of little depth."""

    def make(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
        operands = [read(scope, each, depth) for each in parsed.flatten(unnest=False)]
        while len(operands) > 1:
            pairs = [operands[place : place + 2] for place in range(0, len(operands), 2)]
            operands = [
                scope.call(OPERATORS[name], pair, pair[0].offset) if len(pair) == 2 else pair[0] for pair in pairs
            ]
        return operands[0]

    return make


def _like(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    made = _operator("like")(scope, parsed, depth)
    return scope.call(OPERATORS["not"], (made,), made.offset) if parsed.args.get("negate") else made


def _not(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    inner = read(scope, parsed.this, depth)
    return scope.call(OPERATORS["not"], (inner,), inner.offset)


def _is_operator(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    inner = read(scope, parsed.this, depth)
    if isinstance(parsed.expression, exp.Null):
        return scope.call(FUNCTIONS["is_null"], (inner,), inner.offset)
    if isinstance(parsed.expression, exp.Boolean):
        name = "is_true" if parsed.expression.this else "is_false"
        return scope.call(OPERATORS[name], (inner,), inner.offset)
    raise scope.fail(parsed, "behind IS there is NULL, NOT NULL, TRUE or FALSE")


def _between(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    one, low, high = (read(scope, parsed.args[name], depth) for name in ("this", "low", "high"))
    bounds = [scope.call(OPERATORS[name], (one, bound), one.offset) for name, bound in (("gte", low), ("lte", high))]
    return scope.call(OPERATORS["and"], bounds, one.offset)


def _in(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    others = parsed.expressions or [parsed.args.get("field")]
    if None in others:
        raise scope.fail(parsed, "there is nothing in the list of IN")
    parts = [read(scope, each, depth) for each in (parsed.this, *others)]
    return scope.call(OPERATORS["in"], parts, parts[0].offset)


def _case(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    subject = None if parsed.this is None else read(scope, parsed.this, depth)
    branches = []
    for branch in parsed.args.get("ifs") or ():
        condition = read(scope, branch.this, depth)
        if subject is not None:
            condition = scope.call(OPERATORS["eq"], (subject, condition), condition.offset)
        branches.append((condition, read(scope, branch.args["true"], depth)))
    if not branches:
        raise scope.fail(parsed, "CASE needs WHEN … THEN …")
    default = parsed.args.get("default")
    otherwise = constant(None) if default is None else read(scope, default, depth)
    return Case(tuple(branches), otherwise, branches[0][0].offset)


def _cast(scope: Scope, parsed: exp.Expr, depth: int) -> Node:
    if len(parsed.expressions) != 2 or not parsed.expressions[1].is_string:
        raise scope.fail(parsed, "CAST needs a type: CAST(… AS int)")
    of, to = parsed.expressions
    name = CASTS.get(str(to.this).lower())
    if name is None:
        raise scope.fail(to, f"CAST to {to.this} is unknown; use {', '.join(CASTS)}")
    inner = read(scope, of, depth)
    return scope.call(FUNCTIONS[name], (inner,), inner.offset)


_TWO: Final = frozenset(("this", "expression"))
_ONE: Final = frozenset(("this",))

_NODES: Final[Mapping[type[Any], tuple[frozenset[str], Make]]] = {
    exp.Literal: (frozenset(("this", "is_string")), _literal),
    exp.Boolean: (_ONE, lambda scope, parsed, depth: constant(bool(parsed.this), scope.offset(parsed))),
    exp.Null: (frozenset(), lambda scope, parsed, depth: constant(None, scope.offset(parsed))),
    exp.Column: (frozenset(("this", "table", "db", "catalog")), _column),
    exp.Dot: (_TWO, _column),
    exp.Bracket: (frozenset(("this", "expressions")), _bracket),
    exp.Paren: (_ONE, lambda scope, parsed, depth: read(scope, parsed.this, depth)),
    exp.Neg: (_ONE, _negative),
    exp.Anonymous: (frozenset(("this", "expressions")), _function),
    exp.And: (_TWO, _logic("and")),
    exp.Or: (_TWO, _logic("or")),
    exp.Not: (_ONE, _not),
    exp.Is: (_TWO, _is_operator),
    exp.Between: (frozenset(("this", "low", "high")), _between),
    exp.In: (frozenset(("this", "expressions", "field")), _in),
    exp.Case: (frozenset(("this", "ifs", "default")), _case),
    exp.Like: (_TWO | {"negate"}, _like),
    exp.Div: (_TWO | {"typed", "safe"}, _operator("divide")),
    **{
        made: (_TWO, _operator(name))
        for made, name in (
            (exp.EQ, "eq"),
            (exp.NEQ, "neq"),
            (exp.GT, "gt"),
            (exp.GTE, "gte"),
            (exp.LT, "lt"),
            (exp.LTE, "lte"),
            (exp.Add, "add"),
            (exp.Sub, "subtract"),
            (exp.Mul, "multiply"),
            (exp.IntDiv, "div"),
            (exp.Mod, "mod"),
            (exp.RegexpLike, "topic_matches"),
        )
    },
}
"""The nodes of sqlglot that rules have; Identifier and If are read within others."""
