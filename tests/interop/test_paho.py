"""paho-mqtt against a running broker, in MQTT 3.1, 3.1.1 and 5."""

from __future__ import annotations

import queue
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pytest
from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv31, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from core_harness.brokers import BrokerProcess
from spi_harness.processes import Process

pytestmark = pytest.mark.interop

TIME_LIMIT_S = 20.0

each_version = pytest.mark.parametrize("version", [MQTTv31, MQTTv311, MQTTv5], ids=["31", "311", "5"])
each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


class Paho:
    """A paho client, with its callbacks made into things to wait for."""

    def __init__(self, broker: BrokerProcess, name: str, version: int, **options: Any) -> None:
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._port = broker.port
        if version != MQTTv5:
            options.setdefault("clean_session", True)
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=version, **options)  # type: ignore[arg-type]
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_connect = self._note(
            "connected", lambda flags, reason, properties: (flags, reason, properties)
        )
        self.client.on_disconnect = self._note("disconnected", lambda flags, reason, properties: reason)
        self.client.on_subscribe = self._note("subscribed", lambda mid, reasons, properties: reasons)
        self.client.on_unsubscribe = self._note("unsubscribed", lambda mid, reasons, properties: reasons)
        self.client.on_publish = self._note("published", lambda mid, reason, properties: reason)
        self.flags: Any = None
        self.properties: Any = None

    def _note(self, name: str, told: Callable[..., Any]) -> Callable[..., None]:
        return lambda client, data, *arguments: self._events.put((name, told(*arguments)))

    def event(self, name: str) -> Any:
        """The next thing that happens, which must be of that name."""
        found, value = self._events.get(timeout=TIME_LIMIT_S)
        assert found == name, f"{found} {value} instead of {name}"
        return value

    def connect(self, **options: Any) -> Paho:
        """Connect and wait until that has worked."""
        self.client.connect("127.0.0.1", self._port, **options)
        self.client.loop_start()
        self.flags, reason, self.properties = self.event("connected")
        assert reason == 0
        return self

    def subscribe(self, *arguments: Any, **options: Any) -> list[int]:
        """Subscribe and return the reason codes."""
        self.client.subscribe(*arguments, **options)
        return [reason.value for reason in self.event("subscribed")]

    def publish(self, topic: str, payload: Any = None, qos: int = 0, **options: Any) -> Any:
        """Publish, wait until that is done, and return the reason code."""
        self.client.publish(topic, payload, qos, **options)
        return self.event("published")

    def message(self) -> MQTTMessage:
        """The next message."""
        return self.messages.get(timeout=TIME_LIMIT_S)

    def disconnect(self, **options: Any) -> None:
        """Disconnect and wait until that is done."""
        self.client.disconnect(**options)
        self.event("disconnected")
        self.client.loop_stop()

    def end(self) -> None:
        """Leave nothing behind."""
        self.client.disconnect()
        self.client.loop_stop()


Clients = Callable[..., Paho]


