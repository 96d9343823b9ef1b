"""Each mistake in a rule's SQL has its place and says what to do."""

from __future__ import annotations

import pytest
from sqlglot.expressions import FUNCTION_BY_NAME
from sqlglot.tokens import Tokenizer

from kinmqtt_rules.checking import check
from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.tree import Call, Name, Step

MISTAKES = [
    ("", "1:1: the SQL is empty"),
    ('SELEC clientid FROM "t"', "1:1: a rule begins with SELECT or FOREACH, not 'SELEC'; did you mean 'SELECT'?"),
    ('SELECT x, FORM "t"', "1:11: no FROM; did you mean FROM, not 'FORM'?"),
    ("SELECT clientid", '1:16: no FROM; write FROM "topic"'),
    ("SELECT clientid FROM t", "1:22: 't' is not expected in FROM"),
    ('SELECT clientid FROM "t" "u"', "1:26: 'u' is not expected in FROM"),
    ('SELECT clientid FROM "a/#/b"', "1:22: 'a/#/b' is not a topic filter"),
    ('SELECT clientid FROM "$events/client/conected"', "did you mean '$events/client/connected'?"),
    ('SELECT clientid FROM "$bridges/http:x"', "a source publishes to a topic; select FROM that"),
    ('SELECT clientid FROM "$SYS/#"', "rules have no messages of $SYS"),
    ('SELECT clientid FROM "$share/a/b"', "rules have no messages of $share"),
    ('SELECT\n  uppr(topic) AS x FROM "t"', "2:3: unknown function 'uppr'; did you mean 'upper'?"),
    ('SELECT jq(payload) AS x FROM "t"', "1:8: no function 'jq' here: there is no jq; use FOREACH"),
    ('SELECT schema_decode(payload) AS x FROM "t"', "there are no schemas"),
    ("SELECT getenv('A') AS x FROM \"t\"", "rules do not read the environment"),
    ('SELECT tumble(timestamp) AS x FROM "t"', "windows run in Spark only"),
    ('SELECT clientd FROM "t"', "1:8: unknown field 'clientd'; did you mean 'clientid'?"),
    (
        'SELECT temp FROM "t"',
        "1:8: unknown field 'temp'; did you mean 'timestamp'?; a part of the payload is payload.temp",
    ),
    ('SELECT payload FROM "$events/client/connected"', "unknown field 'payload'"),
    ('SELECT upper(topic) FROM "t"', "1:8: it has no name: write … AS name"),
    ('SELECT payload.a[1] FROM "t"', "1:8: it has no name"),
    ('SELECT upper(5) AS x FROM "t"', "1:14: argument 1 of upper is a text, not a number"),
    ('SELECT upper() AS x FROM "t"', "upper(text) can't have 0 arguments"),
    ('SELECT substr(topic, 1, 2, 3) AS x FROM "t"', "substr(text, whole number[, whole number]) can't have 4"),
    ('SELECT topic = NULL AS x FROM "t"', "write IS NULL or IS NOT NULL"),
    ('SELECT payload.a[0] AS x FROM "t"', "1:18: indexes count from 1"),
    ('SELECT payload.a[1, 2] AS x FROM "t"', "there is one index in brackets"),
    ('SELECT payload.a[1:2] AS x FROM "t"', "':' has no meaning in rules"),
    ('SELECT payload.a.1 AS x FROM "t"', "a part of a path is a name"),
    (
        "SELECT regex_match(topic, '(a+)+') AS x FROM \"t\"",
        "1:27: regex_match: a group with alternatives or repetitions",
    ),
    (r"SELECT regex_match(topic, '(a)\1') AS x FROM " + '"t"', "a pattern can't refer back"),
    ("SELECT regex_match(topic, 'a.*b.*c.*d') AS x FROM \"t\"", "1:27: regex_match: the pattern may take too long"),
    *(
        (f"SELECT regex_match(topic, '{pattern}') AS x FROM \"t\"", "the pattern may take too long")
        for pattern in (
            "^" + "a?" * 40 + "b",
            "^" + "a??" * 40 + "b",
            "^" + "a{1,2}" * 40 + "b",
            "^" + "[ab]{,9}" * 12 + "c",
            "^" + "(?:a|a)" * 40 + "b",
            "(a|ab|abc)" * 20 + "d",
        )
    ),
    ("SELECT regex_match(topic, '(?=a)') AS x FROM \"t\"", "only (?: may be used"),
    ("SELECT regex_match(topic, '(') AS x FROM \"t\"", "the pattern is invalid"),
    ('SELECT regex_match(topic, topic) AS x FROM "t"', "argument 2 of regex_match must be a constant"),
    ('SELECT topic LIKE topic AS x FROM "t"', "argument 2 of like must be a constant"),
    ("SELECT sprintf('~q', topic) AS x FROM \"t\"", "'~q' is unknown"),
    ("SELECT now_timestamp('week') AS x FROM \"t\"", "'week' is no unit"),
    ("SELECT format_date('second', '8', '%Y', 1) AS x FROM \"t\"", "'8' is no offset"),
    ("SELECT format_date('second', 'Z', '%Q', 1) AS x FROM \"t\"", "'%Q' is unknown"),
    ('SELECT CAST(qos AS date) AS x FROM "t"', "CAST to date is unknown; use int"),
    ('SELECT CAST(qos AS varchar(3)) AS x FROM "t"', "CAST to varchar is unknown"),
    ('SELECT 1a AS x FROM "t"', "1:8: a name without AS has no meaning"),
    ('SELECT topic x FROM "t"', "1:8: a name without AS has no meaning"),
    ('SELECT 99999999999999999999 AS x FROM "t"', "is too large"),
    ('SELECT 1e999 AS x FROM "t"', "is too large"),
    ("SELECT 'abc FROM t", "1:8: nothing ends what begins with 'a"),
    ("SELECT topic /* FROM t", "1:14: nothing ends what begins with /*"),
    ('SELECT upper(topic AS x FROM "t"', "1:13: nothing closes this '('"),
    ('SELECT upper topic) AS x FROM "t"', "1:19: nothing opens what ')' closes"),
    ('SELECT upper(topic] AS x FROM "t"', "1:19: nothing opens what ']' closes"),
    ('SELECT clientid, FROM "t"', "an expression is missing in SELECT"),
    ('SELECT clientid AS FROM "t"', "1:28: no FROM"),
    ('SELECT AS x FROM "t"', "AS stands between"),
    ('SELECT clientid AS a.1 FROM "t"', "can't be in a name"),
    ('SELECT clientid AS select FROM "t"', "'select' can't be in a name; write"),
    ('SELECT clientid AS end FROM "t"', "'end' can't be in a name; write \"end\""),
    ('SELECT * WHERE qos = 1 FROM "t"', "FROM is not expected here; the order is SELECT, FROM, WHERE"),
    ('SELECT * FROM "t" WHERE', "something is missing behind WHERE"),
    ('SELECT * FROM "t" WHERE qos = ', "something is missing behind '='"),
    ('SELECT * FROM "t" WHERE qos = = 1', "'=' is not expected here"),
    ('SELECT * FROM "t" WHERE qos = 1 IS TRUE', "1:33: IS behind a comparison: write parentheses"),
    ('SELECT * FROM "t" WHERE payload.a > payload.b IS NOT NULL', "1:47: IS behind a comparison"),
    ("SELECT * FROM \"t\" WHERE topic =~ 't/#/b'", "1:34: 't/#/b' is not a topic filter"),
    ('FOREACH payload.l AS qos DO qos AS x FROM "t" WHERE qos = 1', "'qos' is a field: name the element otherwise"),
    (
        'FOREACH payload.l DO item.n + 1 AS n FROM "t" WHERE n = 1',
        "1:53: 'n' is of an element, and WHERE is about the message: write INCASE",
    ),
    ('SELECT * FROM "t" WHERE qos == 1', "'=' is not expected here"),
    ('SELECT * FROM "t" WHERE qos & 1 = 1', "1:29: '&' has no meaning in rules"),
    ('SELECT * FROM "t" WHERE topic || topic = topic', "'|' has no meaning in rules"),
    ('SELECT * FROM "t" WHERE qos IN ()', "there is nothing in the list of IN"),
    ('SELECT * FROM "t" WHERE qos IN (SELECT 1)', "has no meaning in rules"),
    ('SELECT * FROM "t" WHERE (qos, 1) = 1', "a list of values has no meaning"),
    ('SELECT * FROM "t" WHERE topic IS topic', "behind IS there is NULL, NOT NULL, TRUE or FALSE"),
    ("SELECT * FROM \"t\" WHERE topic LIKE ANY ('a')", "unknown function 'ANY'"),
    ("SELECT N'a' AS x FROM \"t\"", "has no meaning in rules"),
    ("SELECT 'a' 'b' AS x FROM \"t\"", "has no meaning in rules"),
    ('SELECT a.b() AS x FROM "t"', "has no meaning in rules|behind a dot there is a name"),
    ('SELECT upper(*) AS x FROM "t"', "* has no meaning in rules"),
    ('SELECT upper(topic) OVER () AS x FROM "t"', "'(' is not expected here"),
    ('SELECT $x AS x FROM "t"', "has no meaning in rules|is no name"),
    ('SELECT @x AS x FROM "t"', "'@' has no meaning in rules"),
    ('SELECT ? AS x FROM "t"', "'?' has no meaning in rules"),
    ('SELECT CASE END AS x FROM "t"', "'END'|CASE needs"),
    ('FOREACH payload.a, payload.b FROM "t"', "FOREACH has one expression"),
    ('FOREACH payload.a AS b.c FROM "t"', "FOREACH has one expression"),
    ('FOREACH * FROM "t"', "FOREACH has one expression"),
    ('FOREACH payload.a INCASE item.x DO item.y FROM "t"', "DO is not expected here"),
    ('FOREACH payload.a DO item.y FROM "t" WHERE item.x = 1', "unknown field 'item'"),
    ('SELECT item.x FROM "t"', "unknown field 'item'"),
    ("SELECT " + "(" * 150 + "qos" + ")" * 150 + ' AS x FROM "t"', "nested too deep"),
    ("SELECT " + "qos + " * 150 + 'qos AS x FROM "t"', "nested too deep"),
    ("SELECT qos + qos AS a0" + "".join(f", a{n} + a{n} AS a{n + 1}" for n in range(40)) + ' FROM "t"', "too large"),
    ("SELECT " + ", ".join(f"qos AS a{n}" for n in range(300)) + ' FROM "t"', "more than 200 expressions"),
    ("SELECT " + " " * 20_000, "at most 16384 characters"),
]


