"""Long work is done in slices: packets of others are handled in between, and every order stays as it was."""

from __future__ import annotations

import pytest
from harness import House
from sliced import SlicedHouse
from twisted.internet.defer import Deferred

from kinmqtt.broker.slices import SLICE_S, Slices
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Pingresp, Publish
from kinmqtt_spi.reference.plugin import TurnableClock

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
