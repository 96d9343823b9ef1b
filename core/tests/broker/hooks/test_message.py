"""The hooks of the message path, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred, succeed

from core_harness.house import House, Peer, Trusting
from kinmqtt.mqtt.packets import V5, V31, V311, Connack, ConnectWill, DisconnectPacket, Puback, Publish, Pubrec
from kinmqtt_spi import Client, Disconnect, Drop, Message, Properties, ReasonCode, Reject, hookimpl, on_topics
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import Decision, Verdict


def fail(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def fail_later(*_: Any) -> Any:
    """What a broken plugin does that answers later."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


def failures(house: House) -> float:
    """How often plugins have failed."""
    return house.assembly.metrics.sum("plugin.failures")


# connect_received


class Porter:
    """Makes of each request what it is told to."""

    def __init__(self, answer: Callable[[ConnectRequest], Any]) -> None:
        self.answer = answer

    @hookimpl
    def connect_received(self, request: ConnectRequest) -> Any:
        return self.answer(request)


def test_connect_received_may_change_what_the_client_asks_for() -> None:
    """What is changed holds, and an MQTT 5 client is told what it gets."""
    porter = Porter(
        lambda request: evolve(
            request,
            client_id=f"tenant-{request.client_id}",
            username="changed",
            keep_alive_s=20,
            clean_start=True,
            properties=request.properties.replace(session_expiry_interval=60, receive_maximum=3),
        )
    )
    house = House(plugins={"porter": porter, "door": Trusting()})
    house.connect("c", V5, expiry_s=1000).drop()

    peer = house.connect("c", V5, clean_start=False, expiry_s=1000, keep_alive=300)

    client = house.broker.client("tenant-c")
    session = house.broker.sessions.get("tenant-c")
    assert client is not None
    assert session is not None
    assert client.username == "changed"
    assert (session.expiry_s, session.outgoing.window) == (60, 3)
    assert not peer.connack.session_present
    assert peer.connack.properties.assigned_client_identifier == "tenant-c"
    assert peer.connack.properties.session_expiry_interval == 60
    assert peer.connack.properties.server_keep_alive == 20


def test_connect_received_is_a_fold_before_authentication() -> None:
    """Each plugin sees what the one before made of it, and the authenticator what the last did."""
    seen = []

    class Guard:
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> None:
            seen.append(request.client_id)

    def add(letter: str) -> Porter:
        return Porter(lambda request: coroutine(evolve(request, client_id=request.client_id + letter)))

    house = House(plugins={"a": add("a"), "b": Porter(lambda request: None), "c": add("c"), "guard": Guard()})

    house.connect("x")

    assert seen == ["xac"]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Reject(ReasonCode.SERVER_BUSY), ReasonCode.SERVER_BUSY),
        (Disconnect(ReasonCode.BANNED), ReasonCode.BANNED),
        (Drop(), ReasonCode.NOT_AUTHORIZED),
    ],
)
def test_connect_received_may_refuse(outcome: object, reason: ReasonCode) -> None:
    """A client whose CONNECT is stopped, in whichever way, is told why and is not authenticated."""
    peer = House(plugins={"porter": Porter(lambda request: outcome)}).connect("c", V5)

    assert peer.connack.reason is reason
    assert peer.closed


@pytest.mark.parametrize("answer", [fail, fail_later])
def test_connect_received_that_fails_refuses(answer: Callable[..., Any]) -> None:
    """A request that nobody has seen through is refused with 0x88."""
    house = House(plugins={"porter": Porter(answer)})

    peer = house.connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert failures(house) == 1


def test_connect_received_has_ten_seconds() -> None:
    """An answer that does not come in time is a failure."""
    house = House(plugins={"porter": Porter(lambda request: Deferred())}, connect_time_limit_s=60)
    peer = house.connect("c", V5)

    house.advance(11)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE


# connack_sending


class Greeter:
    """Makes of each CONNACK's properties what it is told to."""

    def __init__(self, answer: Callable[[Properties], Any]) -> None:
        self.answer = answer
        self.asked = 0

    @hookimpl
    def connack_sending(self, client: Client, properties: Properties) -> Any:
        self.asked += 1
        return self.answer(properties)


