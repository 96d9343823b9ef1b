"""Long work is done in slices: packets of others are handled in between, and every order stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, Peer
from core_harness.sliced import SlicedHouse, answered
from core_harness.stores import Failing, FailingSessions, Retaineds
from kinmqtt.broker.turn.slices import FIRST_SLICE_S, SLICE_S, Slices
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Connack,
    ConnectWill,
    DisconnectPacket,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import Message, Properties, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.queue import Append
from kinmqtt_spi.services.session import DiscardSession, RemoveSubscriptions, SaveSubscriptions

PINGREQ = b"\xc0\0"


# Slices


class Loop:
    """An event loop and its clock."""

    def __init__(self) -> None:
        self.clock = TurnableClock()
        self.soon: list[object] = []
        self.slices = Slices(self.soon.append, self.clock.monotonic)

    def turn(self) -> None:
        """Make all calls that were asked for until now."""
        calls, self.soon[:] = self.soon[:], []
        for call in calls:
            call()  # type: ignore[operator]


def test_a_slice_is_over_when_its_time_is() -> None:
    """It begins when the clock is first asked after the event loop has called."""
    loop = Loop()
    loop.slices.begin()

    first = loop.slices.is_over()
    loop.clock.advance(FIRST_SLICE_S)
    second = loop.slices.is_over()
    loop.slices.begin()
    third = loop.slices.is_over()

    assert (first, second, third) == (False, True, False)


def test_everybody_has_a_turn_in_order() -> None:
    """One call of the event loop serves who waits, first come, first served, until the slice is over."""
    loop = Loop()
    served: list[str] = []

    async def work(name: str) -> None:
        for _ in range(2):
            await loop.slices.turn()
            served.append(name)
            loop.clock.advance(SLICE_S / 2)

    for name in "abc":
        Deferred.fromCoroutine(work(name))
    turns = []
    while loop.soon:
        loop.turn()
        turns.append("".join(served))
        served.clear()

    assert turns == ["ab", "ca", "bc"]


@pytest.mark.parametrize(
    ("hurries", "cost", "slices_s"),
    [
        (False, 0.1, 0.008),
        (False, 3.0, 0.004),
        (False, 100.0, 0.0005),
        (True, 0.1, 0.0035),
        (True, 3.0, 0.00175),
        (True, 100.0, 0.0005),
    ],
)
def test_a_slice_leaves_time_for_what_it_leads_to(hurries: bool, cost: float, slices_s: float) -> None:
    """With what is committed and sent it takes 16 ms, or 7 where others wait, by what the slice before has shown."""
    loop = Loop()
    slices = loop.slices
    slices.begin()
    slices.is_over()
    loop.clock.advance(0.0075)

    slices.begin_sending()
    loop.clock.advance(max(0.0075 * cost, 0.009))
    slices.end_sending(behind=False)
    if cost < 1:
        for _ in range(50):
            slices.begin()
            slices.is_over()
            loop.clock.advance(0.001)
            slices.begin_sending()
            slices.end_sending(behind=False)
    slices.begin()
    if hurries:
        slices.hurry()
    slices.is_over()
    loop.clock.advance(slices_s - 0.00001)
    before = slices.is_over()
    loop.clock.advance(0.00002)
    after = slices.is_over()

    assert (before, after) == (False, True)


def test_who_waits_alone_has_as_long_as_who_was_first() -> None:
    """What is done in one go costs less, and nobody else is kept waiting."""
    loop = Loop()
    over: list[bool] = []

    def work(advance_s: float) -> None:
        loop.clock.advance(advance_s)
        over.append(loop.slices.is_over())

    loop.slices.later(lambda: work(FIRST_SLICE_S - 0.001))
    loop.turn()
    for _ in range(2):
        loop.slices.later(lambda: work(SLICE_S + 0.0001))
    loop.turn()

    assert over == [False, True]


def test_slices_grow_again_when_they_lead_to_little() -> None:
    """One turn that took long, whatever the reason, is forgotten after some that did not."""
    loop = Loop()
    slices = loop.slices

    def slice_of(gathered_s: float, ending_s: float) -> bool:
        slices.begin()
        slices.is_over()
        loop.clock.advance(gathered_s)
        was_over = slices.is_over()
        slices.begin_sending()
        loop.clock.advance(ending_s)
        slices.end_sending(behind=False)
        return was_over

    slice_of(0.001, 0.1)
    shortened = slice_of(0.002, 0)
    later = [slice_of(0.002, 0) for _ in range(50)]

    assert shortened
    assert later[0]
    assert not later[-1]


def test_a_turn_in_which_nobody_asked_says_nothing() -> None:
    """The small packets of every day cost no look at the clock, and what their turn waits for is no slice's cost."""
    loop = Loop()
    loop.slices.begin()
    loop.slices.begin_sending()
    loop.clock.advance(1)
    loop.slices.end_sending(behind=False)
    loop.slices.begin()
    loop.slices.is_over()
    loop.clock.advance(FIRST_SLICE_S - 0.001)

    assert not loop.slices.is_over()


