"""The hooks of subscriptions, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred, fail, succeed

from core_harness.house import House
from kinmqtt.builtins.trie import TrieIndex
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket, Puback, Publish
from kinmqtt_spi import Client, Drop, Message, ReasonCode, Reject, Subscription, hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.session import RemoveSubscriptions, SaveSubscriptions
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.values import Disconnect as DisconnectOutcome


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def broken_later(*_: Any) -> Any:
    """What a broken plugin does that answers later."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


def failures(house: House) -> float:
    """How often plugins have failed."""
    return house.assembly.metrics.sum("plugin.failures")


# subscription_index


class CountingIndex(TrieIndex):
    """An index of a plugin's own, that counts its matches."""

    def __init__(self) -> None:
        super().__init__()
        self.matched: list[str] = []

    def match(self, topic: str) -> Any:
        self.matched.append(topic)
        return super().match(topic)


class Indexer:
    """Provides the subscription index."""

    def __init__(self, index: Any) -> None:
        self.index = index

    @hookimpl
    def subscription_index(self, context: Any) -> Any:
        return self.index() if callable(self.index) else self.index


def test_subscription_index_of_the_only_plugin_is_used() -> None:
    """A plugin that provides an index stands in for the built-in trie."""
    index = CountingIndex()
    house = House(plugins={"counting": Indexer(index)})
    sub = house.connect("sub").subscribe("a/#")

    house.connect("pub").publish("a/b").publish("a/b")

    assert house.assembly.providers["subscription"] == "counting"
    assert len(sub.messages) == 2
    assert index.matched == ["a/b"]


def test_subscription_index_may_be_named() -> None:
    """The settings choose among several, the built-ins included; hash refuses wildcards with 0xA2 or 0x80."""
    house = House(plugins={"counting": Indexer(CountingIndex())}, services={"subscription": "hash"})

    new, old = house.connect("new", V5).subscribe("a/#"), house.connect("old", V311).subscribe("a/#")

    assert house.assembly.providers["subscription"] == "hash"
    assert new.granted == [ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED]
    assert old.granted == [0x80]


@pytest.mark.parametrize("index", [broken, lambda: None, lambda: object(), lambda: succeed(CountingIndex())])
def test_subscription_index_that_fails_stops_the_assembly(index: Callable[[], Any]) -> None:
    """A plugin that raises, or answers anything but an index, keeps the broker from starting, and is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad'"):
        House(plugins={"bad": Indexer(index)})


# subscribing


class Clerk:
    """Makes of each request what it is told to."""

    def __init__(self, answer: Callable[[Subscription], Any]) -> None:
        self.answer = answer

    @hookimpl
    def subscribing(self, client: Client, subscription: Subscription) -> Any:
        return self.answer(subscription)


def test_subscribing_may_change_a_subscription() -> None:
    """The client is told the QoS that was granted; what it gets is what the plugin made of its filter."""
    house = House(plugins={"clerk": Clerk(lambda s: evolve(s, filter=f"tenant/{s.filter}", qos=min(s.qos, 1)))})
    sub = house.connect("sub").subscribe("a", qos=2)

    house.connect("pub").publish("a", b"1", 2).publish("tenant/a", b"2", 2)

    assert sub.granted == [1]
    assert sub.messages == [("tenant/a", b"2", 1)]


def test_subscribing_is_a_fold() -> None:
    """Each plugin sees what the one before made of the request, at once or later."""
    plugins = {
        "a": Clerk(lambda s: coroutine(evolve(s, filter=f"{s.filter}/a"))),
        "b": Clerk(lambda s: None),
        "c": Clerk(lambda s: evolve(s, filter=f"{s.filter}/c")),
    }
    house = House(plugins=plugins)

    house.connect("c").subscribe("x")

    assert [filter for filter, _ in house.broker.router.index.filters()] == ["x/a/c"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUOTA_EXCEEDED),
        (ReasonCode.BANNED, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_subscribing_may_refuse_a_filter(reason: ReasonCode, told: ReasonCode) -> None:
    """The reason stands in the SUBACK, where the protocol lets it stand there."""
    house = House(plugins={"clerk": Clerk(lambda s: Reject(reason))})

    peer = house.connect("c", V5).subscribe("a")

    assert peer.granted == [told]
    assert house.broker.router.index.count() == 0


def test_subscribing_may_drop_a_filter() -> None:
    """The client is answered as if all were well, and has no subscription."""
    house = House(plugins={"clerk": Clerk(lambda s: Drop())})

    peer = house.connect("c", V5).subscribe("a", qos=1)

    assert peer.granted == [1]
    assert house.broker.router.index.count() == 0


def test_subscribing_may_disconnect() -> None:
    """The connection is closed with the reason."""
    peer = House(plugins={"clerk": Clerk(lambda s: DisconnectOutcome())}).connect("c", V5).subscribe("a")

    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.ADMINISTRATIVE_ACTION]
    assert peer.closed


@pytest.mark.parametrize("answer", [broken, broken_later])
def test_subscribing_that_fails_refuses(answer: Callable[..., Any]) -> None:
    """A filter that nobody has seen through is refused with 0x83; the client goes on."""
    house = House(plugins={"clerk": Clerk(answer)})

    peer = house.connect("c", V5).subscribe("a")

    assert peer.granted == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert not peer.closed
    assert failures(house) == 1


def test_subscribing_has_ten_seconds() -> None:
    """While a plugin thinks, the client's other packets wait; after ten seconds it has failed."""
    house = House(plugins={"clerk": Clerk(lambda s: Deferred())})
    peer = house.connect("c", V5).subscribe("a").publish("t", qos=1)
    assert peer.of(Puback) == []

    house.advance(11)

    assert peer.granted == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert len(peer.of(Puback)) == 1


