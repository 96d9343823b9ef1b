"""The hooks of the limiter, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from core_harness.house import House, Peer, Trusting
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket, Puback, Publish, Pubrec, Subscribe, SubscribeRequest
from kinmqtt_spi import ReasonCode, deny, hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.authorization import AuthorizationRequest
from kinmqtt_spi.services.limiter import (
    WITHIN_LIMITS,
    LimitDecision,
    LimiterNeeds,
    LimitVerdict,
    Resource,
    ResourceKind,
)

DELAY = LimitDecision(LimitVerdict.DELAY, "slowly", delay_s=5)
DROP = LimitDecision(LimitVerdict.DROP, "hush")
REJECT = LimitDecision(LimitVerdict.REJECT, "enough")
DISCONNECT = LimitDecision(LimitVerdict.DISCONNECT, "out", reason=ReasonCode.MESSAGE_RATE_TOO_HIGH)


class Limiter:
    """Gives one answer about one kind of resource, and allows the others."""

    def __init__(self, kind: ResourceKind, answer: Any, topics: bool = False) -> None:
        self.kind = kind
        self.answer = answer
        self.topics = topics
        self.asked: list[tuple[Resource, int]] = []

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        return LimiterNeeds(frozenset({self.kind}), self.topics)

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> Any:
        if resource.kind is not self.kind:
            return WITHIN_LIMITS
        self.asked.append((resource, amount))
        return self.answer() if callable(self.answer) else self.answer


def publishes(version: int, qos: int, *topics: str) -> bytes:
    """Several PUBLISH packets, to be sent in one read."""
    return b"".join(
        encode(Publish.build(topic, b"x", qos=qos, packet_id=number if qos else 0), version)
        for number, topic in enumerate(topics, 1)
    )


def fail() -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def coroutine() -> LimitDecision:
    """An answer that a limiter must not give."""
    return REJECT


# acquire: connections


def test_acquire_is_asked_for_each_connection() -> None:
    """Before a byte is read only the listener and the address are known."""
    limiter = Limiter(ResourceKind.CONNECTION, None)

    House(plugins={"limiter": limiter}).connect("c", username="u")

    assert limiter.asked == [(Resource(ResourceKind.CONNECTION, "tcp:1883", "192.0.2.1"), 1)]


@pytest.mark.parametrize("answer", [DROP, REJECT, DISCONNECT])
def test_acquire_closes_a_connection_too_many(answer: LimitDecision) -> None:
    """Before CONNECT there is nothing to answer: every refusal closes."""
    peer = House(plugins={"limiter": Limiter(ResourceKind.CONNECTION, answer)}).open()

    assert peer.closed
    assert peer.packets == []


def test_acquire_delays_a_connection() -> None:
    """A delayed connection is not read for that long."""
    house = House(plugins={"limiter": Limiter(ResourceKind.CONNECTION, DELAY)})
    peer = house.open()
    assert not peer.closed
    assert not peer.link.reading

    house.advance(5)

    assert peer.link.reading


# acquire: CONNECT


def test_acquire_is_asked_for_each_connect_packet() -> None:
    """Now the client id and the user name are known, as the client gives them."""
    limiter = Limiter(ResourceKind.CONNECT, None)
    house = House(plugins={"limiter": limiter})

    house.connect("c", username="u")
    house.connect("")

    assert limiter.asked == [
        (Resource(ResourceKind.CONNECT, "tcp:1883", "192.0.2.1", "c", "u"), 1),
        (Resource(ResourceKind.CONNECT, "tcp:1883", "192.0.2.1"), 1),
    ]


@pytest.mark.parametrize("verdict", [LimitVerdict.DROP, LimitVerdict.REJECT, LimitVerdict.DISCONNECT])
def test_acquire_refuses_a_connect_packet_too_many(verdict: LimitVerdict) -> None:
    """The client is told the reason in its CONNACK."""
    answer = LimitDecision(verdict, "enough", reason=ReasonCode.CONNECTION_RATE_EXCEEDED)
    house = House(plugins={"limiter": Limiter(ResourceKind.CONNECT, answer)})

    new, old = house.connect("c", V5), house.connect("d", V311)

    assert (new.connack.reason, new.closed) == (ReasonCode.CONNECTION_RATE_EXCEEDED, True)
    assert (old.connack.reason, old.closed) == (ReasonCode.SERVER_UNAVAILABLE, True)


def test_acquire_delays_after_a_connect_packet() -> None:
    """A delayed client is let in, and then not read for that long."""
    house = House(plugins={"limiter": Limiter(ResourceKind.CONNECT, DELAY)})
    peer = house.connect("c")
    assert peer.connack.reason is ReasonCode.SUCCESS
    assert not peer.link.reading

    house.advance(5)

    assert peer.link.reading


# acquire: PUBLISH, once a read


def reader(answer: Any, version: int = V5) -> tuple[House, Peer, Peer, Limiter]:
    """A house with a limiter asked once a read, a subscriber to everything, and a publisher."""
    limiter = Limiter(ResourceKind.PUBLISH, answer)
    house = House(plugins={"limiter": limiter, "door": Trusting()})
    return house, house.connect("sub").subscribe("#", 2), house.connect("pub", version, username="u"), limiter


def test_acquire_is_asked_once_a_read_for_publish() -> None:
    """The amount is the number of PUBLISH packets in the read; other packets do not count."""
    _, sub, pub, limiter = reader(WITHIN_LIMITS)
    subscribe = encode(Subscribe(9, (SubscribeRequest("z"),)), V5)

    pub.send_bytes(publishes(V5, 0, "a", "b") + subscribe + publishes(V5, 0, "c"))
    pub.subscribe("y")

    assert limiter.asked == [(Resource(ResourceKind.PUBLISH, "tcp:1883", "192.0.2.1", "pub", "u"), 3)]
    assert [topic for topic, _, _ in sub.messages] == ["a", "b", "c"]


def test_acquire_delays_after_a_read() -> None:
    """DELAY: the packets are carried out, and then nothing is read for that long."""
    house, sub, pub, _ = reader(DELAY)
    pub.send_bytes(publishes(V5, 0, "a", "b"))
    assert len(sub.messages) == 2
    assert not pub.link.reading
    house.advance(4)
    assert not pub.link.reading

    house.advance(1)

    assert pub.link.reading


@pytest.mark.parametrize("version", [V311, V5])
def test_acquire_drops_the_publishes_of_a_read(version: int) -> None:
    """DROP: the client is answered as if all were well."""
    _, sub, pub, _ = reader(DROP, version)

    pub.send_bytes(publishes(version, 1, "a", "b"))

    assert [ack.reason for ack in pub.of(Puback)] == [ReasonCode.SUCCESS] * 2
    assert sub.messages == []
    assert not pub.closed


def test_acquire_drops_whole_qos_2_exchanges() -> None:
    """A dropped QoS 2 message goes its whole way, and its packet identifier is free again."""
    _, sub, pub, _ = reader(DROP)

    pub.publish("a", qos=2, packet_id=7).publish("a", qos=2, packet_id=7)

    assert [ack.reason for ack in pub.of(Pubrec)] == [ReasonCode.SUCCESS] * 2
    assert sub.messages == []


@pytest.mark.parametrize(
    ("version", "told"), [(V5, ReasonCode.QUOTA_EXCEEDED), (V311, ReasonCode.SUCCESS)], ids=["5", "3.1.1"]
)
def test_acquire_rejects_the_publishes_of_a_read(version: int, told: ReasonCode) -> None:
    """REJECT: MQTT 5 is told the reason; MQTT 3 gets an acknowledgement."""
    _, sub, pub, _ = reader(REJECT, version)

    pub.send_bytes(publishes(version, 1, "a", "b"))
    pub.publish("c", qos=2, packet_id=3)

    assert [ack.reason for ack in pub.of(Puback)] == [told] * 2
    assert [ack.reason for ack in pub.of(Pubrec)] == [told]
    assert sub.messages == []
    assert not pub.closed


def test_acquire_leaves_the_other_packets_of_a_read_alone() -> None:
    """What stands between the refused PUBLISH packets is carried out, in order."""
    _, sub, pub, _ = reader(REJECT)
    subscribe = encode(Subscribe(9, (SubscribeRequest("z"),)), V5)

    pub.send_bytes(publishes(V5, 1, "a") + subscribe + publishes(V5, 1, "b"))

    assert pub.granted == [0]
    assert len(pub.of(Puback)) == 2
    assert sub.messages == []


def test_acquire_rejections_do_not_use_up_the_receive_maximum() -> None:
    """A refused message no longer counts as unacknowledged."""
    limiter = Limiter(ResourceKind.PUBLISH, REJECT)
    house = House(plugins={"limiter": limiter}, receive_maximum=2)
    pub = house.connect("pub", V5)

    for _ in range(5):
        pub.publish("a", qos=1)
        pub.publish("a", qos=2)

    assert not pub.closed


def test_acquire_disconnects() -> None:
    """DISCONNECT: the connection is closed with the reason, and nothing of the read gets through."""
    _, sub, pub, _ = reader(DISCONNECT)

    pub.send_bytes(publishes(V5, 0, "a", "b"))

    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.MESSAGE_RATE_TOO_HIGH]
    assert pub.closed
    assert sub.messages == []


# acquire: PUBLISH, with its topic


def by_topic(answers: dict[str, LimitDecision], version: int = V5) -> tuple[House, Peer, Peer, list[Any]]:
    """A house with a limiter that looks at topics, a subscriber to everything, and a publisher."""
    asked: list[Any] = []

    class TopicLimiter:
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset({ResourceKind.PUBLISH}), topics=True)

        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
            if resource.kind is ResourceKind.PUBLISH:
                asked.append((resource.client_id, resource.topic, amount))
            return answers.get(resource.topic or "")

    house = House(plugins={"limiter": TopicLimiter()})
    return house, house.connect("sub").subscribe("#", 2), house.connect("pub", version), asked


def test_acquire_is_asked_for_each_topic_where_a_limiter_needs_it() -> None:
    """One rule about topics is enough to be asked for each packet, also for those that would go straight on."""
    _, sub, pub, asked = by_topic({})

    pub.send_bytes(publishes(V5, 0, "a", "b", "a"))

    assert asked == [("pub", "a", 1), ("pub", "b", 1), ("pub", "a", 1)]
    assert len(sub.messages) == 3


def test_acquire_refuses_a_topic_and_lets_another_pass() -> None:
    """Each packet of a read has its own verdict."""
    house, sub, pub, _ = by_topic({"drop": DROP, "reject": REJECT, "delay": DELAY})

    pub.send_bytes(publishes(V5, 1, "drop", "fine", "reject", "delay"))

    assert [ack.reason for ack in pub.of(Puback)] == [
        ReasonCode.SUCCESS,
        ReasonCode.SUCCESS,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.SUCCESS,
    ]
    assert [topic for topic, _, _ in sub.messages] == ["fine", "delay"]
    assert not pub.link.reading
    house.advance(5)
    assert pub.link.reading


def test_acquire_disconnects_for_a_topic() -> None:
    """What came before the packet was carried out; what comes after it was not."""
    _, sub, pub, _ = by_topic({"out": DISCONNECT})

    pub.send_bytes(publishes(V5, 0, "a", "out", "b"))

    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.MESSAGE_RATE_TOO_HIGH]
    assert [topic for topic, _, _ in sub.messages] == ["a"]


# acquire: SUBSCRIBE


def subscriber(answer: Any, version: int = V5) -> tuple[House, Peer, Limiter]:
    """A house with a limiter of subscriptions, and a client that has asked for two."""
    limiter = Limiter(ResourceKind.SUBSCRIBE, answer)
    house = House(plugins={"limiter": limiter, "door": Trusting()})
    peer = house.connect("c", version, username="u")
    peer.send(Subscribe(1, (SubscribeRequest("a"), SubscribeRequest("b"))))
    return house, peer, limiter


def test_acquire_is_asked_for_each_subscribe_packet() -> None:
    """The amount is the number of its filters."""
    _, peer, limiter = subscriber(WITHIN_LIMITS)

    assert limiter.asked == [(Resource(ResourceKind.SUBSCRIBE, "tcp:1883", "192.0.2.1", "c", "u"), 2)]
    assert peer.granted == [0, 0]


@pytest.mark.parametrize("answer", [DROP, REJECT])
@pytest.mark.parametrize(("version", "told"), [(V5, ReasonCode.QUOTA_EXCEEDED), (V311, 0x80)], ids=["5", "3.1.1"])
def test_acquire_refuses_subscriptions(answer: LimitDecision, version: int, told: int) -> None:
    """A SUBACK must say what became of each filter, so DROP refuses as REJECT does."""
    house, peer, _ = subscriber(answer, version)

    assert peer.granted == [told, told]
    assert house.broker.router.index.count() == 0


def test_acquire_delays_after_a_subscribe_packet() -> None:
    """DELAY: the subscriptions are made, and then nothing is read for that long."""
    house, peer, _ = subscriber(DELAY)
    assert peer.granted == [0, 0]
    assert not peer.link.reading

    house.advance(5)

    assert peer.link.reading


def test_acquire_disconnects_for_a_subscribe_packet() -> None:
    """DISCONNECT: the connection is closed with the reason."""
    _, peer, _ = subscriber(DISCONNECT)

    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.MESSAGE_RATE_TOO_HIGH]
    assert peer.closed


# acquire: several limiters, and broken ones


def test_acquire_counts_the_first_answer_that_is_not_allow() -> None:
    """ALLOW and None leave the question open; of two refusals that of the first plugin holds."""
    plugins = {
        "a": Limiter(ResourceKind.CONNECT, None),
        "b": Limiter(ResourceKind.CONNECT, WITHIN_LIMITS),
        "c": Limiter(ResourceKind.CONNECT, LimitDecision(LimitVerdict.REJECT, "c", reason=ReasonCode.SERVER_BUSY)),
        "d": Limiter(ResourceKind.CONNECT, LimitDecision(LimitVerdict.REJECT, "d", reason=ReasonCode.BANNED)),
    }

    peer = House(plugins=plugins).connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_BUSY


def test_acquire_refuses_whatever_delays() -> None:
    """A refusal behind a DELAY is a refusal; of several delays the longest holds."""
    longer = LimitDecision(LimitVerdict.DELAY, "slower", delay_s=9)
    plugins = {"a": Limiter(ResourceKind.CONNECT, DELAY), "b": Limiter(ResourceKind.CONNECT, REJECT)}
    house = House(plugins={"a": Limiter(ResourceKind.PUBLISH, DELAY), "b": Limiter(ResourceKind.PUBLISH, longer)})

    assert House(plugins=plugins).connect("c", V5).connack.reason is ReasonCode.QUOTA_EXCEEDED
    peer = house.connect("c").publish("t")
    house.advance(8)
    assert not peer.link.reading
    house.advance(1)
    assert peer.link.reading


def test_acquire_asks_all() -> None:
    """A limiter after one that has spoken counts the use all the same."""
    last = Limiter(ResourceKind.PUBLISH, None)
    house = House(plugins={"a": Limiter(ResourceKind.PUBLISH, DELAY), "b": last})

    house.connect("c").publish("t")

    assert [amount for _, amount in last.asked] == [1]


@pytest.mark.parametrize("answer", [fail, coroutine, lambda: succeed(REJECT)])
def test_acquire_that_fails_allows(answer: Callable[[], Any]) -> None:
    """A limiter that raises, or wants to be waited for, must not stop the broker; the next one still counts."""
    broken, good = Limiter(ResourceKind.SUBSCRIBE, answer), Limiter(ResourceKind.SUBSCRIBE, None)
    house = House(plugins={"a": broken, "b": good})

    peer = house.connect("c").subscribe("t")

    assert peer.granted == [0]
    assert len(good.asked) == 1
    assert house.assembly.metrics.sum("plugin.failures") == 1


# limiter_needs


def test_limiter_needs_left_out_means_all_but_topics() -> None:
    """A limiter that does not say what it needs is asked for everything, and once a read."""
    asked = []

    class Plain:
        @hookimpl
        def acquire(self, resource: Resource) -> None:
            asked.append((resource.kind, resource.topic))

    house = House(plugins={"plain": Plain()})

    house.connect("c").subscribe("s").publish("t")

    assert asked == [
        (ResourceKind.CONNECTION, None),
        (ResourceKind.CONNECT, None),
        (ResourceKind.SUBSCRIBE, None),
        (ResourceKind.PUBLISH, None),
    ]


def test_limiter_needs_keep_unwanted_questions_away() -> None:
    """A limiter of connections costs a publisher nothing."""
    asked = []

    class OnlyConnections:
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset({ResourceKind.CONNECTION}))

        @hookimpl
        def acquire(self, resource: Resource) -> None:
            asked.append(resource.kind)

    house = House(plugins={"limiter": OnlyConnections()})

    house.connect("c").subscribe("s").publish("t")

    assert asked == [ResourceKind.CONNECTION]


def test_limiter_needs_are_put_together() -> None:
    """The broker asks for what any of the limiters needs."""
    plugins = {
        "a": Limiter(ResourceKind.CONNECT, None),
        "b": Limiter(ResourceKind.PUBLISH, None, topics=True),
    }

    needs = House(plugins=plugins).assembly.limiter_needs

    assert needs["a"] == LimiterNeeds(frozenset({ResourceKind.CONNECT}))
    assert needs["b"] == LimiterNeeds(frozenset({ResourceKind.PUBLISH}), topics=True)


@pytest.mark.parametrize("answer", [fail, lambda: succeed(LimiterNeeds())])
def test_limiter_needs_that_fail_stop_the_assembly(answer: Callable[[], Any]) -> None:
    """The broker does not start, and says whose fault it is."""

    class Broken:
        @hookimpl
        def limiter_needs(self) -> Any:
            return answer()

        @hookimpl
        def acquire(self) -> None:
            """Allow."""

    with pytest.raises(AssemblyError, match="plugin 'broken'"):
        House(plugins={"broken": Broken()})


# limited


class Witness:
    """Sees what was limited."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def limited(self, resource: Resource, decision: LimitDecision) -> None:
        self.told.append((resource.kind, resource.client_id, decision.rule))


