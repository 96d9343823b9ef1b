"""Limits, learned: what is decided, the file, switching rules on, and the jobs over the table."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.command import main
from kinmqtt_metrics.learning import (
    EXEMPT,
    Learned,
    LearningError,
    Options,
    Replayed,
    Rule,
    Summed,
    Usual,
    check_replaceable,
    command,
    learn,
    limit,
    replay_rules,
    rules_for,
    rules_in,
    sample_size,
    switched,
    text_of,
    write_whole,
)
from kinmqtt_metrics.learning.reading import highest_quantile, why_failed
from kinmqtt_metrics.learning.replay import learned_over
from kinmqtt_metrics.record import OTHERS
from metrics_harness.table_data import START, usual_rows, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_17 = "/usr/lib/jvm/java-17-openjdk-amd64"
JAVA = {"JAVA_HOME": _JAVA_17} if "JAVA_HOME" not in os.environ and os.path.isdir(_JAVA_17) else {}

NAMES = st.text(min_size=1, max_size=80)
RATES = st.floats(0.001, 1e6)


def usual(name: str, rate: float) -> Usual:
    """A client that publishes so much."""
    return Usual(name, rate, rate * 1.5, 100)


def learned(rules: list[Rule]) -> Learned:
    """As if a job had found these."""
    return Learned(tuple(rules), 0.0, 600.0, 10, ("n1",), {"client": 3, "topic": 3}, {"client": 1, "topic": 0}, {})


def allowed(rules: list[Rule], name: str) -> float:
    """What a client may publish."""
    return next((rule.count for rule in rules if rule.of == name), rules[-1].count)


# Deciding


def test_only_those_above_what_others_may_have_rules_of_their_own() -> None:
    """Few rules, and each says something."""
    rules = rules_for("client", [usual("loud", 100), usual("small", 2), usual("quiet", 0.1)], 2.0, Options())

    assert [(rule.of, rule.count, rule.burst) for rule in rules] == [("loud", 300, 18000), (None, 6, 360)]


def test_nobody_is_limited_below_the_least() -> None:
    """A sensor that reports once an hour may also report twice a minute."""
    assert limit(0.0003, Options(least=0.5)) == 0.5
    assert limit(0.0, Options(least=0.5)) == 0.5


@given(
    st.dictionaries(NAMES, RATES, max_size=30),
    RATES,
    st.integers(0, 10),
    st.sampled_from(("client", "topic")),
    st.floats(1, 10),
)
def test_nobody_is_limited_below_his_own_usual_rate(
    rates: dict[str, float], others: float, most: int, kind: str, factor: float
) -> None:
    """Whatever there is too much of: rules, names that can't be written, or rates."""
    options = Options(most_rules=most, factor=factor)
    rules = rules_for(kind, [usual(name, rate) for name, rate in rates.items()], others, options)  # type: ignore[arg-type]

    assert len(rules) <= most + 1
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.name.isprintable() for rule in rules)
    assert rules[-1].of is None
    for name, rate in rates.items():
        assert allowed(rules, name) >= rate * factor * (1 - 1e-9)
        assert allowed(rules, name) <= max(max([*rates.values(), others]) * factor * 1.011, options.least)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"quantile": 1.1}, "--quantile"),
        ({"factor": 0.5}, "--factor"),
        ({"over_s": 0}, "--over"),
        ({"min_windows": 0}, "--min-windows"),
        ({"least": 0.0}, "--least"),
        ({"others": float("nan")}, "--others"),
        ({"most_rules": -1}, "--rules"),
    ],
)
def test_options_without_sense_are_refused(option: dict[str, float], said: str) -> None:
    """With the name of the option, before Spark starts."""
    with pytest.raises(LearningError, match=f"{said} must be"):
        Options(**option)  # type: ignore[arg-type]


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    st.lists(st.integers(0, 1000), max_size=30),
    st.floats(0.01, 1),
)
def test_no_part_of_the_others_makes_a_higher_quantile(seen: list[int], unseen: list[int], quantile: float) -> None:
    """Whichever of the windows with others a client was in, its usual rate is not above what it is said to be."""

    def of(values: list[int]) -> float:
        place = quantile * (len(values) - 1)
        low, high = sorted(values)[int(place)], sorted(values)[min(int(place) + 1, len(values) - 1)]
        return low + (high - low) * (place - int(place))

    ordered = sorted(unseen, reverse=True)

    parts = [sorted([*seen, *ordered[:number]]) for number in range(len(ordered) + 1)]
    highest = highest_quantile(seen, ordered, quantile)
    assert highest >= max(map(of, parts)) - 1e-9
    assert highest == max(part[ceil(quantile * (len(part) - 1))] for part in parts)


