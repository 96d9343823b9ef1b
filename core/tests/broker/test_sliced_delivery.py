"""A message to very many reaches them in slices: others are served in between, and nothing else is different."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.batches import batch_of
from core_harness.house import House, Peer
from core_harness.sliced import SlicedHouse, answered
from core_harness.stores import Failing, FailingRetaineds, SlowQueues
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    ConnectWill,
    DisconnectPacket,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import ALLOW, Message, Properties, deny, hookimpl
from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Authorization, AuthorizationRequest, Cache
from kinmqtt_spi.services.cluster import ClusterListener
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.queue import Append
from kinmqtt_spi.values import MessageId, NodeIdentity

PINGREQ = b"\xc0\0"
CROWD = 320


def crowd(house: House, size: int = CROWD, qos: int = 1, **more: Any) -> list[Peer]:
    """Subscribers to one topic."""
    return [house.connect(f"s{number}", V5, **more).subscribe("t", qos=qos) for number in range(size)]


def publish(payload: bytes, packet_id: int, topic: str = "t", *, qos: int = 1, retain: bool = False) -> bytes:
    """A PUBLISH of MQTT 5."""
    return encode(Publish.build(topic, payload, qos=qos, packet_id=packet_id, retain=retain), V5)


def have(peers: list[Peer]) -> int:
    """How many have got something."""
    for peer in peers:
        peer.collect()
    return sum(bool(peer.messages) for peer in peers)


def payloads(peer: Peer) -> list[bytes]:
    """What a peer has got, in order."""
    peer.collect()
    return [payload for _, payload, _ in peer.messages]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("more", [{}, {"expiry_s": 60}], ids=["on_commit_failed", "kept"])
def test_others_are_served_while_a_message_goes_to_very_many(more: dict[str, int], qos: int) -> None:
    """Its publisher alone waits, and is answered when everybody has it (MQTT-4.6.0-6)."""
    house = SlicedHouse()
    subs = crowd(house, **more)
    pub, other = house.connect("pub", V5), house.connect("other", V5)
    answer = Puback if qos == 1 else Pubrec

    house.hand_over(pub, publish(b"1", 1, qos=qos) + PINGREQ)
    house.steps_until(lambda: have(subs[:1]) > 0)
    reached = have(subs)
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    still = have(subs)
    early = answered(pub, answer) or answered(pub, Pingresp)
    house.settle()

    assert 0 < reached <= still < CROWD
    assert not early
    assert have(subs) == CROWD
    assert answered(pub, answer) and answered(pub, Pingresp)


def test_messages_of_one_topic_reach_all_of_very_many_in_one_order() -> None:
    """What others publish to a topic waits until what came before has reached everybody."""
    house = SlicedHouse()
    subs = crowd(house)
    pubs = [house.connect(f"p{number}", V5) for number in range(3)]

    for number, pub in enumerate(pubs):
        house.hand_over(pub, publish(b"%d" % number, 1) + publish(b"%d" % (number + 3), 2))
    house.broker.publish(Message("t", b"6", qos=1))
    house.settle()
    orders = {tuple(payloads(sub)) for sub in subs}

    assert len(orders) == 1
    [order] = orders
    assert sorted(order) == [b"%d" % number for number in range(7)]
    assert all(order.index(b"%d" % number) < order.index(b"%d" % (number + 3)) for number in range(3))


def test_what_goes_out_as_it_came_does_not_overtake_a_message_to_very_many() -> None:
    """A QoS 0 packet that needs no look at it waits for its topic as any other does."""
    house = SlicedHouse()
    subs = crowd(house)
    quick, pub = house.connect("quick", V5), house.connect("pub", V5)
    quick.send_bytes(publish(b"0", 0, qos=0))
    quick.send_bytes(publish(b"0", 0, qos=0))

    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: b"1" in payloads(subs[0]))
    house.hand_over(quick, publish(b"2", 0, qos=0))
    house.settle()

    assert {tuple(payloads(sub)) for sub in subs} == {(b"0", b"0", b"1", b"2")}


def test_a_will_does_not_overtake_the_last_message_of_its_client() -> None:
    """Who says ``on`` and is gone is ``off``, to everybody, and to who comes later (MQTT-3.1.2-8)."""
    house = SlicedHouse()
    subs = crowd(house)
    pub = house.connect("pub", V5, will=ConnectWill("t", b"off", 1, True))

    house.hand_over(pub, publish(b"on", 1, retain=True))
    house.steps_until(lambda: have(subs[:1]) > 0)
    pub.connection.lost("gone")
    house.settle()

    assert {tuple(payloads(sub)) for sub in subs} == {(b"on", b"off")}
    assert payloads(house.connect("late", V5).subscribe("t", qos=1)) == [b"off"]


def test_another_topic_does_not_wait_for_very_many() -> None:
    """Only the topic's own messages do."""
    house = SlicedHouse()
    subs = crowd(house)
    pub, other = house.connect("pub", V5), house.connect("other", V5).subscribe("elsewhere", qos=1)

    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    house.hand_over(other, publish(b"2", 1, "elsewhere"))
    house.steps_until(lambda: have([other]) > 0)
    reached = have(subs)
    house.settle()

    assert reached < CROWD
    assert have(subs) == CROWD


