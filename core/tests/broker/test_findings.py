"""Behaviours that were once wrong, each in its own test."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from harness import House
from stores import SlowQueues
from twisted.internet.defer import Deferred

from kinmqtt.broker.routing.fanouts import CACHED_TARGETS
from kinmqtt.builtins.rate_limits import RateLimitSettings, RuleSettings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    V311,
    Connect,
    Disconnect,
    Pingresp,
    Puback,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    Will,
)
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import NO_PROPERTIES, SPI_VERSION, Message, Properties, Subscription, hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured, ServiceUnavailable
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.limiter import LimitVerdict, ResourceKind
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Requirements


class Routes(SingleNode):
    """A cluster backend that remembers what it was told of routes."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def routes_update(self, version: int, added: Any, removed: Any) -> None:
        self.told += [f"+{route.filter}" for route in added] + [f"-{route.filter}" for route in removed]

    @hookimpl
    def cluster_backend(self) -> Routes:
        return self


def test_a_route_stands_as_long_as_anybody_wants_it() -> None:
    """Other nodes hear of a filter's first subscriber and of its last, not of those between."""
    routes = Routes()
    house = House(plugins={"routes": routes})
    first = house.connect("a").subscribe("t")
    second = house.connect("b").subscribe("t")

    first.unsubscribe("t")
    assert routes.told == ["+t"]
    second.drop()

    assert routes.told == ["+t", "-t"]


class Full(MemoryQueueStore):
    """A queue store whose disk is full when it is told so."""

    full = False

    def apply(self, writes: Any) -> None:
        if self.full:
            raise ServiceUnavailable("the disk is full")
        super().apply(writes)

    @hookimpl
    def queue_store(self) -> Full:
        return self


def test_what_a_store_refuses_does_not_wait() -> None:
    """A message that could not be kept for an absent client is dropped and counted, and its publisher sent away."""
    store = Full()
    house = House(plugins={"full": store})
    house.connect("s", V5, expiry_s=60).subscribe("a", qos=1).drop()
    store.full = True

    pub = house.connect("p", V5).publish("a", b"x", qos=1)

    assert pub.of(Puback) == []
    assert pub.of(Disconnect)[0].reason is ReasonCode.SERVER_BUSY
    assert house.broker.sessions.by_id["s"].waiting.count == 0
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 1


def test_a_plugins_unfit_message_is_its_own_fault() -> None:
    """A plugin that makes a topic with a wildcard gets the message refused; the publisher stays connected."""

    class Careless:
        @hookimpl
        def publish_received(self, message: Message) -> Message:
            return message.replace(topic="a/#")

    pub = House(plugins={"careless": Careless()}).connect("p", V5).publish("a", b"x", qos=1)

    assert pub.of(Puback)[0].reason is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert not pub.closed


def test_a_plugin_can_not_publish_what_no_packet_carries() -> None:
    """context.publish refuses an invalid topic at once, in the plugin's face."""
    house = House()

    with pytest.raises(ValueError, match="'a/\\+' is no topic name"):
        house.broker.publish(Message("a/+"))


def test_a_needed_plugin_that_abstains_is_missing() -> None:
    """A plugin that needs another does not start without it, though it is installed."""

    class Needy:
        @hookimpl
        def requirements(self) -> Requirements:
            return Requirements(SPI_VERSION, plugins=("shy",))

    class Shy:
        @hookimpl
        def configure(self) -> None:
            raise NotConfigured("no settings")

    with pytest.raises(AssemblyError, match="'needy' needs plugin 'shy', which is not active"):
        House(plugins={"needy": Needy(), "shy": Shy()})


def test_topics_of_wills_and_initial_subscriptions_are_limited_too() -> None:
    """The limit of topic levels holds for wills and for what plugins subscribe."""

    class Deep:
        @hookimpl
        def initial_subscriptions(self) -> list[Subscription]:
            return [Subscription("a/b/c/d")]

    house = House(plugins={"deep": Deep()}, max_topic_levels=3)

    refused = house.connect("w", V5, will=Will("a/b/c/d", b"", 0, False, NO_PROPERTIES))
    house.connect("c")

    assert refused.connack.reason is ReasonCode.TOPIC_NAME_INVALID
    assert house.broker.router.index.count() == 0


