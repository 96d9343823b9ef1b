"""Functions and operators, each by a table."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_rules.functions import FUNCTIONS, OPERATORS, Function, Kind
from rules_harness.running import value_and_mistypes, value_of

ALL = [*FUNCTIONS.values(), *(each for name, each in OPERATORS.items() if name not in FUNCTIONS)]
SAMPLES = {
    Kind.NUMBER: 1.5,
    Kind.INTEGER: 3,
    Kind.TEXT: "a",
    Kind.BOOL: True,
    Kind.BINARY: "a",
    Kind.ARRAY: [1],
    Kind.MAP: {"a": 1},
    Kind.ANY: 1,
}
CHECKED = [each for each in FUNCTIONS.values() if not each.sees_null and each.parameters]


@pytest.mark.parametrize("function", ALL, ids=lambda each: each.name)
def test_a_function_does_what_its_documentation_shows(function: Function) -> None:
    """The example of each is the documentation's, too."""
    expression, expected = function.example

    found = value_of(expression)

    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("function", ALL, ids=lambda each: each.name)
def test_a_function_is_described(function: Function) -> None:
    """In a sentence."""
    assert function.help.endswith(".")


@pytest.mark.parametrize("function", CHECKED, ids=lambda each: each.name)
def test_null_makes_null_and_is_not_counted(function: Function) -> None:
    """Whichever argument is unknown."""
    for place in range(function.required):
        if place in function.prepare:
            continue
        arguments = [
            _argument(function, each, "payload.nothing" if each == place else None)
            for each in range(function.required)
        ]

        found = value_and_mistypes(f"{function.name}({', '.join(arguments)})", SAMPLES_PAYLOAD)

        assert found == (None, 0)


@pytest.mark.parametrize("function", CHECKED, ids=lambda each: each.name)
def test_a_wrong_type_makes_null_and_is_counted(function: Function) -> None:
    """Whichever argument it is."""
    for place in range(function.required):
        kind = function.kind_of(place)
        if place in function.prepare or kind is Kind.ANY:
            continue
        wrong = "payload.ARRAY" if kind is not Kind.ARRAY else "payload.MAP"
        arguments = [_argument(function, each, wrong if each == place else None) for each in range(function.required)]

        found = value_and_mistypes(f"{function.name}({', '.join(arguments)})", SAMPLES_PAYLOAD)

        assert found == (None, 1)


SAMPLES_PAYLOAD = {kind.name: value for kind, value in SAMPLES.items()}
CONSTANTS = {"format_date": ["'second'", "'Z'", "'%Y'"], "sprintf": ["'~s'"]}


def _argument(function: Function, place: int, other: str | None) -> str:
    if other is not None:
        return other
    if place in function.prepare:
        return CONSTANTS.get(function.name, ["'second'"] * 3)[place]
    return f"payload.{function.kind_of(place).name}"


PAYLOAD: dict[str, Any] = {
    "n": 7,
    "f": 2.5,
    "neg": -7,
    "t": "abc",
    "e": "",
    "yes": True,
    "no": False,
    "nil": None,
    "big": 9_223_372_036_854_775_807,
    "list": [1, 2, 3],
    "map": {"a": {"b": 1}, "a.b": 2},
    "ü": "ß",
    "spaced": "  x ",
    "blanks": "\t x\n",
    "digits": "12",
}