def test_no_slice_begins_before_what_earlier_ones_led_to_has_been_sent() -> None:
    """Else what is to be sent would grow without bound."""
    loop = Loop()
    served: list[str] = []

    def turn(behind: bool) -> bool:
        loop.slices.begin()
        loop.turn()
        is_over = loop.slices.is_over()
        loop.slices.begin_sending()
        loop.slices.end_sending(behind)
        return is_over

    turn(behind=True)
    loop.slices.later(lambda: served.append("work"))
    over = turn(behind=True)
    while_behind = [*served]
    turn(behind=False)
    turn(behind=False)

    assert over
    assert while_behind == []
    assert served == ["work"]


def test_what_is_behind_has_slices_of_its_own() -> None:
    """To send goes on for a slice, also where nothing else may."""
    loop = Loop()
    loop.slices.begin_sending()
    loop.slices.end_sending(behind=True)
    loop.slices.begin()
    loop.slices.begin_sending()

    first = loop.slices.is_over()
    loop.clock.advance(SLICE_S / 2)
    second = loop.slices.is_over()
    loop.clock.advance(FIRST_SLICE_S)
    third = loop.slices.is_over()

    assert (first, second, third) == (False, False, True)


# Reads


@pytest.mark.parametrize("version", [V311, V5])
def test_a_read_full_of_packets_leaves_others_their_turns(version: int) -> None:
    """Of 128,000 PINGREQ in one read some are answered before anybody else is heard, and all in the end."""
    house = SlicedHouse()
    flooding, other = house.connect("flooding", version), house.connect("other", version)

    house.hand_over(flooding, PINGREQ * 5000)
    at_once = len(flooding.connection.turn_buffer.packets)
    house.hand_over(other, PINGREQ)
    others = len(other.connection.turn_buffer.packets)
    house.settle()

    assert at_once < 100
    assert others == 1
    assert len(flooding.of(Pingresp)) == 5000
    assert len(other.of(Pingresp)) == 1


def test_packets_keep_their_order_over_slices() -> None:
    """What comes while a read is under way waits behind it (MQTT-4.6.0-6)."""
    house = SlicedHouse()
    sub = house.connect("sub").subscribe("t", qos=1)
    pub = house.connect("pub")

    def packets(first: int, last: int) -> bytes:
        return b"".join(
            encode(Publish.build("t", b"%d" % number, qos=1, packet_id=number), V311) for number in range(first, last)
        )

    house.hand_over(pub, packets(1, 500))
    house.step()
    house.hand_over(pub, packets(500, 900))
    house.settle()

    assert [int(payload) for _, payload, _ in sub.messages] == list(range(1, 900))


