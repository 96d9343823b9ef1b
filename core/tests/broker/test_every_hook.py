"""Every hook of the SPI, called by a whole broker: when, with what, and what its answer does."""

from __future__ import annotations

from typing import Any

import pytest
from harness import House, Peer
from twisted.internet.defer import Deferred

from kinmqtt.broker.hooks import Hooks
from kinmqtt.mqtt.packets import V5, Auth, Connack, Disconnect, Puback, Pubrec, Will
from kinmqtt_spi import ALLOW, Client, Drop, Message, Properties, Reject, Subscription, deny, hookimpl, on_topics
from kinmqtt_spi import Disconnect as Close
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.reference.cluster import SingleNode
from kinmqtt_spi.reference.event import MemoryEventLog
from kinmqtt_spi.reference.queue import MemoryQueueStore
from kinmqtt_spi.reference.retain import MemoryRetainStore
from kinmqtt_spi.reference.session import MemorySessionStore
from kinmqtt_spi.reference.subscription import NaiveIndex
from kinmqtt_spi.services.authentication import Continue, Identity, Redirect, allow_as
from kinmqtt_spi.services.authorization import Action, Authorization, Cache, Scope
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, ResourceKind
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Health, HealthState
from kinmqtt_spi.services.queue import FullPolicy


class Witness:
    """Remembers every notice, by the hook's name, with the arguments as a tuple."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def names(self) -> list[str]:
        """The hooks that were called, in order."""
        return [name for name, *_ in self.seen]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of one hook."""
        return [tuple(arguments) for hook, *arguments in self.seen if hook == name]

    @hookimpl
    def authenticated(self, client: Client) -> None:
        self.seen.append(("authenticated", client.client_id))

    @hookimpl
    def authentication_refused(self, request: Any, by: str, reason: ReasonCode) -> None:
        self.seen.append(("authentication_refused", request.client_id, by, reason))

    @hookimpl
    def authorization_refused(self, request: Any, by: str) -> None:
        self.seen.append(("authorization_refused", request.action, request.topic, by))

    @hookimpl
    def connected(self, client: Client, session_present: bool) -> None:
        self.seen.append(("connected", client.client_id, session_present))

    @hookimpl
    def disconnected(self, client: Client, by_client: bool, reason: ReasonCode) -> None:
        self.seen.append(("disconnected", client.client_id, by_client, reason))

    @hookimpl
    def connection_lost(self, client: Client, text: str) -> None:
        self.seen.append(("connection_lost", client.client_id, text))

    @hookimpl
    def published(self, message: Message) -> None:
        self.seen.append(("published", message.topic))

    @hookimpl
    @on_topics("watched/#")
    def delivered(self, client: Client, message: Message) -> None:
        self.seen.append(("delivered", client.client_id, message.topic))

    @hookimpl
    def acknowledged(self, client: Client, message: Message, reason: ReasonCode) -> None:
        self.seen.append(("acknowledged", client.client_id, message.topic, reason))

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.seen.append(("dropped", client_id, message.topic, why))

    @hookimpl
    def subscribed(self, client: Client, subscription: Subscription) -> None:
        self.seen.append(("subscribed", client.client_id, subscription.full_filter))

    @hookimpl
    def unsubscribed(self, client: Client, filter: str) -> None:
        self.seen.append(("unsubscribed", client.client_id, filter))

    @hookimpl
    def message_unrouted(self, message: Message) -> None:
        self.seen.append(("message_unrouted", message.topic))

    @hookimpl
    def message_queued(self, client_id: str, message: Message) -> None:
        self.seen.append(("message_queued", client_id, message.topic))

    @hookimpl
    def message_expired(self, client_id: str, message: Message) -> None:
        self.seen.append(("message_expired", client_id, message.topic))

    @hookimpl
    def retained(self, message: Message) -> None:
        self.seen.append(("retained", message.topic))

    @hookimpl
    def retain_cleared(self, topic: str) -> None:
        self.seen.append(("retain_cleared", topic))

    @hookimpl
    def session_created(self, client: Client) -> None:
        self.seen.append(("session_created", client.client_id))

    @hookimpl
    def session_resumed(self, client: Client) -> None:
        self.seen.append(("session_resumed", client.client_id))

    @hookimpl
    def session_taken_over(self, client: Client, old_address: Any) -> None:
        self.seen.append(("session_taken_over", client.client_id, old_address.host))

    @hookimpl
    def session_expired(self, client_id: str) -> None:
        self.seen.append(("session_expired", client_id))

    @hookimpl
    def session_discarded(self, client_id: str) -> None:
        self.seen.append(("session_discarded", client_id))

    @hookimpl
    def cluster_member(self, member: Any) -> None:
        self.seen.append(("cluster_member", member.node.name, member.state.value))

    @hookimpl
    def limited(self, resource: Any, decision: LimitDecision) -> None:
        self.seen.append(("limited", resource.kind, decision.verdict))

    @hookimpl
    def sampled(self, snapshot: Any) -> None:
        self.seen.append(("sampled", snapshot.node))


