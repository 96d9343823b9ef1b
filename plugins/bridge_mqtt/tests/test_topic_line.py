"""Topic lines are read as Mosquitto reads them, and topics move between the two sides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinmqtt_bridge_mqtt.mapping import Mapping
from kinmqtt_bridge_mqtt.topic_line import TopicLine
from spi_harness.examples import examples


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a/#", TopicLine("a/#", "out", 0)),
        ("a/# in", TopicLine("a/#", "in", 0)),
        ("a/+ both 2", TopicLine("a/+", "both", 2)),
        ("# out 1 local/", TopicLine("#", "out", 1, "local/")),
        ('# in 1 "" far/', TopicLine("#", "in", 1, "", "far/")),
        ('"" out 1 here there', TopicLine("", "out", 1, "here", "there")),
    ],
)
def test_a_line_has_up_to_five_words(text: str, line: TopicLine) -> None:
    """What is missing has Mosquitto's defaults; two quotes stand for nothing."""
    assert TopicLine.parse(text) == line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("a out 1 b c d", "more than PATTERN"),
        ("a bot 1", "'bot' is no direction; did you mean 'both'"),
        ("a out 3", "'3' is no QoS"),
        ("a/#/b", "is not a topic filter"),
        ("# out 1 local", "'local#' is not a topic filter"),
        ("a out 1 b/+/", "has a wildcard"),
        ('"" out 1 here', "needs both prefixes"),
        ("$share/g/a in 1", "share names a group"),
        ("$SYS/# in 1", "give a local prefix"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, problem: str) -> None:
    """With the line, and what to write."""
    with pytest.raises(ValueError, match=problem.replace("$", r"\$").replace("#", r"\#")):
        TopicLine.parse(text)


@pytest.mark.parametrize(
    ("line", "local", "remote"),
    [
        ("a/# both 1", "a/b", "a/b"),
        ("# both 1 here/ there/", "here/a/b", "there/a/b"),
        ("# both 1 here/ there/", "here", "there"),
        ('# both 1 here/ ""', "here/a", "a"),
        ('"" both 1 here/x there/y', "here/x", "there/y"),
        ("+/t both 1 h/ r/", "h/a/t", "r/a/t"),
    ],
)
def test_prefixes_are_exchanged(line: str, local: str, remote: str) -> None:
    """In both directions."""
    found = TopicLine.parse(line)

    assert found.to_remote(local) == remote
    assert found.to_local(remote) == local


def test_the_first_line_that_matches_counts() -> None:
    """As in Mosquitto, and a message of no line is left alone."""
    mapping = Mapping([TopicLine.parse(each) for each in ("a/b out 0", 'a/# out 2 "" far/', "x/# in 1")])

    assert mapping.out("a/b") == ("a/b", 0)
    assert mapping.out("a/c") == ("far/a/c", 1)
    assert mapping.out("b") is None
    assert mapping.into("x/y") == "x/y"
    assert mapping.into("a/b") is None
    assert mapping.local_filters == ("a/b", "a/#")
    assert mapping.remote_filters == {"x/#": 1}


def test_what_comes_in_is_no_topic_of_the_brokers() -> None:
    """A far broker can't write below our $SYS."""
    mapping = Mapping([TopicLine.parse('# in 1 "" far/')])

    assert mapping.into("far/$SYS/broker") is None


def test_response_topics_move_so_that_answers_find_their_way() -> None:
    """An answer to what went out comes in, and one to what came in goes out."""
    mapping = Mapping([TopicLine.parse(each) for each in ("ask/# out 1 h/ r/", "say/# in 1 h/ r/")])

    assert mapping.response_out("h/say/1") == "r/say/1"
    assert mapping.response_into("r/ask/1") == "h/ask/1"
    assert mapping.response_out("else") == "else"


LEVELS = st.lists(st.text("ab$é", max_size=3) | st.just("+"), min_size=1, max_size=4)
PREFIXES = st.text("ab/", max_size=5)


@given(LEVELS, st.booleans(), PREFIXES, PREFIXES, st.lists(st.text("abé", max_size=3), min_size=1, max_size=5))
@settings(max_examples=examples(300), deadline=None)
def test_a_topic_that_moves_comes_back(
    levels: list[str], multi: bool, local: str, remote: str, topic: list[str]
) -> None:
    """Whatever a line says, what it does with a topic is undone on the way back."""
    pattern = "/".join(levels + ["#"] * multi)
    try:
        line = TopicLine.parse(f"{pattern or chr(34) * 2} both 1 {local or chr(34) * 2} {remote or chr(34) * 2}")
    except ValueError:
        return
    name = local + "/".join(topic)
    there = line.to_remote(name) if name else None
    if there is not None:
        assert line.to_local(there) == name


@given(st.text(max_size=60))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_is_a_line_or_an_error(text: str) -> None:
    """Nothing else is raised."""
    try:
        line = TopicLine.parse(text)
    except ValueError:
        return
    assert line.direction in ("out", "in", "both")