def test_a_violation_behind_many_packets_is_found_when_its_turn_comes() -> None:
    """The good packets before it are carried out first (section 4.13.1)."""
    house = SlicedHouse()
    sub = house.connect("sub").subscribe("t")
    pub = house.connect("pub")

    house.hand_over(pub, encode(Publish.build("t", b"x"), V311) * 2000 + b"\xff\xff\xff\xff\xff")
    early = pub.closed
    house.settle()

    assert not early
    assert len(sub.messages) == 2000
    assert pub.closed


def test_little_is_read_while_packets_of_a_read_wait() -> None:
    """The socket holds what comes beyond 128 KiB, and is read again when the read is carried out."""
    house = SlicedHouse()
    peer = house.connect("c")

    house.hand_over(peer, PINGREQ * 1000)
    little = peer.link.reading
    house.hand_over(peer, PINGREQ * 70_000)
    much = peer.link.reading
    house.settle()

    assert little
    assert not much
    assert peer.link.reading
    assert len(peer.of(Pingresp)) == 71_000


def test_packets_behind_a_connect_wait_for_it_and_for_one_another() -> None:
    """Whatever comes in the read of a CONNECT is answered behind its CONNACK, in slices too (MQTT-3.2.0-1)."""
    house = SlicedHouse()
    peer = house.open(V311)

    house.hand_over(peer, bytes.fromhex("100d00044d5154540402000000") + b"\x01c" + PINGREQ * 3000)
    house.settle()

    assert type(peer.packets[0]).__name__ == "Connack"
    assert len(peer.of(Pingresp)) == 3000


def test_what_a_client_has_sent_before_it_is_gone_is_carried_out() -> None:
    """In slices as at once: what came before its end came."""
    house = SlicedHouse()
    sub = house.connect("sub").subscribe("t")
    pub = house.connect("pub")

    house.hand_over(pub, encode(Publish.build("t", b"x"), V311) * 2000)
    early = len(sub.messages)
    pub.drop()
    house.settle()

    assert early < 100
    assert len(sub.messages) == 2000
    assert house.broker.connections == {sub.connection}


def test_a_disconnect_that_waits_for_its_turn_takes_the_will_away() -> None:
    """MQTT-3.14.4-3, also where its client has closed before the turn came."""
    house = SlicedHouse()
    many = [house.connect(f"s{number}", V5).subscribe("t") for number in range(300)]
    sub = house.connect("sub", V5).subscribe("d").subscribe("w")
    leaves = house.connect("leaves", V5, will=ConnectWill("w", b"dead", 0, False))
    pub = house.connect("pub", V5)

    house.hand_over(pub, encode(Publish.build("t", b"1"), V5))
    house.step()
    house.hand_over(leaves, encode(Publish.build("d", bytes(1500)), V5) + encode(DisconnectPacket(), V5))
    leaves.connection.lost("closed")
    house.settle()

    assert [topic for topic, _, _ in sub.messages] == ["d"]
    assert all(peer.messages for peer in many)


def test_a_flood_of_small_packets_reaches_everybody() -> None:
    """Who is late is served before who has something new, and nothing is read until those who get little have it."""
    house = SlicedHouse()
    subs = [house.connect(f"s{number}", V5, silent=True).subscribe("t") for number in range(320)]
    pub, new = house.connect("pub", V5), house.open(V5)
    connect = bytes.fromhex("101000044d5154540502003c00") + b"\x00\x03new"

    for number in range(200):
        house.hand_over(pub, encode(Publish.build("t", b"%d" % number), V5))
        if number == 50:
            house.hand_over(new, connect)
        for _ in range(len(house._soon)):
            house.step()
        house.clock.advance(0)
    counts = []
    for sub in subs:
        sub.collect()
        counts.append(len(sub.messages))

    assert min(counts) > 0
    assert max(counts) - min(counts) <= 3
    assert answered(new, Connack)
    assert max(len(sub.connection.turn_buffer.packets) for sub in subs) <= 3