@pytest.fixture
def witness() -> Witness:
    """A plugin that only watches."""
    return Witness()


def _house(*plugins: Any, **more: Any) -> House:
    named = {f"plugin{number}": plugin for number, plugin in enumerate(plugins)}
    return House(plugins=named, order=tuple(named), **more)


def test_the_core_binds_every_hook() -> None:
    """No hook is declared that the core does not know what to do with."""
    life = {"requirements", "settings_class", "configure", "limiter_needs"}
    provided = {"subscription_index", "queue_store", "retain_store", "session_store", "event_log", "cluster_backend"}
    declared = {n for m in HOOKSPEC_MODULES for n, f in vars(m).items() if hasattr(f, "kinmqtt_traits")}

    bound = {name for name in vars(House().broker.runtime.hooks) if not name.startswith("_")}

    assert isinstance(House().broker.runtime.hooks, Hooks)
    assert declared == bound | life | provided


# Notices


def test_a_client_comes_and_goes(witness: Witness) -> None:
    """Notices tell of authentication, session, connection and their ends, in the order in which they happen."""
    house = _house(witness)

    house.connect("c").disconnect()

    assert witness.names() == [
        "cluster_member",
        "authenticated",
        "session_created",
        "connected",
        "session_discarded",
        "disconnected",
    ]
    assert witness.of("disconnected") == [("c", True, ReasonCode.SUCCESS)]
    assert witness.of("cluster_member") == [("test", "up")]


def test_a_lost_connection_is_told_apart(witness: Witness) -> None:
    """A connection that ends without DISCONNECT is told as lost, with how."""
    house = _house(witness)

    house.connect("c").drop()

    assert witness.of("connection_lost") == [("c", "Connection was lost.")]
    assert witness.of("disconnected") == []


def test_a_session_is_resumed_taken_over_and_expires(witness: Witness) -> None:
    """A kept session's way is told: resumed, taken over with the old address, expired."""
    house = _house(witness)
    house.connect("c", V5, expiry_s=5).drop()
    house.connect("c", V5, expiry_s=5, clean_start=False, host="192.0.2.7")
    house.connect("c", V5, expiry_s=5, clean_start=False).drop()

    house.advance(7)

    assert witness.of("session_resumed") == [("c",), ("c",)]
    assert witness.of("session_taken_over") == [("c", "192.0.2.7")]
    assert witness.of("session_expired") == [("c",)]


def test_messages_are_followed_on_their_way(witness: Witness) -> None:
    """Published, delivered where the topic is watched, acknowledged with the client's reason."""
    house = _house(witness)
    house.connect("s").subscribe("#", qos=1)

    house.connect("p").publish("watched/a", b"x", qos=1).publish("other", b"x", qos=1)

    assert witness.of("published") == [("watched/a",), ("other",)]
    assert witness.of("delivered") == [("s", "watched/a")]
    assert witness.of("acknowledged") == [("s", "watched/a", 0), ("s", "other", 0)]


def test_what_nobody_wants_is_told(witness: Witness) -> None:
    """A message without a subscriber is told as unrouted."""
    house = _house(witness)

    house.connect("p").publish("nowhere", b"x")

    assert witness.of("message_unrouted") == [("nowhere",)]


def test_subscriptions_are_told(witness: Witness) -> None:
    """A subscription made and given up is told with the filter as the client wrote it."""
    house = _house(witness)

    house.connect("c").subscribe("$share/g/a").unsubscribe("$share/g/a")

    assert witness.of("subscribed") == [("c", "$share/g/a")]
    assert witness.of("unsubscribed") == [("c", "$share/g/a")]


