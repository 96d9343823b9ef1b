"""The plain matcher, the yardstick of the other indexes, checked by the specification's own examples."""

from __future__ import annotations

from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.services.subscription import Matches, Subscriber
from kinmqtt_spi.values import Subscription


def test_matches_tell_plain_and_shared_subscriptions_apart() -> None:
    """A plain subscriber is found for each filter of its own, a group once for each filter of the group."""
    index = NaiveIndex()
    plain, overlapping = Subscription("a/+", identifier=1), Subscription("a/#", identifier=2)
    shared = Subscription("a/+", share_group="g")
    for client_id, subscription in (("one", plain), ("one", overlapping), ("one", shared), ("two", shared)):
        index.add(client_id, subscription)

    assert index.match("a/b") == Matches(
        (Subscriber("one", plain), Subscriber("one", overlapping)),
        {("g", "a/+"): (Subscriber("one", shared), Subscriber("two", shared))},
    )
    assert (index.count(), dict(index.filters())) == (4, {"a/+": 3, "a/#": 1})


def test_the_generation_rises_with_real_changes_only() -> None:
    """Caches of matches stand as long as no match could come out differently."""
    index = NaiveIndex()

    answers = [
        (index.add("c", Subscription("a")), index.generation),
        (index.add("c", Subscription("a")), index.generation),
        (index.add("c", Subscription("a", qos=1)), index.generation),
        (index.remove("c", "b"), index.generation),
        (index.remove("c", "a", "g"), index.generation),
        (index.remove("c", "a"), index.generation),
    ]

    assert answers == [(True, 1), (False, 1), (False, 2), (False, 2), (False, 2), (True, 3)]
