"""Topics that begin with ``$``: one rule says what clients may do there, and no right opens what it closes."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from core_harness.house import House
from kinmqtt.broker.topic_spaces import NEED_A_CLAIM, ClaimedSpaces, TopicSpaces
from kinmqtt.builtins.auto_subscriptions import AutoSubscriptionsSettings, TemplateSettings
from kinmqtt.mqtt.packets import V5, V311, ConnectWill, Puback, Publish
from kinmqtt_spi import ALLOW, Client, Drop, Message, Subscription, hookimpl, on_topics
from kinmqtt_spi.errors import AssemblyError, NotConfigured
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.plugin import TopicClaim
from kinmqtt_spi.topics import matches

DENIED = ReasonCode.NOT_AUTHORIZED
NO_NAME = ReasonCode.TOPIC_NAME_INVALID
NO_FILTER = ReasonCode.TOPIC_FILTER_INVALID
CONTROL = "$CONTROL/example"


class Yes:
    """Allows everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Action, str]] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        self.asked.append((request.action, request.topic))
        return ALLOW


class Controller:
    """Has a space for itself: takes what clients write there, and answers below it."""

    def __init__(self, *actions: Action, filter: str = f"{CONTROL}/#") -> None:
        self.taken: list[tuple[str, bytes]] = []
        self._actions = actions
        self._filter = filter

    @hookimpl
    def configure(self, context: Any) -> None:
        self.context = context
        context.claim_topics(self._filter, *self._actions)

    @hookimpl
    @on_topics("$CONTROL/#")
    def publish_received(self, message: Message) -> Drop | Message:
        self.taken.append((message.topic, message.payload))
        self.context.publish(Message(f"{message.topic}/response", b"done"))
        return Drop()


class Stores:
    """Keeps sessions and queues from one broker to the next."""

    def __init__(self) -> None:
        self._sessions, self._queues = MemorySessionStore(), MemoryQueueStore()

    @hookimpl
    def session_store(self) -> MemorySessionStore:
        return self._sessions

    @hookimpl
    def queue_store(self) -> MemoryQueueStore:
        return self._queues


def refusal(house: House, topic: str) -> int:
    """What a PUBLISH is answered."""
    return int(house.connect("p", V5).publish(topic, b"x", qos=1).of(Puback)[-1].reason)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("$SYS", DENIED),
        ("$SYS/broker/version", DENIED),
        ("$share", NO_NAME),
        ("$share/g/t", NO_NAME),
        ("$plugin", NO_NAME),
        ("$plugin/delayed/k", NO_NAME),
        ("$CONTROL", DENIED),
        ("$CONTROL/dynamic-security/v1", DENIED),
        ("$SYSTEM/x", ReasonCode.NO_MATCHING_SUBSCRIBERS),
        ("$CONTROLS", ReasonCode.NO_MATCHING_SUBSCRIBERS),
        ("$other/x", ReasonCode.NO_MATCHING_SUBSCRIBERS),
        ("$", ReasonCode.NO_MATCHING_SUBSCRIBERS),
        ("x/$SYS", ReasonCode.NO_MATCHING_SUBSCRIBERS),
    ],
)
def test_no_right_opens_what_the_broker_has_for_itself(topic: str, reason: ReasonCode) -> None:
    """A PUBLISH, a will and a retained message are refused there before any authorizer is asked [section 4.7.2]."""
    guard = Yes()
    house = House(plugins={"guard": guard})
    open_to_all = reason is ReasonCode.NO_MATCHING_SUBSCRIBERS

    told = refusal(house, topic)
    house.connect("r", V5).publish(topic, b"x", qos=1, retain=True)
    leaver = house.connect("w", V5, will=ConnectWill(topic, b"x"))

    assert told == reason
    assert leaver.connack.reason is (ReasonCode.SUCCESS if open_to_all else reason)
    assert bool(guard.asked) is open_to_all
    assert house.broker.runtime.stores.retain.count() == (1 if open_to_all else 0)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    ("filter", "granted"),
    [
        ("$SYS/#", 0),
        ("$plugin/#", NO_FILTER),
        ("$plugin/keeper/a", NO_FILTER),
        ("$CONTROL/#", DENIED),
        ("$CONTROL/+/v1", DENIED),
        ("$CONTROL", DENIED),
        ("$share/g/$CONTROL/#", DENIED),
        ("$delayed/#", DENIED),
        ("$p2p/#", DENIED),
        ("$other/#", 0),
        ("#", 0),
        ("+/x", 0),
    ],
)
def test_what_nobody_claims_can_not_be_subscribed_to(filter: str, granted: int, version: int) -> None:
    """The SUBACK says so, in MQTT 3 too, and no authorizer is asked."""
    guard = Yes()
    house = House(plugins={"guard": guard})

    client = house.connect("c", version).subscribe(filter)

    assert client.granted == [granted if version == V5 or not granted else 0x80]
    assert not client.closed
    assert bool(guard.asked) is not bool(granted)
    assert house.broker.router.index.count() == (0 if granted else 1)


