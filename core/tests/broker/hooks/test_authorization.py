"""The hooks of authorization, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from core_harness.house import House, Trusting
from kinmqtt.mqtt.packets import V5, V311, ConnectWill, Puback, Publish
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import ABSTAIN, ALLOW, Decision, Message, Properties, ReasonCode, Verdict, deny, hookimpl
from kinmqtt_spi.services.authorization import Action, Authorization, AuthorizationRequest, Cache, Scope

NO = deny(text="not yours")


class Authorizer:
    """Answers by what is asked for, and remembers the questions."""

    def __init__(self, answer: Callable[[AuthorizationRequest], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []
        self.context: Any = None

    @hookimpl
    def configure(self, context: Any) -> None:
        self.context = context

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        self.asked.append((request.action.value, request.topic))
        return self.answer(request)


def fail(request: AuthorizationRequest) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def fail_later(request: AuthorizationRequest) -> Any:
    """What a broken plugin does that answers later."""
    raise ValueError("broken")


def only(action: Action, answer: Any) -> Callable[[AuthorizationRequest], Any]:
    """Answers questions about one action, and allows the others."""
    return lambda request: answer if request.action is action else ALLOW


# authorize


def test_authorize_is_asked_for_publish_subscribe_and_will() -> None:
    """The request says who wants to do what with which topic."""
    asked = []

    class Authorizer:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Decision:
            asked.append((request.client.client_id, request.action, request.topic, request.qos, request.retain))
            return ALLOW

    house = House(plugins={"authorizer": Authorizer()})

    peer = house.connect("c", V5, will=ConnectWill("gone", b"", 1, True))
    peer.subscribe("a/#", 2).subscribe("$share/g/b").publish("t", qos=1, retain=True)

    assert asked == [
        ("c", Action.WILL, "gone", 1, True),
        ("c", Action.SUBSCRIBE, "a/#", 2, False),
        ("c", Action.SUBSCRIBE, "b", 0, False),
        ("c", Action.PUBLISH, "t", 1, True),
    ]


@pytest.mark.parametrize("abstention", [None, ABSTAIN])
def test_authorize_takes_the_first_that_does_not_abstain(abstention: Decision | None) -> None:
    """An abstention leaves the question to the next plugin; the one after the answer is not asked."""
    third = Authorizer(lambda request: NO)
    plugins = {"a": Authorizer(lambda request: abstention), "b": Authorizer(lambda request: ALLOW), "c": third}

    peer = House(plugins=plugins).connect("c").subscribe("a").publish("a", b"x")

    assert peer.messages == [("a", b"x", 0)]
    assert third.asked == []


def test_authorize_follows_the_order_of_the_settings() -> None:
    """The plugin that the settings put first is asked first."""
    plugins = {"a": Authorizer(lambda request: ALLOW), "b": Authorizer(lambda request: NO)}

    peer = House(plugins=plugins, order=("b", "a")).connect("c", V5).subscribe("a")

    assert peer.granted == [ReasonCode.NOT_AUTHORIZED]


def test_authorize_allows_where_all_abstain() -> None:
    """What nobody forbids is allowed."""
    peer = House(plugins={"a": Authorizer(lambda request: None)}).connect("c").subscribe("a").publish("a", b"x")

    assert peer.messages == [("a", b"x", 0)]


def test_authorize_denies_a_publish() -> None:
    """MQTT 5 gets the reason in its acknowledgement; MQTT 3, which has none, is answered as if all were well."""
    house = House(plugins={"a": Authorizer(only(Action.PUBLISH, NO))})
    sub = house.connect("sub").subscribe("#")
    new, old = house.connect("new", V5), house.connect("old")

    new.publish("a", qos=1)
    old.publish("a", qos=1)

    assert [ack.reason for ack in new.of(Puback)] == [ReasonCode.NOT_AUTHORIZED]
    assert [ack.reason for ack in old.of(Puback)] == [ReasonCode.SUCCESS]
    assert sub.messages == []


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (ReasonCode.NOT_AUTHORIZED, ReasonCode.NOT_AUTHORIZED),
        (ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.TOPIC_FILTER_INVALID),
        (ReasonCode.BANNED, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
def test_authorize_denies_a_subscription(reason: ReasonCode, told: ReasonCode) -> None:
    """The reason stands in the SUBACK, where the protocol lets it stand there."""
    house = House(plugins={"a": Authorizer(lambda request: deny(reason))})

    peer = house.connect("c", V5).subscribe("a")

    assert peer.granted == [told]


def test_authorize_denies_a_will() -> None:
    """A client that may not leave its will is not let in."""
    house = House(plugins={"a": Authorizer(only(Action.WILL, NO))})

    peer = house.connect("c", V5, will=ConnectWill("gone", b""))

    assert peer.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert peer.closed


@pytest.mark.parametrize("answer", [fail, fail_later])
def test_authorize_that_fails_denies(answer: Callable[[AuthorizationRequest], Any]) -> None:
    """A broken authorizer allows nothing: 0x87, though a plugin after it would allow."""
    house = House(plugins={"a": Authorizer(answer), "b": Authorizer(lambda request: ALLOW)})

    peer = house.connect("c", V5).subscribe("a").publish("a", b"x", qos=1)

    assert peer.granted == [ReasonCode.NOT_AUTHORIZED]
    assert [ack.reason for ack in peer.of(Puback)] == [ReasonCode.NOT_AUTHORIZED]
    assert not peer.closed
    assert house.assembly.metrics.sum("plugin.failures") == 2


@pytest.mark.parametrize("answer", [fail, fail_later])
def test_authorize_that_fails_is_asked_again(answer: Callable[[AuthorizationRequest], Any]) -> None:
    """A failure is not cached: once the plugin is well, so is the client."""
    authorizer = Authorizer(answer)
    house = House(plugins={"a": authorizer})
    peer = house.connect("c", V5).publish("a", qos=1)
    authorizer.answer = lambda request: ALLOW

    peer.publish("a", qos=1)

    reasons = [ack.reason for ack in peer.of(Puback)]
    assert reasons == [ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS]


async def allow() -> Decision:
    """A coroutine's answer."""
    return ALLOW