@pytest.fixture
def clients(broker: BrokerProcess) -> Iterator[Clients]:
    """Makes clients that are connected, and sees them off."""
    with ExitStack() as stack:

        def make(version: int, name: str = "", *, connect: bool = True, **options: Any) -> Paho:
            going = {key: options.pop(key) for key in ("clean_start", "properties") if key in options}
            made = Paho(broker, name or f"p{uuid4().hex[:12]}", version, **options)
            stack.callback(made.end)
            return made.connect(**going) if connect else made

        yield make


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, for all tests of the module share a broker."""
    return f"paho/{uuid4().hex[:8]}"


@each_version
@each_qos
def test_a_message_arrives(clients: Clients, topic: str, version: int, qos: int) -> None:
    """A message is delivered with the QoS it was sent with."""
    sub = clients(version)
    assert sub.subscribe(f"{topic}/+", 2) == [2]

    clients(version).publish(f"{topic}/a", b"\x00\xff", qos)

    message = sub.message()
    assert (message.topic, message.payload, message.qos, message.retain) == (f"{topic}/a", b"\x00\xff", qos, False)


@each_version
def test_a_retained_message(clients: Clients, topic: str, version: int) -> None:
    """The last retained message comes to whoever subscribes later, and an empty one takes it away."""
    pub = clients(version)
    pub.publish(topic, b"old", 1, retain=True)
    pub.publish(topic, b"kept", 1, retain=True)
    sub = clients(version)
    sub.subscribe(topic, 1)
    message = sub.message()
    assert (message.payload, message.qos, message.retain) == (b"kept", 1, True)

    pub.publish(topic, b"", 1, retain=True)
    late = clients(version)
    late.subscribe(topic, 1)
    pub.publish(topic, b"live", 1)

    message = late.message()
    assert (message.payload, message.retain) == (b"live", False)


KILLED = """
import sys
from paho.mqtt.client import Client, CallbackAPIVersion
port, version, topic = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
client = Client(CallbackAPIVersion.VERSION2, topic[-8:], protocol=version)
client.will_set(topic, b"gone", 1, True)
client.on_connect = lambda *arguments: print("connected", flush=True)
client.connect("127.0.0.1", port)
client.loop_forever()
"""


@contextmanager
def another_process(broker: BrokerProcess, version: int, topic: str) -> Iterator[Process]:
    """A client with a will, in a process of its own."""
    process = Process([sys.executable, "-c", KILLED, str(broker.port), str(version), topic])
    try:
        process.wait_for_line("connected")
        yield process
    finally:
        process.end()


@each_version
def test_the_will_of_a_killed_client(broker: BrokerProcess, clients: Clients, topic: str, version: int) -> None:
    """The will of a client that was killed is published, and retained as it asked."""
    watcher = clients(version)
    watcher.subscribe(topic, 1)
    with another_process(broker, version, topic) as killed:
        killed.signal(signal.SIGKILL)

        message = watcher.message()
    assert (message.payload, message.qos, message.retain) == (b"gone", 1, False)
    late = clients(version)
    late.subscribe(topic, 1)
    assert late.message().retain
    watcher.publish(topic, b"", 1, retain=True)


@each_version
def test_a_client_that_says_goodbye_has_no_will(clients: Clients, topic: str, version: int) -> None:
    """The will of a client that disconnects in good order is forgotten."""
    watcher = clients(version)
    watcher.subscribe(f"{topic}/#", 1)
    leaver = clients(version, connect=False)
    leaver.client.will_set(f"{topic}/will", b"gone", 1)
    leaver.connect()

    leaver.disconnect()
    clients(version).publish(f"{topic}/after", b"", 1)

    assert watcher.message().topic == f"{topic}/after"


def kept(version: int) -> dict[str, Any]:
    """What asks for a session that outlives its connection."""
    if version != MQTTv5:
        return {"clean_session": False}
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 600
    return {"clean_start": False, "properties": properties}


@each_version
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_published_while_a_client_was_away(clients: Clients, topic: str, version: int, qos: int) -> None:
    """A kept session gets what came while its client was away, in order and complete."""
    name = f"k{topic[-8:]}"
    first = clients(version, name, **kept(version))
    assert not first.flags.session_present
    first.subscribe(topic, 2)
    first.disconnect()

    pub = clients(version)
    for number in range(50):
        pub.publish(topic, str(number), qos)

    second = clients(version, name, **kept(version))
    assert second.flags.session_present is (version != MQTTv31)
    assert [int(second.message().payload) for _ in range(50)] == list(range(50))


@each_version
def test_a_clean_session_forgets(clients: Clients, topic: str, version: int) -> None:
    """A client that asks for a clean session gets nothing of what it missed."""
    name = f"c{topic[-8:]}"
    first = clients(version, name, **kept(version))
    first.subscribe(topic, 1)
    first.disconnect()
    pub = clients(version)
    pub.publish(topic, b"missed", 1)

    second = clients(version, name)
    assert not second.flags.session_present
    second.subscribe(topic, 1)
    pub.publish(topic, b"live", 1)

    assert second.message().payload == b"live"


@each_version
def test_a_shared_subscription(clients: Clients, topic: str, version: int) -> None:
    """Of clients that share a subscription each gets a part of the messages, and together they get each once."""
    members = [clients(version) for _ in range(3)]
    for member in members:
        member.subscribe(f"$share/team/{topic}", 1)
    pub = clients(version)

    for number in range(60):
        pub.publish(topic, str(number), 1)
    for _ in members:
        pub.publish(topic, b"last", 1)

    parts = [numbers_until_last(member) for member in members]
    assert all(parts)
    assert sorted(number for part in parts for number in part) == list(range(60))


def numbers_until_last(client: Paho) -> list[int]:
    """The numbers a client has got before it was told that this was all."""
    numbers = []
    while (payload := client.message().payload) != b"last":
        numbers.append(int(payload))
    return numbers


@each_version
def test_unsubscribing(clients: Clients, topic: str, version: int) -> None:
    """After an UNSUBSCRIBE nothing comes of that filter."""
    sub = clients(version)
    sub.subscribe([(f"{topic}/a", 1), (f"{topic}/b", 1)])
    sub.client.unsubscribe(f"{topic}/a")
    sub.event("unsubscribed")

    pub = clients(version)
    pub.publish(f"{topic}/a", b"x", 1)
    pub.publish(f"{topic}/b", b"x", 1)

    assert sub.message().topic == f"{topic}/b"


@each_version
def test_a_large_message(clients: Clients, topic: str, version: int) -> None:
    """A message of a few megabytes comes through unchanged."""
    payload = bytes(range(256)) * 20_000
    sub = clients(version)
    sub.subscribe(topic, 1)

    clients(version).publish(topic, payload, 1)

    assert sub.message().payload == payload


@each_version
def test_many_messages_in_flight(clients: Clients, topic: str, version: int) -> None:
    """A thousand QoS 2 messages sent without waiting arrive once each, in order."""
    sub, pub = clients(version), clients(version)
    sub.subscribe(topic, 2)

    for number in range(1000):
        pub.client.publish(topic, str(number), 2)

    assert [int(sub.message().payload) for _ in range(1000)] == list(range(1000))


@each_version
def test_a_client_id_is_taken_over(clients: Clients, topic: str, version: int) -> None:
    """A second client of the same id takes the first one's place, which MQTT 5 tells the first."""
    first = clients(version, topic[-8:])
    first.client.reconnect_delay_set(60)

    clients(version, topic[-8:])

    reason = first.event("disconnected")
    assert reason.is_failure
    if version == MQTTv5:
        assert reason.getName() == "Session taken over"


