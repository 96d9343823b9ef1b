"""What EMQX's documentation shows: the same here, but for what docs/rules.md lists."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_rules.checking import check
from kinmqtt_rules.errors import RuleError
from rules_harness.running import rows_of, value_of

SENSORS = {
    "date": "2020-04-24",
    "sensors": [{"name": "a", "idx": 0}, {"name": "b", "idx": 1}, {"name": "c", "idx": 2}],
}

STATEMENTS: list[tuple[str, Any, Any]] = [
    ('SELECT * FROM "t/#" WHERE username = \'bob\'', {}, None),
    ('SELECT clientid as cid FROM "#" WHERE cid = \'c1\'', {}, [{"cid": "c1"}]),
    ('SELECT clientid as cid FROM "#" WHERE username = \'ada\'', {}, [{"cid": "c1"}]),
    ('SELECT payload.msg as msg FROM "t/#" WHERE msg = \'hello\'', {"msg": "hello"}, [{"msg": "hello"}]),
    ('SELECT payload.msg as msg FROM "t/#" WHERE msg = \'hello\'', {"msg": "other"}, None),
    ('SELECT clientid, payload.clientid as mine FROM "t/#", "u"', {"clientid": 7}, [{"clientid": "c1", "mine": 7}]),
    ('SELECT payload.x.y as y FROM "t/#" WHERE y = 1', {"x": {"y": 1}}, [{"y": 1}]),
    ('SELECT payload.a[1].x as x FROM "t/#"', {"a": [{"x": 3}]}, [{"x": 3}]),
    ('SELECT payload.a[-1] as x FROM "t/#"', {"a": [3, 4]}, [{"x": 4}]),
    ('SELECT payload.x as x FROM "t/#" WHERE topic =~ \'t/#\'', {"x": 1}, [{"x": 1}]),
    ("SELECT CASE WHEN payload.x < 0 THEN 0 WHEN payload.x > 7 THEN 7 ELSE payload.x END as x FROM \"t/#\"",
     {"x": 8}, [{"x": 7}]),
    ("SELECT CASE payload.x WHEN 1 THEN 2 END as x FROM \"t/#\"", {"x": 5}, [{"x": None}]),
    ('SELECT payload.x + 1 as a, payload.x div 2 as b, payload.x mod 2 as c FROM "t/#"', {"x": 5},
     [{"a": 6, "b": 2, "c": 1}]),
    ('SELECT 1 as payload.y, payload.y + 1 as z FROM "t/#"', {}, [{"payload": {"y": 1}, "z": 2}]),
    ('FOREACH payload.sensors FROM "t/#"', SENSORS, SENSORS["sensors"]),
    ('FOREACH payload.sensors as e DO clientid, e.name as name, e.idx as idx INCASE e.idx >= 1 FROM "t/#"', SENSORS,
     [{"clientid": "c1", "name": "b", "idx": 1}, {"clientid": "c1", "name": "c", "idx": 2}]),
    ('FOREACH payload.sensors DO item.name as name, payload.date as date INCASE name = \'a\' FROM "t/#"', SENSORS,
     [{"name": "a", "date": "2020-04-24"}]),
    ('FOREACH payload.sensors as e DO e.idx + 1 as n FROM "t/#" WHERE payload.date = \'2020-04-24\'', SENSORS,
     [{"n": 1}, {"n": 2}, {"n": 3}]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "payload", "expected"), STATEMENTS, ids=[row[0] for row in STATEMENTS])
def test_a_statement_makes_its_rows(sql: str, payload: Any, expected: Any) -> None:
    """SELECT, FOREACH, CASE, paths and names."""
    rows = rows_of(sql, payload)

    assert (None if rows is None else list(rows)) == expected


CALLS: list[tuple[str, Any]] = [
    ("abs(-12)", 12),
    ("ceil(0.8)", 1),
    ("floor(3.6)", 3),
    ("round(4.5)", 5),
    ("power(2, 3)", 8.0),
    ("sqrt(9)", 3.0),
    ("ascii('a')", 97),
    ("find('eeabcabcee', 'abc')", "abcabcee"),
    ("find('eeabcabcee', 'abc', 'trailing')", "abcee"),
    ("lower('Hello')", "hello"),
    ("upper('hello')", "HELLO"),
    ("trim(concat('  ', 'hello '))", "hello"),
    ("pad('abc', 5)", "abc  "),
    ("pad('abc', 5, 'leading')", "  abc"),
    ("pad('abc', 5, 'both')", " abc "),
    ("pad('abc', 5, 'trailing', '*')", "abc**"),
    (r"regex_match('123', '^\d+$')", True),
    (r"regex_replace('hello 123', '\d+', 'world')", "hello world"),
    (r"regex_extract('Number: 12345', '(\d+)')", ["12345"]),
    ("replace('ababef', 'ab', 'cd')", "cdcdef"),
    ("replace('ababef', 'ab', 'cd', 'leading')", "cdabef"),
    ("replace('ababef', 'ab', 'cd', 'trailing')", "abcdef"),
    ("split('a;', ';')", ["a"]),
    ("split('a;', ';', 'notrim')", ["a", ""]),
    ("split('a;b;c', ';', 'leading')", ["a", "b;c"]),
    ("sprintf('hello, ~s!', 'steve')", "hello, steve!"),
    ("sprintf('count: ~p~n', 100)", "count: 100\n"),
    ("strlen('hello')", 5),
    ("substr('hello', 1)", "ello"),
    ("substr('hello', 0, 4)", "hell"),
    ("tokens('a,b;c', ',;')", ["a", "b", "c"]),
    ("nth(1, split('a,b', ','))", "a"),
    ("length(split('a,b', ','))", 2),
    ("first(split('a,b', ','))", "a"),
    ("last(split('a,b', ','))", "b"),
    ("contains('a', split('a,b', ','))", True),
    ("sublist(2, json_decode('[1,2,3,4]'))", [1, 2]),
    ("sublist(2, 10, json_decode('[1,2,3,4]'))", [2, 3, 4]),
    ("map_get('b', json_decode('{\"a\":1}'), 2)", 2),
    ("map_put('a', 2, json_decode('{}'))", {"a": 2}),
    ("md5('hello')", "5d41402abc4b2a76b9719d911017c592"),
    ("sha('hello')", "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"),
    ("bitand(10, 8)", 8),
    ("bitnot(10)", -11),
    ("bitor(10, 6)", 14),
    ("bitsl(8, 2)", 32),
    ("bitsr(8, 2)", 2),
    ("bitxor(10, 8)", 2),
    ("subbits('abc', 8)", 97),
    ("subbits('abc', 9, 8)", 98),
    ("subbits('abc', 9, 16, 'integer', 'signed', 'little')", 25_442),
    ("base64_encode('hello')", "aGVsbG8="),
    ("base64_decode('aGVsbG8=')", "hello"),
    ("bin2hexstr('hello')", "68656C6C6F"),
    ("rfc3339_to_unix_ts('2024-05-22T16:57:46+08:00')", 1_716_368_266),
    ("int('1')", 1),
    ("float('3.14')", 3.14),
    ("format_date('second', '+0800', '%Y-%m-%d %H:%M:%S%:z', 1653561612)", "2022-05-26 18:40:12+08:00"),
]


@pytest.mark.parametrize(("expression", "expected"), CALLS, ids=[row[0] for row in CALLS])
def test_a_function_gives_its_value(expression: str, expected: Any) -> None:
    """As a number, a text, an array or a map."""
    assert value_of(expression) == expected


DIFFERENT: list[tuple[str, Any]] = [
    ("1 = '1'", None),  # mistyped
    ("payload.nothing = 1", None),  # unknown
    ("1 / 0", None),  # there it fails
    ("concat('a', payload.n)", None),  # str(payload.n) is to be written
    ("unix_ts_to_rfc3339(0)", "1970-01-01T00:00:00Z"),  # there in local time
]


@pytest.mark.parametrize(("expression", "expected"), DIFFERENT, ids=[row[0] for row in DIFFERENT])
def test_a_difference_is_as_documented(expression: str, expected: Any) -> None:
    """In the list of docs/rules.md."""
    assert value_of(expression, {"n": 1}) == expected


@pytest.mark.parametrize(
    "call",
    [
        "jq('.', payload)",
        "schema_decode('s', payload)",
        "kv_store_get('a')",
        "getenv('A')",
        "uuid_v4()",
        "map(payload)",
    ],
)
def test_what_is_missing_names_another_way(call: str) -> None:
    """With its place."""
    with pytest.raises(RuleError, match=r"1:8: no function .* here: "):
        check(f'SELECT {call} AS x FROM "t"')