ROWS: list[tuple[str, Any]] = [
    # three-valued logic
    ("payload.yes AND payload.nil", None),
    ("payload.no AND payload.nil", False),
    ("payload.nil AND payload.no", False),
    ("payload.yes OR payload.nil", True),
    ("payload.no OR payload.nil", None),
    ("NOT payload.nil", None),
    ("NOT payload.no", True),
    ("payload.nil IS NULL", True),
    ("payload.n IS NOT NULL", True),
    ("payload.nil IS TRUE", False),
    ("payload.yes IS TRUE", True),
    ("payload.no IS FALSE", True),
    ("payload.nil IS NOT TRUE", True),
    ("NOT payload.n = 7 OR payload.yes", True),
    # comparisons
    ("payload.n = 7.0", True),
    ("payload.n <> 7", False),
    ("payload.n != 8", True),
    ("payload.t < 'b'", True),
    ("payload.t = payload.n", None),
    ("payload.t > 1", None),
    ("payload.yes = 1", None),
    ("payload.yes = payload.yes", True),
    ("payload.yes > payload.no", None),
    ("payload.list = payload.list", None),
    ("payload.n BETWEEN 7 AND 8", True),
    ("payload.n NOT BETWEEN 7 AND 8", False),
    ("payload.nil BETWEEN 1 AND 2", None),
    ("payload.n BETWEEN payload.nil AND 2", False),
    ("payload.n IN (1, 7)", True),
    ("payload.n IN (1, payload.nil)", None),
    ("payload.n NOT IN (1, 2)", True),
    ("payload.n IN ('7', 8)", None),
    ("payload.n IN payload.list", False),
    ("2 IN payload.list", True),
    ("payload.nil IN (1)", None),
    ("in(2, payload.list)", True),
    ("nin(payload.nil, 1)", None),
    ("payload.t LIKE 'a%'", True),
    ("payload.t LIKE '%c'", True),
    ("payload.t LIKE 'a_c'", True),
    ("payload.t LIKE 'a'", False),
    ("payload.t NOT LIKE '%b%'", False),
    ("payload.t LIKE '%a%b%c%'", True),
    ("payload.t LIKE 'ab%bc'", False),
    ("payload.e LIKE '%'", True),
    ("payload.t LIKE 'A%'", False),
    ("payload.n LIKE '7'", None),
    ("topic =~ 't/+'", True),
    ("topic =~ 'x/#'", False),
    # arithmetic
    ("1 + 2 * 3", 7),
    ("(1 + 2) * 3", 9),
    ("7 / 2", 3.5),
    ("6 / 2", 3.0),
    ("7 div 2", 3),
    ("payload.neg div 2", -3),
    ("payload.n mod 4", 3),
    ("payload.neg mod 4", -3),
    ("payload.f div 2", None),
    ("1 / 0", None),
    ("1 div 0", None),
    ("1 mod 0", None),
    ("-payload.n", -7),
    ("- -payload.n", 7),
    ("3 - -2", 5),
    ("payload.t + 'd'", "abcd"),
    ("payload.t + 1", None),
    ("payload.big + 1", None),
    ("payload.big * 2", None),
    ("1e308 * 10", None),
    ("payload.yes + 1", None),
    ("10 - 2 - 3", 5),
    ("2 * 7 mod 4", 2),
    # CASE, paths and CAST
    ("CASE WHEN payload.nil THEN 1 ELSE 2 END", 2),
    ("CASE payload.n WHEN 1 THEN 'a' WHEN 7 THEN 'b' END", "b"),
    ("CASE WHEN payload.no THEN 1 END", None),
    ("payload.list[1]", 1),
    ("payload.list[-1]", 3),
    ("payload.list[4]", None),
    ("payload.list[-4]", None),
    ("payload.map.a.b", 1),
    ('payload.map."a.b"', 2),
    ("payload.map.x.y", None),
    ("payload.t.x", None),
    ("payload.t[1]", None),
    ("payload.list[payload.list[1] + 1]", 2),
    ("payload.map['a'].b", 1),
    ('payload."ü"', "ß"),
    ("payload.list.x", None),
    ("payload.map[1]", None),
    ("CAST(payload.digits AS int)", 12),
    ("cast(payload.n AS text)", "7"),
    ("CAST(payload.t AS int)", None),
    ("CAST('1.5' AS float)", 1.5),
    ("CAST('true' AS bool)", True),
    ("CAST(payload.list AS int)", None),
    # functions beyond their examples
    ("abs(payload.neg)", 7),
    ("round(-2.5)", -3),
    ("round(0.49)", 0),
    ("sqrt(-1)", None),
    ("log(0)", None),
    ("power(10, 400)", None),
    ("exp(1000)", None),
    ("ceil(1e300)", None),
    ("int(1.9)", 1),
    ("int('1.9')", 1),
    ("int(true)", 1),
    ("int('x')", None),
    ("int('1_0')", None),
    ("float('nan')", None),
    ("float(payload.yes)", None),
    ("bool(1)", True),
    ("bool(2)", None),
    ("bool(payload.list)", None),
    ("str(payload.list)", "[1,2,3]"),
    ("str(payload.yes)", "true"),
    ("str(payload.f)", "2.5"),
    ("trim(payload.spaced)", "x"),
    ("trim(payload.blanks)", "x"),
    ('strlen(payload."ü")', 1),
    ('upper(payload."ü")', "SS"),
    ("substr(payload.t, 1)", "bc"),
    ("substr(payload.t, 9)", ""),
    ("substr(payload.t, -1)", None),
    ("substr('abc', 0, 2)", "ab"),
    ("split('a,,b', ',')", ["a", "b"]),
    ("split('a,,b', ',', 'notrim')", ["a", "", "b"]),
    ("split('a', '')", None),
    ("split('a,b,c', ',', 'leading')", ["a", "b,c"]),
    ("split('a,b,c', ',', 'trailing')", ["a,b", "c"]),
    ("split('a', ',', 'x')", None),
    ("tokens('a b\nc', ' ', 'nocrlf')", ["a", "b", "c"]),
    ("concat('a', 'b', 'c')", "abc"),
    ("concat(payload.t, payload.n)", None),
    ("pad('abc', 2)", "abc"),
    ("pad('a', 4, 'both')", " a  "),
    ("pad('a', 4, 'x')", None),
    ("pad('a', 99999999)", None),
    ("replace('aa', 'a', 'b', 'leading')", "ba"),
    ("replace('aa', 'a', 'b', 'trailing')", "ab"),
    ("replace('a', '', 'b')", "a"),
    ("find('abc', 'x')", ""),
    ("find('abcabc', 'bc')", "bcabc"),
    ("ascii('')", None),
    ("sprintf('~b', 1.5)", None),
    ("sprintf('~s~n~~', payload.map)", '{"a":{"b":1},"a.b":2}\n~'),
    ("sprintf('~.2f', 1)", "1.00"),
    ("sprintf('~p', payload.t)", '"abc"'),
    ("sprintf('~s')", None),
    ("regex_match(payload.t, '^a.c$')", True),
    ("regex_match('', 'a?')", True),
    ("regex_extract('a', '(b)?a')", [None]),
    ("regex_extract('a', 'b')", []),
    (r"regex_replace('a.b', '\.', '\1')", r"a\1b"),
    ("coalesce(payload.nil, payload.nil)", None),
    ("nvl(payload.n, 1)", 7),
    ("is_num(payload.yes)", False),
    ("is_null(payload.x)", True),
    ("is_array(payload.list)", True),
    ("is_map(payload.map)", True),
    ("is_str(payload.nil)", False),
    ("map_get('a.b', payload.map)", 1),
    ("map_get('x', payload.map, 5)", 5),
    ("mget('a.b', payload.map)", 2),
    ("mget('x', payload.map)", None),
    ("map_put('x.y', 1, json_decode('{}'))", {"x": {"y": 1}}),
    ("map_keys(payload.map)", ["a", "a.b"]),
    ("nth(0, payload.list)", None),
    ("nth(4, payload.list)", None),
    ("sublist(2, payload.list)", [1, 2]),
    ("sublist(2, 9, payload.list)", [2, 3]),
    ("sublist(2, payload.t)", None),
    ("first(json_decode('[]'))", None),
    ("contains(1, payload.list)", True),
    ("contains(true, payload.list)", False),
    ("json_decode('{')", None),
    ("json_decode('1')", 1),
    ("json_encode(payload.map.a)", '{"b":1}'),
    ("json_encode('é')", '"é"'),
    ("base64_decode('?')", None),
    ("bin2hexstr(base64_decode('/w=='))", "FF"),
    ("hexstr2bin('6')", None),
    ("is_str(hexstr2bin('ff'))", False),
    ("upper(hexstr2bin('ff'))", None),
    ("json_encode(hexstr2bin('ff'))", '"/w=="'),
    ("subbits(hexstr2bin('80'), 8)", 128),
    ("subbits('ab', 9, 8)", 98),
    ("subbits('a', 9)", None),
    ("subbits(hexstr2bin('ff'), 1, 8, 'integer', 'signed')", -1),
    ("subbits(hexstr2bin('0100'), 1, 16, 'integer', 'unsigned', 'little')", 1),
    ("subbits(hexstr2bin('3f800000'), 1, 32, 'float')", 1.0),
    ("subbits('a', 1, 8, 'bits')", "01100001"),
    ("subbits('a', 1, 8, 'x')", None),
    ("subbits(hexstr2bin('7fc00000'), 1, 32, 'float')", None),
    ("now_timestamp('millisecond')", 1_700_000_000_250),
    ("now_rfc3339('millisecond')", "2023-11-14T22:13:20.250Z"),
    ("unix_ts_to_rfc3339(-1)", "1969-12-31T23:59:59Z"),
    ("unix_ts_to_rfc3339(9999999999999)", None),
    ("unix_ts_to_rfc3339(1500, 'millisecond')", "1970-01-01T00:00:01.500Z"),
    ("rfc3339_to_unix_ts('1970-01-01T01:00:00.5+01:00', 'millisecond')", 500),
    ("rfc3339_to_unix_ts('x')", None),
    ("rfc3339_to_unix_ts('1970-13-01T00:00:00Z')", None),
    ("format_date('millisecond', 'Z', '%H:%M:%S.%3N %z %%', 1500)", "00:00:01.500 +0000 %"),
    ("bitsl(1, 63)", None),
    ("bitsl(1, 64)", None),
    ("bitsr(-8, 1)", -4),
    ("bitand(payload.f, 1)", None),
    ("mod(payload.n, payload.n)", 0),
    # what the payload is not
    ("payload.x.y.z", None),
    ("flags.retain", False),
    ("peerhost", "10.0.0.7"),
    ("client_attrs.site", "north"),
    ("qos", 1),
    ("id", "00000000000000010000000000000002"),
    ("timestamp - publish_received_at", 500),
    ("node", "node-1"),
    ("event", "message.publish"),
]