def test_what_a_plugin_claims_is_open_to_those_who_have_the_right() -> None:
    """Clients write to it, the plugin takes it, and its answer reaches who has subscribed there."""
    controller, guard = Controller(Action.PUBLISH, Action.SUBSCRIBE), Yes()
    house = House(plugins={"controller": controller, "guard": guard})
    admin = house.connect("admin", V5).subscribe(f"{CONTROL}/#").subscribe(f"{CONTROL}/v1/response")

    admin.publish(f"{CONTROL}/v1", b"do", qos=1)

    assert controller.taken == [(f"{CONTROL}/v1", b"do")]
    assert admin.messages == [(f"{CONTROL}/v1/response", b"done", 0)]
    assert guard.asked[-1] == (Action.PUBLISH, f"{CONTROL}/v1")


def test_an_authorizer_may_deny_what_is_claimed() -> None:
    """A claim opens a space to the authorizers, not to everybody."""

    class No:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Any:
            from kinmqtt_spi import deny

            return deny()

    house = House(plugins={"controller": Controller(Action.PUBLISH, Action.SUBSCRIBE), "no": No()})

    assert refusal(house, f"{CONTROL}/v1") == DENIED
    assert house.connect("c", V5).subscribe(f"{CONTROL}/#").granted == [DENIED]


@pytest.mark.parametrize(
    ("actions", "publishes", "leaves", "subscribes"),
    [
        ((), False, False, False),
        ((Action.PUBLISH,), True, False, False),
        ((Action.SUBSCRIBE,), False, False, True),
        ((Action.WILL,), False, True, False),
        ((Action.PUBLISH, Action.WILL, Action.SUBSCRIBE), True, True, True),
    ],
)
@pytest.mark.parametrize("space", [CONTROL, "$example"])
def test_a_claim_says_what_clients_may_do(
    space: str, actions: tuple[Action, ...], publishes: bool, leaves: bool, subscribes: bool
) -> None:
    """What is not among its actions is refused, also in a space that was open before."""
    house = House(plugins={"controller": Controller(*actions, filter=f"{space}/#")})

    told = refusal(house, f"{space}/v1")
    leaver = house.connect("w", V5, will=ConnectWill(f"{space}/v1", b"x"))
    granted = house.connect("s", V5).subscribe(f"{space}/#").granted

    assert (told != DENIED) is publishes
    assert (leaver.connack.reason is ReasonCode.SUCCESS) is leaves
    assert granted == ([0] if subscribes else [DENIED])


def test_a_claim_opens_no_more_than_it_names() -> None:
    """Its neighbours stay closed, and a filter that reaches beyond it is refused."""
    house = House(plugins={"controller": Controller(Action.PUBLISH, Action.SUBSCRIBE)})
    client = house.connect("c", V5)

    for filter in ("$CONTROL/#", "$CONTROL/+", "$CONTROL/+/v1", "$CONTROL/examples", "$CONTROL/other/#"):
        assert client.subscribe(filter).granted == [DENIED], filter
    assert refusal(house, "$CONTROL/examples/v1") == DENIED
    assert client.subscribe(CONTROL).granted == [0]


@pytest.mark.parametrize("topic", ["$delayed/1/a", "$p2p/p/a", "$CONTROL/x"])
@pytest.mark.parametrize("action", [Action.PUBLISH, Action.WILL, Action.SUBSCRIBE])
def test_a_space_whose_plugin_is_gone_is_closed(topic: str, action: Action) -> None:
    """Nobody is told that a message was taken which nobody would delay or deliver."""
    found = TopicSpaces().refusal(action, topic)

    assert found is not None
    assert (found.reason, found.text) == (DENIED, f"no plugin claims {topic!r}")


