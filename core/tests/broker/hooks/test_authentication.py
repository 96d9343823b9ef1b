"""The hooks of authentication, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred, succeed

from core_harness.faulty import plugin
from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V31, V311, Auth, Connack, Connect, DisconnectPacket, Publish
from kinmqtt_spi import ABSTAIN, ALLOW, Decision, Properties, ReasonCode, Reject, deny, hookimpl
from kinmqtt_spi.services.authentication import (
    Authenticated,
    ConnectRequest,
    Continue,
    ExchangeStep,
    Identity,
    Redirect,
    allow_as,
)
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.values import Address, Client, Message, Publisher, Will

NOT_WELCOME = deny(ReasonCode.NOT_AUTHORIZED, "not welcome")


class Authenticator:
    """Answers every client the same; counts how often it was asked."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.asked = 0

    @hookimpl
    def authenticate(self) -> Any:
        self.asked += 1
        return self.answer()


def fail() -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


async def coroutine_that_fails() -> Any:
    """A coroutine of a broken plugin."""
    raise ValueError("broken")


# connection_opened


class Doorman:
    """Answers every connection the same."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.seen: list[tuple[str, str]] = []

    @hookimpl
    def connection_opened(self, address: Address, listener: str) -> Any:
        self.seen.append((address.host, listener))
        return self.answer()


def test_connection_opened_is_asked_before_a_byte_is_read() -> None:
    """A connection from an address that is turned away is closed without a word."""
    doorman = Doorman(lambda: NOT_WELCOME)
    house = House(plugins={"doorman": doorman})

    peer = house.open(host="198.51.100.7", listener="tcp:1883")

    assert peer.closed
    assert peer.packets == []
    assert doorman.seen == [("198.51.100.7", "tcp:1883")]


@pytest.mark.parametrize("abstention", [None, ABSTAIN])
def test_connection_opened_takes_the_first_that_does_not_abstain(abstention: Decision | None) -> None:
    """An abstention leaves the question to the next plugin, whose answer keeps the third from being asked."""
    third = Doorman(lambda: NOT_WELCOME)
    plugins = {"a": Doorman(lambda: abstention), "b": Doorman(lambda: ALLOW), "c": third}

    peer = House(plugins=plugins).open()

    assert not peer.closed
    assert third.seen == []


def test_connection_opened_lets_in_where_all_abstain() -> None:
    """Nobody's objection is needed to talk to an address."""
    house = House(plugins={"a": Doorman(lambda: None)})

    assert house.connect("c").connack.reason is ReasonCode.SUCCESS


@pytest.mark.parametrize("answer", [fail, lambda: coroutine(ALLOW), lambda: succeed(ALLOW)])
def test_connection_opened_that_fails_closes(answer: Callable[[], Any]) -> None:
    """A doorman that raises, or wants to be waited for, lets nobody in, and is counted."""
    house = House(plugins={"doorman": Doorman(answer)})

    assert house.open().closed
    assert house.assembly.metrics.sum("plugin.failures") == 1


# authenticate


def test_authenticate_sees_what_the_client_says_of_itself() -> None:
    """The request holds the fields of CONNECT and those of the connection."""
    seen = []

    class Guard:
        @hookimpl
        def authenticate(self, request: Any) -> Decision:
            seen.append(request)
            return ALLOW

    house = House(plugins={"guard": Guard()})
    house.connect("c", V5, username="u", password=b"secret", keep_alive=30, clean_start=False)

    [request] = seen
    assert (request.client_id, request.username, request.password) == ("c", "u", b"secret")
    assert (request.protocol_version, request.keep_alive_s, request.clean_start) == (V5, 30, False)
    assert (request.address.host, request.listener) == ("192.0.2.1", "tcp:1883")
    assert "secret" not in repr(request)