def test_what_nobody_got_is_not_counted_as_sent() -> None:
    """A QoS 0 message for an absent client counts as dropped, not as sent."""
    house = House(settings=BrokerSettings(sys_interval_s=0))
    house.connect("s", V5, expiry_s=60).subscribe("a").drop()

    house.connect("p").publish("a", b"x").publish("a", b"x")

    statistics = house.broker.runtime.statistics
    assert (statistics.messages_sent.value, statistics.dropped["offline"].value) == (0, 2)


# Found by attack


def test_two_things_that_are_waited_for() -> None:
    """An answer that leads to another wait loses none of the packets behind it, and keeps their order."""
    asked: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def authorize(self, request: Any) -> Any:
            if request.action is not Action.PUBLISH:
                return None
            asked.append(Deferred())
            return asked[-1]

        @hookimpl
        def publish_received(self, message: Message) -> Any:
            asked.append(Deferred())
            return asked[-1]

    house = House(plugins={"slow": Slow()})
    sub = house.connect("s").subscribe("#", qos=1)
    pub = house.connect("p", V5)
    packets = [Publish.build(f"t/{n}", b"x", qos=1, packet_id=n + 1) for n in range(3)]
    pub.send_bytes(b"".join(encode(packet, V5) for packet in packets))
    while asked:
        asked.pop(0).callback(None)
        house.settle()

    assert [topic for topic, _, _ in sub.messages] == ["t/0", "t/1", "t/2"]
    assert [p.packet_id for p in pub.of(Puback)] == [1, 2, 3]


@pytest.mark.parametrize("how", ["takeover", "stop"])
def test_a_will_does_not_come_back_after_disconnect(how: str) -> None:
    """Whatever happens between DISCONNECT and the end of its turn [MQTT-3.14.4-3]."""
    house = House()
    sub = house.connect("s").subscribe("#")
    gone = house.connect("a", V5, will=Will("will", b"x"))
    again = house.open(V5)

    gone.connection.receive(encode(Disconnect(), V5))
    if how == "takeover":
        again.connection.receive(encode(_connect("a"), V5))
        house.settle()
    else:
        house.result(house.broker.stop())

    assert sub.messages == []
    assert gone.of(Disconnect) == []


def _connect(client_id: str) -> Connect:
    return Connect(
        version=V5, client_id=client_id, clean_start=True, keep_alive=0, will=None, username=None, password=None
    )


def test_a_packet_behind_connect_may_be_large() -> None:
    """A client that does not wait for its CONNACK may send what it may send later (section 3.1.4)."""
    house = House(max_connect_bytes=1024, max_packet_bytes=100_000)
    sub = house.connect("s").subscribe("t")
    pub = house.open(V5)

    pub.send_bytes(encode(_connect("p"), V5) + encode(Publish.build("t", bytes(50_000)), V5) + b"\xc0\x00")

    assert [len(payload) for _, payload, _ in sub.messages] == [50_000]
    assert pub.of(Pingresp)
    assert not pub.closed


def test_a_connect_that_is_too_large_is_refused_all_the_same() -> None:
    """And so is what comes behind a CONNECT that is refused."""
    house = House(max_connect_bytes=1024)
    large = house.open(V5).send_bytes(encode(Publish.build("t", bytes(5000)), V5))

    assert large.closed


@pytest.mark.parametrize("large", [1, 600])
def test_a_smaller_packet_size_than_before(large: int) -> None:
    """What no longer fits counts as sent, however much it is [MQTT-3.1.2-25]."""
    house = House()
    sub = house.connect("s", V5, expiry_s=60, silent=True).subscribe("t", qos=1)
    pub = house.connect("p")
    for _ in range(large):
        pub.publish("t", bytes(200), qos=1)
    pub.publish("t", b"small", qos=1)
    sub.drop()

    small = Properties(maximum_packet_size=100)
    again = house.connect("s", V5, clean_start=False, expiry_s=60, properties=small)

    assert [payload for _, payload, _ in again.messages] == [b"small"]


def test_a_connack_that_does_not_fit_ends_it() -> None:
    """Nothing else may come first [MQTT-3.2.0-1]."""
    house = House()
    house.connect("s", V5, expiry_s=60).subscribe("t", qos=1).drop()
    house.connect("p").publish("t", b"x", qos=1)

    peer = house.connect("s", V5, clean_start=False, expiry_s=60, properties=Properties(maximum_packet_size=10))

    assert peer.packets == []
    assert peer.closed