def test_the_claim_of_a_plugin_that_is_left_out_counts_for_nothing() -> None:
    """It was made before the plugin found that it is not configured."""

    class Undecided(Controller):
        @hookimpl
        def configure(self, context: Any) -> None:
            super().configure(context)
            raise NotConfigured("on second thoughts")

    house = House(plugins={"undecided": Undecided(Action.PUBLISH), "controller": Controller(Action.SUBSCRIBE)})

    assert refusal(house, f"{CONTROL}/v1") == DENIED
    assert house.connect("s", V5).subscribe(f"{CONTROL}/#").granted == [0]


@pytest.mark.parametrize("other", [f"{CONTROL}/#", f"{CONTROL}/v1/#", "$CONTROL/#"])
def test_two_plugins_that_claim_the_same_topics_stop_the_broker(other: str) -> None:
    """It says which they are."""
    plugins = {"one": Controller(), "two": Controller(filter=other)}

    with pytest.raises(AssemblyError, match="plugins 'one' and 'two' both claim topics"):
        House(plugins=plugins)


def test_claims_come_too_late_in_a_running_broker() -> None:
    """What clients may do is settled when the broker is put together."""
    controller = Controller()
    House(plugins={"controller": controller})

    with pytest.raises(RuntimeError, match="'controller' can claim topics only before the broker is assembled"):
        controller.context.claim_topics("$late/#")


# What plugins make of messages and subscriptions


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("$CONTROL/x", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$share/g/x", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$plugin/x", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$SYS/x", ReasonCode.NO_MATCHING_SUBSCRIBERS),
        ("$other/x", ReasonCode.NO_MATCHING_SUBSCRIBERS),
    ],
)
def test_a_plugin_puts_no_client_s_message_where_nobody_gets_any(topic: str, told: ReasonCode) -> None:
    """What it makes of a PUBLISH is refused there; what it makes of a will is dropped."""

    class Clerk:
        @hookimpl
        def publish_received(self, message: Message) -> Message:
            return message.replace(topic=topic)

        @hookimpl
        def will_publishing(self, message: Message) -> Message:
            return message.replace(topic=topic)

    house = House(plugins={"clerk": Clerk()})
    everybody = house.connect("s").subscribe("#")

    reason = refusal(house, "a")
    house.connect("w", will=ConnectWill("last", b"words")).drop()

    assert reason == told
    assert everybody.messages == []


@pytest.mark.parametrize(
    ("came_to", "goes_to", "told"),
    [
        ("a", f"{CONTROL}/v1", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$delayed/1/a", f"{CONTROL}/v1", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        (f"{CONTROL}/v1", f"{CONTROL}/v1/done", ReasonCode.NO_MATCHING_SUBSCRIBERS),
    ],
)
def test_no_message_goes_past_the_plugin_that_has_claimed_its_topic(came_to: str, goes_to: str, told: int) -> None:
    """Another plugin can't put one there; the claimant itself may, for it has seen it."""

    class Mover(Controller):
        @hookimpl
        def publish_received(self, message: Message) -> Message:
            return message.replace(topic=goes_to)

    house = House(plugins={"mover": Mover(Action.PUBLISH)})

    assert refusal(house, came_to) == told


@pytest.mark.parametrize("filter", ["$CONTROL/#", "$plugin/#", "$share/g/t", "$delayed/#"])
def test_a_plugin_subscribes_nobody_to_what_is_closed(filter: str) -> None:
    """Neither in place of what a client asked for, nor without its asking; the client stays."""

    class Clerk:
        @hookimpl
        def subscribing(self, subscription: Subscription) -> Subscription:
            return evolve(subscription, filter=filter)

        @hookimpl
        def initial_subscriptions(self, client: Client) -> list[Subscription]:
            return [Subscription(filter)]

    house = House(plugins={"clerk": Clerk()})
    client = house.connect("c", V5)

    client.subscribe("a")

    assert client.granted == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert house.broker.router.index.count() == 0
    assert not client.closed


def test_automatic_subscriptions_reach_nothing_that_is_closed() -> None:
    """A template for ``$CONTROL`` gives nobody anything where no plugin claims it."""
    settings = AutoSubscriptionsSettings(
        subscriptions=(TemplateSettings(filter="$CONTROL/#"), TemplateSettings(filter="a"))
    )
    house = House(plugin_settings={"auto_subscriptions": settings})

    house.connect("c")

    assert [filter for filter, _ in house.broker.router.index.filters()] == ["a"]


def test_a_subscription_from_before_gives_nothing() -> None:
    """One that a store has kept since anybody could make it is left out at a start, and the others hold."""
    stores = Stores()
    first = House(plugins={"stores": stores, "controller": Controller(Action.SUBSCRIBE)})
    client = first.connect("c", V5, expiry_s=600).subscribe(f"{CONTROL}/#", 1).subscribe("a", 1)
    client.drop()

    second = House(plugins={"stores": stores}, clock=first.clock)
    indexed = [filter for filter, _ in second.broker.router.index.filters()]
    claimed = Controller(Action.SUBSCRIBE)
    third = House(plugins={"stores": stores, "controller": claimed}, clock=first.clock)
    claimed.context.publish(Message(f"{CONTROL}/v1/response", b"secret", 1))
    third.settle()
    back = third.connect("c", V5, clean_start=False, expiry_s=600)

    assert indexed == ["a"]
    assert [payload for _, payload, _ in back.messages] == [b"secret"]


# The rule itself

LEVELS = st.sampled_from(["$SYS", "$share", "$plugin", "$CONTROL", "$delayed", "$p2p", "$x", "$", "a", "b", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=3), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join([*parts[0], *parts[1]]))
    .filter(bool)
)
CLAIMS = st.lists(
    st.builds(
        TopicClaim,
        st.tuples(st.sampled_from(["$CONTROL", "$delayed", "$x"]), st.lists(st.sampled_from("ab"), max_size=2)).map(
            lambda parts: "/".join([parts[0], *parts[1], "#"])
        ),
        st.sets(st.sampled_from([Action.PUBLISH, Action.SUBSCRIBE, Action.WILL])),
    ),
    max_size=3,
)