def test_connack_sending_changes_the_properties() -> None:
    """A fold: each plugin adds to what the others made of it."""
    plugins = {
        "a": Greeter(lambda properties: properties.replace(user_property=(("a", "1"),))),
        "b": Greeter(lambda properties: None),
        "c": Greeter(lambda properties: properties.replace(user_property=(*properties.user_property, ("c", "2")))),
    }

    peer = House(plugins=plugins).connect("c", V5)

    assert peer.connack.properties.user_property == (("a", "1"), ("c", "2"))


@pytest.mark.parametrize("version", [V31, V311])
def test_connack_sending_is_not_asked_for_older_clients(version: int) -> None:
    """A CONNACK of MQTT 3 has no properties."""
    greeter = Greeter(lambda properties: None)

    House(plugins={"greeter": greeter}).connect("c", version)

    assert greeter.asked == 0


def test_connack_sending_is_not_asked_for_refusals() -> None:
    """Only a successful CONNACK is shown."""
    greeter = Greeter(lambda properties: None)
    house = House(plugins={"greeter": greeter, "porter": Porter(lambda request: Reject())})

    house.connect("c", V5)

    assert greeter.asked == 0


def test_connack_sending_may_narrow_limits() -> None:
    """A client may be told less than the broker would take."""
    greeter = Greeter(lambda properties: properties.replace(receive_maximum=5, topic_alias_maximum=0))

    told = House(plugins={"greeter": greeter}).connect("c", V5).connack.properties

    assert (told.receive_maximum, told.topic_alias_maximum) == (5, 0)


@pytest.mark.parametrize("answer", [lambda properties: Properties(), lambda properties: WIDER])
def test_connack_sending_cannot_widen_limits(answer: Callable[[Properties], Properties]) -> None:
    """What the broker keeps to is what the client is told, whatever a plugin adds or leaves out."""
    house = House(
        plugins={"greeter": Greeter(answer)},
        receive_maximum=10,
        max_packet_bytes=1000,
        max_keep_alive_s=100,
        max_session_expiry_s=50,
        topic_alias_maximum=0,
    )

    told = house.connect("", V5, keep_alive=1000, expiry_s=1000).connack.properties

    assert (told.receive_maximum, told.maximum_packet_size) == (10, 1000)
    assert (told.server_keep_alive, told.session_expiry_interval) == (100, 50)
    assert not told.topic_alias_maximum
    assert told.assigned_client_identifier is not None
    assert told.assigned_client_identifier.startswith("auto-")


WIDER: Properties = Properties(
    receive_maximum=65_535,
    maximum_packet_size=1 << 20,
    server_keep_alive=60_000,
    session_expiry_interval=100_000,
    topic_alias_maximum=10,
    assigned_client_identifier="somebody",
)


@pytest.mark.parametrize("answer", [fail, coroutine, succeed])
def test_connack_sending_that_fails_passes(answer: Callable[..., Any]) -> None:
    """A greeter that raises, or wants to be waited for, changes nothing; the others still do."""
    other = Greeter(lambda properties: properties.replace(user_property=(("b", "1"),)))
    house = House(plugins={"a": Greeter(answer), "b": other})

    peer = house.connect("c", V5)

    assert peer.connack.properties.user_property == (("b", "1"),)
    assert failures(house) == 1


# publish_received


class Editor:
    """Makes of each message what it is told to."""

    def __init__(self, answer: Callable[[Message], Any]) -> None:
        self.answer = answer
        self.seen: list[str] = []

    @hookimpl
    def publish_received(self, client: Client, message: Message) -> Any:
        self.seen.append(f"{client.client_id}:{message.topic}:{message.payload.decode()}")
        return self.answer(message)


