"""What a plugin can do through its context, in a whole broker."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, Trusting
from kinmqtt.hooks.context import PluginContext
from kinmqtt.mqtt.packets import V5, DisconnectPacket
from kinmqtt_spi import ALLOW, Client, Decision, Message, Properties, ReasonCode, Subscription, deny, hookimpl
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.values import THE_BROKER, MessageId, NodeIdentity


class Plugin:
    """Keeps its context, and sees what is published."""

    def __init__(self) -> None:
        self.context: Any = None
        self.messages: list[Message] = []

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        self.context = context

    @hookimpl
    def published(self, message: Message) -> None:
        self.messages.append(message)


@pytest.fixture
def plugin() -> Plugin:
    """A plugin that is not in a broker yet."""
    return Plugin()


@pytest.fixture
def house(plugin: Plugin) -> House:
    """A broker with the plugin."""
    return House(plugins={"plugin": plugin})


def test_a_context_knows_its_surroundings(house: House, plugin: Plugin) -> None:
    """Name, node, clock and a log of its own; no settings where the plugin has no class for them."""
    context = plugin.context

    assert (context.name, context.node, context.settings) == ("plugin", NodeIdentity("test", 7), None)
    assert context.clock is house.clock
    assert context.log.namespace == "kinmqtt.plugin.plugin"


def test_metrics_carry_the_plugins_name(house: House, plugin: Plugin) -> None:
    """Two plugins may count under one name without counting together."""
    mine = plugin.context.metrics.counter("hits", "hits")
    other = house.assembly.metrics.counter("hits", "hits", {"plugin": "other"})

    mine.value += 1

    assert mine.labels == {"plugin": "plugin"}
    assert (house.assembly.metrics.sum("hits"), other.value) == (1, 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_reaches_subscribers(house: House, plugin: Plugin, qos: int) -> None:
    """A plugin's message is routed as any other, without waiting for anything."""
    sub = house.connect("sub").subscribe("t", 2)

    plugin.context.publish(Message("t", b"x", qos))
    house.settle()

    assert sub.messages == [("t", b"x", qos)]


def test_publish_fills_in_what_is_absent(house: House, plugin: Plugin) -> None:
    """The message is the broker's, has an id of its own, and expires from now on."""
    expiry = Properties(message_expiry_interval=60)
    for _ in range(2):
        plugin.context.publish(Message("t", properties=expiry))
    house.settle()

    first, second = plugin.messages
    assert first.publisher == THE_BROKER
    assert first.id.node == second.id.node == 7
    assert first.id != second.id
    assert first.received_at == house.clock.now()
    assert first.expires_at == house.clock.now() + 60


def test_publish_leaves_what_is_there(house: House, plugin: Plugin) -> None:
    """A message that was received elsewhere keeps its id and its time."""
    message = Message("t", id=MessageId(9, 9), received_at=1.0)

    plugin.context.publish(message)
    house.settle()

    assert plugin.messages == [message]


def test_publish_retains(house: House, plugin: Plugin) -> None:
    """RETAIN does what it does for clients."""
    plugin.context.publish(Message("t", b"x", retain=True))
    house.settle()

    assert house.connect("sub").subscribe("t").messages == [("t", b"x", 0)]


def test_publish_asks_no_plugin() -> None:
    """Neither limiter nor authorizer nor intercept stands between the broker and its own messages."""

    class Obstacle:
        @hookimpl
        def initial_subscriptions(self) -> list[Subscription]:
            return [Subscription("to/sub")]

        @hookimpl
        def authorize(self) -> None:
            raise AssertionError("asked for leave")

        @hookimpl
        def publish_received(self) -> None:
            raise AssertionError("shown")

        @hookimpl
        def acquire(self, resource: Any) -> None:
            assert resource.kind.value != "publish"

    plugin = Plugin()
    house = House(plugins={"plugin": plugin, "obstacle": Obstacle()})
    sub = house.connect("sub")

    plugin.context.publish(Message("to/sub", b"x"))
    house.settle()

    assert sub.messages == [("to/sub", b"x", 0)]
    assert house.assembly.metrics.sum("plugin.failures") == 0


def test_publish_works_from_start() -> None:
    """A plugin may publish as soon as it is started."""

    class Early:
        @hookimpl
        def start(self, context: PluginContext) -> None:
            context.publish(Message("t", b"x", retain=True))

    house = House(plugins={"early": Early()})

    assert house.connect("sub").subscribe("t").messages == [("t", b"x", 0)]