def test_waiting_messages_are_told(witness: Witness) -> None:
    """A message that waits for an absent client is told, and so is its expiry, and the drop that this is."""
    house = _house(witness)
    house.connect("s", V5, expiry_s=60).subscribe("a", qos=1).drop()
    expiring = Properties(message_expiry_interval=2)

    house.connect("p", V5).publish("a", b"x", qos=1, properties=expiring)
    house.advance(4)

    assert witness.of("message_queued") == [("s", "a")]
    assert witness.of("message_expired") == [("s", "a")]
    assert witness.of("dropped") == [("s", "a", "expired")]


def test_retained_messages_are_told(witness: Witness) -> None:
    """A retained message is told when it is kept, and when an empty one clears it."""
    house = _house(witness)

    house.connect("p").publish("a", b"x", retain=True).publish("a", b"", retain=True)

    assert witness.of("retained") == [("a",)]
    assert witness.of("retain_cleared") == [("a",)]


def test_a_raising_notice_hurts_nobody(witness: Witness) -> None:
    """A plugin that fails in a notice is counted; clients and other plugins do not feel it."""

    class Broken:
        @hookimpl
        def published(self) -> None:
            raise RuntimeError("broken")

    house = _house(Broken(), witness)
    sub = house.connect("s").subscribe("a")

    house.connect("p").publish("a", b"x")

    assert sub.messages == [("a", b"x", 0)]
    assert witness.of("published") == [("a",)]
    assert house.assembly.metrics.sum("plugin.failures") == 1


# Authentication


def test_an_address_is_refused_before_a_byte_is_read() -> None:
    """connection_opened denies an address: the connection is closed."""

    class Door:
        @hookimpl
        def connection_opened(self, address: Any) -> Any:
            return deny() if address.host == "192.0.2.66" else None

    house = _house(Door())

    assert house.open(host="192.0.2.66").closed
    assert not house.open().closed


def test_an_identity_replaces_what_connect_said() -> None:
    """authenticate may name another client id; an MQTT 5 client is told, and the next plugin is not asked."""

    class Users:
        @hookimpl
        async def authenticate(self, request: Any) -> Any:
            return None if request.username is None else allow_as(Identity(client_id=f"u-{request.username}"))

    class Nobody:
        @hookimpl
        def authenticate(self) -> Any:
            return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)

    house = _house(Users(), Nobody())

    known = house.connect("c", V5, username="ann", password=b"x")
    unknown = house.connect("c", V5)

    assert known.connack.properties.assigned_client_identifier == "u-ann"
    assert unknown.connack.reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD


def test_a_slow_authenticator_is_cut_off(witness: Witness) -> None:
    """An answer of authenticate that is later than the hook's limit counts as DENY, and is named."""

    class Slow:
        @hookimpl
        def authenticate(self) -> Any:
            return Deferred()

    house = _house(Slow(), witness, connect_time_limit_s=60)
    client = house.connect("c", V5)

    house.advance(11)

    assert client.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert witness.of("authentication_refused") == [("c", "plugin0", ReasonCode.SERVER_UNAVAILABLE)]


class Rounds:
    """An authentication method of two rounds."""

    @hookimpl
    def exchange(self, step: Any) -> Any:
        if step.method != "ROUNDS":
            return None
        if step.state is None:
            return Continue(b"challenge", state=step.data)
        return allow_as(data=b"welcome") if step.data == b"right" else deny(text="wrong answer")


def _properties(data: bytes | None = None, method: str = "ROUNDS") -> Properties:
    properties = Properties(authentication_method=method)
    return properties if data is None else properties.replace(authentication_data=data)


def _exchanged(house: House, answer: bytes = b"right") -> Peer:
    client = house.connect("c", V5, properties=_properties(b"hello"))
    return client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, _properties(answer)))


def test_enhanced_authentication_goes_in_rounds() -> None:
    """exchange asks for the next step with AUTH 0x18, and ends in a CONNACK with its data [MQTT-4.12.0-2]."""
    client = _exchanged(_house(Rounds()))

    [asked] = client.of(Auth)
    assert (asked.reason, asked.properties.authentication_data) == (0x18, b"challenge")
    assert client.connack.properties.authentication_data == b"welcome"