def test_limited_is_told_of_each_answer_but_allow() -> None:
    """The notice names the resource and the rule."""
    witness = Witness()
    house = House(plugins={"limiter": Limiter(ResourceKind.PUBLISH, DROP), "witness": witness})

    house.connect("c").publish("t").publish("t")

    assert witness.told == [(ResourceKind.PUBLISH, "c", "hush")] * 2
    assert house.assembly.metrics.sum("limiter.limited") == 2


def test_limited_that_raises_harms_nobody() -> None:
    """The failure is counted, and the other plugins are told."""

    class Broken:
        @hookimpl
        def limited(self) -> None:
            raise ValueError("broken")

    witness = Witness()
    limiter = Limiter(ResourceKind.PUBLISH, DROP)
    house = House(plugins={"limiter": limiter, "broken": Broken(), "witness": witness})

    peer = house.connect("c").publish("t")

    assert not peer.closed
    assert len(witness.told) == 1
    assert house.assembly.metrics.sum("plugin.failures") == 1


# release


class Holder(Limiter):
    """Counts how much of one kind is in use."""

    def __init__(self, kind: ResourceKind, answer: Any = None, topics: bool = False) -> None:
        super().__init__(kind, answer, topics)
        self.released: list[tuple[Resource, int]] = []

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        return LimiterNeeds(frozenset({self.kind}), self.topics, frozenset({self.kind}))

    @hookimpl
    def release(self, resource: Resource, amount: int) -> None:
        self.released.append((resource, amount))

    @property
    def used(self) -> int:
        """What was granted and is not over."""
        granted = 0 if self.answer in (DROP, REJECT, DISCONNECT) else sum(amount for _, amount in self.asked)
        return granted - sum(amount for _, amount in self.released)