def edited(answer: Callable[[Message], Any], version: int = V5) -> tuple[House, Peer, Peer]:
    """A house with an editor, a subscriber to everything, and a publisher."""
    house = House(plugins={"editor": Editor(answer)})
    return house, house.connect("sub", V5).subscribe("#", 2), house.connect("pub", version)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_received_may_change_a_message(qos: int) -> None:
    """Topic, payload and properties that go out are those that the plugin made."""
    _, sub, pub = edited(
        lambda message: message.replace(
            topic="elsewhere", payload=message.payload.upper(), properties=Properties(content_type="text/plain")
        )
    )

    pub.publish("t", b"x", qos)

    assert sub.messages == [("elsewhere", b"X", qos)]
    assert sub.of(Publish)[0].properties.content_type == "text/plain"


def test_publish_received_is_a_fold() -> None:
    """Each plugin sees what the one before made of the message; None leaves it as it is."""
    plugins = {
        "a": Editor(lambda message: message.replace(payload=message.payload + b"a")),
        "b": Editor(lambda message: None),
        "c": Editor(lambda message: coroutine(message.replace(payload=message.payload + b"c"))),
        "d": Editor(lambda message: message.replace(payload=message.payload + b"d")),
    }
    house = House(plugins=plugins)
    sub = house.connect("sub").subscribe("t")

    house.connect("pub").publish("t", b"x")

    assert sub.messages == [("t", b"xacd", 0)]
    assert plugins["d"].seen == ["pub:t:xac"]


@pytest.mark.parametrize("version", [V311, V5])
def test_publish_received_may_drop(version: int) -> None:
    """A dropped message is acknowledged as if all were well, and later plugins do not see it."""
    later = Editor(lambda message: None)
    house = House(plugins={"a": Editor(lambda message: Drop()), "b": later})
    sub = house.connect("sub").subscribe("#", 2)
    pub = house.connect("pub", version)

    pub.publish("t", qos=0).publish("t", qos=1).publish("t", qos=2, packet_id=9).publish("t", qos=2, packet_id=9)

    assert [ack.reason for ack in pub.of(Puback)] == [ReasonCode.SUCCESS]
    assert [ack.reason for ack in pub.of(Pubrec)] == [ReasonCode.SUCCESS] * 2
    assert (sub.messages, later.seen) == ([], [])


@pytest.mark.parametrize(
    ("version", "reason", "told"),
    [
        (V5, ReasonCode.PAYLOAD_FORMAT_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID),
        (V5, ReasonCode.BANNED, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        (V311, ReasonCode.PAYLOAD_FORMAT_INVALID, ReasonCode.SUCCESS),
    ],
)
def test_publish_received_may_reject(version: int, reason: ReasonCode, told: ReasonCode) -> None:
    """MQTT 5 gets the reason, where its acknowledgement may carry it; MQTT 3 an acknowledgement."""
    _, sub, pub = edited(lambda message: Reject(reason), version)

    pub.publish("t", qos=1).publish("t", qos=2)

    assert [ack.reason for ack in (*pub.of(Puback), *pub.of(Pubrec))] == [told, told]
    assert sub.messages == []
    assert not pub.closed


def test_publish_received_may_disconnect() -> None:
    """The connection is closed with the reason, and what the client sent after is not carried out."""
    _, sub, pub = edited(lambda message: Disconnect() if message.topic == "bad" else None)

    pub.publish("bad").publish("good")

    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.ADMINISTRATIVE_ACTION]
    assert pub.closed
    assert sub.messages == []


@pytest.mark.parametrize("answer", [fail, fail_later])
def test_publish_received_that_fails_rejects(answer: Callable[..., Any]) -> None:
    """A message that nobody has seen through is refused with 0x83; its client goes on."""
    house, sub, pub = edited(answer)

    pub.publish("t", qos=1)

    assert [ack.reason for ack in pub.of(Puback)] == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert sub.messages == []
    assert not pub.closed
    assert failures(house) == 1