# unsubscribing


class Keeper:
    """Makes of each UNSUBSCRIBE what it is told to."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self.answer = answer

    @hookimpl
    def unsubscribing(self, client: Client, filter: str) -> Any:
        return self.answer(filter)


def test_unsubscribing_may_change_the_filter() -> None:
    """A plugin that has changed filters at SUBSCRIBE changes them here too."""
    plugins = {
        "clerk": Clerk(lambda s: evolve(s, filter=f"tenant/{s.filter}")),
        "keeper": Keeper(lambda filter: f"tenant/{filter}"),
    }
    house = House(plugins=plugins)

    peer = house.connect("c", V5).subscribe("a").unsubscribe("a")

    assert peer.given_up == [ReasonCode.SUCCESS]
    assert house.broker.router.index.count() == 0


def test_unsubscribing_is_a_fold_over_full_filters() -> None:
    """A shared filter has its group in front; each plugin sees what the one before made of it."""
    seen: list[str] = []
    plugins = {
        "a": Keeper(lambda filter: coroutine(filter.removesuffix("/x"))),
        "b": Keeper(lambda filter: seen.append(filter)),
    }
    house = House(plugins=plugins)

    peer = house.connect("c", V5).subscribe("$share/g/a").unsubscribe("$share/g/a/x")

    assert seen == ["$share/g/a"]
    assert peer.given_up == [ReasonCode.SUCCESS]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda filter: Reject(ReasonCode.NOT_AUTHORIZED), ReasonCode.NOT_AUTHORIZED),
        (lambda filter: Reject(ReasonCode.BANNED), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        (lambda filter: Drop(), ReasonCode.SUCCESS),
        (broken, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        (broken_later, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_unsubscribing_may_keep_the_subscription(answer: Callable[[str], Any], told: ReasonCode) -> None:
    """Refused, dropped or failed: the subscription stays, and the client is told what fits."""
    house = House(plugins={"keeper": Keeper(answer)})

    peer = house.connect("c", V5).subscribe("a").unsubscribe("a")

    assert peer.given_up == [told]
    assert house.broker.router.index.count() == 1
    assert not peer.closed


def test_unsubscribing_may_disconnect() -> None:
    """The connection is closed with the reason."""
    house = House(plugins={"keeper": Keeper(lambda filter: DisconnectOutcome())})

    peer = house.connect("c", V5).subscribe("a").unsubscribe("a")

    assert peer.closed
    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.ADMINISTRATIVE_ACTION]


def test_unsubscribing_has_ten_seconds() -> None:
    """A plugin that takes longer has failed."""
    house = House(plugins={"keeper": Keeper(lambda filter: Deferred())})
    peer = house.connect("c", V5).subscribe("a").unsubscribe("a")

    house.advance(11)

    assert peer.given_up == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]


# initial_subscriptions


class Host:
    """Gives every client the same subscriptions."""

    def __init__(self, answer: Callable[[Client], Any]) -> None:
        self.answer = answer

    @hookimpl
    def initial_subscriptions(self, client: Client) -> Any:
        return self.answer(client)


def test_initial_subscriptions_are_those_of_all_plugins() -> None:
    """The union of the answers, made by the time the client has its CONNACK."""
    plugins = {
        "a": Host(lambda client: [Subscription(f"to/{client.client_id}", 1)]),
        "b": Host(lambda client: coroutine([Subscription("news")])),
        "c": Host(lambda client: None),
    }
    house = House(plugins=plugins)

    peer = house.connect("c")
    house.connect("pub").publish("to/c", b"1", 1).publish("news", b"2").publish("other")

    assert peer.messages == [("to/c", b"1", 1), ("news", b"2", 0)]


def test_initial_subscriptions_bring_retained_messages() -> None:
    """As a SUBSCRIBE would, after the CONNACK."""
    house = House(plugins={"host": Host(lambda client: [Subscription("news")])})
    house.connect("pub").publish("news", b"old", retain=True)

    peer = house.connect("c")

    assert peer.packets[0] == peer.connack
    assert peer.messages == [("news", b"old", 0)]
    assert peer.of(Publish)[0].retain


@pytest.mark.parametrize("answer", [broken, broken_later, lambda client: [Subscription("a/#/b")]])
def test_initial_subscriptions_that_fail_are_left_out(answer: Callable[[Client], Any]) -> None:
    """A plugin that raises, or gives a filter that is none, costs the client nothing but that plugin's part."""
    house = House(plugins={"a": Host(answer), "b": Host(lambda client: [Subscription("news")])})

    peer = house.connect("c")

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert [filter for filter, _ in house.broker.router.index.filters()] == ["news"]