class SlowGuard:
    """An authorizer and interceptor whose answers come when the test says so."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.pending: list[Deferred[Any]] = []

    def _wait(self, hook: str) -> Any:
        if hook != self.hook:
            return None
        self.pending.append(Deferred())
        return self.pending[-1]

    @hookimpl
    def publish_received(self) -> Any:
        return self._wait("publish_received")

    @hookimpl
    def authorize(self) -> Any:
        return self._wait("authorize")


@pytest.mark.parametrize("kind", [ResourceKind.CONNECTION, ResourceKind.CONNECT])
def test_release_of_a_connection_when_it_is_gone(kind: ResourceKind) -> None:
    """A connection and its client are in use until the network connection is gone; once is told, not twice."""
    holder = Holder(kind)
    house = House(plugins={"holder": holder})
    stays, goes, lost = (house.connect(name) for name in "abc")
    assert (holder.used, holder.released) == (3, [])

    goes.disconnect()
    lost.drop()

    assert holder.used == 1
    assert {id(resource) for resource, _ in holder.released} <= {id(resource) for resource, _ in holder.asked}
    assert not stays.closed


@pytest.mark.parametrize("answer", [DROP, REJECT, DISCONNECT])
@pytest.mark.parametrize("kind", [ResourceKind.CONNECTION, ResourceKind.CONNECT, ResourceKind.PUBLISH])
def test_release_of_what_was_refused_is_not_told(kind: ResourceKind, answer: LimitDecision) -> None:
    """Who refused has nothing to be given back."""
    holder = Holder(kind, answer)
    house = House(plugins={"holder": holder})

    peer = house.connect("a")
    peer.publish("x", qos=1)
    peer.drop()

    assert len(holder.asked) == 1
    assert holder.released == []


def test_release_at_once_where_another_limiter_refuses() -> None:
    """Of what comes to nothing those who granted it are told at once, whatever their place in the order."""
    first, second = Holder(ResourceKind.CONNECT), Holder(ResourceKind.CONNECT)
    house = House(plugins={"a": first, "b": Limiter(ResourceKind.CONNECT, REJECT), "c": second})

    peer = house.connect("a")
    assert (len(first.released), len(second.released)) == (1, 1)
    peer.drop()

    assert (first.used, second.used) == (0, 0)


def test_release_of_publishes_when_the_read_is_carried_out() -> None:
    """All PUBLISH packets of a read are in use until the last of them is carried out."""
    holder, guard = Holder(ResourceKind.PUBLISH), SlowGuard("publish_received")
    house = House(plugins={"holder": holder, "guard": guard})
    peer = house.connect("a", V5)
    peer.send_bytes(publishes(V5, 1, "x", "y", "z"))
    assert holder.used == 3

    for number in range(3):
        assert holder.used == 3
        guard.pending[number].callback(None)
        house.settle()

    assert holder.used == 0
    assert [amount for _, amount in holder.asked] == [3]
    assert len(peer.of(Puback)) == 3


def test_release_of_publishes_when_the_connection_is_lost() -> None:
    """What was in the broker's hands when the client went is not in use for ever."""
    holder, guard = Holder(ResourceKind.PUBLISH), SlowGuard("publish_received")
    house = House(plugins={"holder": holder, "guard": guard})
    peer = house.connect("a", V5)
    peer.send_bytes(publishes(V5, 1, "x", "y"))

    peer.drop()

    assert holder.used == 0