def test_publish_received_keeps_the_order_while_it_is_awaited() -> None:
    """What the client sends after a message that is being looked at waits for it."""
    first: Deferred[None] = Deferred()
    house, sub, pub = edited(lambda message: first if message.topic == "slow" else None)
    pub.publish("slow", b"1", 1).publish("fast", b"2", 1)
    assert (sub.messages, pub.of(Puback)) == ([], [])

    first.callback(None)
    house.settle()

    assert [topic for topic, _, _ in sub.messages] == ["slow", "fast"]
    assert [ack.packet_id for ack in pub.of(Puback)] == [1, 2]


def test_publish_received_has_ten_seconds() -> None:
    """A plugin that takes longer has failed; nobody waits for it any more."""
    house, _, pub = edited(lambda message: Deferred() if message.topic == "slow" else None)
    pub.publish("slow", qos=1).publish("fast", qos=1)

    house.advance(11)

    assert [ack.reason for ack in pub.of(Puback)] == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, ReasonCode.SUCCESS]


def test_publish_received_may_be_limited_to_topics() -> None:
    """With ``on_topics`` a plugin sees the messages of its topics, in its place in the order, and no others."""
    seen = []

    class Sensors:
        @hookimpl
        @on_topics("sensors/#", "+/status")
        def publish_received(self, message: Message) -> Message:
            seen.append(message.topic)
            return message.replace(payload=b"seen")

    house = House(plugins={"sensors": Sensors()})
    sub = house.connect("sub").subscribe("#")

    house.connect("pub").publish("sensors/1", b"x").publish("other", b"x").publish("a/status", b"x")

    assert seen == ["sensors/1", "a/status"]
    assert sub.messages == [("sensors/1", b"seen", 0), ("other", b"x", 0), ("a/status", b"seen", 0)]


def test_publish_received_is_asked_after_authorization() -> None:
    """A message that its client may not publish is not shown."""
    editor = Editor(lambda message: None)
    house = House(plugins={"editor": editor})

    house.connect("c").publish("$SYS/a").publish("t")

    assert editor.seen == ["c:t:"]


# delivering


class Translator:
    """Makes of each delivery what it is told to."""

    def __init__(self, answer: Callable[[Client, Message], Any]) -> None:
        self.answer = answer

    @hookimpl
    def delivering(self, client: Client, message: Message) -> Any:
        return self.answer(client, message)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_delivering_changes_a_message_for_one_client(qos: int) -> None:
    """Each client gets what was made for it."""
    translator = Translator(
        lambda client, message: message.replace(payload=b"for b") if client.client_id == "b" else None
    )
    house = House(plugins={"translator": translator})
    a, b = (house.connect(client_id).subscribe("t", qos) for client_id in "ab")

    house.connect("pub").publish("t", b"x", qos)

    assert (a.messages, b.messages) == ([("t", b"x", qos)], [("t", b"for b", qos)])


def test_delivering_sees_the_subscription() -> None:
    """Of several filters that match it is that of the highest QoS; a shared one has its group."""
    seen = []

    class Watcher:
        @hookimpl
        def delivering(self, client: Client, subscription: Any) -> None:
            seen.append((client.client_id, subscription.full_filter, subscription.qos))

    house = House(plugins={"watcher": Watcher()})
    house.connect("a").subscribe("#", 0).subscribe("t", 1)
    house.connect("b").subscribe("$share/g/t")

    house.connect("pub").publish("t", qos=1)

    assert seen == [("a", "t", 1), ("b", "$share/g/t", 0)]


@pytest.mark.parametrize("outcome", [Drop(), Reject()])
def test_delivering_may_drop_for_one_client(outcome: object) -> None:
    """Drop and Reject are the same here: the client does not get the message, and it counts as dropped."""
    translator = Translator(lambda client, message: outcome if client.client_id == "b" else None)
    house = House(plugins={"translator": translator})
    a, b = (house.connect(client_id).subscribe("t", 1) for client_id in "ab")
    pub = house.connect("pub", V5)

    pub.publish("t", qos=1)

    assert (len(a.messages), b.messages) == (1, [])
    assert [ack.reason for ack in pub.of(Puback)] == [ReasonCode.SUCCESS]
    assert house.broker.runtime.statistics.dropped["intercepted"].value == 1