def test_what_a_plugin_publishes_of_a_message_to_very_many_is_not_lost() -> None:
    """To the same topic, from within the delivery of the first."""

    class Echo:
        published = False

        @hookimpl
        def configure(self, context: Any) -> None:
            self.context = context

        @hookimpl
        def delivered(self, message: Message) -> None:
            if not self.published:
                self.published = True
                self.context.publish(Message("t", b"2", qos=1))

    house = SlicedHouse(plugins={"echo": Echo()})
    subs = crowd(house)
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.settle()

    assert {tuple(payloads(sub)) for sub in subs} == {(b"1", b"2")}


def test_who_unsubscribes_gets_nothing_after_its_unsuback() -> None:
    """MQTT-3.10.4-2, for those whom the message has not reached; who made another subscription gets it by that."""
    house = SlicedHouse()
    subs = crowd(house)
    left = [subs.pop() for _ in range(3)]
    changed = house.connect("changed", V5).subscribe("t", qos=1)
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    house.hand_over(changed, encode(Subscribe(9, (SubscribeRequest("t", 0),)), V5))
    for sub in left:
        house.hand_over(sub, encode(Unsubscribe(9, ("t",)), V5))
    house.steps_until(lambda: all(answered(sub, Unsuback) for sub in left))
    reached = have(subs)
    house.settle()

    assert reached < len(subs)
    assert have(left) == 0
    assert have([*subs, changed]) == len(subs) + 1
    assert [qos for _, _, qos in changed.messages] == [0]


def test_who_comes_or_goes_while_a_message_goes_to_very_many() -> None:
    """Who ended gets nothing, who came after it was published neither; who left its session behind has it there."""
    house = SlicedHouse()
    subs = crowd(house)
    ended, left = subs.pop(), house.connect("left", V5, expiry_s=60).subscribe("t", qos=1)
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    ended.connection.lost("gone")
    left.connection.lost("gone")
    late = house.connect("late", V5).subscribe("t", qos=1)
    house.settle()
    back = house.connect("left", V5, clean_start=False, expiry_s=60)

    assert have(subs) == CROWD - 1
    assert have([late, ended]) == 0
    assert have([back]) == 1