def test_a_large_packet_is_carried_out_in_a_turn_of_its_own() -> None:
    """To read it and to put it together was enough for one; what its client sent behind it still comes behind it."""
    house = SlicedHouse()
    sub, pub = house.connect("sub", V5).subscribe("t", qos=1), house.connect("pub", V5)
    packet = encode(Publish.build("t", bytes(1 << 20), qos=1, packet_id=1), V5)

    for start in range(0, len(packet), 1 << 18):
        house.hand_over(pub, packet[start : start + (1 << 18)])
    held_bytes = pub.connection.inbound_bytes
    house.hand_over(pub, encode(Publish.build("t", b"next", qos=1, packet_id=2), V5))
    early = [*pub.packets]
    house.settle()

    assert held_bytes >= len(packet)
    assert not any(isinstance(each, Puback) for each in early)
    assert [answer.packet_id for answer in pub.of(Puback)] == [1, 2]
    assert [payload for _, payload, _ in sub.messages] == [bytes(1 << 20), b"next"]


def test_without_haste_a_read_is_carried_out_at_once() -> None:
    """Slices are no matter of counts: where the clock stands still there is one."""
    house = House()
    peer = house.connect("c")

    peer.connection.receive(PINGREQ * 5000)

    assert len(peer.connection.turn_buffer.packets) == 5000


# SUBSCRIBE and UNSUBSCRIBE


def subscribe(*filters: str) -> bytes:
    """A SUBSCRIBE of MQTT 5."""
    return encode(Subscribe(7, tuple(map(SubscribeRequest, filters))), V5)


def unsubscribe(*filters: str) -> bytes:
    """An UNSUBSCRIBE of MQTT 5."""
    return encode(Unsubscribe(8, filters), V5)


MANY = [f"t/{number}" for number in range(300)]


def test_others_are_served_while_many_filters_are_subscribed_to() -> None:
    """Nobody waits for a SUBSCRIBE of hundreds of filters but its client, whose SUBACK answers all, in order."""
    house = SlicedHouse()
    greedy, other = house.connect("greedy", V5), house.connect("other", V5)
    granted = [*MANY[:100], "bad/#/filter", *MANY[100:]]

    house.hand_over(greedy, subscribe(*granted) + PINGREQ)
    house.steps_until(lambda: house.broker.router.index.count() > 0)
    made = house.broker.router.index.count()
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    early = answered(greedy, Suback) or answered(greedy, Pingresp)
    house.settle()

    assert 0 < made < 50
    assert not early
    assert greedy.granted == [0] * 100 + [0x8F] + [0] * 200
    assert len(greedy.of(Pingresp)) == 1


def test_others_are_served_while_many_filters_are_unsubscribed_from() -> None:
    """The same of an UNSUBSCRIBE, whose UNSUBACK answers all in order (MQTT-3.11.3-1)."""
    house = SlicedHouse()
    greedy, other = house.connect("greedy", V5), house.connect("other", V5)
    greedy.send_bytes(subscribe(*MANY))

    house.hand_over(greedy, unsubscribe(*MANY[:100], "none", *MANY[100:]))
    house.steps_until(lambda: house.broker.router.index.count() < 300)
    left = house.broker.router.index.count()
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    early = answered(greedy, Unsuback)
    house.settle()

    assert 250 < left < 300
    assert not early
    assert greedy.given_up == [0] * 100 + [0x11] + [0] * 200


def test_a_client_that_is_gone_in_the_middle_of_a_subscribe_leaves_nothing() -> None:
    """What is left of its filters is not subscribed to."""
    house = SlicedHouse()
    greedy = house.connect("greedy", V5)

    house.hand_over(greedy, subscribe(*MANY))
    house.steps_until(lambda: house.broker.router.index.count() > 0)
    greedy.drop()

    assert house.broker.router.index.count() == 0
    assert greedy.of(Suback) == []


