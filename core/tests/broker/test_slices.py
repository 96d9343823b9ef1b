"""Long work is done in slices: packets of others are handled in between, and every order stays as it was."""

from __future__ import annotations

import pytest
from harness import House, Peer
from sliced import SlicedHouse
from stores import FailingSessions
from twisted.internet.defer import Deferred

from kinmqtt.broker.slices import SLICE_S, Slices
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import hookimpl
from kinmqtt_spi.reference.plugin import TurnableClock
from kinmqtt_spi.services.session import RemoveSubscriptions, SaveSubscriptions

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
    loop.clock.advance(SLICE_S)
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


# Reads


@pytest.mark.parametrize("version", [V311, V5])
def test_a_read_full_of_packets_leaves_others_their_turns(version: int) -> None:
    """Of 128,000 PINGREQ in one read some are answered before anybody else is heard, and all in the end."""
    house = SlicedHouse()
    flooding, other = house.connect("flooding", version), house.connect("other", version)

    house.hand_over(flooding, PINGREQ * 5000)
    at_once = len(flooding.connection.out)
    house.hand_over(other, PINGREQ)
    others = len(other.connection.out)
    house.settle()

    assert at_once < 50
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


def test_nothing_is_read_while_packets_of_a_read_wait() -> None:
    """The socket holds what comes meanwhile, and is read again when the read is carried out."""
    house = SlicedHouse()
    peer = house.connect("c")

    house.hand_over(peer, PINGREQ * 1000)
    meanwhile = peer.link.reading
    house.settle()

    assert not meanwhile
    assert peer.link.reading


def test_packets_behind_a_connect_wait_for_it_and_for_one_another() -> None:
    """Whatever comes in the read of a CONNECT is answered behind its CONNACK, in slices too (MQTT-3.2.0-1)."""
    house = SlicedHouse()
    peer = house.open(V311)

    house.hand_over(peer, bytes.fromhex("100d00044d5154540402000000") + b"\x01c" + PINGREQ * 3000)
    house.settle()

    assert type(peer.packets[0]).__name__ == "Connack"
    assert len(peer.of(Pingresp)) == 3000


def test_a_client_that_is_gone_in_the_middle_of_a_read_is_gone() -> None:
    """What is left of its read is not carried out."""
    house = SlicedHouse()
    sub = house.connect("sub").subscribe("t")
    pub = house.connect("pub")

    house.hand_over(pub, encode(Publish.build("t", b"x"), V311) * 2000)
    pub.drop()

    assert 0 < len(sub.messages) < 100


def test_without_haste_a_read_is_carried_out_at_once() -> None:
    """Slices are no matter of counts: where the clock stands still there is one."""
    house = House()
    peer = house.connect("c")

    peer.connection.receive(PINGREQ * 5000)

    assert len(peer.connection.out) == 5000


# SUBSCRIBE and UNSUBSCRIBE


def subscribe(*filters: str) -> bytes:
    """A SUBSCRIBE of MQTT 5."""
    return encode(Subscribe(7, tuple(map(SubscribeRequest, filters))), V5)


def unsubscribe(*filters: str) -> bytes:
    """An UNSUBSCRIBE of MQTT 5."""
    return encode(Unsubscribe(8, filters), V5)


def answered(peer: Peer, answer: type[object]) -> bool:
    """Whether a client has such an answer."""
    peer.collect()
    return bool(peer.of(answer))


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

    assert [type(each) for each in peer.packets] == [Disconnect]
    assert peer.closed