# MQTT 5 alone


def properties_of(packet: int, **values: Any) -> Properties:
    """Properties of a packet."""
    properties = Properties(packet)
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def test_properties_of_a_message(clients: Clients, topic: str) -> None:
    """Every property of a message comes through as it was, user properties in their order."""
    sub = clients(MQTTv5)
    sub.subscribe(topic, 1)
    user = [("colour", "red"), ("size", "1"), ("colour", "blue")]

    clients(MQTTv5).publish(
        topic,
        b"x",
        1,
        properties=properties_of(
            PacketTypes.PUBLISH,
            PayloadFormatIndicator=1,
            ContentType="text/plain",
            ResponseTopic="answers",
            CorrelationData=b"\x00\x01",
            UserProperty=user,
        ),
    )

    told: Any = sub.message().properties
    assert told is not None
    assert (told.PayloadFormatIndicator, told.ContentType, told.ResponseTopic) == (1, "text/plain", "answers")
    assert (told.CorrelationData, told.UserProperty) == (b"\x00\x01", user)


def test_subscription_identifiers(clients: Clients, topic: str) -> None:
    """A message names every subscription of the client that it comes for."""
    sub = clients(MQTTv5)
    for identifier, filter in ((7, f"{topic}/#"), (9, f"{topic}/a")):
        sub.subscribe(filter, 1, properties=properties_of(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier))

    clients(MQTTv5).publish(f"{topic}/b", b"x", 1)
    clients(MQTTv5).publish(f"{topic}/a", b"x", 1)

    told: Any = sub.message().properties
    assert told is not None
    assert told.SubscriptionIdentifier == [7]
    rest: set[int] = set()
    while rest != {7, 9}:
        told = sub.message().properties
        assert told is not None
        rest.update(told.SubscriptionIdentifier)


