"""The built-in subscription indexes, measured against the plain one that tries every subscription."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kinmqtt.builtins import hash as hash_plugin
from kinmqtt.builtins import trie as trie_plugin
from kinmqtt.builtins._leaf import LeafIndex
from kinmqtt.builtins.hash import HashIndex
from kinmqtt.builtins.trie import TrieIndex
from kinmqtt_spi.errors import SubscriptionRefused
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.subscription import Matches, Subscriber, SubscriptionIndex
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Subscription
from spi_harness.examples import examples

both = pytest.mark.parametrize("make", [TrieIndex, HashIndex])


def unordered(found: Matches) -> tuple[set[Subscriber], dict[tuple[str, str], set[Subscriber]]]:
    """Matches as sets, after a check that nobody is in them twice."""
    assert len(set(found.subscribers)) == len(found.subscribers)
    assert all(found.groups.values())
    return set(found.subscribers), {key: set(members) for key, members in found.groups.items()}


LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.one_of(
    TOPICS,
    st.builds(
        lambda levels, tail: "/".join([*levels, *tail]),
        st.lists(LEVELS | st.just("+"), max_size=4),
        st.just(["#"]),
    ),
    st.lists(LEVELS | st.just("+"), min_size=1, max_size=4).map("/".join).filter(bool),
)
CLIENTS = st.sampled_from(["one", "two", "three"])
GROUPS = st.sampled_from([None, None, "g", "h"])


class IndexModel(RuleBasedStateMachine):
    """The trie takes everything; the hash index takes what has no wildcard, and the plain ones judge both."""

    def __init__(self) -> None:
        super().__init__()
        self.trie, self.plain = TrieIndex(), NaiveIndex()
        self.hash, self.plain_exact = HashIndex(), NaiveIndex()

    @rule(client=CLIENTS, filter=FILTERS, group=GROUPS, qos=st.integers(0, 1))
    def add(self, client: str, filter: str, group: str | None, qos: int) -> None:
        subscription = Subscription(filter, qos, group)
        assert self.trie.add(client, subscription) == self.plain.add(client, subscription)
        if "+" in filter or "#" in filter:
            with pytest.raises(SubscriptionRefused):
                self.hash.add(client, subscription)
        else:
            assert self.hash.add(client, subscription) == self.plain_exact.add(client, subscription)

    @rule(client=CLIENTS, filter=FILTERS, group=GROUPS)
    def remove(self, client: str, filter: str, group: str | None) -> None:
        assert self.trie.remove(client, filter, group) == self.plain.remove(client, filter, group)
        assert self.hash.remove(client, filter, group) == self.plain_exact.remove(client, filter, group)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        known = sorted(self.plain._subscriptions, key=repr)
        if known:
            self.remove(*data.draw(st.sampled_from(known)))

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        assert unordered(self.trie.match(topic)) == unordered(self.plain.match(topic))
        assert unordered(self.hash.match(topic)) == unordered(self.plain_exact.match(topic))

    @invariant()
    def counts_agree(self) -> None:
        for index, judge in ((self.trie, self.plain), (self.hash, self.plain_exact)):
            assert (index.count(), index.generation) == (judge.count(), judge.generation)
            assert dict(index.filters()) == dict(judge.filters())
            assert index.distinct() == len(list(judge.filters()))

    def teardown(self) -> None:
        for client, filter, group in list(self.plain._subscriptions):
            assert self.trie.remove(client, filter, group)
        assert self.trie._root.is_empty()


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)


def test_a_hundred_thousand_filters_are_found_as_one_by_one() -> None:
    """The trie is right at the size it is made for: sampled topics agree with a plain pass over all."""
    chance = random.Random(7)
    words = ["", "$x", *(f"w{number}" for number in range(30))]
    topics = ["/".join(chance.choices(words, k=chance.randint(1, 6))) or "w0" for _ in range(3000)]
    index = TrieIndex()
    wanted: dict[str, set[str]] = defaultdict(set)
    for number in range(100_000):
        levels = [level if chance.random() < 0.8 else "+" for level in chance.choice(topics).split("/")]
        if chance.random() < 0.2:
            levels[chance.randrange(len(levels)) :] = ["#"]
        client, filter = f"c{number % 1000}", "/".join(levels) or "w0"
        index.add(client, Subscription(filter))
        wanted[filter].add(client)

    sample = chance.sample(topics, 40)
    found = {topic: unordered(index.match(topic))[0] for topic in sample}

    assert index.distinct() == len(wanted)
    assert index.count() == sum(map(len, wanted.values()))
    for topic in sample:
        plain = {(client, filter) for filter in wanted if matches(filter, topic) for client in wanted[filter]}
        assert {(each.client_id, each.subscription.filter) for each in found[topic]} == plain


@both
def test_the_generation_rises_with_real_changes_only(make: Callable[[], SubscriptionIndex]) -> None:
    """Caches of matches stand as long as no match could come out differently."""
    index = make()

    answers = [
        (index.add("c", Subscription("a")), index.generation),
        (index.add("c", Subscription("a")), index.generation),
        (index.add("c", Subscription("a", qos=1)), index.generation),
        (index.remove("c", "b"), index.generation),
        (index.remove("c", "a", "g"), index.generation),
        (index.remove("c", "a"), index.generation),
    ]

    assert answers == [(True, 1), (False, 1), (False, 2), (False, 2), (False, 2), (True, 3)]
    assert vars(index)["generation"] == 3


@both
def test_a_replaced_subscription_is_matched_as_it_is_now(make: Callable[[], SubscriptionIndex]) -> None:
    """A second SUBSCRIBE to a filter replaces the first (MQTT-3.8.4-3), in repeated answers too."""
    index = make()
    index.add("c", Subscription("a", qos=0))
    before = index.match("a")

    index.add("c", Subscription("a", qos=2))
    index.add("c", Subscription("a", share_group="g"))

    assert before.subscribers == (Subscriber("c", Subscription("a", qos=0)),)
    assert index.match("a").subscribers == (Subscriber("c", Subscription("a", qos=2)),)
    assert set(index.match("a").groups) == {("g", "a")}


@both
def test_filters_may_be_listed_while_they_change(make: Callable[[], SubscriptionIndex]) -> None:
    """A listing holds what there was when it was asked for."""
    index = make()
    index.add("c", Subscription("a"))
    index.add("d", Subscription("a", share_group="g"))

    listing = index.filters()
    index.add("c", Subscription("b"))

    assert list(listing) == [("a", 2)]


@pytest.mark.parametrize("filter", ["#", "a/#", "+", "+/a", "a/+/b"])
def test_the_hash_index_refuses_wildcards(filter: str) -> None:
    """A client learns in its SUBACK that wildcards are not supported (0xA2), and nothing of it is kept."""
    index = HashIndex()

    with pytest.raises(SubscriptionRefused) as caught:
        index.add("c", Subscription(filter))

    assert caught.value.reason is ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    assert (index.count(), index.generation, list(index.filters())) == (0, 0, [])


@pytest.mark.parametrize("level", ["", "+"])
@pytest.mark.parametrize("tail", ["", "#"])
def test_the_deepest_filter_is_no_trouble(level: str, tail: str) -> None:
    """A filter of as many levels as its length allows is added, matched and removed (MQTT-4.7.3-3)."""
    levels = 32_000 if level else 65_000
    filter = "/".join([level] * levels + [tail])
    topic = "/".join([""] * (levels + 1))
    index = TrieIndex()

    index.add("c", Subscription(filter))
    found = index.match(topic)
    index.remove("c", filter)

    assert [each.client_id for each in found.subscribers] == ["c"]
    assert index._root.is_empty()


def test_a_branch_that_others_need_is_not_cut() -> None:
    """Removing a filter leaves those above, below and beside it findable."""
    index = TrieIndex()
    for filter in ("a", "a/b", "a/b/c", "a/+", "a/#", "a/+/c", "a/b/+"):
        index.add("c", Subscription(filter))

    for filter in ("a/b", "a/+", "a/b/+"):
        index.remove("c", filter)

    deep, shallow = index.match("a/b/c").subscribers, index.match("a/b").subscribers
    assert {each.subscription.filter for each in deep} == {"a/b/c", "a/#", "a/+/c"}
    assert {each.subscription.filter for each in shallow} == {"a/#"}


@both
def test_a_filter_that_nobody_shares_keeps_no_groups(make: Callable[[], LeafIndex]) -> None:
    """The place for groups is there while a group is; to leave one that is not there changes nothing."""
    index = make()
    index.add("c", Subscription("a"))
    plain = index._leaves["a"].groups

    unknown = index.remove("c", "a", "g")
    index.add("c", Subscription("a", share_group="g"))
    shared = dict(index._leaves["a"].groups or {})
    other = index.remove("c", "a", "h"), index.remove("d", "a", "g")
    left = index.remove("c", "a", "g")

    assert (plain, unknown, list(shared), other, left) == (None, False, ["g"], (False, False), True)
    assert index._leaves["a"].groups is None
    assert (index.count(), list(index.filters())) == (1, [("a", 1)])


def test_the_plugins_provide_their_index() -> None:
    """Each built-in answers the hook ``subscription_index`` with an index of its own."""
    context = BareContext()

    indexes = [plugin.subscription_index(context) for plugin in (trie_plugin, hash_plugin)]

    assert [type(index) for index in indexes] == [TrieIndex, HashIndex]