def test_delivering_may_disconnect_the_receiver() -> None:
    """Disconnect closes the connection of the client that would have got the message."""
    translator = Translator(lambda client, message: Disconnect() if client.client_id == "b" else None)
    house = House(plugins={"translator": translator})
    a, b = (house.connect(client_id, V5).subscribe("t") for client_id in "ab")

    house.connect("pub").publish("t")

    assert (a.closed, b.closed) == (False, True)
    assert [packet.reason for packet in b.of(DisconnectPacket)] == [ReasonCode.ADMINISTRATIVE_ACTION]


@pytest.mark.parametrize("answer", [fail, lambda *_: coroutine(Drop()), lambda *_: succeed(Drop())])
def test_delivering_that_fails_passes(answer: Callable[..., Any]) -> None:
    """A translator that raises, or wants to be waited for, changes nothing; the next one still does."""
    second = Translator(lambda client, message: message.replace(payload=b"second"))
    house = House(plugins={"a": Translator(answer), "b": second})
    sub = house.connect("sub").subscribe("t")

    house.connect("pub").publish("t", b"x")

    assert sub.messages == [("t", b"second", 0)]
    assert failures(house) == 1


def test_delivering_may_be_limited_to_topics() -> None:
    """With ``on_topics`` only deliveries of these topics are shown."""

    class Upper:
        @hookimpl
        @on_topics("loud/+")
        def delivering(self, message: Message) -> Message:
            return message.replace(payload=message.payload.upper())

    house = House(plugins={"upper": Upper()})
    sub = house.connect("sub").subscribe("#")

    house.connect("pub").publish("loud/a", b"x").publish("quiet/a", b"x")

    assert sub.messages == [("loud/a", b"X", 0), ("quiet/a", b"x", 0)]


def test_delivering_is_asked_for_retained_messages() -> None:
    """What waits for a new subscription is a delivery as any other."""
    house = House(plugins={"translator": Translator(lambda client, message: message.replace(payload=b"y"))})
    house.connect("pub").publish("t", b"x", retain=True)

    assert house.connect("sub").subscribe("t").messages == [("t", b"y", 0)]


# will_publishing


class Undertaker:
    """Makes of each will what it is told to."""

    def __init__(self, answer: Callable[[Message], Any]) -> None:
        self.answer = answer

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Any:
        assert client.client_id == message.publisher.client_id == "c"
        return self.answer(message)


def willed(*answers: Callable[[Message], Any]) -> tuple[House, Peer, Peer]:
    """A house with undertakers, a subscriber to everything, and a client that leaves a will."""
    house = House(plugins={f"undertaker{n}": Undertaker(answer) for n, answer in enumerate(answers)})
    sub = house.connect("sub").subscribe("#", 2)
    return house, sub, house.connect("c", V5, will=ConnectWill("gone", b"c", 1))


def test_will_publishing_may_change_a_will() -> None:
    """A fold: each plugin sees what the one before made of it."""
    _, sub, peer = willed(
        lambda message: coroutine(message.replace(payload=message.payload + b"1")),
        lambda message: message.replace(payload=message.payload + b"2"),
    )

    peer.drop()

    assert sub.messages == [("gone", b"c12", 1)]


@pytest.mark.parametrize("answer", [lambda m: Drop(), lambda m: Reject(), fail, fail_later])
def test_will_publishing_may_drop_a_will(answer: Callable[[Message], Any]) -> None:
    """A will that is dropped or rejected, or that a plugin fails to judge, is not published."""
    _, sub, peer = willed(answer)

    peer.drop()

    assert sub.messages == []


def test_will_publishing_has_ten_seconds() -> None:
    """A plugin that takes longer has failed, and the will is dropped."""
    house, sub, peer = willed(lambda message: Deferred())
    peer.drop()

    house.advance(11)

    assert sub.messages == []
    assert failures(house) == 1


def test_will_publishing_is_not_asked_after_a_proper_disconnect() -> None:
    """A client that says start_disconnect takes its will along."""
    asked: list[Message] = []
    _, _, peer = willed(asked.append)

    peer.disconnect()

    assert asked == []


