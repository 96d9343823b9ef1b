"""Matching by jumping over ordered topics finds what section 4.7 says, and does not look at everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kinmqtt_redis_session.matching import END, Pattern
from kinmqtt_spi.testing.retain import FILTERS, TOPICS
from kinmqtt_spi.topics import matches
from spi_harness.examples import examples

LEVELS = st.sampled_from(["a", "b", "ab", "a-b", "", "$x", "0", "é", "a b"])
SOME_TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
SOME_FILTERS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.sampled_from(["", "+", "#", "a"])).map(
    lambda parts: "/".join([*parts[0], parts[1]])
)


def found(filter: str, topics: list[str]) -> tuple[list[str], int]:
    """What a walk over ordered topics finds, and how many of them it looked at."""
    pattern = Pattern(filter.encode())
    ordered = sorted(each.encode() for each in topics)
    matching: list[str] = []
    looked = 0
    before = pattern.start
    for topic in ordered:
        if topic < before:
            continue
        looked += 1
        if pattern.is_over(topic):
            break
        fits, beyond = pattern.look(topic)
        if fits:
            matching.append(topic.decode())
        if beyond == END:
            break
        before = beyond or before
    return matching, looked


def test_filters_that_confuse_matchers() -> None:
    """All of the suite's filters and topics, against the reference."""
    for filter in FILTERS:
        assert sorted(found(filter, list(TOPICS))[0]) == sorted(each for each in TOPICS if matches(filter, each))


@settings(max_examples=examples(500), deadline=None, database=None)
@given(SOME_FILTERS, st.lists(SOME_TOPICS, unique=True, max_size=30))
def test_random_filters_and_topics(filter: str, topics: list[str]) -> None:
    """Whatever stands beside what matches, also with bytes below and above the slash."""
    assert sorted(found(filter, topics)[0]) == sorted(each for each in topics if matches(filter, each))


def test_topics_that_can_not_match_are_skipped() -> None:
    """A filter with a level behind its wildcard looks at a few topics of each branch, not at all below it."""
    topics = [f"a/{branch}/{leaf}" for branch in range(10) for leaf in range(1000)]

    matching, looked = found("a/+/500", topics)

    assert len(matching) == 10
    assert looked < 50