@pytest.mark.parametrize(("sql", "expected"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_told_with_its_place(sql: str, expected: str) -> None:
    """What sqlglot would read as something else is a mistake here."""
    with pytest.raises(RuleError) as caught:
        check(sql)

    assert any(each in str(caught.value) for each in expected.split("|"))


WORDS_OF_RULES = {
    *(
        "SELECT",
        "FROM",
        "WHERE",
        "AS",
        "AND",
        "OR",
        "NOT",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "BETWEEN",
        "IN",
        "LIKE",
    ),
    *("IS", "NULL", "TRUE", "FALSE", "FOREACH", "DO", "INCASE"),
}


def test_words_of_sql_are_names_behind_a_dot() -> None:
    """Also those that sqlglot takes for constructors of lists and maps."""
    rule = check(
        'SELECT payload.list[1].x AS a, payload.map[1] AS b, payload.from AS c, payload.end.in AS d FROM "t"'
    )

    assert [output.path for output in rule.outputs] == [("a",), ("b",), ("c",), ("d",)]


def test_words_may_be_written_in_small_letters_over_lines_with_comments() -> None:
    """As in other dialects, with a semicolon at the end."""
    rule = check("select topic -- the topic\nfrom \"a\", `b`, 'c' /* three */ where qos > 0;")

    assert rule.filters == ("a", "b", "c")


def test_old_names_of_events_are_known() -> None:
    """EMQX 4 and 5 write them with underscores."""
    rule = check('SELECT clientid FROM "$events/client_connected", "$events/client/connected", "t"')

    assert (rule.events, rule.filters) == (("$events/client/connected",), ("t",))


def test_no_name_is_a_word_to_sqlglot() -> None:
    """Of the hundreds that it knows, in each place where a name stands."""
    words = {word for word in (*Tokenizer.KEYWORDS, *FUNCTION_BY_NAME) if word.isidentifier()} - WORDS_OF_RULES
    assert len(words) > 500

    for word in sorted(words):
        rule = check(f'SELECT payload.{word}[1].x AS {word}, {word} + 1 AS y, payload.{word} AS z FROM "t"')

        [index, y, z] = [output.node for output in rule.outputs]
        assert isinstance(z, Step) and z == Step(Name("payload"), word)
        assert index == Step(Step(z, 1), "x")
        assert isinstance(y, Call) and y.arguments[0] == index