@pytest.mark.parametrize("hook", ["authorize", "publish_received", "none"])
def test_release_of_a_publish_by_topic(hook: str) -> None:
    """A limiter that looks at topics is told of each packet, when that is carried out."""
    holder, guard = Holder(ResourceKind.PUBLISH, topics=True), SlowGuard(hook)
    house = House(plugins={"holder": holder, "guard": guard})
    peer = house.connect("a", V5)
    peer.send_bytes(publishes(V5, 1, "x", "y"))
    for number in range(2 if hook != "none" else 0):
        guard.pending[number].callback(None)
        house.settle()

    assert [(resource.topic, amount) for resource, amount in holder.asked] == [("x", 1), ("y", 1)]
    assert holder.released == holder.asked


def test_release_of_a_subscribe_when_it_is_carried_out() -> None:
    """The filters of a SUBSCRIBE are in use until it is answered."""
    holder, guard = Holder(ResourceKind.SUBSCRIBE), SlowGuard("authorize")
    house = House(plugins={"holder": holder, "guard": guard})
    peer = house.connect("a", V5)
    peer.send(Subscribe(1, (SubscribeRequest("x"), SubscribeRequest("y"))))
    assert holder.used == 2

    for number in range(2):
        guard.pending[number].callback(None)
        house.settle()

    assert holder.used == 0
    assert peer.granted == [0, 0]


