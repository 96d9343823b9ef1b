"""A rule becomes one Python function, which is safe and readable."""

from __future__ import annotations

import ast

import pytest

from kinmqtt_rules.runtime import MAX_ROWS, TooManyRows
from rules_harness.running import compiled, message_of, rows_of, subject_of

SENSORS = {"on": True, "sensors": [{"n": "a", "v": 1}, {"n": "b", "v": 5}, {"n": "c", "v": "x"}]}


def test_a_row_has_what_is_selected() -> None:
    """Under its name, or under its path."""
    assert rows_of('SELECT payload.on AS on, clientid, payload.x FROM "t/#"', SENSORS) == (
        {"on": True, "clientid": "c1", "payload": {"x": None}},
    )


@pytest.mark.parametrize(
    "where", ["false", "payload.nothing", "payload.nothing > 1", "payload.on = 1", "qos", "NOT payload.on"]
)
def test_what_is_not_true_makes_no_row(where: str) -> None:
    """NULL and what is no truth value count as false."""
    assert rows_of(f'SELECT clientid FROM "t/#" WHERE {where}', SENSORS) is None


def test_a_star_is_all_fields() -> None:
    """Names before and behind it add to them."""
    rows = rows_of('SELECT *, 1 AS one FROM "t/#"', SENSORS)

    assert rows is not None
    assert {"one": 1, "topic": "t/1", "qos": 1}.items() <= rows[0].items()


def test_a_name_stands_for_its_value_from_then_on() -> None:
    """Also in WHERE, as EMQX does."""
    assert rows_of('SELECT qos + 1 AS n, n * 2 AS m FROM "t" WHERE n = 2 AND m = 4') == ({"n": 2, "m": 4},)


def test_a_value_can_be_put_into_the_payload() -> None:
    """The message's own payload stays as it is."""
    subject = subject_of(message_of({"a": {"b": 1}}))
    rule = compiled('SELECT *, 2 AS payload.a.c FROM "t"')

    [first] = rule.run(subject) or ()

    assert first["payload"] == {"a": {"b": 1, "c": 2}}
    assert subject.document() == {"a": {"b": 1}}
    assert rows_of('SELECT 1 AS payload.x, payload.x + 1 AS y FROM "t"') == ({"payload": {"x": 1}, "y": 2},)


def test_a_value_is_put_into_a_payload_that_is_selected_by_its_name() -> None:
    """As into that of all fields: its other parts stay."""
    assert rows_of('SELECT payload, 2 AS payload.c FROM "t"', {"a": 1}) == ({"payload": {"a": 1, "c": 2}},)


@pytest.mark.parametrize("call", ["mod(item, 2) = 0", "in(item, 2, 4)"])
def test_a_function_named_like_an_operator_stands_behind_words_of_foreach(call: str) -> None:
    """DO and INCASE are no operands."""
    assert rows_of(f'FOREACH payload.l DO {call} AS x INCASE {call} FROM "t"', {"l": [1, 2]}) == [{"x": True}]


def test_foreach_makes_a_row_of_each_element() -> None:
    """INCASE leaves some out, DO says what a row has."""
    sql = 'FOREACH payload.sensors AS s DO s.n AS n, clientid INCASE s.v > 1 FROM "t/#" WHERE payload.on'

    assert rows_of(sql, SENSORS) == [{"n": "b", "clientid": "c1"}]
    assert rows_of(sql, {**SENSORS, "on": False}) is None


def test_foreach_without_do_gives_the_elements() -> None:
    """They may be anything."""
    assert rows_of('FOREACH payload.l FROM "t/#"', {"l": [1, "a", {"x": 2}]}) == [1, "a", {"x": 2}]
    assert rows_of("FOREACH split(payload.t, ',') DO item AS x FROM \"t/#\"", {"t": "a,b"}) == [
        {"x": "a"},
        {"x": "b"},
    ]


@pytest.mark.parametrize("payload", [{}, {"sensors": {}}, {"sensors": None}, b"x"])
def test_foreach_over_what_is_no_array_makes_no_row(payload: object) -> None:
    """It is as an empty one."""
    assert rows_of('FOREACH payload.sensors DO item.n AS n FROM "t/#"', payload) == []


def test_foreach_has_a_bound() -> None:
    """A client can't make any number of messages with one."""
    assert len(rows_of('FOREACH payload.l FROM "t"', {"l": [0] * MAX_ROWS}) or ()) == MAX_ROWS
    with pytest.raises(TooManyRows):
        rows_of('FOREACH payload.l FROM "t"', {"l": [0] * (MAX_ROWS + 1)})


def test_equal_expressions_are_computed_once() -> None:
    """Across WHERE and SELECT, also where an alias stands for one."""
    source = compiled(
        "SELECT upper(payload.t) AS a, upper(payload.t) + a AS b FROM \"t\" WHERE upper(payload.t) <> ''"
    ).source

    assert source.count("f_upper(") == 1


def test_what_where_decides_alone_comes_first() -> None:
    """What is selected is not computed for messages that do not match."""
    lines = compiled("SELECT upper(topic) AS a FROM \"t\" WHERE qos = 1 AND clientid = 'x'").source.splitlines()

    assert [line.strip() for line in lines] == [
        "def rule(s):",
        "v1 = field_qos(s)",
        "if (v1 == 1 if kind(v1) in number_types else f_eq(v1, 1)) is not True:",
        "return None",
        "v2 = field_clientid(s)",
        "if (v2 == 'x' if kind(v2) in text_types else f_eq(v2, 'x')) is not True:",
        "return None",
        "row = {'a': f_upper(field_topic(s))}",
        "return (row,)",
    ]


HOSTILE = [
    "SELECT '\\''+__import__(\"os\")' AS x FROM \"t\"",
    'SELECT payload."x\'] or s.__class__ or [\'" AS x FROM "t"',
    'SELECT \'a\nimport os\n\' AS "x\ny" FROM "t"',
    'SELECT payload.__class__.__bases__ AS x, payload."""" AS y FROM "t"',
    "SELECT '{0}%s\\N{BULLET}' AS x FROM \"t\"",
]
ALLOWED = {
    ast.Module,
    ast.FunctionDef,
    ast.arguments,
    ast.arg,
    ast.If,
    ast.For,
    ast.Return,
    ast.Assign,
    ast.AugAssign,
    ast.Add,
    ast.Expr,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Store,
    ast.Constant,
    ast.Dict,
    ast.Tuple,
    ast.List,
    ast.Compare,
    ast.IsNot,
    ast.Is,
    ast.In,
    ast.Attribute,
    ast.IfExp,
    ast.Continue,
    ast.UnaryOp,
    ast.USub,
}


@pytest.mark.parametrize("sql", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_and_names_never_become_code(sql: str) -> None:
    """They are constants in the generated function, whatever is in them."""
    try:
        rule = compiled(sql)
    except ValueError:
        return
    tree = ast.parse(rule.source)

    rule.run(subject_of(message_of({})))

    assert {type(node) for node in ast.walk(tree)} <= ALLOWED
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} <= {"get"}