@pytest.mark.parametrize("answer", [lambda request: succeed(ALLOW), lambda request: allow()])
def test_authorize_may_be_awaited(answer: Callable[[AuthorizationRequest], Any]) -> None:
    """Deferreds and coroutines are as good as values, for each of the actions."""
    house = House(plugins={"a": Authorizer(answer)})

    peer = house.connect("c", V5, will=ConnectWill("gone", b"")).subscribe("a", qos=1).publish("a", b"x", qos=1)

    assert peer.messages == [("a", b"x", 1)]


def test_authorize_holds_what_the_client_sends_next() -> None:
    """While an answer is waited for, later packets wait in their order, and the socket is not read."""
    answers: list[Deferred[Decision]] = []

    def later(request: AuthorizationRequest) -> Deferred[Decision]:
        answers.append(Deferred())
        return answers[-1]

    house = House(plugins={"a": Authorizer(only_publish(later))})
    sub = house.connect("sub").subscribe("#")
    pub = house.connect("pub")
    pub.publish("slow", b"1").publish("slow", b"2")
    assert not pub.link.reading

    answers[0].callback(ALLOW)
    house.settle()

    assert sub.messages == [("slow", b"1", 0), ("slow", b"2", 0)]
    assert len(answers) == 1
    assert pub.link.reading


def only_publish(answer: Callable[[AuthorizationRequest], Any]) -> Callable[[AuthorizationRequest], Any]:
    """Asks about publishing only, and allows the rest."""
    return lambda request: answer(request) if request.action is Action.PUBLISH else ALLOW