def test_initial_subscriptions_have_ten_seconds() -> None:
    """The CONNACK waits for them that long, and then goes out without them."""
    house = House(plugins={"host": Host(lambda client: Deferred())}, connect_time_limit_s=60)
    peer = house.connect("c")
    assert peer.packets == []

    house.advance(11)

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert failures(house) == 1


# choose_member


class Chooser:
    """Chooses as it is told to."""

    def __init__(self, answer: Callable[[Sequence[Subscriber]], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, list[str], str]] = []

    @hookimpl
    def choose_member(self, group: str, filter: str, candidates: Sequence[Subscriber], message: Message) -> Any:
        self.asked.append((group, filter, sorted(c.client_id for c in candidates), message.topic))
        return self.answer(candidates)


def shared(plugins: dict[str, Any], messages: int) -> tuple[House, list[int]]:
    """How many of some messages each of two members of a group gets."""
    house = House(plugins=plugins)
    members = [house.connect(client_id).subscribe("$share/g/t/+") for client_id in "ab"]
    pub = house.connect("pub")
    for _ in range(messages):
        pub.publish("t/1")
    return house, [len(member.messages) for member in members]


def named(client_id: str) -> Callable[[Sequence[Subscriber]], Subscriber]:
    """Chooses one member, always."""
    return lambda candidates: next(c for c in candidates if c.client_id == client_id)


def test_choose_member_chooses_who_gets_a_message() -> None:
    """The plugin is asked for each message, with the members that are connected."""
    chooser = Chooser(named("b"))

    _, got = shared({"chooser": chooser}, 2)

    assert got == [0, 2]
    assert chooser.asked == [("g", "t/+", ["a", "b"], "t/1")] * 2


def test_choose_member_is_the_first_plugins_that_names_a_candidate() -> None:
    """None abstains, and so does an answer that is no candidate."""
    stranger = Subscriber("stranger", Subscription("t/+"))
    plugins = {
        "a": Chooser(lambda candidates: None),
        "b": Chooser(lambda candidates: stranger),
        "c": Chooser(named("b")),
        "d": Chooser(named("a")),
    }

    assert shared(plugins, 3)[1] == [0, 3]


@pytest.mark.parametrize(
    "answer", [lambda candidates: None, broken, broken_later, lambda candidates: succeed(candidates[0])]
)
def test_choose_member_lets_the_members_take_turns(answer: Callable[..., Any]) -> None:
    """Where all plugins abstain, raise or want to be waited for, each member gets its share."""
    assert shared({"chooser": Chooser(answer)}, 4)[1] == [2, 2]