@pytest.mark.parametrize("abstention", [None, ABSTAIN])
def test_authenticate_takes_the_first_that_does_not_abstain(abstention: Decision | None) -> None:
    """An abstaining plugin leaves the client to the next; the one after the answer is not asked."""
    third = Authenticator(lambda: NOT_WELCOME)
    plugins = {"a": Authenticator(lambda: abstention), "b": Authenticator(lambda: ALLOW), "c": third}

    peer = House(plugins=plugins).connect("c")

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert third.asked == 0


def test_authenticate_follows_the_order_of_the_settings() -> None:
    """The plugin that the settings put first is asked first."""
    plugins = {"a": Authenticator(lambda: ALLOW), "b": Authenticator(lambda: NOT_WELCOME)}

    peer = House(plugins=plugins, order=("b", "a")).connect("c", V5)

    assert peer.connack.reason is ReasonCode.NOT_AUTHORIZED


def test_authenticate_refuses_where_all_abstain() -> None:
    """A client for whom nobody speaks is refused with 0x87."""
    peer = House(plugins={"guard": Authenticator(lambda: None)}).connect("c", V5)

    assert peer.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert peer.closed


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_authenticate_gives_the_reason_of_the_refusal(version: int) -> None:
    """The reason goes into the CONNACK of every version; MQTT 5 is also told the text."""
    bad = deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "who are you?")

    peer = House(plugins={"guard": Authenticator(lambda: bad)}).connect("c", version)

    assert peer.connack.reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert peer.connack.properties.reason_string == ("who are you?" if version == V5 else None)
    assert peer.closed


def test_authenticate_that_raises_lets_nobody_in() -> None:
    """A broken guard refuses with 0x88, though a plugin after it would let the client in."""
    house = House(plugins={"a": Authenticator(fail), "b": Authenticator(lambda: ALLOW)})

    peer = house.connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert house.assembly.metrics.sum("plugin.failures") == 1


@pytest.mark.parametrize("wrap", [succeed, coroutine])
def test_authenticate_may_be_awaited(wrap: Callable[[Any], Any]) -> None:
    """Deferreds and coroutines are as good as values, abstentions among them."""
    plugins = {"a": Authenticator(lambda: wrap(None)), "b": Authenticator(lambda: wrap(allow_as(Identity("known"))))}
    house = House(plugins=plugins)

    house.connect("c")

    client = house.broker.client("c")
    assert client is not None
    assert client.username == "known"


def test_authenticate_that_fails_later_lets_nobody_in() -> None:
    """An error of an awaited answer is as bad as one at once."""
    peer = House(plugins={"guard": Authenticator(coroutine_that_fails)}).connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE


def test_authenticate_holds_what_the_client_sends_ahead() -> None:
    """Packets that follow CONNECT wait for the answer, and are then carried out."""
    answer: Deferred[Decision] = Deferred()
    house = House(plugins={"guard": Authenticator(lambda: answer)})
    peer = house.connect("c").subscribe("a").publish("a", b"x")
    assert peer.packets == []

    answer.callback(ALLOW)
    house.settle()

    assert isinstance(peer.packets[0], Connack)
    assert (peer.granted, peer.messages) == ([0], [("a", b"x", 0)])
    assert peer.link.reading


def test_authenticate_has_little_of_the_client_read_ahead() -> None:
    """It is read, so that its going is noticed; beyond a bound it is not, and then everything is carried out."""
    answer: Deferred[Decision] = Deferred()
    house = House(plugins={"guard": Authenticator(lambda: answer)})
    peer = house.connect("c")
    read = [peer.link.reading]

    for _ in range(3):
        peer.publish("a", bytes(40_000))
        read.append(peer.link.reading)
    answer.callback(ALLOW)
    house.settle()

    assert read == [True, True, False, False]
    assert peer.link.reading
    assert house.broker.runtime.statistics.messages_received.value == 3