def test_authorize_has_ten_seconds() -> None:
    """An answer that does not come in time counts as a failure, and the client goes on."""
    house = House(plugins={"a": Authorizer(only_publish(lambda request: Deferred()))})
    peer = house.connect("c", V5).publish("a", qos=1)
    house.advance(9)
    assert peer.of(Puback) == []

    house.advance(2)

    assert [ack.reason for ack in peer.of(Puback)] == [ReasonCode.NOT_AUTHORIZED]
    assert not peer.closed


def test_authorize_is_cached_by_topic() -> None:
    """A plain decision about publishing holds for the session and the topic; another client is another session."""
    authorizer = Authorizer(lambda request: ALLOW)
    house = House(plugins={"a": authorizer})

    house.connect("c").publish("a").publish("a", qos=1).publish("b").publish("a")
    house.connect("d").publish("a")

    assert authorizer.asked == [("publish", "a"), ("publish", "b"), ("publish", "a")]


def test_authorize_may_ask_not_to_be_cached() -> None:
    """An answer of Cache.NEVER holds for one message."""
    answer = Authorization(Verdict.ALLOW, cache=Cache.NEVER)
    authorizer = Authorizer(lambda request: answer)
    house = House(plugins={"a": authorizer})

    house.connect("c").publish("a").publish("a")

    assert authorizer.asked == [("publish", "a")] * 2


def test_authorize_may_be_cached_until_a_time() -> None:
    """An answer that says until when it holds is asked for anew after that."""
    clock = House().clock
    answer = Authorization(Verdict.ALLOW, expires_at=clock.now() + 60)
    authorizer = Authorizer(lambda request: answer)
    house = House(plugins={"a": authorizer}, clock=clock)
    sub = house.connect("sub").subscribe("a")
    authorizer.asked.clear()
    peer = house.connect("c").publish("a")
    house.advance(30)
    peer.publish("a")
    assert authorizer.asked == [("publish", "a")]

    house.advance(31)
    peer.publish("a")

    assert authorizer.asked == [("publish", "a")] * 2
    assert len(sub.messages) == 3


@pytest.mark.parametrize(
    ("scope", "asked_again"),
    [(Scope(), 2), (Scope(client_id="c"), 1), (Scope(username="u"), 2), (Scope(username="other"), 0)],
)
def test_authorize_is_asked_again_when_the_rules_change(scope: Scope, asked_again: int) -> None:
    """``context.authorization_changed`` forgets the cached answers within its scope."""
    authorizer = Authorizer(lambda request: ALLOW)
    house = House(plugins={"a": authorizer, "door": Trusting()})
    peers = [house.connect(client_id, username="u").publish("a").publish("a") for client_id in "cd"]
    authorizer.asked.clear()

    authorizer.context.authorization_changed(scope)
    for peer in peers:
        peer.publish("a")

    assert len(authorizer.asked) == asked_again


def test_authorize_answers_that_were_under_way_are_not_cached_past_a_change() -> None:
    """An answer asked for under the old rules holds for its message, and not for the next."""
    answers: list[Deferred[Decision]] = []

    def later(request: AuthorizationRequest) -> Deferred[Decision]:
        answers.append(Deferred())
        return answers[-1]

    authorizer = Authorizer(later)
    house = House(plugins={"a": authorizer})
    peer = house.connect("c").publish("a")
    authorizer.context.authorization_changed(Scope())
    answers[0].callback(ALLOW)
    house.settle()

    peer.publish("a")

    assert len(answers) == 2


def test_authorize_is_not_asked_for_the_brokers_own_messages() -> None:
    """What a plugin publishes through its context needs nobody's leave."""
    authorizer = Authorizer(only(Action.PUBLISH, NO))
    house = House(plugins={"a": authorizer})
    sub = house.connect("sub").subscribe("#")

    authorizer.context.publish(Message("a", b"x"))
    house.settle()

    assert sub.messages == [("a", b"x", 0)]


# authorize_receive


class Censor:
    """Answers every delivery the same."""

    def __init__(self, answer: Callable[[AuthorizationRequest], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Action, str]] = []

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Any:
        self.asked.append((request.client.client_id, request.action, request.topic))
        return self.answer(request)