@pytest.mark.parametrize(("expression", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_an_expression_has_its_value(expression: str, expected: Any) -> None:
    """Also for what is unknown, mistyped, out of range or no number: that is NULL."""
    found = value_of(expression, PAYLOAD)

    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "payload", [b"", b"hello", b"\xff\xfe", b"{", b"[1", b'{"a":NaN}', b'"\\ud800"', b"[" * 5000]
)
def test_a_payload_that_is_no_json_has_no_parts(payload: bytes) -> None:
    """They are NULL, and nothing is raised."""
    assert value_of("payload.a", payload) is None


def test_a_payload_that_is_no_text_is_bytes() -> None:
    """Functions on texts do not take it, codings do."""
    assert value_of("base64_encode(payload)", b"\xff") == "/w=="
    assert value_of("upper(payload)", b"\xff") is None
    assert value_of("upper(payload)", b"ab") == "AB"


def test_long_texts_do_not_grow_without_bounds() -> None:
    """What would be longer than a mebibyte is NULL."""
    assert value_of("replace(payload.t, 'a', pad('b', 1000))", {"t": "a" * 2000}) is None
    assert value_of("payload.t + payload.t", {"t": "a" * 600_000}) is None
    assert value_of("concat(payload.t, payload.t)", {"t": "a" * 600_000}) is None
    assert value_of("regex_match(payload.t, 'a')", {"t": "a" * 4097}) is None
    assert value_of("json_encode(json_encode(payload.t))", {"t": '"' * 300_000}) is None
    assert value_of("bin2hexstr(payload.t)", {"t": "a" * 600_000}) is None


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [
        (r"^([a-z]+)-(\d+)\.(\d+),[^;]*;x", 4096),
        (".*temp.*", 4096),
        ("temp.*hum", 4096),
        ("temp.*hum.*x", 256),
        (r"\x61+a\x61+b", 256),
        ("^a*a*a*b", 256),
        ("x|^a.*b.*c", 256),
    ],
)
def test_a_pattern_that_gives_back_more_searches_shorter_texts(pattern: str, longest: int) -> None:
    """Else a client's text of 4 kB holds the broker for minutes."""
    expression = f"regex_match(payload.t, '{pattern}')"

    assert value_of(expression, {"t": "-" * longest}) is not None
    assert value_of(expression, {"t": "-" * (longest + 1)}) is None