def test_enhanced_authentication_may_fail() -> None:
    """A denial in a later round is told in the CONNACK, and the connection is closed [MQTT-4.12.0-4]."""
    client = _exchanged(_house(Rounds()), b"wrong")

    assert client.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert client.closed


def test_an_unknown_method_is_refused() -> None:
    """A method that no plugin knows gets 0x8C [MQTT-4.12.0-1]."""
    client = _house(Rounds()).connect("c", V5, properties=_properties(method="OTHER"))

    assert client.connack.reason is ReasonCode.BAD_AUTHENTICATION_METHOD


@pytest.mark.parametrize(("answer", "closed"), [(b"right", False), (b"wrong", True)])
def test_authentication_may_be_repeated(answer: bytes, closed: bool) -> None:
    """Within a connection AUTH 0x19 begins another exchange; failing it closes the connection [MQTT-4.12.1-2]."""
    client = _exchanged(_house(Rounds()))

    client.send(Auth(ReasonCode.REAUTHENTICATE, _properties(b"again")))
    client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, _properties(answer)))

    assert client.closed is closed
    assert client.of(Disconnect if closed else Auth)[-1].reason == (0x87 if closed else 0x00)


@pytest.mark.parametrize(("permanent", "reason"), [(False, 0x9C), (True, 0x9D)])
def test_a_client_is_sent_to_another_server(permanent: bool, reason: int) -> None:
    """choose_server ends in a CONNACK that names the other server (section 4.11)."""

    class Elsewhere:
        @hookimpl
        def choose_server(self, client: Client) -> Any:
            return Redirect("other:1883", permanent)

    client = _house(Elsewhere()).connect("c", V5)

    assert (client.connack.reason, client.connack.properties.server_reference) == (reason, "other:1883")
    assert client.closed


def test_a_connect_is_changed_or_refused() -> None:
    """connect_received folds the request, and may refuse it with a reason."""

    class Lowering:
        @hookimpl
        def connect_received(self, request: Any) -> Any:
            from attrs import evolve

            return evolve(request, client_id=request.client_id.lower())

    class Refusing:
        @hookimpl
        def connect_received(self, request: Any) -> Any:
            return Reject(ReasonCode.BANNED) if request.client_id == "evil" else None

    house = _house(Lowering(), Refusing())

    assert house.connect("EVIL", V5).connack.reason is ReasonCode.BANNED
    assert house.connect("Good", V5).connack.properties.assigned_client_identifier == "good"


def test_connack_properties_are_changed() -> None:
    """connack_sending changes what an MQTT 5 client is told; what raises changes nothing."""

    class Telling:
        @hookimpl
        def connack_sending(self, properties: Properties) -> Properties:
            return properties.replace(response_information="here")

    class Broken:
        @hookimpl
        def connack_sending(self) -> None:
            raise RuntimeError

    client = _house(Telling(), Broken()).connect("c", V5)

    assert client.connack.properties.response_information == "here"


# Authorization


class Rules:
    """Denies what is below ``no/``; counts how often it is asked."""

    def __init__(self, cache: Cache = Cache.SESSION) -> None:
        self.asked: list[Action] = []
        self.cache = cache
        self.denied = "no/"

    @hookimpl
    def configure(self, context: Any) -> None:
        self.context = context

    @hookimpl
    def authorize(self, request: Any) -> Any:
        self.asked.append(request.action)
        if request.topic.startswith(self.denied):
            return deny(text="no")
        return Authorization(ALLOW.verdict, cache=self.cache)


def test_publish_subscribe_and_will_are_asked(witness: Witness) -> None:
    """authorize decides about each action; refusals go to the client and to authorization_refused."""
    rules = Rules()
    house = _house(rules, witness)
    client = house.connect("c", V5)

    client.publish("no/a", b"x", qos=1).subscribe("no/#")
    refused = house.connect("w", V5, will=Will("no/w", b"x", 0, False, Properties()))

    assert [p.reason for p in client.of(Puback)] == [0x87]
    assert client.granted == [0x87]
    assert refused.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert [row[0] for row in witness.of("authorization_refused")] == [Action.PUBLISH, Action.SUBSCRIBE, Action.WILL]