def test_authenticate_loses_nothing_of_a_packet_that_is_too_large_before() -> None:
    """One larger than a CONNECT may be is not cut before the client is accepted, and then it is."""
    answer: Deferred[Decision] = Deferred()
    house = House(plugins={"guard": Authenticator(lambda: answer)}, max_connect_bytes=1000)
    peer = house.connect("c", V5).subscribe("a")
    packet = encode(Publish.build("a", bytes(5000)), V5)

    peer.send_bytes(packet[:500])
    answer.callback(ALLOW)
    house.settle()
    peer.send_bytes(packet[500:])

    assert [len(payload) for _, payload, _ in peer.messages] == [5000]


@pytest.mark.parametrize("how", ["lost", "too late"])
def test_authenticate_is_cancelled_when_the_client_has_gone(how: str) -> None:
    """Nobody needs the answer: the plugin learns of it, and is not blamed for having none."""
    cancelled: list[Any] = []
    answer: Deferred[Decision] = Deferred(cancelled.append)
    house = House(plugins={"guard": Authenticator(lambda: answer)}, connect_time_limit_s=5)
    peer = house.connect("c", V5)

    if how == "lost":
        peer.drop()
    else:
        house.advance(7)

    assert len(cancelled) == 1
    assert house.assembly.metrics.sum("plugin.failures") == 0
    assert house.broker.sessions.by_id == {}
    assert house.broker.connections == set()


def test_authenticate_is_not_asked_of_the_next_when_the_client_has_gone() -> None:
    """What was cancelled ends the question: it is neither an abstention nor an answer."""
    second = Authenticator(lambda: ALLOW)
    house = House(plugins={"first": Authenticator(Deferred), "second": second})

    house.connect("c", V5).drop()

    assert second.asked == 0


def test_a_coroutine_of_authenticate_is_cancelled_where_it_waits() -> None:
    """It may give back what it holds."""
    released: list[bool] = []

    async def ask() -> Decision:
        try:
            await Deferred()
        finally:
            released.append(True)
        return ALLOW

    house = House(plugins={"guard": Authenticator(ask)})

    house.connect("c", V5).drop()

    assert released == [True]


@pytest.mark.parametrize("hook", ["connect_received", "exchange", "choose_server", "authorize"])
def test_other_questions_about_who_is_not_accepted_are_cancelled_too(hook: str) -> None:
    """Nothing was begun for the client that would have to be undone."""
    cancelled: list[Any] = []
    hooks: dict[str, Any] = {hook: lambda *_: Deferred(cancelled.append)}
    house = House(plugins={"slow": plugin(**hooks)})
    method = Properties(authentication_method="m") if hook == "exchange" else Properties()

    house.connect("c", V5, will=Will(Message("w")), properties=method).drop()

    assert len(cancelled) == 1
    assert house.assembly.metrics.sum("plugin.failures") == 0
    assert house.broker.sessions.by_id == {}


def test_authenticate_has_ten_seconds() -> None:
    """An answer that does not come in time counts as a failure."""
    house = House(plugins={"guard": Authenticator(Deferred)}, connect_time_limit_s=60)
    peer = house.connect("c", V5)
    house.advance(9)
    assert not peer.closed

    house.advance(2)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_authenticate_in_time_is_not_cut_off_later() -> None:
    """The time limit ends with the answer."""
    answer: Deferred[Decision] = Deferred()
    house = House(plugins={"guard": Authenticator(lambda: answer)}, connect_time_limit_s=60)
    peer = house.connect("c", V5)
    house.advance(9)
    answer.callback(ALLOW)
    house.settle()

    house.advance(30)

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert not peer.closed


def test_authenticate_after_the_client_left_changes_nothing() -> None:
    """An answer for a connection that is gone opens no session."""
    answer: Deferred[Decision] = Deferred()
    house = House(plugins={"guard": Authenticator(lambda: answer)})
    house.connect("c").drop()

    answer.callback(ALLOW)
    house.settle()

    assert house.broker.client("c") is None
    assert house.broker.sessions.by_id == {}