def test_release_that_fails_is_counted() -> None:
    """A limiter that raises when it is told costs nobody anything."""
    holder: Any = Holder(ResourceKind.CONNECT)
    holder.release = hookimpl(fail)
    house = House(plugins={"holder": holder})

    house.connect("a").drop()

    assert house.assembly.metrics.sum("plugin.failures") == 1


# Packets that wait


def test_acquire_is_not_asked_again_for_packets_that_wait() -> None:
    """PUBLISH packets behind one that is waited for were asked for with it; those of later reads were not."""
    limiter, guard = Limiter(ResourceKind.PUBLISH, None), SlowGuard("publish_received")
    house = House(plugins={"limiter": limiter, "guard": guard})
    peer = house.connect("a", V5)
    peer.send_bytes(publishes(V5, 0, "x", "y", "z"))
    peer.send_bytes(publishes(V5, 0, "u", "v"))

    for number in range(5):
        guard.pending[number].callback(None)
        house.settle()

    assert [amount for _, amount in limiter.asked] == [3, 2]


def test_acquire_refuses_packets_that_wait_as_it_said() -> None:
    """What was said of a read holds for those of its packets that had to wait for another one."""
    answers = iter([REJECT, None])
    limiter, guard = Limiter(ResourceKind.PUBLISH, lambda: next(answers)), SlowGuard("authorize")
    house = House(plugins={"limiter": limiter, "guard": guard})
    peer = house.connect("a", V5)
    subscribe = encode(Subscribe(9, (SubscribeRequest("s"),)), V5)
    peer.send_bytes(subscribe + publishes(V5, 1, "x", "y"))
    assert peer.of(Puback) == []

    guard.pending[0].callback(None)
    house.settle()

    assert [ack.reason for ack in peer.of(Puback)] == [ReasonCode.QUOTA_EXCEEDED] * 2
    assert len(limiter.asked) == 1