@pytest.mark.parametrize("late", ["authorize", "subscribing"])
def test_a_subscription_granted_too_late_is_none(late: str) -> None:
    """A client that has gone while a plugin thought leaves nothing in the index."""
    asked: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def authorize(self, request: Any) -> Any:
            return self._later() if late == "authorize" else None

        @hookimpl
        def subscribing(self, subscription: Subscription) -> Any:
            return self._later() if late == "subscribing" else None

        def _later(self) -> Any:
            asked.append(Deferred())
            return asked[-1]

    house = House(plugins={"slow": Slow()})
    house.connect("a").subscribe("t").drop()
    asked.pop().callback(None)
    house.settle()

    assert house.broker.router.index.count() == 0


def test_an_unsubscription_of_a_former_connection_is_none() -> None:
    """What a plugin answers late concerns the connection that asked."""
    asked: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def unsubscribing(self, filter: str) -> Any:
            asked.append(Deferred())
            return asked[-1]

    house = House(plugins={"slow": Slow()})
    house.connect("a", V5, expiry_s=60).subscribe("t").unsubscribe("t")
    again = house.connect("a", V5).subscribe("t")
    asked.pop().callback(None)
    house.settle()
    house.connect("p").publish("t", b"x")

    assert again.messages == [("t", b"x", 0)]


