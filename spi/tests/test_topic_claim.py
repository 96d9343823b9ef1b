"""Claims of topics that begin with ``$``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.plugin import TopicClaim
from kinmqtt_spi.topics import matches

LEVELS = st.sampled_from(["$CONTROL", "$x", "a", "b", ""])
CLAIMS = st.tuples(st.sampled_from(["$CONTROL", "$x"]), st.lists(st.sampled_from(["a", "b", ""]), max_size=2)).map(
    lambda parts: TopicClaim("/".join([parts[0], *parts[1], "#"]))
)
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=3), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)


@pytest.mark.parametrize(
    ("filter", "why"),
    [
        ("", "a topic and all below it"),
        ("$CONTROL", "a topic and all below it"),
        ("$CONTROL/a", "a topic and all below it"),
        ("$CONTROL/+/#", "a topic and all below it"),
        ("$CONTROL/a#/#", "a topic and all below it"),
        ("$CONTROL/\0/#", "a topic and all below it"),
        ("#", "a topic and all below it"),
        ("+/#", "a topic and all below it"),
        ("a/#", "begin with \\$ and a name"),
        ("/#", "begin with \\$ and a name"),
        ("$/#", "begin with \\$ and a name"),
        ("$SYS/#", r"\$SYS is the broker's own"),
        ("$SYS/broker/connection/#", r"\$SYS is the broker's own"),
        ("$share/#", r"\$share is the broker's own"),
        ("$plugin/mine/#", r"\$plugin is the broker's own"),
    ],
)
def test_only_a_topic_and_all_below_it_can_be_claimed(filter: str, why: str) -> None:
    """And none of the broker's own; the error says what can."""
    with pytest.raises(ValueError, match=why):
        TopicClaim(filter)


def test_a_claim_says_nothing_of_deliveries() -> None:
    """Who may receive is for authorize_receive to say."""
    with pytest.raises(ValueError, match="RECEIVE"):
        TopicClaim("$x/#", {Action.RECEIVE})


@given(claim=CLAIMS, topic=TOPICS)
def test_a_claim_covers_what_its_filter_matches(claim: TopicClaim, topic: str) -> None:
    """A topic is claimed exactly if somebody who subscribed to the claim's filter would get it."""
    assert claim.covers(topic) is matches(claim.filter, topic)


@given(claim=CLAIMS, topic=TOPICS, filter=FILTERS)
def test_a_filter_that_reaches_into_a_claim_is_seen(claim: TopicClaim, topic: str, filter: str) -> None:
    """Where it matches a claimed topic it lies within the claim; where the claim covers it, all its topics are."""
    if matches(filter, topic):
        if claim.covers(topic):
            assert claim.lies_within(filter)
        if claim.covers(filter):
            assert claim.covers(topic)