def spaces_of(claims: list[TopicClaim]) -> TopicSpaces | None:
    """The spaces as these claims make them; ``None`` where two of them share topics."""
    taken = ClaimedSpaces()
    for claim in claims:
        taken.take("plugin", claim)
    try:
        return taken.settled(["plugin"])
    except AssemblyError:
        return None


@given(claims=CLAIMS, topic=TOPICS, filter=FILTERS)
def test_who_may_subscribe_to_a_filter_may_to_each_of_its_topics(
    claims: list[TopicClaim], topic: str, filter: str
) -> None:
    """No filter leads around what is closed: where it matches a topic, both are granted or the filter is refused."""
    spaces = spaces_of(claims)
    if spaces is None or not matches(filter, topic):
        return

    wide = spaces.refusal(Action.SUBSCRIBE, filter)
    narrow = spaces.refusal(Action.SUBSCRIBE, topic)

    assert wide is not None or narrow is None


@given(claims=CLAIMS, topic=TOPICS, action=st.sampled_from([Action.PUBLISH, Action.SUBSCRIBE, Action.WILL]))
def test_the_rule_is_the_table_of_the_docs(claims: list[TopicClaim], topic: str, action: Action) -> None:
    """By the first level: the broker's own, what a plugin claims, what needs a claim, and all others."""
    spaces = spaces_of(claims)
    if spaces is None:
        return
    first = topic.split("/")[0]
    claim = next((claim for claim in claims if matches(claim.filter, topic)), None)
    if first in ("$SYS", "$share"):
        allowed = action is Action.SUBSCRIBE
    elif first == "$plugin":
        allowed = False
    elif claim is not None:
        allowed = action in claim.actions
    else:
        allowed = first not in NEED_A_CLAIM

    assert (spaces.refusal(action, topic) is None) is allowed


@pytest.mark.parametrize("topic", ["$delayed", "$p2p", "$p2p/", "$delayed/"])
def test_the_name_of_a_space_alone_is_no_message_s_topic(topic: str) -> None:
    """Neither published nor left as a will: the built-in that has the space refuses both."""
    house = House()
    everybody = house.connect("s", V5).subscribe("#").subscribe("$other/#")

    reason = refusal(house, topic)
    house.connect("w", V5, will=ConnectWill(topic, b"x", 1, True)).drop()

    assert reason == NO_NAME
    assert everybody.of(Publish) == []
    assert house.broker.runtime.stores.retain.count() == 0