def test_a_message_that_expires_while_it_waits_for_its_topic_is_dropped() -> None:
    """MQTT-3.3.2-5: its delivery had not begun. Its publisher is answered as ever."""
    house = SlicedHouse()
    subs = crowd(house)
    first, second = house.connect("first", V5), house.connect("second", V5)
    brief = Publish.build("t", b"2", qos=1, packet_id=1, properties=Properties(message_expiry_interval=1))

    house.hand_over(first, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    house.hand_over(second, encode(brief, V5))
    house.steps_until(lambda: house.broker.runtime.statistics.messages_received.value == 2)
    house.clock.advance(1)
    house.settle()

    assert {tuple(payloads(sub)) for sub in subs} == {(b"1",)}
    assert [puback.reason for puback in second.of(Puback)] == [ReasonCode.SUCCESS]
    assert house.broker.runtime.statistics.dropped["expired"].value == 1


def test_who_may_not_receive_it_any_more_does_not() -> None:
    """Rights that change while a message is on its way hold for those whom it has not reached."""

    class Rights:
        def __init__(self) -> None:
            self.denied: set[str] = set()

        @hookimpl
        def authorize_receive(self, request: AuthorizationRequest) -> Any:
            # Not for good: it is asked for each message.
            decision = deny() if request.client.client_id in self.denied else ALLOW
            return Authorization(decision.verdict, decision.reason, cache=Cache.NEVER)

    rights = Rights()
    house = SlicedHouse(plugins={"rights": rights})
    subs = crowd(house)
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    rights.denied = {"s318", "s319"}
    house.settle()

    assert have(subs) == CROWD - 2
    assert have(subs[318:]) == 0


def test_a_message_to_very_many_reaches_them_though_its_publisher_is_gone() -> None:
    """It was taken over; nobody's copy hangs on the connection by which it came."""
    house = SlicedHouse()
    subs = crowd(house)
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    pub.connection.lost("gone")
    house.settle()

    assert have(subs) == CROWD


def test_a_message_of_qos_0_to_very_many_who_differ_goes_in_slices_too() -> None:
    """Where each has a packet of its own, here by its subscription identifier, each is much work."""
    house = SlicedHouse()
    subs = [
        house.connect(f"s{number}", V5).send(
            Subscribe(7, (SubscribeRequest("t"),), Properties(subscription_identifier=(number + 1,)))
        )
        for number in range(CROWD)
    ]
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 0, qos=0) + PINGREQ)
    house.steps_until(lambda: have(subs[:1]) > 0)
    reached = have(subs)
    house.settle()

    assert reached < CROWD
    assert have(subs) == CROWD


def test_members_of_shared_subscriptions_get_theirs_once() -> None:
    """After everybody else, one of each group."""
    house = SlicedHouse()
    subs = crowd(house)
    members = [house.connect(f"m{number}", V5).subscribe("$share/g/t", qos=1) for number in range(3)]
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.settle()

    assert have(subs) == CROWD
    assert have(members) == 1


# What is not kept


class Backend(SingleNode):
    """A cluster of which the test tells news."""

    def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
        self.news = listener
        super().start(node, listener)

    @hookimpl
    def cluster_backend(self, context: Any) -> Backend:
        return self


@pytest.mark.parametrize("client_id", ["s0", "s200", f"s{CROWD - 1}"], ids=["first", "middle", "last"])
def test_a_message_is_not_acknowledged_of_which_a_slice_was_not_kept(client_id: str) -> None:
    """Its publisher is sent away and sends it again (MQTT-4.4.0-1)."""
    store = Failing()
    house = SlicedHouse(plugins={"store": store})
    crowd(house, expiry_s=60)
    pub = house.connect("pub", V5)
    store.refuses = lambda write: isinstance(write, Append) and write.client_id == client_id

    house.hand_over(pub, publish(b"1", 1))
    house.settle()

    assert not answered(pub, Puback)
    assert answered(pub, DisconnectPacket)


@pytest.mark.parametrize("client_id", ["s0", "s200", f"s{CROWD - 1}"], ids=["first", "middle", "last"])
def test_a_message_for_a_session_that_another_broker_owns_is_not_acknowledged(client_id: str) -> None:
    """Whichever slice found that out; the others of the crowd have it."""

    class Owned(Failing):
        def apply(self, writes: Any) -> None:
            if any(isinstance(write, Append) and write.client_id == client_id for write in writes):
                super().apply([write for write in writes if write.client_id != client_id])
                raise Fenced({client_id})
            super().apply(writes)

    house = SlicedHouse(plugins={"store": Owned()})
    subs = crowd(house, expiry_s=60)
    pub = house.connect("pub", V5)

    house.hand_over(pub, publish(b"1", 1))
    house.settle()

    assert not answered(pub, Puback)
    assert pub.closed
    assert have(subs) == CROWD - 1