@pytest.mark.parametrize("qos", [0, 1])
def test_authorize_receive_is_asked_for_each_client(qos: int) -> None:
    """A message reaches the clients that may have it, and no others."""
    censor = Censor(lambda request: NO if request.client.client_id == "b" else ALLOW)
    house = House(plugins={"censor": censor})
    a = house.connect("a").subscribe("t", qos)
    b = house.connect("b").subscribe("t", qos)

    house.connect("pub").publish("t", b"x", qos)

    assert censor.asked == [("a", Action.RECEIVE, "t"), ("b", Action.RECEIVE, "t")]
    assert (a.messages, b.messages) == ([("t", b"x", qos)], [])


def test_authorize_receive_is_asked_for_retained_messages() -> None:
    """What waits for a new subscription is a delivery as any other."""
    house = House(plugins={"censor": Censor(lambda request: NO)})
    house.connect("pub").publish("t", b"x", retain=True)

    assert house.connect("sub").subscribe("t").messages == []


def test_authorize_receive_takes_the_first_that_does_not_abstain() -> None:
    """The first answer counts, and where there is none, the message is delivered."""
    plugins = {
        "a": Censor(lambda request: None),
        "b": Censor(lambda request: {"yes": ALLOW, "no": NO}.get(request.topic)),
        "c": Censor(lambda request: NO if request.topic == "yes" else None),
    }
    house = House(plugins=plugins)
    sub = house.connect("sub").subscribe("#")

    house.connect("pub").publish("yes").publish("no").publish("whatever")

    assert [topic for topic, _, _ in sub.messages] == ["yes", "whatever"]


@pytest.mark.parametrize("answer", [fail, lambda request: allow(), lambda request: succeed(ALLOW)])
def test_authorize_receive_that_fails_drops(answer: Callable[[AuthorizationRequest], Any]) -> None:
    """A censor that raises, or wants to be waited for, lets nothing through, and the client stays."""
    house = House(plugins={"censor": Censor(answer)})
    sub = house.connect("sub").subscribe("t")

    house.connect("pub").publish("t")

    assert sub.messages == []
    assert not sub.closed
    assert house.assembly.metrics.sum("plugin.failures") == 1


FOR_GOOD = Authorization(Verdict.ALLOW, cache=Cache.TOPIC)
NEVER = Authorization(Verdict.DENY, ReasonCode.NOT_AUTHORIZED, "never", Cache.TOPIC)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
def test_authorize_receive_may_answer_for_good(qos: int, version: int) -> None:
    """What holds for the session is asked once for each client and topic, and those denied are counted each time."""
    censor = Censor(lambda request: NEVER if request.client.client_id == "b" else FOR_GOOD)
    house = House(plugins={"censor": censor})
    a = house.connect("a", version).subscribe("t", qos)
    b = house.connect("b", version).subscribe("t", qos)
    publisher = house.connect("pub", version)

    for _ in range(5):
        publisher.publish("t", b"x", qos)

    assert sorted(censor.asked) == [("a", Action.RECEIVE, "t"), ("b", Action.RECEIVE, "t")]
    assert (len(a.messages), b.messages) == (5, [])
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 5


def test_authorize_receive_for_good_ends_with_a_change() -> None:
    """When rules change, or a client connects anew, it is asked again."""
    answers = {"b": FOR_GOOD}
    censor = Censor(lambda request: answers["b"])
    house = House(plugins={"censor": censor})
    b = house.connect("b").subscribe("t")
    publisher = house.connect("pub")
    publisher.publish("t", b"1")

    answers["b"] = NEVER
    publisher.publish("t", b"2")
    house.assembly.contexts["censor"].authorization_changed(Scope())
    publisher.publish("t", b"3")

    assert [payload for _, payload, _ in b.messages] == [b"1", b"2"]
    back = house.connect("b", clean_start=False).subscribe("t")
    publisher.publish("t", b"4")
    assert back.messages == []
    assert len(censor.asked) == 3