def test_acquire_by_topic_is_asked_before_authorizers() -> None:
    """A flood of messages that nobody may publish reaches neither authorizers nor further than the limit."""
    asked: list[str] = []

    class Authorizer:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Any:
            asked.append(request.topic)
            return deny()

    answers = iter([None] * 5)
    limiter = Limiter(ResourceKind.PUBLISH, lambda: next(answers, DISCONNECT), topics=True)
    house = House(plugins={"limiter": limiter, "authorizer": Authorizer()})
    peer = house.connect("a", V5)

    for number in range(20):
        peer.publish(f"t/{number}", b"x", qos=1)

    assert peer.closed
    assert len(limiter.asked) == 6
    assert len(asked) == 5


@pytest.mark.parametrize("topics", [False, True])
@pytest.mark.parametrize("hook", ["publish_received", "retaining", "authorize"])
def test_release_of_a_publish_waits_for_whatever_it_waits_for(topics: bool, hook: str) -> None:
    """A message whose retaining is still asked about is not carried out yet."""
    holder = Holder(ResourceKind.PUBLISH, topics=topics)
    pending: list[Deferred[Any]] = []

    class Slow:
        def _wait(self, its: str) -> Any:
            if its != hook:
                return None
            pending.append(Deferred())
            return pending[-1]

        @hookimpl
        def publish_received(self) -> Any:
            return self._wait("publish_received")

        @hookimpl
        def retaining(self) -> Any:
            return self._wait("retaining")

        @hookimpl
        def authorize(self) -> Any:
            return self._wait("authorize")

    house = House(plugins={"holder": holder, "slow": Slow()})
    peer = house.connect("a", V5).publish("t", b"x", qos=1, retain=True)
    assert (holder.used, peer.of(Puback)) == (1, [])

    pending[0].callback(None)
    house.settle()

    assert holder.used == 0
    assert len(peer.of(Puback)) == 1