# The file


@given(st.dictionaries(NAMES, RATES, max_size=8), st.sampled_from(("client", "topic")))
def test_every_name_is_in_the_file_as_it_is(rates: dict[str, float], kind: str) -> None:
    """Quotes, backslashes and control characters included; no comment is broken by one."""
    options = Options(least=0.001)
    rules = rules_for(kind, [usual(name, rate) for name, rate in rates.items()], 0.0, options)  # type: ignore[arg-type]

    parsed = tomllib.loads(text_of(learned(rules), options, "a\nb", 0.0))

    own = [rule for rule in rules if rule.of is not None]
    assert [(rule["name"], rule[kind], rule["count"]) for rule in parsed.get("flow", [])] == [
        (rule.name, [rule.of], rule.count) for rule in own
    ]
    [others] = parsed["param"]
    assert others.get("items", {}) == {rule.of: EXEMPT for rule in own}
    assert all(rule["shadow"] is True for found in parsed.values() for rule in found)


def test_the_file_says_where_its_rules_come_from() -> None:
    """Span, windows, nodes, options, and of each rule what it would have done."""
    rules = rules_for("client", [usual("loud", 100)], 2.0, Options())
    found = Learned(
        tuple(rules),
        START.timestamp(),
        START.timestamp() + 3600,
        60,
        ("n1", "n2"),
        {"client": 7},
        {"client": 2},
        {"learned client loud": Replayed(60, 2, 12345, 67, 400.0, START.timestamp())},
    )

    text = text_of(found, Options(quantile=0.9), "/data/tables", START.timestamp())

    assert "/data/tables, table usual, 2026-11-20 06:00 to 2026-11-20 07:00 UTC" in text
    assert "60 windows of 60 s, nodes n1 and n2" in text
    assert "--quantile 0.9 --factor 3" in text
    assert "7 clients seen, of which 2 in fewer than 30 windows" in text
    assert "# usual 100/s, at most 150/s, in 100 windows; would have refused about 67 of 12\u202f345 messages" in text


def found_in(windows: int, clients: int) -> Learned:
    """As if a job had found one client with a rule of its own, in so many windows, among so many."""
    rules = rules_for("client", [Usual("loud", 100.0, 150.0, windows)], 2.0, Options())
    return Learned(tuple(rules), 0.0, 6000.0, 100, ("n1",), {"client": clients + 5}, {"client": 5}, {})


@pytest.mark.parametrize(
    ("windows", "clients", "own", "others"),
    [(100, 20, False, False), (99, 20, True, False), (100, 19, False, True), (30, 1, True, True)],
)
def test_a_rule_that_was_learned_from_little_is_marked(windows: int, clients: int, own: bool, others: bool) -> None:
    """Of fewer windows or known clients than one of which lies above the quantile: in the head, and at the rule."""
    options = Options()

    text = text_of(found_in(windows, clients), options, "tables", 0.0)

    head, flow, param = re.split(r"\n\[\[\w+\]\]\n", text)
    assert (f"# Warning: 1 of 1 rule for clients was learned from fewer than 100 windows, the least from {windows}"
            in head) == own  # fmt: skip
    assert (f"# Warning: The rule for all other clients was learned from {clients} client" in head) == others
    assert ("# Warning: learned from" in flow) == own
    assert ("# Warning: learned from" in param) == others
    assert tomllib.loads(text)["flow"][0]["name"] == "learned client loud"


@pytest.mark.parametrize(
    ("share", "number"), [(0.99, 100), (0.95, 20), (0.9, 20), (0.5, 20), (0.999, 1000), (1.0, 20), (0.01, 20)]
)
def test_a_quantile_needs_a_value_above_it(share: float, number: int) -> None:
    """Of fewer it is hardly more than the highest."""
    assert sample_size.needed(share) == number