def test_client_shows_who_is_connected(plugin: Plugin) -> None:
    """A session without a connection is no client."""
    house = House(plugins={"plugin": plugin, "door": Trusting()})
    house.connect("c", username="u", clean_start=False)
    client = plugin.context.client("c")
    assert isinstance(client, Client)
    assert (client.client_id, client.username) == ("c", "u")

    house.peers[0].drop()

    assert plugin.context.client("c") is None
    assert plugin.context.client("nobody") is None


def test_disconnect_closes_a_connection(house: House, plugin: Plugin) -> None:
    """The client is told the reason; where there is no connection, nothing happens."""
    peer = house.connect("c", V5, expiry_s=100)

    answers = [plugin.context.disconnect("c", ReasonCode.QUOTA_EXCEEDED) for _ in range(2)]
    house.settle()

    assert answers == [True, False]
    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.QUOTA_EXCEEDED]
    assert peer.closed
    assert plugin.context.disconnect("nobody") is False


def test_disconnect_is_an_administrators_act_by_default(house: House, plugin: Plugin) -> None:
    """Without a reason the client is told 0x98."""
    peer = house.connect("c", V5)

    plugin.context.disconnect("c")
    house.settle()

    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.ADMINISTRATIVE_ACTION]


def test_in_thread_hands_work_to_the_pool(house: House, plugin: Plugin) -> None:
    """The result can be awaited."""
    answer = plugin.context.in_thread(lambda: "done")

    assert isinstance(answer, Deferred)
    assert answer.result == "done"


@pytest.mark.parametrize(
    "use",
    [
        lambda context: context.publish(Message("t")),
        lambda context: context.client("c"),
        lambda context: context.disconnect("c"),
        lambda context: context.authorization_changed(None),
    ],
)
def test_a_context_is_of_no_use_before_the_broker_is(use: Any) -> None:
    """What ``configure`` can't do yet says so, and names the plugin."""
    bare = BareContext()
    context = PluginContext("early", None, bare.node, bare.clock, bare.log, bare.metrics, bare.in_thread)

    with pytest.raises(RuntimeError, match="plugin 'early' used its context before the broker was assembled"):
        use(context)


class Rules:
    """Allows one topic to be published to."""

    def __init__(self) -> None:
        self.asked: list[AuthorizationRequest] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision | None:
        if request.action is Action.SUBSCRIBE:
            return None
        self.asked.append(request)
        return ALLOW if request.topic == "open" else deny()


def test_publish_on_behalf_of_a_client_asks_whether_it_may(plugin: Plugin) -> None:
    """What the client may publish is published, and the rest is dropped and counted."""
    rules = Rules()
    house = House(plugins={"plugin": plugin, "rules": rules})
    everybody = house.connect("s").subscribe("#")
    ann = Client("a", "ann", attributes={"role": "x"})

    for topic in ("open", "secret", "$SYS/x"):
        plugin.context.publish(Message(topic, b"x"), on_behalf_of=ann)
    house.settle()

    assert everybody.messages == [("open", b"x", 0)]
    assert [(request.client, request.topic) for request in rules.asked] == [(ann, "open"), (ann, "secret")]
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 2


def test_publish_on_behalf_of_a_client_refuses_what_is_no_message(plugin: Plugin) -> None:
    """At once, as for a message of the plugin's own; nobody is asked."""
    rules = Rules()
    House(plugins={"plugin": plugin, "rules": rules})

    with pytest.raises(ValueError, match="is not a topic name"):
        plugin.context.publish(Message("a/#"), on_behalf_of=Client("a"))
    assert rules.asked == []


def found(page: Any) -> Any:
    """A page that is there by now."""
    pages: list[Any] = []
    page.addCallback(pages.append) if isinstance(page, Deferred) else pages.append(page)
    return pages[0]


def test_a_plugin_reads_what_is_retained(house: House, plugin: Plugin) -> None:
    """By a topic or a filter, without what has expired, values of plugins, and topics below $ unless asked for."""
    soon = Properties(message_expiry_interval=5)
    client = house.connect("c", V5)
    client.publish("a/1", b"x", qos=1, retain=True)
    client.publish("a/2", b"y", qos=1, retain=True, properties=soon)
    plugin.context.persist("k", b"v")
    house.clock.advance(10)

    page = found(plugin.context.retained("#"))

    assert [message.topic for message in page.messages] == ["a/1"]
    assert page.cursor is None
    assert [message.payload for message in found(plugin.context.retained("a/1")).messages] == [b"x"]
    assert found(plugin.context.retained("$plugin/#")).messages == ()


def test_a_plugin_reads_by_a_filter_that_is_one(house: House, plugin: Plugin) -> None:
    """Else it is told at once."""
    with pytest.raises(ValueError, match="no topic filter"):
        plugin.context.retained("a/#/b")