def test_choose_member_is_asked_about_all_where_none_is_connected() -> None:
    """A message waits for the member that was chosen."""
    chooser = Chooser(named("b"))
    house = House(plugins={"chooser": chooser})
    for client_id in "ab":
        house.connect(client_id, clean_start=False).subscribe("$share/g/t/+", 1).drop()

    house.connect("pub").publish("t/1", b"x", 1)

    assert chooser.asked == [("g", "t/+", ["a", "b"], "t/1")]
    assert house.connect("b", clean_start=False).messages == [("t/1", b"x", 1)]
    assert house.connect("a", clean_start=False).messages == []


# subscribed, unsubscribed, message_unrouted


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def subscribed(self, client: Client, subscription: Subscription) -> None:
        self.told.append(("subscribed", client.client_id, subscription.full_filter, subscription.qos))

    @hookimpl
    def unsubscribed(self, client: Client, filter: str) -> None:
        self.told.append(("unsubscribed", client.client_id, filter))

    @hookimpl
    def message_unrouted(self, message: Message) -> None:
        self.told.append(("unrouted", message.topic))


def test_subscribed_and_unsubscribed_are_told_in_order() -> None:
    """New, replaced and given up: every plugin is told what happened as it happened."""
    one, two = Diary(), Diary()
    house = House(plugins={"one": one, "two": two})

    house.connect("c").subscribe("a").subscribe("a", 1).unsubscribe("a").subscribe("$share/g/a", 2).unsubscribe("b")

    assert (
        one.told
        == two.told
        == [
            ("subscribed", "c", "a", 0),
            ("subscribed", "c", "a", 1),
            ("unsubscribed", "c", "a"),
            ("subscribed", "c", "$share/g/a", 2),
        ]
    )


def test_subscribed_is_told_of_initial_subscriptions() -> None:
    """A subscription that a plugin has made is a subscription."""
    diary = Diary()
    house = House(plugins={"host": Host(lambda client: [Subscription("news", 1)]), "diary": diary})

    house.connect("c")

    assert diary.told == [("subscribed", "c", "news", 1)]


def test_subscribed_is_not_told_of_refusals() -> None:
    """A filter that was refused was not subscribed to."""
    diary = Diary()
    house = House(plugins={"clerk": Clerk(lambda s: Reject()), "diary": diary})

    house.connect("c").subscribe("a")

    assert diary.told == []


class FailingStore(MemorySessionStore):
    """Keeps everything but what it is told not to."""

    def __init__(self, refused: type[Any]) -> None:
        super().__init__()
        self.refused = refused

    def apply(self, writes: Sequence[Any]) -> Any:
        if any(isinstance(write, self.refused) for write in writes):
            return fail(ServiceUnavailable("disk full"))
        return super().apply(writes)


@pytest.mark.parametrize(
    ("refused", "told"),
    [(SaveSubscriptions, []), (RemoveSubscriptions, [("subscribed", "c", "a", 0)])],
)
def test_unsubscribed_and_subscribed_are_not_told_of_what_is_not_kept(refused: type[Any], told: list[Any]) -> None:
    """A change that the store does not keep is no change."""

    class Provider:
        @hookimpl
        def session_store(self, context: Any) -> Any:
            return FailingStore(refused)

    diary = Diary()
    house = House(plugins={"store": Provider(), "diary": diary})

    peer = house.connect("c", V5, expiry_s=100).subscribe("a").unsubscribe("a")

    assert diary.told == told
    assert peer.closed


def test_message_unrouted_is_told_of_messages_that_nobody_wants() -> None:
    """Also where a cached topic has lost its last subscriber."""
    diary = Diary()
    house = House(plugins={"diary": diary})
    sub, pub = house.connect("sub"), house.connect("pub")

    pub.publish("t")
    sub.subscribe("t")
    pub.publish("t")
    sub.unsubscribe("t")
    pub.publish("t", qos=1)

    assert [told for told in diary.told if told[0] == "unrouted"] == [("unrouted", "t")] * 2


@pytest.mark.parametrize("notice", ["subscribed", "unsubscribed", "message_unrouted"])
def test_subscription_notices_that_raise_harm_nobody(notice: str) -> None:
    """The client is answered, other plugins are told, and the failure is counted."""

    def tell(self: object) -> None:
        broken()

    tell.__name__ = notice
    diary = Diary()
    house = House(plugins={"broken": type("Broken", (), {notice: hookimpl(tell)})(), "diary": diary})

    peer = house.connect("c", V5).subscribe("a").unsubscribe("a").publish("a")

    assert (peer.granted, peer.given_up) == ([0], [0])
    assert len(diary.told) == 3
    assert failures(house) == 1