def test_authenticate_may_name_an_identity() -> None:
    """An identity replaces user name and client id, and its attributes reach other plugins; MQTT 5 is told its id."""
    identity = Identity("real", "real-id", {"tenant": "t1"})
    house = House(plugins={"guard": Authenticator(lambda: allow_as(identity))})

    peer = house.connect("c", V5, username="u")

    client = house.broker.client("real-id")
    assert client is not None
    assert (client.username, client.attributes) == ("real", {"tenant": "t1"})
    assert peer.connack.properties.assigned_client_identifier == "real-id"
    assert house.broker.client("c") is None


def test_allow_vouches_for_the_user_name_of_connect() -> None:
    """Who answers a plain ALLOW has verified the name: the client has it from then on."""
    house = House(plugins={"guard": Authenticator(lambda: ALLOW)})
    house.connect("c", V5, username="u", password=b"p")

    client = house.broker.client("c")
    assert client is not None
    assert client.username == "u"


@pytest.mark.parametrize("version", [V311, V5])
def test_an_anonymous_client_has_no_user_name(version: int) -> None:
    """A name that nobody has verified is dropped: for authorizers, for limiters, and in what the client publishes."""
    seen: list[str | None] = []

    class Watcher:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> None:
            seen.append(request.client.username)

        @hookimpl
        def acquire(self, resource: Resource) -> None:
            if resource.kind is ResourceKind.PUBLISH:
                seen.append(resource.username)

        @hookimpl
        def publish_received(self, client: Client, message: Message) -> None:
            seen.extend([client.username, message.publisher.username])

    house = House(plugins={"watcher": Watcher()})
    will = Message("gone", b"", publisher=Publisher("c", "ha"))
    peer = house.connect("c", version, username="ha", will=Will(will)).publish("a", qos=1)

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert len(seen) >= 5
    assert set(seen) == {None}
    client = house.broker.client("c")
    assert client is not None
    assert client.username is None


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_certificate_that_gives_no_name_is_refused_before_anybody_is_asked(version: int) -> None:
    """CONNECT's name does not stand in for it; the hook `authentication_refused` is told, and nobody has decided."""
    told: list[tuple[str | None, str, ReasonCode]] = []

    class Watcher(Authenticator):
        @hookimpl
        def authentication_refused(self, request: ConnectRequest, by: str, reason: ReasonCode) -> None:
            told.append((request.username, by, reason))

    guard = Watcher(lambda: ALLOW)
    house = House(plugins={"guard": guard})
    peer = house.open(version)
    peer.link.certificate_subject = ""
    peer.link.certificate_problem = "the client's certificate has no common name"
    peer.send(Connect(version, "c", username="admin", password=b"p"))

    assert peer.connack.reason is ReasonCode.NOT_AUTHORIZED
    assert peer.closed
    assert guard.asked == 0
    assert told == [("admin", "", ReasonCode.NOT_AUTHORIZED)]


def test_a_plugin_that_is_asked_first_may_vouch_for_a_user_name() -> None:
    """What `connect_received` sets and marks as verified stays, for whoever lets the client in."""

    class Maps:
        @hookimpl
        def connect_received(self, request: ConnectRequest) -> ConnectRequest:
            return evolve(request, username="device", username_verified=True)

    house = House(plugins={"maps": Maps()})
    house.connect("c", V5, username="admin")

    client = house.broker.client("c")
    assert client is not None
    assert client.username == "device"


def test_authenticate_may_let_in_for_a_time() -> None:
    """A client is disconnected when its identity is no longer good."""
    house = House()
    until = house.clock.now() + 60
    house = House(plugins={"guard": Authenticator(lambda: allow_as(Identity(expires_at=until)))}, clock=house.clock)
    peer = house.connect("c", V5)
    house.advance(58)
    assert not peer.closed

    house.advance(3)

    assert peer.of(DisconnectPacket)[0].reason is ReasonCode.NOT_AUTHORIZED
    assert peer.closed