def test_topic_aliases(clients: Clients, topic: str) -> None:
    """A publisher may say a topic once and its alias from then on, as far as CONNACK allows."""
    sub, pub = clients(MQTTv5), clients(MQTTv5)
    sub.subscribe(topic, 1)
    highest = pub.properties.TopicAliasMaximum
    alias = properties_of(PacketTypes.PUBLISH, TopicAlias=highest)

    pub.publish(topic, b"1", 1, properties=alias)
    pub.publish("", b"2", 1, properties=alias)

    assert [(message.topic, message.payload) for message in (sub.message(), sub.message())] == [
        (topic, b"1"),
        (topic, b"2"),
    ]


def test_reason_codes(clients: Clients, topic: str) -> None:
    """A client hears that nobody listens, that it may not, and that it had no such subscription."""
    client = clients(MQTTv5)

    assert client.publish(topic, b"x", 1).getName() == "No matching subscribers"
    assert client.publish("$SYS/mine", b"x", 1).getName() == "Not authorized"
    filters = [(f"{topic}/#", SubscribeOptions(1)), ("$share//x", SubscribeOptions(1))]
    assert client.subscribe(filters) == [1, 0x8F]
    client.client.unsubscribe(f"{topic}/nothing")
    assert [reason.getName() for reason in client.event("unsubscribed")] == ["No subscription found"]


def test_subscription_options(clients: Clients, topic: str) -> None:
    """No Local keeps a client's own messages away, and Retain Handling 2 the retained ones."""
    client, other = clients(MQTTv5), clients(MQTTv5)
    other.publish(topic, b"retained", 1, retain=True)
    client.subscribe(topic, options=SubscribeOptions(1, noLocal=True, retainAsPublished=True, retainHandling=2))

    client.publish(topic, b"own", 1)
    other.publish(topic, b"theirs", 1, retain=True)

    message = client.message()
    assert (message.payload, message.retain) == (b"theirs", True)
    other.publish(topic, b"", 1, retain=True)


def test_a_disconnect_may_ask_for_the_will(clients: Clients, topic: str) -> None:
    """A client may go in good order and leave its will all the same."""
    watcher = clients(MQTTv5)
    watcher.subscribe(topic, 1)
    leaver = clients(MQTTv5, connect=False)
    leaver.client.will_set(
        topic, b"gone", 1, properties=properties_of(PacketTypes.WILLMESSAGE, UserProperty=("why", "done"))
    )
    leaver.connect()

    leaver.disconnect(reasoncode=ReasonCode(PacketTypes.DISCONNECT, "Disconnect with will message"))

    message = watcher.message()
    assert message.payload == b"gone"
    properties: Any = message.properties
    assert properties is not None
    assert properties.UserProperty == [("why", "done")]


def test_what_the_broker_tells_as_it_connects(clients: Clients) -> None:
    """CONNACK has the broker's limits, and an id for a client that has none."""
    client = clients(MQTTv5, connect=False)
    client.client._client_id = b""
    client.connect()

    assert client.properties.AssignedClientIdentifier
    assert client.properties.ReceiveMaximum > 0
    assert client.properties.MaximumPacketSize > 0
    assert client.properties.TopicAliasMaximum > 0


def test_a_session_that_has_expired(clients: Clients, topic: str) -> None:
    """Without a session expiry interval a session ends with its connection."""
    first = clients(MQTTv5, topic[-8:], clean_start=False)
    first.subscribe(topic, 1)
    first.disconnect()

    second = clients(MQTTv5, topic[-8:], clean_start=False)

    assert not second.flags.session_present


def test_a_message_that_expires(clients: Clients, topic: str) -> None:
    """A message that waited comes with what is left of its life."""
    first = clients(MQTTv5, topic[-8:], **kept(MQTTv5))
    first.subscribe(topic, 1)
    first.disconnect()

    clients(MQTTv5).publish(topic, b"x", 1, properties=properties_of(PacketTypes.PUBLISH, MessageExpiryInterval=1000))

    told: Any = clients(MQTTv5, topic[-8:], **kept(MQTTv5)).message().properties
    assert told is not None
    assert 900 < told.MessageExpiryInterval <= 1000