@pytest.mark.parametrize(("cache", "asked"), [(Cache.SESSION, 1), (Cache.NEVER, 3)])
def test_answers_are_cached_as_long_as_they_say(cache: Cache, asked: int) -> None:
    """An authorize answer is reused for the session, or never."""
    rules = Rules(cache)
    client = _house(rules).connect("c")

    client.publish("a").publish("a").publish("a")

    assert len(rules.asked) == asked


def test_changed_rules_are_asked_for_anew() -> None:
    """authorization_changed forgets the answers within its scope."""
    rules = Rules()
    client = _house(rules).connect("c", V5).publish("a", qos=1)
    rules.denied = "a"

    rules.context.authorization_changed(Scope(client_id="other"))
    client.publish("a", qos=1)
    rules.context.authorization_changed(Scope(client_id="c"))
    client.publish("a", qos=1)

    assert [int(p.reason) for p in client.of(Puback)] == [0x10, 0x10, 0x87]


def test_receiving_is_asked_where_a_plugin_wants_it(witness: Witness) -> None:
    """authorize_receive drops a delivery it denies, for that client only."""

    class Secrets:
        @hookimpl
        def authorize_receive(self, request: Any) -> Any:
            return deny() if request.client.client_id == "blind" else None

    house = _house(Secrets(), witness)
    blind = house.connect("blind").subscribe("a")
    seeing = house.connect("seeing").subscribe("a")

    house.connect("p").publish("a", b"x")

    assert (blind.messages, seeing.messages) == ([], [("a", b"x", 0)])
    assert witness.of("dropped") == [("blind", "a", "not_authorized")]


# Subscriptions


def test_subscriptions_are_changed_or_refused() -> None:
    """subscribing replaces a subscription or refuses it in the SUBACK."""

    class Careful:
        @hookimpl
        def subscribing(self, subscription: Subscription) -> Any:
            if subscription.filter == "#":
                return Reject(ReasonCode.QUOTA_EXCEEDED)
            return Subscription(f"tenant/{subscription.filter}", subscription.qos)

        @hookimpl
        def unsubscribing(self, filter: str) -> Any:
            return f"tenant/{filter}"

    house = _house(Careful())
    client = house.connect("c", V5).subscribe("a").subscribe("#")
    house.connect("p").publish("tenant/a", b"x")

    client.unsubscribe("a")

    assert (client.granted, client.given_up) == ([0x97], [0x00])
    assert client.messages == [("tenant/a", b"x", 0)]


def test_clients_have_subscriptions_without_asking() -> None:
    """initial_subscriptions of all plugins are made before the CONNACK, retained messages included."""

    class Inbox:
        @hookimpl
        def initial_subscriptions(self, client: Client) -> Any:
            return [Subscription(f"inbox/{client.client_id}", 1)]

    class Broken:
        @hookimpl
        def initial_subscriptions(self) -> Any:
            raise RuntimeError

    house = _house(Broken(), Inbox())
    house.connect("p").publish("inbox/c", b"x", retain=True)

    client = house.connect("c")

    assert client.messages == [("inbox/c", b"x", 0)]
    assert isinstance(client.packets[0], Connack)


def test_a_plugin_chooses_the_member() -> None:
    """choose_member picks the shared subscription's member; an answer that is no candidate counts for nothing."""

    class First:
        @hookimpl
        def choose_member(self, candidates: Any) -> Any:
            return min(candidates, key=lambda member: member.client_id)

    house = _house(First())
    first = house.connect("a").subscribe("$share/g/t")
    second = house.connect("b").subscribe("$share/g/t")

    house.connect("p").publish("t", b"1").publish("t", b"2")

    assert (len(first.messages), second.messages) == (2, [])


# The message path