def test_a_subscription_over_the_bound_is_the_last_that_plugins_hear_of() -> None:
    """Where a client has as many as it may, what is behind in the packet gets 0x97 and costs nobody anything."""
    asked: list[str] = []

    class Asked:
        @hookimpl
        def authorize(self, request: object) -> None:
            asked.append(request.topic)  # type: ignore[attr-defined]

    house = House(plugins={"asked": Asked()}, max_subscriptions=2)
    peer = house.connect("c", V5)

    peer.send_bytes(subscribe("a", "b", "c", "d", "a", "e"))

    assert peer.granted == [0, 0, 0x97, 0x97, 0, 0x97]
    assert asked == ["a", "b", "c", "a"]


@pytest.mark.parametrize("packet", ["subscribe", "unsubscribe"])
def test_nothing_is_acknowledged_of_which_an_earlier_slice_was_not_kept(packet: str) -> None:
    """A request over several turns is answered when the writes of all are kept; else its client is sent away."""
    store = FailingSessions()
    house = SlicedHouse(plugins={"store": store})
    peer = house.connect("c", V5, expiry_s=60)
    if packet == "unsubscribe":
        peer.send_bytes(subscribe(*MANY))
    peer.packets.clear()
    refused: list[object] = []

    def refuses(write: object) -> bool:
        """Whether this is the first batch, which has the first filter."""
        if refused or not isinstance(write, SaveSubscriptions | RemoveSubscriptions):
            return False
        refused.append(write)
        return True

    store.refuses = refuses
    house.hand_over(peer, subscribe(*MANY) if packet == "subscribe" else unsubscribe(*MANY))
    house.settle()

    assert [type(each) for each in peer.packets] == [DisconnectPacket]
    assert peer.closed


# Ends


def many_filters(house: SlicedHouse, client_id: str, count: int, **more: Any) -> Peer:
    """A client with that many subscriptions, each to its own topic, and one to a topic of all."""
    peer = house.connect(client_id, V5, **more)
    return peer.send_bytes(subscribe("all", *(f"{client_id}/{number}" for number in range(count - 1))))


@pytest.mark.parametrize("more", [{}, {"expiry_s": 1}], ids=["on_commit_failed", "kept"])
def test_the_end_of_a_session_with_many_subscriptions_leaves_others_their_turns(more: dict[str, int]) -> None:
    """They are removed in slices, and from the first moment on nothing comes for the session any more."""
    house = SlicedHouse()
    huge = many_filters(house, "huge", 300, **more)
    pub = house.connect("pub", V5)
    pub.publish("all", b"1")

    huge.link.closed = True
    huge.connection.lost("gone")
    if more:
        house.settle()
        house.clock.advance(3)
    counts = house.broker.router.index.count
    house.steps_until(lambda: counts() < 300)
    left = counts()
    ended = house.broker.sessions.get("huge") is None
    house.hand_over(pub, encode(Publish.build("all", b"2", qos=1, packet_id=1), V5))
    house.steps_until(lambda: answered(pub, Puback))
    meanwhile = counts()
    house.settle()

    assert ended
    assert 250 < left < 300
    assert 200 < meanwhile < 300
    assert [int(each.reason) for each in pub.of(Puback)] == [0x10]
    assert counts() == 0
    assert len(house.broker.sessions.by_id) == 1


def test_a_client_that_comes_again_waits_until_its_former_subscriptions_are_removed() -> None:
    """What belongs to its new session is not removed with what belonged to the old one."""
    house = SlicedHouse()
    many_filters(house, "huge", 300).link.lingers = True
    pub = house.connect("pub", V5)

    again = house.open(V5)
    house.hand_over(again, bytes.fromhex("101100044d5154540502000000") + b"\0\4huge" + subscribe("all", "huge/250"))
    house.settle()
    pub.publish("all", b"1").publish("huge/250", b"2").publish("huge/251", b"3")

    assert again.granted == [0, 0]
    assert [payload for _, payload, _ in again.messages] == [b"1", b"2"]
    assert house.broker.router.index.count() == 2


