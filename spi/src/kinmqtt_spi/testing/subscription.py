"""The contract of a subscription index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import SubscriptionRefused
from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.subscription import Matches, Subscriber, SubscriptionIndex
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import subscription
from kinmqtt_spi.testing.contract import Contract, many
from kinmqtt_spi.values import Subscription


class SubscriptionIndexContract(Contract):
    """Override the fixture ``subscription_index``: an empty index."""

    wildcards = True
    """Whether the index takes filters with ``+`` and ``#``."""
    shared = True
    """Whether the index takes shared subscriptions."""

    @property
    def without_wildcards(self) -> bool:
        """Whether ``wildcards`` is False."""
        return not self.wildcards

    @property
    def without_shared(self) -> bool:
        """Whether ``shared`` is False."""
        return not self.shared

    @pytest.fixture
    def subscription_index(self) -> SubscriptionIndex:
        """The index under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture subscription_index")

    # What is held

    @behaviour("SUBSCRIPTION-01")
    def test_subscription_01_adding_tells_what_is_new(self, subscription_index: SubscriptionIndex) -> None:
        """``add`` returns whether the client had no subscription with this filter; a replaced one is not new."""
        answers = [
            subscription_index.add("a", subscription("x")),
            subscription_index.add("a", subscription("x")),
            subscription_index.add("a", subscription("x", qos=2)),
            subscription_index.add("b", subscription("x")),
            subscription_index.add("a", subscription("y")),
        ]

        assert answers == [True, False, False, True, True]

    @behaviour("SUBSCRIPTION-02")
    def test_subscription_02_removing_tells_what_was_there(self, subscription_index: SubscriptionIndex) -> None:
        """``remove`` returns whether there was such a subscription, of that client, filter and group."""
        subscription_index.add("a", subscription("x"))

        answers = [
            subscription_index.remove("b", "x"),
            subscription_index.remove("a", "y"),
            subscription_index.remove("a", "x", "group"),
            subscription_index.remove("a", "x"),
            subscription_index.remove("a", "x"),
        ]

        assert answers == [False, False, False, True, False]
        assert subscription_index.match("x") == Matches()

    @behaviour("SUBSCRIPTION-03")
    def test_subscription_03_it_comes_back_as_it_is_now(self, subscription_index: SubscriptionIndex) -> None:
        """A match has a subscription with all of its options, also after it was replaced."""
        whole = subscription(
            "x", qos=2, no_local=True, retain_as_published=True, retain_handling=2, identifier=268_435_455
        )
        subscription_index.add("ä/client+#", subscription("x", qos=1))
        subscription_index.match("x")
        subscription_index.add("ä/client+#", whole)

        assert subscription_index.match("x").subscribers == (Subscriber("ä/client+#", whole),)

    @behaviour("SUBSCRIPTION-04")
    def test_subscription_04_each_client_is_found_once(self, subscription_index: SubscriptionIndex) -> None:
        """Each client of a filter is found once, and removing one leaves the others."""
        for name in "abc":
            subscription_index.add(name, subscription("x"))
        before = _clients(subscription_index.match("x"))
        subscription_index.remove("b", "x")

        assert before == Counter("abc")
        assert _clients(subscription_index.match("x")) == Counter("ac")

    # What matches

    @behaviour("SUBSCRIPTION-05")
    def test_subscription_05_levels_are_compared_exactly(self, subscription_index: SubscriptionIndex) -> None:
        """Without wildcards a filter matches only the equal topic, including empty levels."""
        names = ("a", "A", "/a", "a/", "a/b", "a//b", "/", "//", "ä", "a\u0308", "\U0001f600/x", "$SYS/x", "a b")
        for name in names:
            subscription_index.add("c", subscription(name))

        for name in names:
            assert _filters(subscription_index.match(name)) == Counter([name])
        assert _filters(subscription_index.match("a/b/c")) == Counter()

    @behaviour("SUBSCRIPTION-06", needs="wildcards")
    def test_subscription_06_a_plus_is_one_level(self, subscription_index: SubscriptionIndex) -> None:
        """A ``+`` matches exactly one level, also an empty one (section 4.7.1.3)."""
        self._expect(
            subscription_index,
            {
                "sport/+": ["sport/", "sport/x", "sport/$x"],
                "sport/+/player": ["sport/tennis/player", "sport//player"],
                "+/+": ["sport/", "sport/x", "/finance", "sport/$x"],
                "/+": ["/finance"],
                "+": ["sport"],
            },
            ["sport", "sport/", "sport/x", "sport/$x", "sport/tennis/player", "sport//player", "/finance"],
        )

    @behaviour("SUBSCRIPTION-07", needs="wildcards")
    def test_subscription_07_a_hash_is_all_that_follows(self, subscription_index: SubscriptionIndex) -> None:
        """A ``#`` matches all following levels, and the parent level, too (section 4.7.1.2)."""
        self._expect(
            subscription_index,
            {
                "#": ["sport", "sport/", "sport/x", "sport/x/y", "/", "other"],
                "sport/#": ["sport", "sport/", "sport/x", "sport/x/y"],
                "sport/x/#": ["sport/x", "sport/x/y"],
                "+/x/#": ["sport/x", "sport/x/y"],
                "/#": ["/"],
            },
            ["sport", "sport/", "sport/x", "sport/x/y", "/", "other"],
        )

    @behaviour("SUBSCRIPTION-08", needs="wildcards")
    def test_subscription_08_leading_wildcards_see_no_dollar(self, subscription_index: SubscriptionIndex) -> None:
        """A wildcard in the first level does not match a topic that begins with ``$``; others do (section 4.7.2)."""
        self._expect(
            subscription_index,
            {
                "#": [],
                "+/monitor": [],
                "+/#": [],
                "$SYS/#": ["$SYS/monitor", "$SYS"],
                "$SYS/+": ["$SYS/monitor"],
            },
            ["$SYS/monitor", "$SYS"],
        )

    @behaviour("SUBSCRIPTION-09", needs="wildcards")
    def test_subscription_09_overlapping_filters_each_count(self, subscription_index: SubscriptionIndex) -> None:
        """A client with overlapping filters appears once for each of them."""
        for filter in ("a/b", "a/+", "a/#", "#", "other"):
            subscription_index.add("c", subscription(filter))

        assert _filters(subscription_index.match("a/b")) == Counter(["a/b", "a/+", "a/#", "#"])

    @behaviour("SUBSCRIPTION-10", needs="shared")
    def test_subscription_10_groups_stand_by_themselves(self, subscription_index: SubscriptionIndex) -> None:
        """Shared subscriptions are found by group and filter, with their members, apart from plain ones."""
        plain, first, second = (
            subscription("x"),
            subscription("x", share_group="g"),
            subscription("x", share_group="h"),
        )
        answers = [
            subscription_index.add(name, each)
            for name, each in (("a", plain), ("a", first), ("b", first), ("b", second), ("b", first))
        ]

        found = subscription_index.match("x")

        assert answers == [True, True, True, True, False]
        assert found.subscribers == (Subscriber("a", plain),)
        assert {key: set(members) for key, members in found.groups.items()} == {
            ("g", "x"): {Subscriber("a", first), Subscriber("b", first)},
            ("h", "x"): {Subscriber("b", second)},
        }

    @behaviour("SUBSCRIPTION-11", needs="shared")
    def test_subscription_11_no_group_is_without_members(self, subscription_index: SubscriptionIndex) -> None:
        """A group without members is not in a match."""
        subscription_index.add("a", subscription("x", share_group="g"))
        subscription_index.add("a", subscription("x"))

        answers = [subscription_index.remove("a", "x", "g"), subscription_index.remove("a", "x", "g")]

        assert answers == [True, False]
        assert dict(subscription_index.match("x").groups) == {}
        assert _clients(subscription_index.match("x")) == Counter("a")

    @behaviour("SUBSCRIPTION-12")
    def test_subscription_12_an_answer_stays_as_it_is(self, subscription_index: SubscriptionIndex) -> None:
        """The result of a match does not change with later subscriptions."""
        subscription_index.add("a", subscription("x"))
        found = subscription_index.match("x")
        subscription_index.add("b", subscription("x"))
        subscription_index.remove("a", "x")

        assert found == Matches((Subscriber("a", subscription("x")),))

    # Numbers

    @behaviour("SUBSCRIPTION-13")
    def test_subscription_13_the_generation_rises(self, subscription_index: SubscriptionIndex) -> None:
        """``generation`` is higher after every change that could alter a match: added, replaced or removed."""
        group = "g" if self.shared else None
        changes: list[Callable[[], object]] = [
            lambda: subscription_index.add("a", subscription("x")),
            lambda: subscription_index.add("b", subscription("x")),
            lambda: subscription_index.add("a", subscription("x", qos=1)),
            lambda: subscription_index.add("c", subscription("x", share_group=group)),
            lambda: subscription_index.remove("c", "x", group),
            lambda: subscription_index.remove("b", "x"),
            lambda: subscription_index.remove("a", "x"),
        ]
        seen = [subscription_index.generation]
        for change in changes:
            change()
            seen.append(subscription_index.generation)

        assert seen == sorted(set(seen))

    @behaviour("SUBSCRIPTION-14")
    def test_subscription_14_counts_subscriptions(self, subscription_index: SubscriptionIndex) -> None:
        """``count`` is the number of subscriptions, each with a client, a filter and a group."""
        counts = [subscription_index.count()]
        for name, filter in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
            subscription_index.add(name, subscription(filter))
            counts.append(subscription_index.count())
        subscription_index.remove("a", "x")
        subscription_index.remove("a", "unknown")

        assert [*counts, subscription_index.count()] == [0, 1, 2, 3, 3, 2]

    @behaviour("SUBSCRIPTION-15")
    def test_subscription_15_filters_are_listed_once(self, subscription_index: SubscriptionIndex) -> None:
        """``filters`` yields every distinct filter once, without its group, with its number of subscriptions."""
        group = "g" if self.shared else None
        for name, each in (
            ("a", subscription("x")),
            ("b", subscription("x")),
            ("c", subscription("x", share_group=group)),
            ("a", subscription("y")),
            ("a", subscription("z")),
        ):
            subscription_index.add(name, each)
        subscription_index.remove("a", "z")

        assert sorted(subscription_index.filters()) == [("x", 3), ("y", 1)]

    # What is refused

    @behaviour("SUBSCRIPTION-16", needs="without_wildcards")
    def test_subscription_16_wildcards_are_refused(self, subscription_index: SubscriptionIndex) -> None:
        """An index without wildcards refuses them with 0xA2, and nothing changes."""
        refused = [subscription(filter) for filter in ("#", "+", "a/#", "a/+/b", "+/a")]

        self._refused(subscription_index, refused, ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)

    @behaviour("SUBSCRIPTION-17", needs="without_shared")
    def test_subscription_17_shared_ones_are_refused(self, subscription_index: SubscriptionIndex) -> None:
        """An index without shared subscriptions refuses them with 0x9E, and nothing changes."""
        refused = [subscription("a", share_group="g")]

        self._refused(subscription_index, refused, ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)

    @behaviour("SUBSCRIPTION-18")
    def test_subscription_18_every_filter_is_taken_or_refused(self, subscription_index: SubscriptionIndex) -> None:
        """The longest and deepest filters are found, or refused by ``SubscriptionRefused`` with a failure code.

        A refused filter has changed nothing; an accepted one can be removed.
        """
        for topic in ("x" * 65_535, "/" * 65_535, "é" * 32_767, "/".join("ab" * 10_000), "a/" * 500 + "\U0001f600"):
            try:
                subscription_index.add("c", subscription(topic))
            except SubscriptionRefused as refused:
                assert refused.reason >= 0x80
            else:
                assert _filters(subscription_index.match(topic)) == Counter([topic])
                assert subscription_index.remove("c", topic)
            assert _state(subscription_index, [topic]) == (0, [], [Matches()])

    # Over time

    @behaviour("SUBSCRIPTION-19")
    def test_subscription_19_nothing_is_left_over(self, subscription_index: SubscriptionIndex) -> None:
        """Repeated subscribing and unsubscribing leaves nothing, and does not affect other subscriptions."""
        names = ["a", "a/b", "a/b/c", "a/x", *(["a/+", "a/#", "a/+/c"] if self.wildcards else [])]
        subscription_index.add("staying", subscription("a/b"))
        for _ in range(50):
            for filter in names:
                subscription_index.add("passing", subscription(filter))
                subscription_index.add("passing", subscription(filter))
            for filter in names:
                subscription_index.remove("passing", filter)

        staying = Matches((Subscriber("staying", subscription("a/b")),))
        assert _state(subscription_index, ["a/b", "a", "a/b/c"]) == (
            1,
            [("a/b", 1)],
            [staying, Matches(), Matches()],
        )

    @behaviour("SUBSCRIPTION-20")
    def test_subscription_20_as_a_plain_index_does(self, subscription_index: SubscriptionIndex) -> None:
        """With random subscriptions of three clients the index equals a linear search."""

        @settings(
            max_examples=100, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(many(_steps(self.wildcards, self.shared)))
        def run(steps: list[tuple[str, bool, Subscription]]) -> None:
            plain = NaiveIndex()
            held = set()
            for client_id, adding, each in steps:
                if adding:
                    held.add((client_id, each.filter, each.share_group))
                    assert subscription_index.add(client_id, each) == plain.add(client_id, each)
                else:
                    held.discard((client_id, each.filter, each.share_group))
                    removed = subscription_index.remove(client_id, each.filter, each.share_group)
                    assert removed == plain.remove(client_id, each.filter, each.share_group)
            for topic in _EVERY_TOPIC:
                assert _unordered(subscription_index.match(topic)) == _unordered(plain.match(topic))
            assert subscription_index.count() == plain.count()
            assert sorted(subscription_index.filters()) == sorted(plain.filters())
            for client_id, filter, group in held:
                assert subscription_index.remove(client_id, filter, group)

        run()

    # Within

    def _expect(self, index: SubscriptionIndex, wanted: dict[str, list[str]], topics: Iterable[str]) -> None:
        for filter in wanted:
            index.add("c", subscription(filter))
        for topic in topics:
            expected = Counter(filter for filter, found in wanted.items() if topic in found)
            assert _filters(index.match(topic)) == expected, topic

    def _refused(self, index: SubscriptionIndex, refused: list[Subscription], reason: ReasonCode) -> None:
        index.add("c", subscription("a"))
        before = _state(index, ["a", "a/x/b"])
        for each in refused:
            with pytest.raises(SubscriptionRefused) as caught:
                index.add("c", each)
            assert caught.value.reason == reason
        assert _state(index, ["a", "a/x/b"]) == before


def _clients(found: Matches) -> Counter[str]:
    return Counter(each.client_id for each in found.subscribers)


def _filters(found: Matches) -> Counter[str]:
    return Counter(each.subscription.filter for each in found.subscribers)


def _state(index: SubscriptionIndex, topics: Iterable[str]) -> tuple[int, list[tuple[str, int]], list[Matches]]:
    return index.count(), sorted(index.filters()), [index.match(topic) for topic in topics]


def _unordered(found: Matches) -> tuple[Any, Any]:
    return Counter(found.subscribers), {key: Counter(members) for key, members in found.groups.items()}


_EVERY_TOPIC = [
    topic
    for depth in (1, 2, 3)
    for levels in product(("a", "b", "", "$x"), repeat=depth)
    if (topic := "/".join(levels))
]
_TOPICS = st.sampled_from(_EVERY_TOPIC)


def _steps(wildcards: bool, shared: bool) -> st.SearchStrategy[Any]:
    """A client's name, whether it subscribes or unsubscribes, and the subscription."""
    filters = _TOPICS
    if wildcards:
        levels = st.lists(st.sampled_from(("a", "b", "", "$x", "+")), max_size=3)
        filters |= st.builds(lambda first, last: "/".join([*first, *last]), levels, st.sampled_from(((), ("#",))))
    groups = st.sampled_from((None, "g", "h")) if shared else st.none()
    subscriptions = st.builds(
        lambda filter, qos, group: subscription(filter, qos=qos, share_group=group),
        filters.filter(bool),
        st.integers(0, 1),
        groups,
    )
    return st.tuples(st.sampled_from(("one", "two", "three")), st.booleans(), subscriptions)