def test_a_publish_is_changed_dropped_refused_or_fatal() -> None:
    """publish_received folds a message; Drop, Reject and Disconnect stop it, each in its way."""

    class Guard:
        @hookimpl
        @on_topics("guarded/#")
        def publish_received(self, message: Message) -> Any:
            return {
                "guarded/change": message.replace(payload=b"changed"),
                "guarded/drop": Drop(),
                "guarded/refuse": Reject(ReasonCode.PAYLOAD_FORMAT_INVALID),
                "guarded/close": Close(ReasonCode.ADMINISTRATIVE_ACTION),
            }.get(message.topic)

    house = _house(Guard())
    sub = house.connect("s").subscribe("#", qos=1)
    pub = house.connect("p", V5)

    for name in ("change", "drop", "refuse", "close"):
        pub.publish(f"guarded/{name}", b"x", qos=1)

    assert sub.messages == [("guarded/change", b"changed", 1)]
    assert [int(p.reason) for p in pub.of(Puback)] == [0x00, 0x00, 0x99]
    assert pub.of(Disconnect)[0].reason is ReasonCode.ADMINISTRATIVE_ACTION


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_raising_intercept_refuses_the_message(qos: int) -> None:
    """publish_received that raises refuses the message with 0x83, and the next message is asked for again."""

    class Broken:
        @hookimpl
        def publish_received(self, message: Message) -> None:
            if message.payload == b"bad":
                raise RuntimeError

    house = _house(Broken())
    sub = house.connect("s").subscribe("#")
    pub = house.connect("p", V5).publish("a", b"bad", qos=qos).publish("a", b"good", qos=qos)

    assert sub.messages == [("a", b"good", 0)]
    answers = pub.of(Puback if qos == 1 else Pubrec)
    assert [int(answer.reason) for answer in answers] == ([0x83, 0x00] if qos else [])


def test_what_follows_an_awaited_answer_waits() -> None:
    """A slow publish_received holds its client's later packets, in order, and nobody else's."""
    answers: list[Deferred[None]] = []

    class Slow:
        @hookimpl
        @on_topics("slow")
        def publish_received(self) -> Any:
            answers.append(Deferred())
            return answers[-1]

    house = _house(Slow())
    sub = house.connect("s").subscribe("#")
    pub = house.connect("p").publish("slow", b"1").publish("fast", b"2")
    house.connect("q").publish("fast", b"3")
    assert [payload for _, payload, _ in sub.messages] == [b"3"]

    answers[0].callback(None)
    house.settle()

    assert [payload for _, payload, _ in sub.messages] == [b"3", b"1", b"2"]
    assert pub.link.reading


def test_a_delivery_is_changed_for_one_client(witness: Witness) -> None:
    """delivering changes a message for one client or drops it; what raises leaves it as it is."""

    class Translator:
        @hookimpl
        def delivering(self, client: Client, message: Message) -> Any:
            if client.client_id == "broken":
                raise RuntimeError
            return {"fr": message.replace(payload=b"bonjour"), "none": Drop()}.get(client.client_id)

    house = _house(Translator(), witness)
    clients = {name: house.connect(name).subscribe("a", qos=1) for name in ("en", "fr", "none", "broken")}

    house.connect("p").publish("a", b"hello", qos=1)

    payloads = {name: [payload for _, payload, _ in client.messages] for name, client in clients.items()}
    assert payloads == {"en": [b"hello"], "fr": [b"bonjour"], "none": [], "broken": [b"hello"]}
    assert witness.of("dropped") == [("none", "a", "intercepted")]


def test_a_will_is_changed_or_dropped() -> None:
    """will_publishing sees a will when it is due."""

    class Censor:
        @hookimpl
        def will_publishing(self, client: Client, message: Message) -> Any:
            return Drop() if client.client_id == "quiet" else message.replace(payload=b"censored")

    house = _house(Censor())
    sub = house.connect("s").subscribe("#")
    for name in ("quiet", "loud"):
        house.connect(name, will=Will("wills", b"last words", 0, False, Properties())).drop()

    assert sub.messages == [("wills", b"censored", 0)]


# Stores