def test_release_of_what_is_not_asked_for_stops_the_assembly() -> None:
    """A limiter would hear the end of what never began."""

    class Confused(Limiter):
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset({ResourceKind.PUBLISH}), releases=frozenset({ResourceKind.CONNECTION}))

    with pytest.raises(AssemblyError, match="'confused': limiter_needs has connection in releases but not in kinds"):
        House(plugins={"confused": Confused(ResourceKind.PUBLISH, None)})


@pytest.mark.parametrize("topics", [False, True])
def test_refused_publishes_of_mqtt_3_are_in_the_log(topics: bool) -> None:
    """MQTT 3 can't report them to the publisher: they are logged once for each connection and rule, and counted."""
    limiter = Limiter(ResourceKind.PUBLISH, REJECT, topics)
    house = House(plugins={"limiter": limiter})
    peer = house.connect("a")

    with capture_logs() as events:
        for _ in range(3):
            peer.publish("t", b"x", qos=1)

    lines = [event for event in events if "can't report this to the publisher" in event["log_format"]]
    assert [event["rule"] for event in lines] == ["enough"]
    assert house.broker.runtime.statistics.messages_received.value == 3


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """What goes into Twisted's log meanwhile."""
    events: list[dict[str, Any]] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        events.append(event)

    globalLogPublisher.addObserver(observe)
    try:
        yield events
    finally:
        globalLogPublisher.removeObserver(observe)
