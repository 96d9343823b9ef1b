"""Topic filters: what they match, cover and share, checked by the specification's own examples."""

from __future__ import annotations

import pytest

from kinmqtt_spi.topics import check_filters, covers, matches, overlaps


@pytest.mark.parametrize(
    ("filter", "topic"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1"),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
        ("sport/#", "sport"),
        ("#", "sport/tennis"),
        ("#", "/"),
        ("sport/tennis/+", "sport/tennis/player1"),
        ("sport/+", "sport/"),
        ("+/+", "/finance"),
        ("/+", "/finance"),
        ("+", "finance"),
        ("+/tennis/#", "sport/tennis"),
        ("$SYS/#", "$SYS/monitor/Clients"),
        ("$SYS/monitor/+", "$SYS/monitor/Clients"),
        ("a/+", "a/$x"),
        ("ACCOUNTS", "ACCOUNTS"),
    ],
)
def test_a_filter_matches(filter: str, topic: str) -> None:
    """Wildcards match as section 4.7 says (MQTT-4.7.1-1, MQTT-4.7.1-2)."""
    assert matches(filter, topic)


@pytest.mark.parametrize(
    ("filter", "topic"),
    [
        ("sport/tennis/+", "sport/tennis/player1/ranking"),
        ("sport/+", "sport"),
        ("+", "/finance"),
        ("#", "$SYS/monitor"),
        ("+/monitor/Clients", "$SYS/monitor/Clients"),
        ("+", "$SYS"),
        ("a", "A"),
        ("a/", "a"),
        ("a", "/a"),
        ("a/b/#", "a"),
    ],
)
def test_a_filter_does_not_match(filter: str, topic: str) -> None:
    """Levels count, case counts, and no leading wildcard matches ``$`` (MQTT-4.7.2-1, MQTT-4.7.3-4)."""
    assert not matches(filter, topic)


@pytest.mark.parametrize(
    ("filter", "other", "covered", "shared"),
    [
        ("#", "a/b", True, True),
        ("#", "a/#", True, True),
        ("a/#", "a", True, True),
        ("a/#", "#", False, True),
        ("a/+", "a/#", False, True),
        ("a/+", "a/+", True, True),
        ("a/b", "a/+", False, True),
        ("a/+", "+/b", False, True),
        ("a/+", "b/+", False, False),
        ("a/+", "a", False, False),
        ("a/+/c", "a/b", False, False),
        ("a", "a/#", False, True),
        ("#", "$SYS/#", False, False),
        ("$SYS/#", "+/x", False, False),
        ("$SYS/+", "$SYS/x", True, True),
    ],
)
def test_filters_are_compared_as_sets_of_topics(filter: str, other: str, covered: bool, shared: bool) -> None:
    """One filter covers another if it matches all that the other does, and overlaps if any of it."""
    assert covers(filter, other) is covered
    assert overlaps(filter, other) is overlaps(other, filter) is shared


def test_filters_that_topics_can_match_are_valid() -> None:
    """Wildcards stand for whole levels, and # for the last ones."""
    check_filters(["a", "/", "a/+/b", "+", "#", "a/#", "$SYS/#"])


@pytest.mark.parametrize("filter", ["", "a/#/b", "a+", "#a", "a\0", "$share/g/a"])
def test_a_filter_that_no_topic_can_match_is_named(filter: str) -> None:
    """A shared one is none either: sinks and taps are subscribers of their own."""
    with pytest.raises(ValueError, match="is not a topic filter that a topic can match"):
        check_filters(["a", filter])