@pytest.mark.parametrize("packet", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize(("filters", "closed"), [(10, False), (11, True)])
def test_filters_in_one_packet_are_bounded(packet: str, filters: int, closed: bool) -> None:
    """A packet of millions must not hold up everybody else: 0x97."""
    house = House(max_filters=10)
    peer = house.connect("a", V5)

    if packet == "subscribe":
        peer.send(Subscribe(1, tuple(SubscribeRequest("a", 0) for _ in range(filters))))
    else:
        peer.send(Unsubscribe(1, tuple("a" for _ in range(filters))))

    assert peer.closed is closed
    assert [int(p.reason) for p in peer.of(Disconnect)] == ([0x97] if closed else [])


def test_properties_are_bounded() -> None:
    """Millions of user properties neither: 0x95, for so many are too many bytes."""
    house = House()
    peer = house.connect("a", V5)

    peer.publish("t", b"", properties=Properties(user_property=(("", ""),) * 150_000))

    assert [int(p.reason) for p in peer.of(Disconnect)] == [0x95]


def test_retained_messages_are_not_sent_beyond_the_buffer() -> None:
    """However many filters of a packet ask for them, who takes nothing is sent little more than may wait."""
    house = House(outbound_buffer_bytes=1 << 20)
    pub = house.connect("p")
    for number in range(100):
        pub.publish(f"t/{number}", bytes(10_000), retain=True)
    sub = house.connect("s")
    sub.link.blocked = True

    sub.send(Subscribe(1, tuple(SubscribeRequest("#", 0) for _ in range(50))))
    waiting = sub.connection.waiting_bytes + len(sub.link.written)
    sub.unblock()

    assert waiting < 2 << 20
    assert len(sub.messages) == 50 * 100


def test_a_dribble_is_no_sign_of_life() -> None:
    """Keep alive asks for packets, not for bytes [MQTT-3.1.2-22]."""
    house = House()
    peer = house.connect("a", V5, keep_alive=2)
    packet = encode(Publish.build("t", bytes(1000)), V5)

    for byte in packet[:10]:
        peer.send_bytes(bytes((byte,)))
        house.advance(1)

    assert peer.closed


def test_who_takes_nothing_is_not_waited_for() -> None:
    """A full buffer is kept for so long and no longer."""
    house = House(outbound_buffer_bytes=1024, outbound_time_limit_s=30)
    sub = house.connect("s", V5).subscribe("t")
    sub.link.blocked = True
    for _ in range(3):
        house.connect("p").publish("t", bytes(2000))

    house.advance(29)
    before = sub.closed
    house.advance(2)

    assert (before, sub.closed) == (False, True)


def test_a_clock_set_back_freezes_nothing() -> None:
    """The newer of two retained messages is the one that came later [MQTT-3.3.1-5]."""
    house = House()
    pub = house.connect("p").publish("t", b"old", retain=True)
    house.clock.step(-3600)

    pub.publish("t", b"new", retain=True)
    first = house.connect("a").subscribe("t").messages
    pub.publish("t", b"", retain=True)

    assert first == [("t", b"new", 0)]
    assert house.connect("b").subscribe("t").messages == []


def test_what_is_remembered_of_topics_is_bounded() -> None:
    """By their subscribers, not only by their number."""
    house = House()
    for number in range(300):
        house.connect(f"c{number}").subscribe("#")
    router = house.broker.router

    for number in range(1500):
        router.fanout(f"t/{number}")

    assert sum(len(fanout.targets) for fanout in router.fanouts.remembered.values()) <= CACHED_TARGETS


def test_no_local_beside_another_filter() -> None:
    """A client's own message comes by the filters that want it, with their QoS and identifiers [MQTT-3.8.3-3]."""
    house = House()
    peer = house.connect("a", V5)
    peer.subscribe("a/#", 2, Properties(subscription_identifier=(1,)), no_local=True)
    peer.subscribe("a/b", 0, Properties(subscription_identifier=(2,)))

    peer.publish("a/b", b"own", qos=1)
    house.connect("p").publish("a/b", b"other", qos=1)

    own, other = peer.of(Publish)
    assert (own.qos, own.properties.subscription_identifier) == (0, (2,))
    assert (other.qos, set(other.properties.subscription_identifier or ())) == (1, {1, 2})


def test_a_shorter_expiry_than_was_asked_for() -> None:
    """DISCONNECT may change what CONNECT asked for, whatever the broker made of it [MQTT-3.14.2-2]."""
    house = House(max_session_expiry_s=0)
    peer = house.connect("a", V5, expiry_s=100)

    peer.disconnect(properties=Properties(session_expiry_interval=50))

    assert peer.of(Disconnect) == []


class Unfit:
    """Makes messages and subscriptions that no packet can carry."""

    def __init__(self, properties: Properties = Properties(), topic: str | None = None) -> None:  # noqa: B008
        self.properties = properties
        self.topic = topic

    @hookimpl
    def publish_received(self, message: Message) -> Message | None:
        if message.topic != "bad":
            return None
        return message.replace(properties=self.properties, topic=self.topic)

    @hookimpl
    def subscribing(self, subscription: Subscription) -> Subscription | None:
        return evolve(subscription, qos=4) if subscription.filter == "bad" else None


@pytest.mark.parametrize(
    "unfit",
    [Unfit(Properties(response_topic="a/+")), Unfit(topic="a\ud800"), Unfit(Properties(content_type="a\0b"))],
)
def test_what_a_plugin_makes_unfit_hurts_itself_only(unfit: Unfit) -> None:
    """The message is refused, the subscription too, and everybody else is served."""
    house = House(plugins={"unfit": unfit})
    sub = house.connect("s", V5, clean_start=False, expiry_s=9).subscribe("bad").subscribe("#", qos=1)
    pub = house.connect("p", V5).publish("bad", b"x", qos=1).publish("good", b"y", qos=1)

    assert [packet.reasons[0] for packet in sub.of(Suback)] == [0x83, 1]
    assert [int(p.reason) for p in pub.of(Puback)] == [0x83, 0]
    assert sub.messages == [("good", b"y", 1)]


def test_a_hook_that_answers_nonsense_has_failed() -> None:
    """It is counted, refuses what it was asked about, and leaves nothing behind."""

    class Confused:
        @hookimpl
        def connection_opened(self) -> Any:
            return True

    house = House(plugins={"confused": Confused()})

    assert house.open().drop().closed
    assert house.broker.connections == set()


def test_packets_behind_connect_are_limited_too() -> None:
    """A client does not get around its limiter by not waiting for CONNACK."""
    rule = RuleSettings(name="r", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=1, verdict=LimitVerdict.REJECT)
    house = House(plugin_settings={"rate_limits": RateLimitSettings(rules=(rule,))})
    peer = house.open(V5)
    packets = [Publish.build("t", b"x", qos=1, packet_id=n + 1) for n in range(5)]

    peer.send_bytes(encode(_connect("p"), V5) + b"".join(encode(packet, V5) for packet in packets))
    peer.publish("t", b"x", qos=1, packet_id=9)

    assert [int(p.reason) for p in peer.of(Puback)][-1] == 0x97


@pytest.mark.parametrize("behind", [b"\xc0\x00\x00\x00", b"\x00\x00"])
def test_over_a_limit_malformed_bytes_are_malformed(behind: bytes) -> None:
    """What is behind packets that a limiter drops is judged as ever."""
    rule = RuleSettings(name="r", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=1, verdict=LimitVerdict.DROP)
    house = House(plugin_settings={"rate_limits": RateLimitSettings(rules=(rule,))})
    peer = house.connect("p", V5)
    packets = b"".join(encode(Publish.build("t", b"x"), V5) for _ in range(3))

    peer.send_bytes(packets + behind)

    assert peer.closed


def test_old_identifiers_do_not_widen_the_window() -> None:
    """PUBRELs for messages of an earlier connection are answered, and counted no more than once (section 4.9)."""
    house = House(receive_maximum=4)
    pub = house.connect("p", V5, expiry_s=60, silent=True)
    for packet_id in range(1, 5):
        pub.publish("t", b"x", qos=2, packet_id=packet_id)
    pub.drop()
    again = house.connect("p", V5, clean_start=False, expiry_s=60, silent=True)

    for packet_id in range(1, 5):
        again.send(Pubrel(packet_id))

    assert again.connection.unacknowledged == 0


def test_a_broken_sys_topic_hurts_no_other() -> None:
    """Neither by its name nor by its value."""

    class Broken:
        @hookimpl
        def sys_topics(self) -> Any:
            return [
                SysTopic("$SYS/a+b", lambda: "1"),
                SysTopic("$SYS/n", lambda: 5),
                SysTopic("$SYS/ok", lambda: "fine"),
            ]  # type: ignore[arg-type, return-value]

    house = House(plugins={"broken": Broken()}, settings=BrokerSettings(sys_interval_s=1))
    sub = house.connect("s").subscribe("$SYS/ok")
    house.advance(2)

    assert sub.messages[0] == ("$SYS/ok", b"fine", 0)


def test_a_cluster_backend_is_stopped_where_the_start_fails_later() -> None:
    """What was started is stopped."""
    told: list[str] = []

    class Backend(SingleNode):
        def stop(self) -> None:
            told.append("stopped")

        @hookimpl
        def cluster_backend(self) -> Any:
            return self

    class Broken(MemorySessionStore):
        def iterate(self, cursor: object, limit: int) -> Any:
            raise ServiceUnavailable("no disk")

        @hookimpl
        def session_store(self) -> Any:
            return self

    house = House(plugins={"backend": Backend(), "broken": Broken()}, start=False)
    with pytest.raises(ServiceUnavailable):
        house.result(house.broker.start())

    assert told == ["stopped"]


def test_a_client_that_was_refused_leaves_no_will() -> None:
    """Of two that come with one client id the first is refused (0x88) before its CONNACK: its will is not stored."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    sub = house.connect("s").subscribe("#")
    sessions = [house.open(V5), house.open(V5)]
    for number, peer in enumerate(sessions):
        properties = Properties(session_expiry_interval=60)
        connect = evolve(_connect("a"), will=Will(f"will/{number}", b"x"), properties=properties)
        peer.connection.receive(encode(connect, V5))
    house.settle()

    assert [int(peer.connack.reason) for peer in sessions] == [0x88, 0]
    assert sub.messages == []


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_topic_length_beyond_the_packet_is_malformed_though_the_topic_is_known(version: int) -> None:
    """What is forwarded as it came must be whole: nobody is sent bytes that no parser takes [MQTT-3.3.2-1]."""
    house = House()
    sub = house.connect("sub", version).subscribe("a/b")
    pub = house.connect("pub", version).publish("a/b", b"1").publish("a/b", b"2")

    pub.send_bytes(b"\x30\x05\xff\xffa/b")

    assert pub.closed
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


def test_what_was_in_flight_to_a_session_that_is_over_is_forgotten() -> None:
    """A topic that is remembered must not keep the messages of those who are gone."""
    house = House()
    gone = house.connect("gone", V5, silent=True).subscribe("t", qos=1)
    session = house.broker.sessions.by_id["gone"]
    gone.publish("t", b"x", qos=1)
    before = len(session.outgoing)

    gone.drop()
    house.connect("other").subscribe("elsewhere").publish("elsewhere")

    assert (before, len(session.outgoing)) == (1, 0)
    assert list(house.broker.fanouts.remembered) == ["elsewhere"]


def test_congestion_that_comes_with_the_end_is_none() -> None:
    """A connection that is closed waits for no client to take what it was sent last."""
    house = House()
    peer = house.connect("c", V5).subscribe("t")
    house.broker.sessions.by_id["c"].connection.waiting_bytes = 1 << 30
    peer.link.ready = False
    peer.connection.send(b"\xd0\x00")

    peer.connection.fail(ReasonCode.UNSPECIFIED_ERROR, "an end")

    assert not peer.connection.congested