@pytest.mark.parametrize(
    "answer",
    [
        Authorization(Verdict.ALLOW),
        Authorization(Verdict.ALLOW, cache=Cache.NEVER),
        Authorization(Verdict.ALLOW, cache=Cache.TOPIC, expires_at=2e9),
        ALLOW,
        None,
    ],
)
def test_authorize_receive_is_asked_each_time_where_nothing_is_said(answer: Any) -> None:
    """A plain answer, an abstention, or one with an end holds for one message."""
    censor = Censor(lambda request: answer)
    house = House(plugins={"censor": censor})
    a = house.connect("a").subscribe("t")
    publisher = house.connect("pub")

    for _ in range(3):
        publisher.publish("t", b"x")

    assert len(censor.asked) >= 3
    assert len(a.messages) == 3


def test_authorize_receive_of_several_plugins_is_asked_each_time() -> None:
    """What one says for good another before it may have decided otherwise."""
    first, second = Censor(lambda request: None), Censor(lambda request: FOR_GOOD)
    house = House(plugins={"a": first, "b": second})
    house.connect("a").subscribe("t")
    publisher = house.connect("pub")

    for _ in range(3):
        publisher.publish("t", b"x")

    assert (len(first.asked), len(second.asked)) == (3, 3)


def test_authorize_receive_for_good_is_told_once() -> None:
    """A plugin that hears of refusals makes no delivery dearer: what is remembered is counted, and not told again."""
    witness = Witness()
    house = House(plugins={"censor": Censor(lambda request: NEVER), "witness": witness})
    house.connect("a").subscribe("t")
    publisher = house.connect("pub")

    publisher.publish("t", b"1").publish("t", b"2")

    assert len(witness.told) == 1
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 2


def test_authorize_receive_for_good_leaves_the_short_way_open() -> None:
    """A message goes to those who may have it as it came."""
    censor = Censor(lambda request: NEVER if request.client.client_id == "b" else FOR_GOOD)
    house = House(plugins={"censor": censor})
    a, _ = (house.connect(name).subscribe("t") for name in "ab")
    publisher = house.connect("pub").publish("t", b"1").publish("t", b"2")
    house.connect("other").subscribe("u")
    publisher.publish("t", b"3")

    assert len(a.messages) == 3
    assert len(censor.asked) == 2  # A subscription anywhere makes fan-outs anew, and nobody is asked again.

    assert house.broker.router.fanout("t").is_simple


def test_authorize_receive_for_good_is_forgotten_for_those_who_are_away() -> None:
    """What comes for a session whose client is gone is queued by the rules that hold then."""
    answers = {"b": FOR_GOOD}
    censor = Censor(lambda request: answers["b"])
    house = House(plugins={"censor": censor})
    house.connect("b", V5, expiry_s=60).subscribe("t", 1).drop()
    publisher = house.connect("pub").publish("t", b"1", 1)

    answers["b"] = NEVER
    house.assembly.contexts["censor"].authorization_changed(Scope("b"))
    publisher.publish("t", b"2", 1)

    assert house.broker.runtime.stores.queue.totals().queued == 1
    back = house.connect("b", V5, clean_start=False, expiry_s=60)
    assert back.messages == []  # What was queued before is asked about again, as it leaves.


@pytest.mark.parametrize("answer", [FOR_GOOD, NEVER])
def test_authorize_receive_for_good_holds_for_shared_subscriptions_and_retained_messages(answer: Any) -> None:
    """They are asked about as they come."""
    censor = Censor(lambda request: answer)
    house = House(plugins={"censor": censor})
    publisher = house.connect("pub")
    publisher.publish("r", b"old", retain=True)
    shared = house.connect("a").subscribe("$share/g/t")
    retained = house.connect("b").subscribe("r")

    publisher.publish("t", b"x").publish("t", b"x")

    assert (len(shared.messages), len(retained.messages)) == ((2, 1) if answer is FOR_GOOD else (0, 0))
    assert len(censor.asked) == 2


