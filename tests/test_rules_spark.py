"""Rules in Spark make what they make in the broker: generated expressions over generated messages."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from kinmqtt_rules.checking import check
from kinmqtt_rules.compiling import compile_rule
from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.functions import FUNCTIONS
from kinmqtt_rules.spark import DOCUMENT, spark_sql
from metrics_harness.spark_session import small_session, spark_session
from rules_harness.running import message_of, subject_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED: Final = int(os.environ.get("KINMQTT_RULES_SEED", "7"))
PAYLOADS: Final[tuple[Any, ...]] = (
    {"a": 1, "b": 2.5, "s": "abc", "t": True, "l": [1, 2, 3], "m": {"x": 3}},
    {"a": -3, "b": 0, "s": "", "t": False, "l": [], "m": {"x": "y"}},
    {"a": "1", "b": None, "s": 5, "t": None, "l": ["a", {"n": 1}], "m": None},
    {"a": 2.0, "b": -0.5, "s": " A b ", "t": "true", "l": {"x": 1}, "m": {"x": None}},
    {"a": None, "b": 10, "s": "a%c", "t": 1, "m": {"x": 2.5}},
    {},
    [1, 2],
    b"",
    b"no JSON",
    b"7",
    b"\xff\xfe",
    {"a": 1e308, "b": -1e300, "m": {"x": 1e-10}},
)
TOPICS: Final = ("t/1", "t/1/2", "t", "u/1", "$t/1")
NUMBERS: Final = ("payload.a", "payload.b", "payload.m.x", "payload.l[1]", "qos", "1", "2.5", "0", "-3")
TEXTS: Final = ("payload.s", "payload.a", "payload.m.x", "topic", "clientid", "'abc'", "'a'", "''")
BOOLS: Final = ("payload.t", "retain", "true", "payload.a", "NULL")


class Expressions:
    """Writes expressions that Spark can do, most of them of one kind."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def number(self, depth: int) -> str:
        """Return a number."""
        if depth == 0:
            return self._random.choice(NUMBERS)
        one, two = self.number(depth - 1), self.number(depth - 1)
        return self._random.choice(
            (
                f"({one} + {two})",
                f"({one} - {two})",
                f"({one} * {two})",
                f"({one} / {two})",
                f"-({one})",
                f"abs({one})",
                f"floor({one})",
                f"ceil({one})",
                f"round({one})",
                f"sqrt({one})",
                f"strlen({self.text(depth - 1)})",
                f"(strlen({self.text(depth - 1)}) div 2)",
                f"mod(strlen({self.text(depth - 1)}), 2)",
                f"bitand(qos, strlen({self.text(depth - 1)}))",
                f"CASE WHEN {self.condition(depth - 1)} THEN {one} ELSE {two} END",
                f"coalesce({one}, {two}, 1)",
            )
        )

    def text(self, depth: int) -> str:
        """Return a text."""
        if depth == 0:
            return self._random.choice(TEXTS)
        one = self.text(depth - 1)
        return self._random.choice(
            (
                f"upper({one})",
                f"lower({one})",
                f"trim({one})",
                f"ltrim({one})",
                f"rtrim({one})",
                f"concat({one}, 'x')",
                f"({one} + 'x')",
                f"md5({one})",
                f"sha256({one})",
                f"CASE WHEN {self.condition(depth - 1)} THEN {one} END",
                f"nvl({one}, 'none')",
            )
        )

    def condition(self, depth: int) -> str:
        """Return a condition."""
        if depth == 0:
            return self._random.choice(BOOLS)
        choice = self._random.choice
        one = choice((self.number, self.text))(depth - 1)
        number, other = self.number(depth - 1), self.number(depth - 1)
        sign = choice(("=", "<>", "<", "<=", ">", ">="))
        return choice(
            (
                f"({number} {sign} {other})",
                f"({self.text(depth - 1)} {sign} {self.text(depth - 1)})",
                f"({number} BETWEEN {other} AND 3)",
                f"({number} NOT BETWEEN 0 AND {other})",
                f"({number} IN (1, 2.5, {other}))",
                f"({self.text(depth - 1)} NOT IN ('abc', 'A'))",
                f"({self.text(depth - 1)} LIKE '{choice(('a%', '%b%', '_b_', '%', 'A_%'))}')",
                f"(topic =~ '{choice(('t/#', 't/+', '+/1', '#', 't/1'))}')",
                f"({one} IS NULL)",
                f"({one} IS NOT NULL)",
                f"({self.condition(depth - 1)} AND {self.condition(depth - 1)})",
                f"({self.condition(depth - 1)} OR {self.condition(depth - 1)})",
                f"(NOT {self.condition(depth - 1)})",
                f"({self.condition(depth - 1)} IS TRUE)",
            )
        )

    def any(self) -> str:
        """Return an expression."""
        return self._random.choice((self.number, self.text, self.condition))(self._random.choice((1, 2, 2, 3)))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Spark with one core. It interprets queries, as hundreds of columns take long to compile."""
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with spark_session(lambda: small_session(1, interpreted)) as session:
        yield session


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> list[tuple[str, Any]]:
    """Topics and payloads, which are in the table `messages`, too."""
    pairs = [(TOPICS[place % len(TOPICS)], payload) for place, payload in enumerate(PAYLOADS)]
    rows = [
        (str(place), "c1", "ada", topic, 1, False, 1_699_999_999_750, bytearray(message_of(payload, topic).payload))
        for place, (topic, payload) in enumerate(pairs)
    ]
    spark.createDataFrame(
        rows,
        "id string, clientid string, username string, topic string, qos int, retain boolean, "
        "publish_received_at bigint, payload binary",
    ).createOrReplaceTempView("messages")
    return pairs


def in_the_broker(sql: str, topic: str, payload: Any) -> Any:
    """Return the value that a rule selects; ``None`` if there is no row."""
    rows = compile_rule(check(sql)).run(subject_of(message_of(payload, topic)))
    return rows[0]["x"] if rows else None


def agree(here: Any, there: Any) -> bool:
    """Tell whether a value is the same in the broker and in Spark, where numbers are doubles."""
    if isinstance(here, bool) or isinstance(there, bool) or isinstance(here, str | None):
        return type(here) is type(there) and here == there
    return isinstance(there, int | float) and math.isclose(here, there, rel_tol=1e-12)


def column_of(sql: str) -> str:
    """Return the expression that a rule of one value becomes in Spark."""
    query = spark_sql(check(sql))
    return query.removeprefix("SELECT ").partition("\nFROM ")[0].removesuffix(" AS `x`")


@pytest.mark.parametrize("count", [150, pytest.param(1500, marks=pytest.mark.soak)])
def test_generated_expressions_have_the_same_values_in_spark(
    spark: SparkSession, messages: list[tuple[str, Any]], count: int
) -> None:
    """The portable part: all columns of one query."""
    written = Expressions(Random(SEED))
    rules: dict[str, str] = {}
    while len(rules) < count:
        expression = written.any()
        sql = f'SELECT {expression} AS x FROM "#"'
        try:
            rules[expression] = column_of(sql)
        except RuleError:
            continue  # a constant of a wrong type, or what Spark can't tell

    columns = [f"{text} AS c{place}" for place, text in enumerate(rules.values())]
    table = f"(SELECT *, {DOCUMENT} AS document FROM messages)"
    found = {row["id"]: row for row in spark.sql(f"SELECT id, {', '.join(columns)} FROM {table}").collect()}

    different = []
    for number, (topic, payload) in enumerate(messages):
        for place, expression in enumerate(rules):
            here = in_the_broker(f'SELECT {expression} AS x FROM "#"', topic, payload)
            there = found[str(number)][f"c{place}"]
            if not agree(here, there):
                different.append(f"{expression} of {topic} {payload!r}: {here!r} here, {there!r} in Spark")
    assert different == [], f"seed {SEED}"


@pytest.mark.parametrize(
    "expression",
    ["md5(payload)", "crc32(payload)", "payload IS NULL", "upper(payload)", "payload.a * 10 > 1", "round(payload.b)"],
)
def test_bytes_and_huge_numbers_are_in_spark_what_they_are_here(
    spark: SparkSession, messages: list[tuple[str, Any]], expression: str
) -> None:
    """A payload that is no text has a hash, and no number is infinite. No message makes the query fail."""
    sql = f'SELECT {expression} AS x FROM "#"'
    table = f"(SELECT *, {DOCUMENT} AS document FROM messages)"

    there = {row["id"]: row["x"] for row in spark.sql(f"SELECT id, {column_of(sql)} AS x FROM {table}").collect()}

    for number, (topic, payload) in enumerate(messages):
        assert agree(in_the_broker(sql, topic, payload), there[str(number)]), payload


QUERIES: Final = (
    'SELECT payload.a AS x FROM "t/#" WHERE payload.a > 0',
    'SELECT topic AS x FROM "+/1", "u/#" WHERE NOT payload.t IS TRUE',
    'SELECT payload.m AS x FROM "#"',
    'FOREACH payload.l AS e DO e AS x FROM "#"',
    'FOREACH payload.l AS e DO e.n AS x INCASE e.n = 1 FROM "#"',
    'FOREACH payload.l DO clientid AS x INCASE item > 1 FROM "#" WHERE payload.t',
)


@pytest.mark.parametrize("sql", QUERIES)
def test_whole_queries_make_the_same_rows(spark: SparkSession, messages: list[tuple[str, Any]], sql: str) -> None:
    """With their topics, WHERE and FOREACH."""
    from kinmqtt_spi.topics import matches

    rule = check(sql)
    run = compile_rule(rule).run
    here = [
        row["x"]
        for topic, payload in messages
        if any(matches(filter, topic) for filter in rule.filters)
        for row in run(subject_of(message_of(payload, topic))) or ()
    ]

    there = [row["x"] for row in spark.sql(spark_sql(rule)).collect()]
    values = [json.loads(value.toJson()) if hasattr(value, "toJson") else value for value in there]

    assert values == here


REFUSED: Final = (
    ("SELECT split(topic, '/') AS x FROM \"t\"", "1:8: Spark has no function 'split' that does the same"),
    ('SELECT payload.l[-1] AS x FROM "t"', "1:18: Spark can't count an index from the end"),
    ('SELECT event AS x FROM "t"', "1:8: there is no part of 'event' in Spark"),
    ('SELECT now_timestamp() AS x FROM "t"', "1:8: Spark has no function 'now_timestamp' that does the same"),
    ('SELECT payload.a + payload.b AS x FROM "t"', "1:8: Spark can't tell of which kind this value is"),
    ('SELECT payload.a IN (1, payload.b) AS x FROM "t"', "1:8: Spark can't tell of which kind the list of IN is"),
    ('SELECT clientid AS x FROM "$events/client/connected"', "1:1: Spark has no events of rules"),
)


@pytest.mark.parametrize(("sql", "expected"), REFUSED)
def test_what_spark_can_not_do_is_told_with_its_place(sql: str, expected: str) -> None:
    """Instead of a query that makes something else."""
    with pytest.raises(RuleError) as caught:
        spark_sql(check(sql))

    assert expected in str(caught.value)


def test_some_functions_are_portable() -> None:
    """Their templates name their arguments."""
    portable = [each for each in FUNCTIONS.values() if each.spark is not None]

    assert len(portable) > 30
    assert all("{" in (each.spark or "") for each in portable)