def test_a_full_queue_asks_what_gives_way(witness: Witness) -> None:
    """queue_full answers a policy; refusing tells the publisher 0x97."""

    class Strict:
        @hookimpl
        def queue_full(self, question: Any) -> FullPolicy:
            assert question.sizes.queued == 1
            return FullPolicy.REFUSE

    house = _house(Strict(), witness, max_queued_messages=1)
    house.connect("s", V5, expiry_s=60).subscribe("a", qos=1).drop()

    pub = house.connect("p", V5).publish("a", b"1", qos=1).publish("a", b"2", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == [0x00, 0x97]
    assert witness.of("dropped") == [("s", "a", "queue_full")]


def test_what_is_retained_is_changed_or_kept_out() -> None:
    """retaining may change a message or keep it out of the store; it is delivered all the same."""

    class Keeper:
        @hookimpl
        def retaining(self, message: Message) -> Any:
            return Drop() if message.topic == "no" else message.replace(payload=b"kept")

    house = _house(Keeper())
    now = house.connect("now").subscribe("#")
    house.connect("p").publish("no", b"x", retain=True).publish("yes", b"x", retain=True)

    later = house.connect("later").subscribe("#")

    assert len(now.messages) == 2
    assert later.messages == [("yes", b"kept", 0)]


def test_a_plugin_provides_services() -> None:
    """subscription_index, queue_store, retain_store, session_store, event_log, cluster_backend may be a plugin's."""

    class Everything:
        @hookimpl
        def subscription_index(self) -> Any:
            return NaiveIndex()

        @hookimpl
        def queue_store(self) -> Any:
            return MemoryQueueStore()

        @hookimpl
        def retain_store(self) -> Any:
            return MemoryRetainStore()

        @hookimpl
        def session_store(self) -> Any:
            return MemorySessionStore()

        @hookimpl
        def event_log(self, context: Any) -> Any:
            return MemoryEventLog(context.clock.later)

        @hookimpl
        def cluster_backend(self) -> Any:
            return SingleNode()

    house = _house(Everything())
    sub = house.connect("s").subscribe("a/+", qos=1)
    house.connect("p").publish("a/b", b"x", qos=1)

    assert set(house.assembly.providers.values()) == {"plugin0"}
    assert sub.messages == [("a/b", b"x", 1)]


def test_a_provided_service_is_what_it_should_be() -> None:
    """A provide hook that answers something else stops the assembly, and names the plugin."""

    class Wrong:
        @hookimpl
        def queue_store(self) -> Any:
            return MemoryRetainStore()

    with pytest.raises(AssemblyError, match="plugin 'plugin0': queue_store answered a MemoryRetainStore"):
        _house(Wrong())


def test_events_are_logged_in_order() -> None:
    """event_log gets what happened to a client, in order, with versions that go up."""
    house = _house()
    house.connect("c").subscribe("a").publish("a", b"x", retain=True).unsubscribe("a").disconnect()

    events = [recorded.event for recorded in house.assembly.stores.event.read(-1, 99)]  # type: ignore[union-attr]

    kinds = [event.kind for event in events]
    assert kinds == [
        EventKind.CONNECT,
        EventKind.SUBSCRIBE,
        EventKind.ADD_RETAIN,
        EventKind.UNSUBSCRIBE,
        EventKind.DISCONNECT,
    ]
    assert [e.version for e in events] == sorted(e.version for e in events)


# Metrics and limits


def test_sys_topics_are_published() -> None:
    """sys_topics of plugins stand beside the broker's own, retained; no plugin can take a name of the broker's."""
    from kinmqtt.broker.settings import BrokerSettings

    class Weather:
        @hookimpl
        def sys_topics(self) -> Any:
            return [SysTopic("$SYS/weather", lambda: "fair"), SysTopic("$SYS/broker/version", lambda: "fake")]

    witness = Witness()
    house = _house(Weather(), witness, settings=BrokerSettings(sys_interval_s=5))

    house.advance(6)
    client = house.connect("c").subscribe("$SYS/#")

    told = {topic: payload for topic, payload, _ in client.messages}
    assert told["$SYS/weather"] == b"fair"
    assert told["$SYS/broker/version"] == b"kinmqtt version test"
    assert witness.of("sampled")[0] == ("test",)


class Bouncer:
    """A limiter with one answer for one kind of resource."""

    def __init__(self, kind: ResourceKind, verdict: LimitVerdict, topics: bool = False) -> None:
        self.kind = kind
        self.verdict = verdict
        self.topics = topics
        self.asked: list[tuple[Any, int]] = []

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        return LimiterNeeds(frozenset({self.kind}), self.topics)

    @hookimpl
    def acquire(self, resource: Any, amount: int) -> LimitDecision:
        self.asked.append((resource, amount))
        return LimitDecision(self.verdict, "bouncer", 2.0)


@pytest.mark.parametrize("topics", [False, True])
@pytest.mark.parametrize(
    ("verdict", "reasons", "closed"),
    [
        (LimitVerdict.ALLOW, [0x10], False),
        (LimitVerdict.DELAY, [0x10], False),
        (LimitVerdict.DROP, [0x00], False),
        (LimitVerdict.REJECT, [0x97], False),
        (LimitVerdict.DISCONNECT, [], True),
    ],
)
def test_publishing_is_limited(verdict: LimitVerdict, reasons: list[int], closed: bool, topics: bool) -> None:
    """acquire is asked for PUBLISH once a read or with each topic, and each verdict does what it says."""
    bouncer = Bouncer(ResourceKind.PUBLISH, verdict, topics)
    witness = Witness()
    house = _house(bouncer, witness)

    pub = house.connect("p", V5).publish("a", b"x", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == reasons
    assert pub.closed is closed
    assert bouncer.asked[0][0].topic == ("a" if topics else None)
    assert pub.link.reading is (verdict is not LimitVerdict.DELAY)
    assert witness.of("limited") == ([] if verdict is LimitVerdict.ALLOW else [(ResourceKind.PUBLISH, verdict)])


def test_a_delayed_client_is_read_on_in_time() -> None:
    """DELAY pauses reading for as long as it says."""
    house = _house(Bouncer(ResourceKind.PUBLISH, LimitVerdict.DELAY))
    pub = house.connect("p").publish("a", b"x")

    house.advance(2)

    assert pub.link.reading


def test_connections_and_connects_are_limited() -> None:
    """REJECT closes a connection at the door, and answers a CONNECT with 0x97."""
    door = _house(Bouncer(ResourceKind.CONNECTION, LimitVerdict.REJECT)).open(V5)
    connect = _house(Bouncer(ResourceKind.CONNECT, LimitVerdict.REJECT)).connect("c", V5)

    assert door.closed
    assert connect.connack.reason is ReasonCode.QUOTA_EXCEEDED


def test_subscribing_is_limited() -> None:
    """REJECT refuses every filter of a SUBSCRIBE with 0x97."""
    client = _house(Bouncer(ResourceKind.SUBSCRIBE, LimitVerdict.REJECT)).connect("c", V5).subscribe("a")

    assert client.granted == [0x97]


def test_a_raising_limiter_lets_pass() -> None:
    """A broken limiter must not stop the broker."""

    class Broken:
        @hookimpl
        def acquire(self) -> Any:
            raise RuntimeError

    house = _house(Broken())

    assert house.connect("c", V5).publish("a", b"x", qos=1).of(Puback)


# A plugin's own life


class Life:
    """Remembers what happens to it, and fails where it is told to."""

    def __init__(self, told: list[str], name: str, fails_in: str = "") -> None:
        self.told = told
        self.name = name
        self.fails_in = fails_in

    def _note(self, step: str) -> None:
        self.told.append(f"{self.name}.{step}")
        if step == self.fails_in:
            raise RuntimeError("can't")

    @hookimpl
    def configure(self) -> None:
        self._note("configure")

    @hookimpl
    async def start(self) -> None:
        self._note("start")

    @hookimpl
    def ready(self) -> None:
        self._note("ready")

    @hookimpl
    def drain(self) -> None:
        self._note("drain")

    @hookimpl
    def stop(self) -> None:
        self._note("stop")

    @hookimpl
    def health(self) -> Health:
        self._note("health")
        return Health(HealthState.DEGRADED, "so so")


def test_plugins_live_and_die_in_order() -> None:
    """configure, start and ready in the order of the settings; drain, then stop in the reverse order."""
    told: list[str] = []
    house = _house(Life(told, "a"), Life(told, "b"))
    house.result(house.broker.ready())

    house.result(house.broker.stop())

    assert told == [
        *("a.configure", "b.configure", "a.start", "b.start", "a.ready", "b.ready"),
        *("a.drain", "b.drain", "b.stop", "a.stop"),
    ]


def test_a_failed_start_stops_what_was_started() -> None:
    """A plugin that can't start stops the broker, by name; those before it are stopped again."""
    told: list[str] = []

    with pytest.raises(AssemblyError, match="plugin 'plugin1' can't start: RuntimeError: can't"):
        _house(Life(told, "a"), Life(told, "b", "start"), Life(told, "c"))

    assert told[3:] == ["a.start", "b.start", "b.stop", "a.stop"]


def test_health_is_told_by_plugin() -> None:
    """health answers are collected under each plugin's name; the failing part is left out."""
    told: list[str] = []
    house = _house(Life(told, "a"), Life(told, "b", "health"))

    health = house.result(house.broker.health())

    assert {name: state.state for name, state in health.items()}["plugin0"] is HealthState.DEGRADED