def test_will_publishing_is_asked_when_the_delay_is_over() -> None:
    """A delayed will is shown when it is due, and not before."""
    asked: list[str] = []
    house = House(plugins={"undertaker": Undertaker(lambda message: asked.append(message.topic))})
    will = ConnectWill("gone", b"", properties=Properties(will_delay_interval=30))
    house.connect("c", V5, expiry_s=100, will=will).drop()
    house.advance(28)
    assert asked == []

    house.advance(4)

    assert asked == ["gone"]


# The notices


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def connected(self, client: Client, session_present: bool) -> None:
        self.told.append(("connected", client.client_id, session_present))

    @hookimpl
    def disconnected(self, client: Client, by_client: bool, reason: ReasonCode) -> None:
        self.told.append(("disconnected", client.client_id, by_client, reason))

    @hookimpl
    def connection_lost(self, client: Client, text: str) -> None:
        self.told.append(("connection_lost", client.client_id, text))


class Log:
    """Writes down what becomes of messages."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def published(self, message: Message) -> None:
        self.told.append(("published", message.publisher.client_id, message.topic, message.payload))

    @hookimpl
    def delivered(self, client: Client, message: Message) -> None:
        self.told.append(("delivered", client.client_id, message.topic, message.payload))

    @hookimpl
    def acknowledged(self, client: Client, message: Message, reason: ReasonCode) -> None:
        self.told.append(("acknowledged", client.client_id, message.topic, reason))

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.told.append(("dropped", client_id, message.topic, why))


def about(log: Log, notice: str) -> list[tuple[object, ...]]:
    """What a log was told of one sort."""
    return [told[1:] for told in log.told if told[0] == notice]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_published_is_told_of_each_message(qos: int) -> None:
    """Every plugin sees each message as it was routed, whether anybody wanted it or not."""
    one, two = Log(), Log()
    house = House(plugins={"one": one, "two": two, "editor": Editor(lambda m: m.replace(payload=b"y"))})

    house.connect("pub").publish("a", b"x", qos).publish("b", b"x", qos)

    assert about(one, "published") == [("pub", "a", b"y"), ("pub", "b", b"y")]
    assert two.told == one.told


def test_published_is_not_told_of_refused_messages() -> None:
    """A message that was dropped or refused was not published."""
    log = Log()
    house = House(plugins={"log": log, "editor": Editor(lambda message: Drop())})

    house.connect("pub").publish("a", qos=1).publish("$SYS/a", qos=1)

    assert about(log, "published") == []


@pytest.mark.parametrize("notice", ["published", "delivered", "acknowledged"])
def test_message_notices_may_be_limited_to_topics(notice: str) -> None:
    """With ``on_topics`` a plugin is told of messages of its topics only."""
    topics = []

    def tell(self: object, message: Message) -> None:
        topics.append(message.topic)

    tell.__name__ = notice
    plugin = type("Plugin", (), {notice: hookimpl(on_topics("wanted/#")(tell))})()
    house = House(plugins={"plugin": plugin})
    house.connect("sub").subscribe("#", 1)

    house.connect("pub").publish("wanted/a", qos=1).publish("other", qos=1).publish("wanted/a", qos=1)

    assert topics == ["wanted/a", "wanted/a"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_delivered_is_told_of_each_packet_sent(qos: int) -> None:
    """One notice for each client that was sent the message."""
    log = Log()
    house = House(plugins={"log": log})
    for client_id in "ab":
        house.connect(client_id).subscribe("t", qos)

    house.connect("pub").publish("t", b"x", qos)

    assert sorted(about(log, "delivered")) == [("a", "t", b"x"), ("b", "t", b"x")]


@pytest.mark.parametrize("qos", [0, 1])
def test_delivered_is_not_told_of_what_was_not_sent(qos: int) -> None:
    """A client that is away has been sent nothing; when it comes back it has."""
    log = Log()
    house = House(plugins={"log": log})
    house.connect("c", clean_start=False).subscribe("t", 1).drop()
    house.connect("pub").publish("t", b"x", qos)
    assert about(log, "delivered") == []

    house.connect("c", clean_start=False)

    assert about(log, "delivered") == [("c", "t", b"x")] * qos


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledged_is_told_once_of_each_message(qos: int) -> None:
    """The notice comes with PUBACK or PUBREC, not with PUBCOMP again."""
    log = Log()
    house = House(plugins={"log": log})
    house.connect("sub").subscribe("t", 2)

    house.connect("pub").publish("t", qos=qos)

    assert about(log, "acknowledged") == [("sub", "t", ReasonCode.SUCCESS)]


def test_acknowledged_tells_of_refusals() -> None:
    """An MQTT 5 client may say why it does not want the message."""
    log = Log()
    house = House(plugins={"log": log})
    sub = house.connect("sub", V5, silent=True).subscribe("t", 1)
    house.connect("pub").publish("t", qos=1)

    sub.send(Puback(sub.of(Publish)[0].packet_id, ReasonCode.QUOTA_EXCEEDED))

    assert about(log, "acknowledged") == [("sub", "t", ReasonCode.QUOTA_EXCEEDED)]


def test_dropped_says_why_a_client_is_offline() -> None:
    """A QoS 0 message to a session without a client is dropped."""
    log = Log()
    house = House(plugins={"log": log})
    house.connect("c", clean_start=False).subscribe("t").drop()

    house.connect("pub").publish("t")

    assert about(log, "dropped") == [("c", "t", "offline")]


def test_dropped_says_when_a_packet_is_too_large() -> None:
    """A client that takes small packets only does not get a large one."""
    log = Log()
    house = House(plugins={"log": log})
    sub = house.connect("c", V5, properties=Properties(maximum_packet_size=50)).subscribe("t", 1)

    house.connect("pub").publish("t", bytes(100)).publish("t", bytes(100), 1)

    assert about(log, "dropped") == [("c", "t", "packet_too_large")] * 2
    assert sub.messages == []


def test_dropped_says_when_a_client_takes_too_little() -> None:
    """QoS 0 messages to a client whose socket is full are dropped, and not told as delivered."""
    log = Log()
    house = House(plugins={"log": log}, outbound_buffer_bytes=1024)
    sub = house.connect("c").subscribe("t")
    sub.link.blocked = True
    pub = house.connect("pub")

    for _ in range(4):
        pub.publish("t", bytes(1500))

    assert ("c", "t", "outbound_buffer_full") in about(log, "dropped")
    assert len(about(log, "delivered")) + len(about(log, "dropped")) == 4
    sub.unblock()
    assert len(sub.messages) == len(about(log, "delivered"))


def test_dropped_tells_of_plugins_that_stop_a_delivery() -> None:
    """The word says which sort of plugin it was."""

    class Censor:
        @hookimpl
        def authorize_receive(self, request: Any) -> Any:
            return Decision(Verdict.DENY) if request.topic == "secret" else None

    log = Log()
    house = House(plugins={"log": log, "censor": Censor(), "translator": Translator(lambda c, m: Drop())})
    house.connect("c").subscribe("#")

    house.connect("pub").publish("secret").publish("t")

    assert about(log, "dropped") == [("c", "secret", "not_authorized"), ("c", "t", "intercepted")]


def test_connected_comes_with_the_connack() -> None:
    """The notice says whether the session was there; a refused client is not told of."""
    diary = Diary()
    porter = Porter(lambda request: Reject() if request.client_id == "bad" else None)
    house = House(plugins={"diary": diary, "porter": porter})

    house.connect("c", clean_start=False).disconnect()
    house.connect("c", clean_start=False)
    house.connect("bad")

    assert [told for told in diary.told if told[0] == "connected"] == [
        ("connected", "c", False),
        ("connected", "c", True),
    ]


def test_connected_comes_in_a_later_turn() -> None:
    """When the notice comes, the client has its CONNACK."""
    seen: list[int] = []

    class Watcher:
        @hookimpl
        def connected(self) -> None:
            peer = house.peers[-1]
            peer.collect()
            seen.append(len(peer.of(Connack)))

    house = House(plugins={"watcher": Watcher()})

    house.connect("c")

    assert seen == [1]


def test_disconnected_says_who_and_why() -> None:
    """A DISCONNECT may come from the client, with its reason, or from the broker, with the broker's."""
    diary = Diary()
    house = House(plugins={"diary": diary})

    house.connect("a").disconnect()
    house.connect("b", V5).disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL)
    house.connect("c", V5, keep_alive=10)
    house.advance(20)

    assert [told for told in diary.told if told[0] != "connected"] == [
        ("disconnected", "a", True, ReasonCode.SUCCESS),
        ("disconnected", "b", True, ReasonCode.DISCONNECT_WITH_WILL),
        ("disconnected", "c", False, ReasonCode.KEEP_ALIVE_TIMEOUT),
    ]