def test_a_message_is_not_acknowledged_that_could_not_be_retained_before_its_turn() -> None:
    """It waits for its topic, and what it is retained with is not kept meanwhile."""
    store = FailingRetaineds()
    house = SlicedHouse(plugins={"store": store})
    subs = crowd(house)
    first, second = house.connect("first", V5), house.connect("second", V5)

    house.hand_over(first, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    store.refuses = lambda write: True
    house.hand_over(second, publish(b"2", 1, retain=True))
    house.steps_until(lambda: second.closed)
    house.settle()

    assert not answered(second, Puback)


def test_a_message_to_very_many_is_acknowledged_when_a_slow_store_has_all_of_it() -> None:
    """Its slices' commits come in order, and the acknowledgement with the last of them."""
    store = SlowQueues()
    house = SlicedHouse(plugins={"store": store})
    crowd(house, expiry_s=60)
    pub = house.connect("pub", V5)
    store.writes.slow = True

    house.hand_over(pub, publish(b"1", 1))
    house.settle()
    early = answered(pub, Puback)
    store.writes.answer_all()
    house.settle()

    assert not early
    assert answered(pub, Puback)


def test_a_qos_2_message_of_a_kept_session_is_kept_for_all_or_nobody() -> None:
    """It comes again under its identifier where it was not kept: then nobody may have it (MQTT-4.3.3-2)."""
    store = Failing()
    house = SlicedHouse(plugins={"store": store})
    subs = crowd(house, expiry_s=60)
    pub = house.connect("pub", V5, expiry_s=60)
    store.refuses = lambda write: isinstance(write, Append) and write.client_id == "s319"

    house.hand_over(pub, publish(b"1", 1, qos=2))
    house.settle()

    assert not answered(pub, Pubrec)
    assert have(subs) == 0


def on_its_way() -> tuple[Backend, SlicedHouse, list[Peer]]:
    """A node of a cluster while a message is on its way to very many: another one to its topic has to wait."""
    backend = Backend()
    house = SlicedHouse(plugins={"cluster": backend})
    subs = crowd(house, expiry_s=60)
    house.hand_over(house.connect("pub", V5), publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    return backend, house, subs


def forwarded(backend: Backend, message: Message) -> list[object]:
    """Another node hands a message over: the list has the outcome once that node is told."""
    told: Any = backend.news.received(NodeIdentity("n2", 1), batch_of(message), True)
    fired: list[object] = []
    told.addBoth(fired.append)
    return fired


def test_another_nodes_messages_are_kept_before_it_is_told_so() -> None:
    """Also one that waits for another of its topic."""
    backend, house, subs = on_its_way()
    message = Message("t", b"2", 1, id=MessageId(9, 1), received_at=1.0)
    fired = forwarded(backend, message)
    house.steps_until(lambda: bool(fired))
    house.settle()

    assert fired == [b""]
    assert {tuple(payloads(sub)) for sub in subs} == {(b"1", b"2")}


def test_another_nodes_message_that_expires_while_it_waits_is_dropped() -> None:
    """MQTT-3.3.2-5: the other node is told that it is dealt with, as of any other."""
    backend, house, subs = on_its_way()
    now = house.clock.now()
    properties = Properties(message_expiry_interval=1)
    message = Message("t", b"2", 1, properties=properties, id=MessageId(9, 1), received_at=now, expires_at=now + 1)
    fired = forwarded(backend, message)
    house.clock.advance(1)
    house.steps_until(lambda: bool(fired))
    house.settle()

    assert fired == [b""]
    assert {tuple(payloads(sub)) for sub in subs} == {(b"1",)}
    assert house.broker.runtime.statistics.dropped["expired"].value == 1


def test_a_retained_message_that_waits_is_retained_when_its_turn_comes() -> None:
    """Who subscribes in between gets it once, as a live message: it has not been published yet."""
    house = SlicedHouse()
    subs = crowd(house)
    first, second = house.connect("first", V5), house.connect("second", V5)
    house.hand_over(first, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)

    house.hand_over(second, publish(b"2", 1, retain=True))
    late = house.connect("late", V5).subscribe("t", qos=1)
    house.settle()

    assert payloads(late) == [b"2"]
    assert payloads(house.connect("later", V5).subscribe("t", qos=1)) == [b"2"]


@pytest.mark.parametrize("more", [{}, {"expiry_s": 60}], ids=["on_commit_failed", "kept"])
def test_a_retained_will_that_waits_is_published_whole_or_again(more: dict[str, Any]) -> None:
    """A store that fails once keeps no part of it: it is retained with what it is published with."""
    store = FailingRetaineds()
    house = SlicedHouse(plugins={"store": store})
    subs = crowd(house)
    pub, other = house.connect("pub", V5, will=ConnectWill("t", b"off", 1, True), **more), house.connect("other", V5)
    pub.publish("t", b"on", 1, True)
    house.hand_over(other, publish(b"1", 1))
    house.steps_until(lambda: b"1" in payloads(subs[0]))
    refused: list[object] = []

    def refuses(write: Any) -> bool:
        if refused or write.message.payload != b"off":
            return False
        refused.append(write)
        return True

    store.refuses = refuses
    pub.drop()
    house.settle()
    house.advance(120)

    assert refused
    assert payloads(subs[0]) == [b"on", b"1", b"off"]
    assert payloads(house.connect("late", V5).subscribe("t", qos=1)) == [b"off"]


def test_a_qos_2_message_of_a_kept_session_does_not_wait() -> None:
    """Its identifier is taken from the moment it comes, and a repeat would be answered though nobody has it."""
    house = SlicedHouse()
    subs = crowd(house)
    first, pub = house.connect("first", V5), house.connect("pub", V5, expiry_s=60)
    house.hand_over(first, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)

    house.hand_over(pub, publish(b"2", 7, qos=2))
    pub.connection.lost("gone")
    house.settle()

    assert all(sorted(payloads(sub)) == [b"1", b"2"] for sub in subs)


def test_who_publishes_to_those_who_are_not_kept_hears_nothing_of_what_others_lose() -> None:
    """What another's message could not be kept with concerns that one alone."""
    store = Failing()
    house = SlicedHouse(plugins={"store": store})
    crowd(house)
    house.connect("kept", V5, expiry_s=60).subscribe("other", qos=1)
    one, two = house.connect("one", V5), house.connect("two", V5)
    store.refuses = lambda write: True

    house.hand_over(one, publish(b"1", 1))
    house.settle()
    house.hand_over(two, publish(b"2", 1, "other"))
    house.settle()

    assert not one.closed and answered(one, Puback)
    assert two.closed


# A model


def test_it_is_the_same_in_slices_and_at_once() -> None:
    """Whoever publishes, and whoever leaves the topic and comes back: one order, and nothing is there twice."""
    house = SlicedHouse()
    stays = crowd(house, 260)
    wavering = [house.connect(f"w{number}", V5).subscribe("t", qos=1) for number in range(3)]
    pubs = [house.connect(f"p{number}", V5) for number in range(3)]

    @given(st.lists(st.integers(0, 8), max_size=25))
    def examine(steps: list[int]) -> None:
        for peer in (*stays, *wavering):
            peer.packets.clear()
        sent: list[list[bytes]] = [[] for _ in pubs]
        for step in steps:
            if step < 3:
                payload = b"%d.%d" % (step, len(sent[step]))
                sent[step].append(payload)
                qos = len(sent[step]) % 2
                house.hand_over(pubs[step], publish(payload, len(sent[step]) if qos else 0, qos=qos))
            elif step < 6:
                sub = wavering[step - 3]
                house.hand_over(sub, encode(Unsubscribe(9, ("t",)), V5))
                house.hand_over(sub, encode(Subscribe(8, (SubscribeRequest("t", 1),)), V5))
            else:
                for _ in range(step):
                    house.step()
        house.settle()
        orders = {tuple(payloads(sub)) for sub in stays}

        assert len(orders) == 1
        [order] = orders
        assert sorted(order) == sorted(payload for each in sent for payload in each)
        for each in sent:
            assert [payload for payload in order if payload in each] == each
        for sub in wavering:
            got = payloads(sub)
            assert got == [payload for payload in order if payload in got]

    examine()


class Bringing:
    """A plugin that publishes as a source does."""

    context: Context

    @hookimpl
    def start(self, context: Context) -> None:
        self.context = context


def test_a_source_that_is_cancelled_while_it_waits_for_a_topic_blocks_nobody() -> None:
    """Messages that come later have their turn."""
    bringing = Bringing()
    house = SlicedHouse(plugins={"bringing": bringing})
    subs = crowd(house)
    pub = house.connect("pub", V5)
    house.hand_over(pub, publish(b"1", 1))
    house.steps_until(lambda: have(subs[:1]) > 0)
    waiting: Any = bringing.context.publish_acknowledged([Message("t", b"2", 1)])
    waiting.addErrback(lambda failure: None)
    waiting.cancel()
    house.hand_over(pub, publish(b"3", 2))
    house.settle()

    assert len(pub.of(Puback)) == 2
    assert {tuple(payloads(sub)) for sub in subs} == {(b"1", b"3")}
