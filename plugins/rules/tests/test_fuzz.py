"""Whatever is written as a rule, and whatever comes as a payload: nothing is raised but the error with its place."""

from __future__ import annotations

import ast
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_rules.checking import check
from kinmqtt_rules.compiling import compile_rule
from kinmqtt_rules.dialect import parse_expression, tokenize
from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.functions import FUNCTIONS
from rules_harness.running import message_of, subject_of
from rules_harness.writing import expressions

WORDS = [
    *[
        r"SELECT",
        r"FROM",
        r"WHERE",
        r"FOREACH",
        r"DO",
        r"INCASE",
        r"AS",
        r"AND",
        r"OR",
        r"NOT",
        r"CASE",
        r"WHEN",
        r"THEN",
        r"ELSE",
        r"END",
        r"BETWEEN",
        r"IN",
        r"LIKE",
        r"IS",
        r"NULL",
        r"TRUE",
        r"FALSE",
        r"CAST",
        r"div",
        r"mod",
        r"=~",
        r"=",
        r"<>",
        r"<",
        r">",
        r"<=",
        r">=",
        r"+",
        r"-",
        r"*",
        r"/",
        r"(",
        r")",
        r"[",
        r"]",
        r",",
        r".",
        r";",
        r'"t/#"',
        r'"a"',
        r"'x'",
        r"'%'",
        r"1",
        r"-1",
        r"0",
        r"2.5",
        r"1e3",
        r"payload",
        r"topic",
        r"qos",
        r"item",
        r"list",
        r"map",
        r"array",
        r"struct",
        r"payload.a",
        r"payload.b[1]",
        r"distinct",
        r"interval",
        r"date",
        r"timestamp",
        r"over",
        r"partition",
        r"order",
        r"limit",
        r"union",
        r"with",
        r"values",
        r"any",
        r"all",
        r"exists",
        r"unnest",
        r"lateral",
        r"extract",
        r"if",
        r"now_timestamp()",
        r"upper(",
        r"concat(",
        r"at",
        r"time",
        r"zone",
        r"escape",
        r"collate",
        r"::",
        r"->",
        r"?",
        r"@",
        r"$",
        r"{",
        r"}",
        r"`",
        r"'",
        r'"',
        r"--",
        r"/*",
        r"*/",
        r"~",
        r"|",
        r"&",
        r"^",
        r"%",
        r"#",
    ],
    *sorted(FUNCTIONS),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
PAYLOADS = st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode())
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
STATEMENTS = (
    TEXTS
    | TEXTS.map(lambda text: f'SELECT {text} AS x FROM "t/#"')
    | TEXTS.map(lambda text: f'SELECT * FROM "t/#" WHERE {text}')
)


HELPERS = {"kind", "document", "get", "at", "put", "put_in_payload", "elements", "now"}


def called(node: ast.AST) -> set[str]:
    """Return the names that a generated function calls."""
    return {each.func.id for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}


def outputs_of(expression: str) -> object:
    """Return the checked expression; ``None`` if a constant in it has a wrong type."""
    try:
        return check(f'SELECT {expression} AS x FROM "t/#"').outputs
    except RuleError as error:
        assert ", not a " in error.text
        return None


@given(STATEMENTS, PAYLOADS)
def test_any_text_is_a_rule_or_an_error_with_a_place(sql: str, payload: bytes) -> None:
    """Such a rule never raises for a message, and calls nothing but our functions."""
    try:
        rule = compile_rule(check(sql))
    except RuleError as error:
        assert 0 <= error.offset <= len(sql)
        assert error.text
        return

    rule.run(subject_of(message_of(payload)))

    assert all(name.startswith(("f_", "field_")) or name in HELPERS for name in called(ast.parse(rule.source)))


@given(expressions(), JSON)
def test_expressions_are_read_as_they_are_written(written: tuple[str, Any], payload: Any) -> None:
    """An expression, written with all its parentheses, is the same as with those only that SQL needs."""
    bare, bracketed = written

    one, two = (outputs_of(text) for text in (bare, bracketed))

    assert one == two
    if one is not None:
        compile_rule(check(f'SELECT {bare} AS x FROM "t/#"')).run(
            subject_of(message_of(json.dumps(payload).encode()))
        )


@given(expressions(), expressions(), JSON)
def test_what_is_left_out_by_its_payload_has_no_rows(
    one: tuple[str, Any], two: tuple[str, Any], payload: Any
) -> None:
    """Looking at the payload first changes nothing: neither rows nor what is counted."""
    try:
        rule = compile_rule(check(f'SELECT * FROM "t/#" WHERE payload.a = {one[1]} AND ({two[1]})'))
    except RuleError:
        return
    subject = subject_of(message_of(json.dumps(payload).encode()))
    assert rule.wants is not None or "payload.a" not in rule.source
    if rule.wants is None:
        return

    wanted = rule.wants(subject.document())
    looked, rule.tally.mistyped = rule.tally.mistyped, 0
    rows = rule.run(subject)

    assert wanted or (rows is None and rule.tally.mistyped == looked)


@given(st.text(max_size=30))
def test_tokens_are_read_or_refused(text: str) -> None:
    """Also by themselves."""
    try:
        found = tokenize(text)
        if found:
            parse_expression(text, found)
    except RuleError:
        pass