def test_authenticate_is_not_asked_with_an_authentication_method() -> None:
    """A client that names a method is not let in without an exchange."""
    guard = Authenticator(lambda: ALLOW)

    peer = House(plugins={"guard": guard}).connect(
        "c", V5, properties=Properties(authentication_method="SCRAM-SHA-256")
    )

    assert peer.connack.reason is ReasonCode.BAD_AUTHENTICATION_METHOD
    assert guard.asked == 0


# exchange


class Mechanism:
    """The method RIDDLE: asks a question and wants an answer."""

    def __init__(self, method: str = "RIDDLE") -> None:
        self.method = method
        self.steps: list[ExchangeStep] = []
        self.expires_at: float | None = None

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Any:
        if step.method != self.method:
            return None
        self.steps.append(step)
        if step.state is None:
            return Continue(b"what walks on four legs?", state="asked")
        if step.data == b"man":
            identity = Identity("oedipus", attributes={"times": str(len(self.steps))}, expires_at=self.expires_at)
            return allow_as(identity, data=b"well done")
        return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "eaten")


METHOD = Properties(authentication_method="RIDDLE")
ANSWER = Auth(ReasonCode.CONTINUE_AUTHENTICATION, METHOD.replace(authentication_data=b"man"))
WRONG = Auth(ReasonCode.CONTINUE_AUTHENTICATION, METHOD.replace(authentication_data=b"a dog"))
AGAIN = Auth(ReasonCode.REAUTHENTICATE, METHOD)


def riddled(house: House, client_id: str = "c", **fields: Any) -> Peer:
    """A client that was let in after an exchange."""
    return house.connect(client_id, V5, properties=METHOD, **fields).send(ANSWER)


class Nameless(Mechanism):
    """The same, and it does not say who the client is; then another, where it is set."""

    later: Identity | None = None

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Any:
        answer = super().exchange(step)
        if not isinstance(answer, Authenticated):
            return answer
        return allow_as() if self.later is None or not step.reauthentication else allow_as(self.later)


def test_the_user_name_of_connect_does_not_survive_an_exchange() -> None:
    """The mechanism has verified no name, and CONNECT's is the client's own word (section 4.12)."""
    house = House(plugins={"riddle": Nameless()})
    riddled(house, username="admin")

    client = house.broker.client("c")
    assert client is not None
    assert client.username is None


def test_the_user_name_of_a_certificate_survives_an_exchange_that_names_nobody() -> None:
    """TLS has verified it."""
    house = House(plugins={"riddle": Nameless()})
    peer = house.open(V5)
    peer.link.certificate_subject, peer.link.certificate_username = "CN=sensor-1", "sensor-1"
    peer.send(Connect(V5, "c", properties=METHOD, username="admin")).send(ANSWER)

    client = house.broker.client("c")
    assert client is not None
    assert client.username == "sensor-1"


@pytest.mark.parametrize("identity", [Identity("other"), Identity(anonymous=True), None])
def test_a_client_stays_the_user_that_it_is(identity: Identity | None) -> None:
    """Re-authentication as another user, or as nobody, ends the connection (section 4.12.1)."""
    mechanism = Mechanism() if identity is None else Nameless()
    house = House(plugins={"riddle": mechanism})
    peer = house.open(V5)
    peer.link.certificate_subject, peer.link.certificate_username = "CN=oedipus", "oedipus"
    peer.send(Connect(V5, "c", properties=METHOD)).send(ANSWER)
    if isinstance(mechanism, Nameless):
        mechanism.later = identity

    peer.send(AGAIN).send(ANSWER)

    client = house.broker.client("c")
    if identity is None:
        assert client is not None
        assert client.username == "oedipus"
        assert not peer.closed
    else:
        assert peer.of(DisconnectPacket)[0].reason is ReasonCode.NOT_AUTHORIZED
        assert peer.closed