def test_connection_lost_is_told_instead_of_disconnected() -> None:
    """A connection that ends without a DISCONNECT is lost; the text says how."""
    diary = Diary()
    house = House(plugins={"diary": diary})

    house.connect("c").drop()

    assert diary.told == [("connected", "c", False), ("connection_lost", "c", "Connection was lost.")]


def test_connection_lost_is_not_told_before_connect() -> None:
    """A connection that never had a client is nobody's loss."""
    diary = Diary()

    House(plugins={"diary": diary}).open().drop()

    assert diary.told == []


NOTICES = ("published", "delivered", "acknowledged", "dropped", "connected", "disconnected", "connection_lost")


@pytest.mark.parametrize("notice", NOTICES)
@pytest.mark.parametrize("answer", [fail, fail_later])
def test_message_notices_that_raise_harm_nobody(notice: str, answer: Callable[..., Any]) -> None:
    """Clients feel nothing, other plugins are told, and the failure is counted."""

    def tell(self: object) -> Any:
        return answer()

    tell.__name__ = notice
    broken = type("Broken", (), {notice: hookimpl(tell)})()
    log, diary = Log(), Diary()
    house = House(plugins={"broken": broken, "log": log, "diary": diary})
    house.connect("away", clean_start=False).subscribe("t").drop()
    sub = house.connect("sub").subscribe("t", 1)
    house.connect("gone").disconnect()

    house.connect("pub").publish("t", b"x", 1).publish("t", b"y", 0)

    assert sub.messages == [("t", b"x", 1), ("t", b"y", 0)]
    assert {told[0] for told in (*log.told, *diary.told)} == set(NOTICES)
    assert failures(house) == len([told for told in (*log.told, *diary.told) if told[0] == notice])


