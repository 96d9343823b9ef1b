"""`max_topic_bytes` wherever a client names a topic or filter (docs/limits.md)."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer, Trusting
from kinmqtt.mqtt.packets import V5, V311, ConnectWill, DisconnectPacket, Puback, Publish, Pubrec, Unsuback
from kinmqtt.settings import LimitSettings
from kinmqtt_spi import ALLOW, Client, Decision, Drop, Message, Properties, Subscription, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, Resource, ResourceKind

FITS = "x" * 4096
TOO_LONG = "x" * 4097
INVALID = 0x90


def reasons(peer: Peer) -> list[int]:
    """What a publisher was told, in order."""
    return [int(packet.reason) for packet in peer.packets if isinstance(packet, Puback | Pubrec)]


def test_topics_are_of_4_kib_at_most_by_themselves() -> None:
    """The default: what is remembered of a client's topics, in very many places, has a bound."""
    limits = LimitSettings()

    assert limits.max_topic_bytes == 4096
    assert (limits.problem_with(FITS), limits.problem_with(TOO_LONG)) == (None, "it is too long")


@pytest.mark.parametrize("letter", ["x", "é", "\u4e2d", "\U0001f600"])
def test_a_topic_is_measured_in_utf_8(letter: str) -> None:
    """However many bytes a character takes, the last that fits is taken and the next is not."""
    limits = LimitSettings(max_topic_bytes=1200)
    most = 1200 // len(letter.encode())

    assert limits.problem_with(letter * most) is None
    assert limits.problem_with(letter * (most + 1)) == "it is too long"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_at_the_bound_goes_and_one_over_is_refused(qos: int) -> None:
    """MQTT 5 is told 0x90, and nobody gets it."""
    house = House()
    sub = house.connect("s", V5).subscribe("#")
    pub = house.connect("p", V5)

    pub.publish(FITS, b"1", qos=qos).publish(TOO_LONG, b"2", qos=qos)

    assert reasons(pub) == [0, INVALID]
    assert [payload for _, payload, _ in sub.messages] == [b"1"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_response_topic_is_a_topic(qos: int) -> None:
    """It is kept with the message, in every queue (section 3.3.2.3.5)."""
    house = House()
    sub = house.connect("s", V5).subscribe("t", qos=2)
    pub = house.connect("p", V5)

    for topic in (FITS, TOO_LONG, "/" * 200):
        pub.publish("t", topic[:1].encode(), qos=qos, properties=Properties(response_topic=topic))

    assert reasons(pub) == ([] if qos == 0 else [0, INVALID, INVALID])
    assert [packet.properties.response_topic for packet in sub.of(Publish)] == [FITS]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_alias_of_a_long_topic_holds_nothing(qos: int) -> None:
    """What comes by it is refused as the topic was, and another topic may have the alias (section 3.3.2.3.4)."""
    house = House()
    sub = house.connect("s", V5).subscribe("#")
    pub = house.connect("p", V5)
    alias = Properties(topic_alias=1)

    pub.publish(TOO_LONG, b"1", qos=qos, properties=alias).publish("", b"2", qos=qos, properties=alias)
    held = dict(pub.connection.aliases or {})
    pub.publish("t", b"3", qos=qos, properties=alias).publish("", b"4", qos=qos, properties=alias)

    assert held == {1: ""}
    assert [payload for _, payload, _ in sub.messages] == [b"3", b"4"]
    assert reasons(pub) == ([] if qos == 0 else [INVALID, INVALID, 0, 0])
    assert not pub.closed
    assert pub.connection.unacknowledged == 0


class Remembering:
    """A limiter that looks at topics, and keeps what it is asked about."""

    def __init__(self) -> None:
        self.asked: list[Resource] = []

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        return LimiterNeeds(frozenset({ResourceKind.PUBLISH}), topics=True)

    @hookimpl
    def acquire(self, resource: Resource) -> LimitDecision | None:
        if resource.kind is ResourceKind.PUBLISH:
            self.asked.append(resource)
        return None


def test_a_limiter_is_told_of_no_topic_that_is_too_long() -> None:
    """It is asked all the same: a flood of them is a flood."""
    limiter = Remembering()
    house = House(plugins={"limiter": limiter})
    pub = house.connect("p", V5)

    pub.publish(TOO_LONG, b"1", qos=1).publish(FITS, b"2", qos=1)

    assert [resource.topic for resource in limiter.asked] == [None, FITS]


@pytest.mark.parametrize(("version", "place"), [(V311, "topic"), (V5, "topic"), (V5, "response topic")])
def test_a_will_is_held_to_it(version: int, place: str) -> None:
    """A client whose will has a longer topic is not let in; one at the bound is."""
    house = House()

    answers = []
    for topic in (FITS, TOO_LONG):
        will = (
            ConnectWill(topic, b"x")
            if place == "topic"
            else ConnectWill("t", b"x", properties=Properties(response_topic=topic))
        )
        answers.append(house.connect("c", version, will=will).closed)

    assert answers == [False, True]


@pytest.mark.parametrize("group", ["", "$share/g/"])
def test_a_filter_is_held_to_it_with_the_name_of_its_group(group: str) -> None:
    """The whole of what the client wrote counts: a group could have a name of 64 KB (section 4.8.2)."""
    house = House()
    client = house.connect("c", V5)
    most = 4096 - len(group)

    answers = [client.subscribe(group + "x" * length).granted for length in (most, most + 1)]
    long_group = client.subscribe(f"$share/{'g' * 4096}/t").granted

    assert answers == [[0], [0x8F]]
    assert long_group == [0x8F]
    assert len(house.broker.sessions.by_id["c"].subscriptions) == 1


class Giving:
    """Subscribes each client to a filter of the test's choice, and makes others of what they ask for."""

    def __init__(self, filter: str, group: str | None = None) -> None:
        self.subscription = Subscription(filter, share_group=group)

    @hookimpl
    def initial_subscriptions(self, client: Client) -> list[Subscription]:
        return [self.subscription]

    @hookimpl
    def subscribing(self, client: Client, subscription: Subscription) -> Subscription:
        return self.subscription


@pytest.mark.parametrize(
    ("filter", "group", "made"), [(FITS, None, True), (TOO_LONG, None, False), ("t", FITS, False)]
)
def test_subscriptions_of_plugins_are_held_to_it(filter: str, group: str | None, made: bool) -> None:
    """Those that a client has from the beginning, and those that a plugin makes of a client's."""
    house = House(plugins={"giving": Giving(filter, group)})

    client = house.connect("c", V5)
    at_first = len(house.broker.sessions.by_id["c"].subscriptions)

    assert at_first == made
    assert client.subscribe("a").granted == [0 if made else 0x83]


class Rewriting:
    """Gives messages, and the topics that answers go to, other names."""

    def __init__(self, topic: str, response_topic: str) -> None:
        self.topic = topic
        self.response_topic = response_topic

    @hookimpl
    def publish_received(self, message: Message) -> Message:
        return message.replace(topic=self.topic, properties=Properties(response_topic=self.response_topic))


@pytest.mark.parametrize(
    ("topic", "response_topic", "told"), [(FITS, FITS, 0), (TOO_LONG, "r", INVALID), ("t", TOO_LONG, INVALID)]
)
def test_what_a_plugin_makes_of_a_message_is_held_to_it(topic: str, response_topic: str, told: int) -> None:
    """Its topic and its response topic."""
    house = House(plugins={"rewriting": Rewriting(topic, response_topic)})
    house.connect("s", V5).subscribe("#")
    pub = house.connect("p", V5).publish("a", b"x", qos=1)

    assert reasons(pub) == [told]


class Listening:
    """Notes which filters it is asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @hookimpl
    def unsubscribing(self, client: Client, filter: str) -> Drop | None:
        self.asked.append(filter)
        return None


def test_a_filter_that_is_too_long_can_not_be_given_up() -> None:
    """Nobody has it, so MQTT 5 is told 0x8F, no plugin is asked, and MQTT 3 is answered (section 3.11.3)."""
    listening = Listening()
    house = House(plugins={"listening": listening})
    client, old = house.connect("c", V5), house.connect("o", V311)

    client.unsubscribe(TOO_LONG).unsubscribe(FITS)
    old.unsubscribe(TOO_LONG)

    assert [[int(reason) for reason in packet.reasons] for packet in client.of(Unsuback)] == [[0x8F], [0x11]]
    assert (len(old.of(Unsuback)), old.closed) == (1, False)
    assert listening.asked == [FITS]


def test_what_was_subscribed_to_before_the_limit_can_be_given_up() -> None:
    """A reload may lower the bound: the subscription stands, and may be replaced by none but given up."""
    house = House()
    client = house.connect("c", V5).subscribe(FITS)
    house.result(house.broker.reload(lambda name, cls: cls and cls(), LimitSettings(max_topic_bytes=100)))

    again = client.subscribe(FITS).granted
    client.unsubscribe(FITS)

    assert again == [0x8F]
    assert client.given_up == [0]
    assert house.broker.runtime.accounts.all.subscription_bytes == 0


class Silent:
    """Asks to know of every question about rights."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision:
        self.topics.append(request.topic)
        return ALLOW


def test_no_authorizer_is_asked_about_what_is_too_long() -> None:
    """What it might remember would have no bound."""
    silent = Silent()
    house = House(plugins={"silent": silent})
    client = house.connect("c", V5)

    client.publish(TOO_LONG, b"x", qos=1).subscribe(TOO_LONG)
    house.connect("w", V5, will=ConnectWill(TOO_LONG, b"x"))

    assert silent.topics == []
    assert client.of(DisconnectPacket) == []


@pytest.mark.parametrize(("name", "told"), [("u" * 1024, 0), ("u" * 1025, 0x86), ("é" * 513, 0x86)])
def test_user_names_have_a_bound(name: str, told: int) -> None:
    """They are remembered with each session; the excess is refused (return code 4 before MQTT 5)."""
    house = House(plugins={"trusting": Trusting()})

    assert house.connect("c", V5, username=name).connack.reason == told
    assert (house.connect("d", V311, username=name).connack.reason is ReasonCode.SUCCESS) is (told == 0)


@pytest.mark.parametrize(("client_id", "told"), [("c" * 1024, 0), ("c" * 1025, 0x85)])
def test_client_ids_have_a_bound(client_id: str, told: int) -> None:
    """They stand in very many tables; the excess is refused."""
    assert House().connect(client_id, V5).connack.reason == told