def test_exchange_goes_on_until_it_is_decided() -> None:
    """Continue asks the client for its next step; ALLOW lets it in, with the last data in the CONNACK."""
    mechanism = Mechanism()
    house = House(plugins={"riddle": mechanism})

    peer = house.connect("c", V5, properties=METHOD.replace(authentication_data=b"hello"))
    peer.send(ANSWER)

    question = Auth(
        ReasonCode.CONTINUE_AUTHENTICATION,
        Properties(authentication_method="RIDDLE", authentication_data=b"what walks on four legs?"),
    )
    assert peer.packets[0] == question
    assert peer.connack.reason is ReasonCode.SUCCESS
    assert peer.connack.properties.authentication_method == "RIDDLE"
    assert peer.connack.properties.authentication_data == b"well done"
    assert [(step.data, step.state, step.reauthentication) for step in mechanism.steps] == [
        (b"hello", None, False),
        (b"man", "asked", False),
    ]


def test_exchange_may_refuse() -> None:
    """DENY ends the exchange with a CONNACK that says why."""
    house = House(plugins={"riddle": Mechanism()})

    peer = house.connect("c", V5, properties=METHOD).send(WRONG)

    assert peer.connack.reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert peer.closed


def test_exchange_that_nobody_knows_is_refused() -> None:
    """A method from which all plugins abstain is answered with 0x8C."""
    house = House(plugins={"riddle": Mechanism(), "other": Mechanism("CHARADE")})

    peer = house.connect("c", V5, properties=Properties(authentication_method="KERBEROS"))

    assert peer.connack.reason is ReasonCode.BAD_AUTHENTICATION_METHOD
    assert peer.closed


def test_exchange_is_the_first_plugins_that_knows_the_method() -> None:
    """Plugins with methods of their own stand side by side."""
    riddle, charade = Mechanism(), Mechanism("CHARADE")
    house = House(plugins={"charade": charade, "riddle": riddle})

    peer = riddled(house)

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert charade.steps == []
    assert len(riddle.steps) == 2


def test_exchange_must_keep_to_its_method() -> None:
    """An AUTH packet with another method than CONNECT's is a protocol error."""
    house = House(plugins={"riddle": Mechanism()})
    other = Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="CHARADE"))

    peer = house.connect("c", V5, properties=METHOD).send(other)

    assert peer.connack.reason is ReasonCode.PROTOCOL_ERROR
    assert peer.closed


@pytest.mark.parametrize("answer", [fail, coroutine_that_fails])
def test_exchange_that_fails_lets_nobody_in(answer: Callable[[], Any]) -> None:
    """A broken mechanism refuses with 0x88."""

    class Broken:
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            return answer()

    house = House(plugins={"broken": Broken(), "riddle": Mechanism()})

    peer = house.connect("c", V5, properties=METHOD)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_exchange_may_be_awaited_within_its_time() -> None:
    """A mechanism may ask elsewhere; it has ten seconds for each step."""
    answers: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def exchange(self) -> Deferred[Any]:
            answers.append(Deferred())
            return answers[-1]

    house = House(plugins={"slow": Slow()}, connect_time_limit_s=60)
    peer = house.connect("c", V5, properties=METHOD)
    answers[0].callback(Continue(b"go on"))
    house.settle()
    assert peer.of(Auth)[0].properties.authentication_data == b"go on"

    peer.send(ANSWER)
    house.advance(11)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE


def test_exchange_repeats_within_a_connection() -> None:
    """Re-authentication asks the same plugin, and gives the client what it has learned of it since."""
    mechanism = Mechanism()
    house = House(plugins={"riddle": mechanism})
    peer = riddled(house)

    peer.send(AGAIN).send(ANSWER)

    asked, done = peer.of(Auth)[1:]
    assert (asked.reason, done.reason) == (ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.SUCCESS)
    assert done.properties.authentication_data == b"well done"
    assert [step.reauthentication for step in mechanism.steps] == [False, False, True, True]
    client = house.broker.client("c")
    assert client is not None
    assert client.attributes == {"times": "4"}
    assert not peer.closed