@given(st.floats(0.001, 1), st.integers(1, 3000))
def test_what_is_enough_stays_enough(share: float, number: int) -> None:
    """More values never make a rule less to be trusted, and where there are enough one lies above the quantile."""
    assert sample_size.needed(share) >= sample_size.LEAST
    if share < 1 and number >= sample_size.needed(share):
        assert number * (1 - share) >= 1 - 1e-6


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    """The limiter never reads half of it; rights stay as they were, and nothing is left beside it."""
    path = tmp_path / "limits.toml"
    path.write_text("old")
    path.chmod(0o640)

    write_whole(path, "new")

    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(LearningError, match="can't be written"):
        write_whole(tmp_path / "nowhere" / "limits.toml", "new")


def test_what_somebody_would_miss_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that runs each night can't switch limits off, nor replace rules that were written by hand."""
    path = tmp_path / "limits.toml"
    text = text_of(learned(rules_for("client", [usual("a", 9)], 1.0, Options())), Options(), "tables", 0.0)
    arguments = ["rules", "--tables", str(tmp_path), "--out", str(path)]

    check_replaceable(path)
    path.write_text(text)
    check_replaceable(path)
    path.write_text(switched(path, text, False, ["learned client a"])[0])
    first = main(arguments)
    said = capsys.readouterr().err
    path.write_text("# mine\n")
    second = main(arguments)

    assert (first, second) == (1, 1)
    assert "has rules that are switched on (learned client a), so it is not replaced" in said
    assert "was not learned, so it is not replaced" in capsys.readouterr().err
    assert path.read_text() == "# mine\n"


def test_the_file_says_how_much_nobody_knows() -> None:
    """The share of messages in (others), and how much higher a usual rate may have been."""
    rules = rules_for("client", [Usual("loud", 100.0, 200.0, 60, 5.0)], 2.0, Options())
    found = Learned(tuple(rules), 0.0, 3600.0, 60, ("n1",), {"client": 1}, {"client": 0}, {}, Summed(95, 100, 60))

    text = text_of(found, Options(), "tables", 0.0)

    assert "# 95 % of the messages (95 of 100) are in (others), in 60 windows" in text
    assert "max_pairs" in text
    assert "# usual 5/s as far as it is told, up to 100/s with (others), at most 200/s" in text
    assert "count = 300" in text


# Switching on

FILE = """\
# mine
[[flow]]
name = "a"   # of a
count = 5
shadow = true # not yet
[[flow]]
shadow=true
name = "b"
count = 5

[[param]]
name = "c"
param = "client"
count = 1
shadow = true
[param.items]
"shadow" = 4
x = 5

[[flow]]
name = "d"
count = 5
"""


def test_rules_are_switched_on_by_name_and_comments_stay(tmp_path: Path) -> None:
    """Nothing changes but one word."""
    text, changed = switched(tmp_path, FILE, False, ["b"])

    assert changed == ["b"]
    assert text == FILE.replace("shadow=true", "shadow=false")


def test_all_are_switched_on_and_back(tmp_path: Path) -> None:
    """What was never in the shadow is put there as well, and a key of a client called shadow is left alone."""
    on, changed = switched(tmp_path, FILE, False)
    off, back = switched(tmp_path, on, True)

    assert changed == ["a", "b", "c"]
    assert back == ["a", "b", "d", "c"]
    assert on == FILE.replace("= true", "= false").replace("=true", "=false")
    assert tomllib.loads(off)["flow"][2] == {"name": "d", "count": 5, "shadow": True}
    assert "# not yet" in off


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        (FILE, ["nobody"], "has no rule 'nobody'; it has a, b, d and c"),
        ("[[flow]\n", [], "is not TOML"),
        ("flow = 3\n", [], "flow is not an array of rules"),
        ("[[flow]]\ncount = 1\n", [], r"flow\[0\] has no name"),
        ('flow = [{name = "a", shadow = true}]\n', [], "edit shadow by hand"),
        ("x = " + "[" * 5000 + "]" * 5000, [], "nested too deeply"),
        ("x = " + "9" * 5000, [], "has an invalid number or time"),
        ('[[flow]]\nname = "a"\nshadow = "no"\n', [], r"flow\[0\] \(a\): shadow must be true or false"),
        ('[[flow]]\nname = "a"\n[[param]]\nname = "a"\n', [], r"param\[0\]: another rule is called 'a'"),
        ("[[flow]]\nname = 5\n", [], r"flow\[0\] has no name"),
    ],
)
def test_a_file_that_is_not_understood_stays_as_it_is(text: str, names: list[str], said: str, tmp_path: Path) -> None:
    """It is told why; the file is not touched."""
    with pytest.raises(LearningError, match=said):
        switched(tmp_path / "limits.toml", text, False, names)