def test_a_kept_session_that_could_not_be_ended_has_its_subscriptions() -> None:
    """Where a store does not keep that it is over, all is as if nothing had been."""
    store = FailingSessions()
    house = SlicedHouse(plugins={"store": store})
    many_filters(house, "huge", 300, expiry_s=1).drop()
    store.refuses = lambda write: isinstance(write, DiscardSession)
    house.advance(3)
    pub = house.connect("pub", V5)
    before = house.broker.router.index.count()

    pub.publish("all", b"1", qos=1)
    store.refuses = lambda write: False
    house.advance(3)
    pub.publish("all", b"2", qos=1)

    assert before == 300
    assert [int(each.reason) for each in pub.of(Puback)] == [0, 0x10]
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("kept", [False, True])
def test_wills_of_many_are_published_in_slices(kept: bool) -> None:
    """Each of them once, and others are served in between (MQTT-3.1.2-8)."""
    house = SlicedHouse()
    sub, other = house.connect("sub").subscribe("will/#", 1), house.connect("other")
    more: dict[str, Any] = {"expiry_s": 60} if kept else {}
    peers = [house.connect(f"c{n}", V5, will=ConnectWill(f"will/{n}", b"gone", 1, True), **more) for n in range(100)]

    for peer in peers:
        peer.link.closed = True
        peer.connection.lost("gone")
    house.step()
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    sub.collect()
    early = len(sub.messages)
    house.settle()

    assert early < 20
    assert sorted(sub.messages) == sorted((f"will/{n}", b"gone", 1) for n in range(100))


def test_wills_are_published_before_the_broker_stops() -> None:
    """What waits for its slice is done before the stores are closed."""
    store = Retaineds()
    house = SlicedHouse(plugins={"store": store})
    for number in range(100):
        house.connect(f"c{number}", V5, will=ConnectWill(f"will/{number}", b"gone", 1, True))

    house.result(house.broker.stop())

    assert len(store.match("will/#", None, 1000).messages) == 100


def test_many_keep_alives_of_one_second_leave_others_their_turns() -> None:
    """Thousands of clients whose network is gone are sent away in slices (MQTT-3.1.2-22)."""
    house = SlicedHouse()
    other = house.connect("other")
    peers = [house.connect(f"c{n}", V5, keep_alive=5) for n in range(100)]

    house.clock.advance(9.0)
    early = sum(peer.closed for peer in peers)
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    meanwhile = sum(peer.closed for peer in peers)
    house.settle()

    assert early < 20
    assert meanwhile < 50
    assert all(peer.closed for peer in peers)
    assert not other.closed


def test_what_a_lost_member_held_is_given_in_slices() -> None:
    """Each message once, to the others of its group (section 4.8.2)."""
    house = SlicedHouse()
    first = house.connect("first", V5, silent=True, properties=Properties(receive_maximum=10))
    first.subscribe("$share/g/t", 1)
    pub = house.connect("pub", V5)
    for number in range(300):
        pub.publish("t", b"%d" % number, qos=1)
    second, other = house.connect("second", V5).subscribe("$share/g/t", 1), house.connect("other")

    first.link.closed = True
    first.connection.lost("gone")
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    second.collect()
    early = len(second.messages)
    house.settle()

    assert early < 50
    assert sorted(int(payload) for _, payload, _ in second.messages) == list(range(300))


def test_what_a_lost_member_held_comes_again_where_it_was_not_kept() -> None:
    """A kept member that should get it does when its store is well again."""
    store = Failing()
    house = SlicedHouse(plugins={"store": store})
    first = house.connect("first", V5, silent=True, properties=Properties(receive_maximum=10))
    first.subscribe("$share/g/t", 1)
    pub = house.connect("pub", V5)
    for number in range(300):
        pub.publish("t", b"%d" % number, qos=1)
    second = house.connect("second", V5, expiry_s=600).subscribe("$share/g/t", 1)
    refused: list[object] = []

    def refuses(write: object) -> bool:
        if not isinstance(write, Append) or len(refused) >= 3:
            return False
        refused.append(write)
        return True

    store.refuses = refuses

    first.drop()
    house.advance(10)

    assert refused
    assert {int(payload) for _, payload, _ in second.messages} == set(range(300))