def by_user(request: AuthorizationRequest) -> Any:
    """What ann may have nobody else may."""
    return FOR_GOOD if request.client.username == "ann" else NEVER


@pytest.mark.parametrize("window", [1, 10])
def test_authorize_receive_is_asked_again_for_what_waited(window: int) -> None:
    """A queue, and what is in flight, goes to nobody else who may use the same client id."""
    censor = Censor(by_user)
    settings = BrokerSettings(client_id_reuse="anybody", sys_interval_s=0)
    house = House(plugins={"censor": censor, "door": Trusting()}, settings=settings)
    properties = Properties(receive_maximum=window)
    first = house.connect("c", V5, expiry_s=60, username="ann", properties=properties, silent=True)
    first.subscribe("t", 1)
    publisher = house.connect("pub")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1)
    assert len(first.messages) == min(window, 4)
    first.drop()
    publisher.publish("t", b"4", 1)

    other = house.connect("c", V5, clean_start=False, expiry_s=60, username="bob")
    assert other.connack.session_present
    assert other.messages == []
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 5
    assert house.broker.runtime.stores.queue.totals().queued == 0
    assert len(house.broker.sessions.by_id["c"].outgoing) == 0


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_authorize_receive_is_asked_again_when_rules_change_while_messages_wait(expiry_s: int) -> None:
    """What the window had no room for is held to the rules of the moment in which it leaves the queue."""
    answers = {"now": FOR_GOOD}
    house = House(plugins={"censor": Censor(lambda request: answers["now"])})
    slow = house.connect("c", V5, expiry_s=expiry_s, properties=Properties(receive_maximum=1), silent=True)
    slow.subscribe("t", 1)
    publisher = house.connect("pub")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)

    answers["now"] = NEVER
    house.assembly.contexts["censor"].authorization_changed(Scope())
    slow.send(Puback(slow.of(Publish)[0].packet_id))

    assert [payload for _, payload, _ in slow.messages] == [b"0"]


# authorization_refused


class Witness:
    """Sees who was refused what."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def authorization_refused(self, request: AuthorizationRequest, by: str) -> None:
        self.told.append((request.client.client_id, request.action, request.topic, by))


def test_authorization_refused_names_the_plugin() -> None:
    """Every plugin is told of every sort of refusal."""
    one, two = Witness(), Witness()
    plugins = {"a": Authorizer(lambda request: None), "b": Authorizer(lambda request: NO), "one": one, "two": two}
    house = House(plugins=plugins)

    house.connect("c").subscribe("s").publish("p")
    house.connect("d", will=ConnectWill("w", b""))

    assert (
        one.told
        == two.told
        == [
            ("c", Action.SUBSCRIBE, "s", "b"),
            ("c", Action.PUBLISH, "p", "b"),
            ("d", Action.WILL, "w", "b"),
        ]
    )


def test_authorization_refused_is_told_of_deliveries() -> None:
    """A message that a client may not receive is a refusal too."""
    witness = Witness()
    house = House(plugins={"censor": Censor(lambda request: NO), "witness": witness})
    house.connect("sub").subscribe("t")

    house.connect("pub").publish("t")

    assert witness.told == [("sub", Action.RECEIVE, "t", "censor")]


def test_authorization_refused_is_not_told_from_the_cache() -> None:
    """A client that tries again and again is told of once."""
    witness = Witness()
    house = House(plugins={"a": Authorizer(lambda request: NO), "witness": witness})

    house.connect("c").publish("p").publish("p").publish("p")

    assert len(witness.told) == 1


def test_authorization_refused_that_raises_harms_nobody() -> None:
    """The failure is counted, and the other plugins are told."""

    class Broken:
        @hookimpl
        def authorization_refused(self) -> None:
            raise ValueError("broken")

    witness = Witness()
    house = House(plugins={"a": Authorizer(lambda request: NO), "broken": Broken(), "witness": witness})

    peer = house.connect("c").publish("p")

    assert not peer.closed
    assert len(witness.told) == 1
    assert house.assembly.metrics.sum("plugin.failures") == 1