@pytest.mark.parametrize("text", [FILE, FILE.replace("\n", "\r\n"), FILE.replace("count = 5", "count = nan")])
def test_what_is_not_switched_stays_byte_for_byte(text: str, tmp_path: Path) -> None:
    """Ends of lines as Windows has them, and values that are not equal to themselves, included."""
    path = tmp_path / "limits.toml"
    path.write_bytes(text.encode())

    assert main(["rules", "--enable", str(path)]) == 0
    switched_on = path.read_bytes()
    assert main(["rules", "--disable", str(path), "--rule", "d"]) == 0

    assert switched_on == text.encode().replace(b"= true", b"= false").replace(b"=true", b"=false")
    end = b"\r\n" if "\r" in text else b"\n"
    head = b"[[flow]]" + end
    assert path.read_bytes() == (head + b"shadow = true" + end).join(switched_on.rsplit(head, 1))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('[[flow]]\nclient = "c"\ncount = "5"', r"flow\[0\] \(r\): count must be a number from 0.001"),
        ('[[flow]]\nclient = "c"\ncount = nan', "count must be a number .*, and is nan"),
        ('[[flow]]\nclient = "c"\ncount = true', "count must be a number .*, and is True"),
        ('[[flow]]\nclient = "c"\ncount = -1', "count must be a number .*, and is -1"),
        ('[[param]]\nparam = "client"\ncount = inf', r"param\[0\] \(r\): count must be a number .*, and is inf"),
        ('[[param]]\nparam = "client"\ncount = [1]', "count must be a number"),
        (
            '[[flow]]\nclient = "c"\ncount = 5\nburst = "x"',
            "burst must be a number .*, in messages, and is x",
        ),
        ('[[flow]]\nclient = "c"', "it has no count"),
        ("[[flow]]\nclient = 5\ncount = 5", "client must be a string or a list of strings, and is 5"),
        ("[[flow]]\nclient = [5]\ncount = 5", "client must be a string or a list of strings"),
        ("[[flow]]\ntopic = []\ncount = 5", "topic must be a string or a list of strings"),
    ],
)
def test_an_odd_value_in_a_rule_is_named(
    rule: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts: the file, the rule, the key, and what it may be."""
    path = tmp_path / "limits.toml"
    path.write_text(f'{rule}\nname = "r"\n')

    assert main(["rules", "--tables", str(tmp_path), "--replay", str(path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kinmqtt-metrics rules: {path}: ")
    assert re.search(said, line)


def test_the_command_switches_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it did, and needs neither tables nor Spark."""
    path = tmp_path / "limits.toml"
    path.write_text(FILE)

    first = main(["rules", "--enable", str(path), "--rule", "a"])
    second = main(["rules", "--enable", str(path), "--rule", "a"])

    assert (first, second) == (0, 0)
    assert capsys.readouterr().out == "a: on\nnothing to change: all are on\n"
    assert path.read_text() == FILE.replace("true # not", "false # not")


def test_a_file_without_rules_has_none_to_switch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is on that is not there."""
    (tmp_path / "limits.toml").write_text("# nothing\n")

    for path in ("/dev/null", str(tmp_path / "limits.toml")):
        assert main(["rules", "--enable", path]) == 1
        assert f"kinmqtt-metrics rules: {path} has no rules" in capsys.readouterr().err


def test_a_learned_file_says_how_long_its_windows_are(tmp_path: Path) -> None:
    """A file that was written by hand says nothing; a length without sense is refused."""
    path = tmp_path / "limits.toml"
    text = text_of(learned(rules_for("client", [usual("a", 9)], 1.0, Options())), Options(over_s=90), "tables", 0.0)

    path.write_text(text)
    said = learned_over(path)
    path.write_text("# mine\n" + text)
    by_hand = learned_over(path)
    path.write_text(text.replace("--over 90", "--over 0"))

    assert (said, by_hand) == (90, None)
    with pytest.raises(LearningError, match=r"--over .* must be .*, and is 0"):
        learned_over(path)


# The jobs


def test_what_was_put_into_the_table_is_learned(spark: SparkSession, tmp_path: Path) -> None:
    """Rates are those of windows in which there was something; a rare peak is not usual, and is told."""
    chance = random.Random(7)
    rates = {f"small-{n}": [chance.uniform(0.5, 1.5) for _ in range(60)] for n in range(20)}
    rates["loud"] = [40.0] * 59 + [1000.0]
    rates["rare"] = [0.0] * 20 + [30.0] * 40
    rates["new"] = [500.0] * 3
    write(tmp_path, t.USUAL, usual_rows(rates, window_s=60)[::2], 0)
    write(tmp_path, t.USUAL, usual_rows(rates, window_s=60)[1::2], 1)

    found = learn(spark, tmp_path, Options(quantile=0.9, others=0.5), None, None)

    of = {rule.of: rule for rule in found.rules if rule.kind == "client"}
    assert of["loud"].count == 120
    assert of["rare"].count == 90
    assert of["loud"].usual == Usual("loud", 40.0, 1000.0, 60)
    assert "new" not in of
    assert 3 <= of[None].count <= 4.5
    assert (found.seen["client"], found.unknown["client"]) == (23, 1)
    assert found.summed == Summed(0, sum(round(rate * 60) for of in rates.values() for rate in of), 0)
    assert {rule.of for rule in found.rules if rule.kind == "topic"} >= {"t/loud", "t/rare", None}
    loud = found.replayed["learned client loud"]
    assert (loud.windows_over, loud.excess, loud.most) == (1, (1000 - 120) * 60, 1000.0)
    assert loud.worst_at_s == START.timestamp() + 59 * 60


def test_windows_of_all_nodes_and_topics_count_and_short_ones_are_put_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A limiter limits at its node: a client's topics there add up, other nodes are other windows."""
    rows = [
        *usual_rows({"c": [6.0, 0.0, 0.0] * 40}, topic="t/1"),
        *usual_rows({"c": [0.0, 12.0, 0.0] * 40}, topic="t/2"),
        *usual_rows({"c": [3.0] * 120}, node="n2"),
    ]
    write(tmp_path, t.USUAL, rows)

    found = learn(spark, tmp_path, Options(quantile=1.0, over_s=30, topics=False), None, None)

    [rule] = found.rules
    assert rule.count == 18
    assert rule.burst == 18 * 30
    assert found.nodes == ("n1", "n2")
    assert found.windows == 40


def test_what_is_in_others_may_be_anybodys(spark: SparkSession, tmp_path: Path) -> None:
    """The sink told 5 % of a client with many topics: its limits are not below what it published."""
    rows = [
        *usual_rows({"many": [1.0] * 40}, window_s=60, topic="t/1"),
        *usual_rows({OTHERS: [19.0] * 40}, window_s=60, topic=OTHERS),
        *usual_rows({"elsewhere": [2.0] * 40}, window_s=60, node="n2"),
    ]
    write(tmp_path, t.USUAL, rows)

    found = learn(spark, tmp_path, Options(), None, None)
    far = learn(spark, tmp_path, Options(quantile=0.5, topics=False), None, None)

    assert found.summed == Summed(19 * 60 * 40, 22 * 60 * 40, 40)
    for rule in found.rules:
        assert rule.count >= 3 * 19
        assert rule.of not in (OTHERS, "t/1") or rule.count >= 3 * 20
    assert allowed([rule for rule in found.rules if rule.kind == "client"], "many") >= 60
    assert allowed([rule for rule in found.rules if rule.kind == "topic"], "t/1") >= 60
    # Half of its windows and of those in which it may have been hidden.
    assert allowed(list(far.rules), "many") >= 60


def test_a_client_that_is_hidden_in_its_loud_windows_is_not_limited_by_its_quiet_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where it was not among the largest pairs, it may have published all of the others."""
    rows = [
        *usual_rows({"c": [1.0] * 40 + [0.0] * 40}, window_s=60),
        *usual_rows({OTHERS: [0.0] * 40 + [50.0] * 40}, window_s=60, topic=OTHERS),
        *usual_rows({f"d{n}": [1.0] * 40 for n in range(9)}, window_s=60),
    ]
    write(tmp_path, t.USUAL, rows)

    found = learn(spark, tmp_path, Options(), None, None)

    assert allowed([rule for rule in found.rules if rule.kind == "client"], "c") >= 150


def test_too_little_is_no_usual(spark: SparkSession, tmp_path: Path) -> None:
    """Instead of limits by chance there is a word of what is missing."""
    with pytest.raises(LearningError, match="has no table usual"):
        learn(spark, tmp_path, Options(), None, None)
    write(tmp_path, t.USUAL, usual_rows({"c": [1.0] * 20}, window_s=60))

    with pytest.raises(LearningError, match="no client published in 30 windows of 60 s, the most is 20"):
        learn(spark, tmp_path, Options(), None, None)
    with pytest.raises(LearningError, match="no rows in this span"):
        learn(spark, tmp_path, Options(), START.timestamp() + 1e6, None)
    with pytest.raises(LearningError, match=r"--over must be a multiple of the windows in .*, 60 s, and is 90 s"):
        learn(spark, tmp_path, Options(over_s=90), None, None)


def test_a_replay_says_what_each_rule_would_have_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Beside sums made one by one; what can't be replayed is named."""
    chance = random.Random(3)
    rates = {f"c{n}": [chance.choice((0.0, 1.0, 5.0, 50.0)) for _ in range(40)] for n in range(6)}
    rows = usual_rows(rates, window_s=60)
    write(tmp_path, t.USUAL, rows)
    path = tmp_path / "limits.toml"
    path.write_text(
        '[[flow]]\nname = "c0"\nclient = "c0"\ncount = 20.5\n'
        '[[flow]]\nname = "t1"\ntopic = ["t/c1"]\nper = "topic"\ncount = 4\n'
        '[[flow]]\nname = "connects"\nkind = "connect"\ncount = 4\n'
        '[[param]]\nname = "others"\nparam = "client"\ncount = 3\nitems = {c0 = 1000000000}\n'
    )

    rules, left = rules_in(path, 60)
    found, _ = replay_rules(spark, tmp_path, rules, 60, None, None)

    def excess(names: set[str], count: float) -> int:
        return sum(max(0, ceil(row["messages"] - count * 60)) for row in rows if row["client"] in names)

    assert left == ["connects"]
    assert found["c0"].excess == excess({"c0"}, 20.5)
    assert found["t1"].excess == excess({"c1"}, 4)
    assert found["others"].excess == excess(set(rates) - {"c0"}, 3)
    assert found["others"].messages == sum(row["messages"] for row in rows if row["client"] != "c0")


def test_a_torn_file_is_named_and_left_out(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not end the job, and nobody has to guess which it is."""
    good = write(tmp_path, t.USUAL, usual_rows({"c": [1.0] * 40}, window_s=60))
    torn = good.with_name("batch-0000000001.parquet")
    torn.write_bytes(good.read_bytes()[:-20])

    found = learn(spark, tmp_path, Options(), None, None)
    good.unlink()

    assert found.seen["client"] == 1
    assert f"left out {torn}: it is not a complete Parquet file" in capsys.readouterr().err
    with pytest.raises(LearningError, match="no file of the table usual can be read"):
        learn(spark, tmp_path, Options(), None, None)


def test_a_file_whose_middle_is_torn_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Its end is whole, so only the job finds it: the error says which file it is, and what to do."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    path = write(tmp_path, t.USUAL, usual_rows({"c": [1.0] * 40}, window_s=60))
    content = path.read_bytes()
    path.write_bytes(b"PAR1" + b"\xff" * (len(content) // 3) + content[4 + len(content) // 3 :])

    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        learn(spark, tmp_path, Options(), None, None)

    assert f"{path} can't be read as a file of the table usual" in why_failed(failed.value, tmp_path)
    assert "restore it from a backup" in why_failed(failed.value, tmp_path)


def test_rows_that_can_not_be_are_left_out(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times of other ages and counts without end would be in every rate; how many there were is told."""
    rows = [dict(row) for row in usual_rows({"c": [1.0] * 40}, window_s=60)]
    odd = [
        rows[0] | {"window_start": START.replace(year=9999)},
        rows[0] | {"messages": 2**63 - 1},
        rows[0] | {"messages": -5},
        rows[0] | {"window_s": -1},
        rows[0] | {"window_s": 2**31 - 1},
        rows[0] | {"window_start": None},
    ]
    write(tmp_path, t.USUAL, [*rows, *odd])

    found = learn(spark, tmp_path, Options(), None, None)

    assert "left out 6 rows of the table usual" in capsys.readouterr().err
    assert (found.windows, found.end_s - found.start_s) == (40, 2400)
    assert {rule.usual.most for rule in found.rules if rule.usual} <= {1.0}


LOUD = {f"small-{n}": [1.0] * 40 for n in range(5)} | {"loud": [20.0] * 39 + [500.0]}
LEARN = ("rules", "--tables", "tables", "--quantile", "0.9", "--others", "0.5", "--no-topics", "--out", "limits.toml")


def row_of(rule: str, printed: str) -> list[str]:
    """What the command printed of a rule."""
    [line] = [line for line in printed.splitlines() if line.endswith(rule)]
    return re.split("  +", line.strip())


def test_an_interrupt_of_a_job_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Py4J logs what it was doing when ^C came, with a traceback: nobody asked for it."""

    class Stopping:
        def stop(self) -> None:
            print("Traceback of a thread", file=sys.stderr)

    def interrupted(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("Traceback of the call", file=sys.stderr)
            raise

    monkeypatch.setattr(command, "start", lambda *_: Stopping())
    monkeypatch.setattr(command, "learn", interrupted)

    status = main(["rules", "--tables", str(tmp_path), "--out", str(tmp_path / "l.toml")])

    assert status == 130
    assert capsys.readouterr().err == "kinmqtt-metrics: ended by ^C\n"


def test_the_command_learns_in_a_process_of_its_own(tmp_path: Path) -> None:
    """As an operator runs it: Spark is started and stopped, a file is written, and what it would do is printed."""
    write(tmp_path / "tables", t.USUAL, usual_rows(LOUD, window_s=60))
    command = [sys.executable, "-c", "import sys; from kinmqtt_metrics.command import main; sys.exit(main())"]

    done = subprocess.run(
        [*command, *LEARN],
        cwd=tmp_path,
        env={**os.environ, **JAVA},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "limits.toml: 1 rule for clients, and one for all others of each, in the shadow"
    assert said[1].startswith("Warning: The rule for all other clients was learned from 6 clients, fewer than 20: ")
    assert row_of("learned client loud", done.stdout)[:5] == ["60", "500", "76\u202f800", "26\u202f400", "1"]
    assert tomllib.loads((tmp_path / "limits.toml").read_text())["flow"][0]["count"] == 60


def test_the_command_replays_a_rule_that_was_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator tries another count before it is in force."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Session", lambda master, tables: nullcontext(spark))
    write(tmp_path / "tables", t.USUAL, usual_rows(LOUD, window_s=60))
    first = main([*LEARN])
    capsys.readouterr()
    path = tmp_path / "limits.toml"
    path.write_text(path.read_text().replace("count = 60", "count = 10"))

    second = main(["rules", "--tables", "tables", "--replay", "limits.toml", "--rule", "learned client loud"])

    assert (first, second) == (0, 0)
    excess = f"{39 * 600 + 490 * 60:,}".replace(",", "\u202f")
    assert row_of("learned client loud", capsys.readouterr().out)[3:5] == [excess, "40"]


def test_the_command_replays_with_the_windows_of_the_file_and_tells_the_share_of_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other windows than those it was learned with would say something else; figures without others are not all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Session", lambda master, tables: nullcontext(spark))
    rates = {"c": [1.0] * 40, "d": [5.0] * 40}
    others = usual_rows({OTHERS: [0.0] * 39 + [14.0]}, window_s=60, topic=OTHERS)
    write(tmp_path / "tables", t.USUAL, [*usual_rows(rates, window_s=60), *others])
    replay_it = ["rules", "--tables", "tables", "--replay", "limits.toml"]

    first = main([*LEARN, "--over", "120", "--min-windows", "20"])
    learned_it = capsys.readouterr().out
    second = main(replay_it)
    replayed_it = capsys.readouterr().out
    third = main([*replay_it, "--over", "60"])
    over_60 = capsys.readouterr().out

    assert (first, second, third) == (0, 0, 0)
    for said in (learned_it, replayed_it, over_60):
        assert "5.5 % of the messages (840 of 15\u202f240) are in (others), in 1 window" in said
    assert "as high as these messages allow" in learned_it
    assert "  windows of 120 s  " in learned_it
    assert "  windows of 120 s  " in replayed_it
    assert "  windows of 60 s  " in over_60