def test_exchange_leaves_other_packets_alone_while_it_repeats() -> None:
    """Between the steps of a re-authentication the client publishes as before."""
    house = House(plugins={"riddle": Mechanism()})
    peer = riddled(house).subscribe("a").send(AGAIN)

    peer.publish("a", b"x").send(ANSWER)

    assert peer.messages == [("a", b"x", 0)]
    assert peer.of(Auth)[-1].reason is ReasonCode.SUCCESS


def test_exchange_that_fails_when_repeated_disconnects() -> None:
    """A client that no longer knows the answer gets a DISCONNECT."""
    house = House(plugins={"riddle": Mechanism()})
    peer = riddled(house).send(AGAIN)

    peer.send(WRONG)

    assert len(peer.of(DisconnectPacket)) == 1
    assert peer.closed


def test_exchange_repeated_extends_the_identity() -> None:
    """What counts is until when the last authentication is good."""
    mechanism = Mechanism()
    house = House(plugins={"riddle": mechanism})
    mechanism.expires_at = house.clock.now() + 60
    peer = riddled(house)
    house.advance(30)
    mechanism.expires_at = house.clock.now() + 60
    peer.send(AGAIN).send(ANSWER)

    house.advance(50)
    assert not peer.closed
    house.advance(20)

    assert peer.of(DisconnectPacket)[0].reason is ReasonCode.NOT_AUTHORIZED


def test_exchange_repeated_asks_anew_for_rights() -> None:
    """Cached answers of authorizers end with the identity they were given for."""
    asked = []

    class Authorizer:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Decision:
            if request.action is Action.PUBLISH:
                asked.append(dict(request.client.attributes))
            return ALLOW

    house = House(plugins={"riddle": Mechanism(), "authorizer": Authorizer()})
    peer = riddled(house).publish("a").publish("a")

    peer.send(AGAIN).send(ANSWER).publish("a")

    assert asked == [{"times": "2"}, {"times": "4"}]


# choose_server


class Director:
    """Answers every client the same."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.seen: list[Redirect | None] = []

    @hookimpl
    def choose_server(self, redirect: Redirect | None) -> Any:
        self.seen.append(redirect)
        return self.answer()


@pytest.mark.parametrize(
    ("permanent", "reason"), [(False, ReasonCode.USE_ANOTHER_SERVER), (True, ReasonCode.SERVER_MOVED)]
)
def test_choose_server_sends_the_client_elsewhere(permanent: bool, reason: ReasonCode) -> None:
    """An MQTT 5 client is told where to go, and whether for good; no session is made for it."""
    redirect = Redirect("b.example:1883", permanent)
    house = House(plugins={"director": Director(lambda: redirect)})

    peer = house.connect("c", V5)

    assert peer.connack.reason is reason
    assert peer.connack.properties.server_reference == "b.example:1883"
    assert peer.closed
    assert house.broker.sessions.by_id == {}


@pytest.mark.parametrize("version", [V31, V311])
def test_choose_server_turns_older_clients_away(version: int) -> None:
    """A client that can't be told where to go is told that the server is unavailable."""
    peer = House(plugins={"director": Director(lambda: Redirect("b.example"))}).connect("c", version)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert peer.closed


def test_choose_server_is_a_fold() -> None:
    """A later plugin sees what the earlier answered, and may answer otherwise."""
    first, second = Director(lambda: Redirect("b.example")), Director(lambda: Redirect("c.example", True))

    peer = House(plugins={"a": first, "b": second}).connect("c", V5)

    assert (first.seen, second.seen) == ([None], [Redirect("b.example")])
    assert peer.connack.properties.server_reference == "c.example"


def test_choose_server_may_leave_the_client_here() -> None:
    """Where no plugin answers anything, the client stays."""
    peer = House(plugins={"director": Director(lambda: coroutine(None))}).connect("c", V5)

    assert peer.connack.reason is ReasonCode.SUCCESS