def test_delayed_messages_of_one_second_are_published_in_slices() -> None:
    """All of them, in the order of their time, some in each turn of the event loop."""
    house = SlicedHouse()
    sub, pub = house.connect("sub").subscribe("d"), house.connect("pub", V5)
    for number in range(100):
        pub.publish("$delayed/5/d", b"%d" % number)

    house.advance(6)

    assert [int(payload) for _, payload, _ in sub.messages] == list(range(100))


# Output


def large(number: int) -> bytes:
    """A message of QoS 0 that does not go out at once."""
    return encode(Publish.build("t", b"%07d" % number + bytes(100_000)), V5)


def test_who_is_sent_little_does_not_wait_for_who_is_sent_much() -> None:
    """What goes to others is sent a little at a time, in the turns that follow, and is all sent in the end."""
    house = SlicedHouse()
    subs = [house.connect(f"s{number}", V5).subscribe("t") for number in range(20)]
    pub, other = house.connect("pub", V5), house.connect("other", V5)

    house.hand_over(pub, large(1))
    house.hand_over(other, PINGREQ)
    house.steps_until(lambda: answered(other, Pingresp))
    for sub in subs:
        sub.collect()
    early = sum(bool(sub.messages) for sub in subs)
    house.settle()
    for sub in subs:
        sub.collect()

    assert early < 20
    assert [len(sub.messages) for sub in subs] == [1] * 20


def test_what_is_large_is_not_copied_for_who_gets_it_in_a_later_turn() -> None:
    """It is handed on unjoined for as long as some of it is late."""
    house = SlicedHouse()
    subs = [house.connect(f"s{number}", V5).subscribe("t") for number in range(20)]
    pub = house.connect("pub", V5)
    turn = house.broker.runtime.turn

    house.hand_over(pub, large(1))
    house.steps_until(lambda: any(not sub.connection.turn_buffer.packets for sub in subs))
    late = [sub for sub in subs if sub.connection.turn_buffer.packets]
    while_late = turn.has_large
    house.settle()

    assert late
    assert while_late
    assert not turn.has_large


def test_a_slow_client_is_relieved_when_its_socket_takes_all_in_slices() -> None:
    """The socket has nothing more to tell then: who has sent the rest sees to it that the client is read again."""
    house = SlicedHouse(outbound_buffer_bytes=1_000_000)
    sub = house.connect("sub", V5).subscribe("t")
    write = sub.link.write
    takes = [False]

    def write_little(data: bytes) -> None:
        write(data)
        sub.link.ready = takes[0]

    sub.link.write = write_little  # type: ignore[method-assign]
    for number in range(60):
        house.broker.publish(Message("t", b"%07d" % number + bytes(100_000)))
    house.settle()
    slow = sub.connection.congested
    takes[0] = sub.link.ready = True
    sub.connection.drained()
    house.settle()
    house.broker.publish(Message("t", b"0000060"))
    house.settle()
    sub.collect()

    assert slow
    assert not sub.connection.congested
    assert sub.link.reading
    assert int(sub.messages[-1][1][:7]) == 60


def test_who_is_cut_while_more_is_to_be_sent_is_told_nothing() -> None:
    """A DISCONNECT in the middle of a packet would be part of it (section 2.1)."""
    house = SlicedHouse()
    sub = house.connect("sub", V5).subscribe("t")
    house.broker.publish(Message("t", bytes(3_000_000)))
    house.steps_until(lambda: sub.connection.waiting_bytes > 0)

    sub.connection.cut()
    house.settle()
    sub.collect()

    assert sub.closed
    assert sub.of(DisconnectPacket) == []