def test_message_notices_keep_their_order_for_a_plugin_that_is_slow() -> None:
    """While a plugin handles one notice the next waits, of whichever sort it is."""
    told: list[str] = []
    slow: list[Deferred[None]] = []

    class Slow:
        @hookimpl
        def connected(self, client: Client) -> Deferred[None]:
            told.append(f"{client.client_id} connected")
            slow.append(Deferred())
            return slow[-1]

        @hookimpl
        def disconnected(self, client: Client) -> None:
            told.append(f"{client.client_id} disconnected")

    house = House(plugins={"slow": Slow()})
    house.connect("a").disconnect()
    house.connect("b").disconnect()
    assert told == ["a connected"]

    slow[0].callback(None)
    house.settle()

    assert told == ["a connected", "a disconnected", "b connected"]


@pytest.mark.parametrize("hook", ["connected", "authenticate", "retaining", "connect_received"])
def test_on_topics_is_refused_where_a_hook_knows_no_topics(hook: str) -> None:
    """A limit that would have no effect is a mistake, and is named."""

    def implementation(self: object) -> None:
        """Do nothing."""

    implementation.__name__ = hook
    plugin = type("Plugin", (), {hook: hookimpl(on_topics("a")(implementation))})()

    with pytest.raises(AssemblyError, match=f"plugin 'wrong' limits the hook {hook} to topics"):
        House(plugins={"wrong": plugin})