def test_choose_server_may_refuse() -> None:
    """Reject refuses the client with its reason."""
    peer = House(plugins={"director": Director(lambda: Reject(ReasonCode.SERVER_BUSY))}).connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_BUSY
    assert peer.closed


@pytest.mark.parametrize("answer", [fail, coroutine_that_fails])
def test_choose_server_that_fails_refuses(answer: Callable[[], Any]) -> None:
    """Where nobody knows whether the client belongs here, it is refused with 0x88."""
    peer = House(plugins={"director": Director(answer)}).connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE


def test_choose_server_has_ten_seconds() -> None:
    """A director that does not answer in time has failed."""
    house = House(plugins={"director": Director(Deferred)}, connect_time_limit_s=60)
    peer = house.connect("c", V5)

    house.advance(11)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE


# authenticated, authentication_refused


class Witness:
    """Sees who was let in and who was not."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def authenticated(self, client: Any) -> None:
        self.told.append(("authenticated", client.client_id, client.username))

    @hookimpl
    def authentication_refused(self, request: Any, by: str, reason: ReasonCode) -> None:
        self.told.append(("refused", request.client_id, by, reason))


def test_authenticated_is_told_of_each_client_let_in() -> None:
    """The notice shows the client under its identity; every plugin gets it."""
    one, two = Witness(), Witness()
    guard = Authenticator(lambda: allow_as(Identity("known")))
    house = House(plugins={"guard": guard, "one": one, "two": two})

    house.connect("c", username="u")

    assert one.told == two.told == [("authenticated", "c", "known")]


def test_authenticated_that_raises_harms_nobody() -> None:
    """The client is in, the other plugins are told, and the failure is counted."""

    class Broken:
        @hookimpl
        def authenticated(self) -> None:
            raise ValueError("broken")

    witness = Witness()
    house = House(plugins={"broken": Broken(), "witness": witness})

    peer = house.connect("c")

    assert peer.connack.reason is ReasonCode.SUCCESS
    assert witness.told == [("authenticated", "c", None)]
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_authentication_refused_names_the_plugin() -> None:
    """The notice says who refused and why."""
    witness = Witness()
    guard = Authenticator(lambda: deny(ReasonCode.BANNED))
    house = House(plugins={"guard": guard, "witness": witness})

    house.connect("c")

    assert witness.told == [("refused", "c", "guard", ReasonCode.BANNED)]


def test_authentication_refused_names_nobody_where_all_abstain() -> None:
    """A client for whom nobody spoke was refused by nobody."""
    witness = Witness()
    house = House(plugins={"guard": Authenticator(lambda: None), "witness": witness})

    house.connect("c")
    house.connect("d", V5, properties=METHOD)

    assert witness.told == [
        ("refused", "c", "", ReasonCode.NOT_AUTHORIZED),
        ("refused", "d", "", ReasonCode.BAD_AUTHENTICATION_METHOD),
    ]


def test_authentication_refused_comes_after_the_refusal_was_sent() -> None:
    """When the notice comes, the client has its answer, and its connection is closed."""
    closed = []

    class Watcher:
        @hookimpl
        def authentication_refused(self) -> None:
            closed.append(house.peers[-1].closed)

    house = House(plugins={"guard": Authenticator(lambda: NOT_WELCOME), "watcher": Watcher()})

    peer = house.connect("c")

    assert closed == [True]
    assert len(peer.of(Connack)) == 1


def test_authentication_refused_is_told_of_a_failed_re_authentication() -> None:
    """A client that was let in may be refused later."""
    witness = Witness()
    house = House(plugins={"riddle": Mechanism(), "witness": witness})

    riddled(house).send(AGAIN).send(WRONG)

    assert witness.told == [
        ("authenticated", "c", "oedipus"),
        ("refused", "c", "riddle", ReasonCode.BAD_USER_NAME_OR_PASSWORD),
    ]
