"""The wheel that stands for a timer of each connection."""

from __future__ import annotations

import pytest

from core_harness.house import House
from kinmqtt.broker.keepalive import TimerWheel
from kinmqtt.mqtt.packets import V5, Connack, DisconnectPacket
from kinmqtt_spi.reasons import ReasonCode


class Asked:
    """Remembers when it was asked."""

    def __init__(self) -> None:
        self.seconds: list[int] = []

    def time_is_over(self, now: int) -> None:
        self.seconds.append(now)


def test_everybody_is_asked_in_their_second() -> None:
    """Whoever stands on the wheel is asked once, in its second, though others were missed."""
    wheel, early, late = TimerWheel(), Asked(), Asked()
    wheel.add(early, 2)
    wheel.add(late, 5)

    wheel.turn(4)
    wheel.turn(9)

    assert (early.seconds, late.seconds) == ([2], [5])


def test_a_second_that_is_gone_is_the_next() -> None:
    """Nobody is put where the wheel has been, and so forgotten."""
    wheel, asked = TimerWheel(), Asked()
    wheel.turn(7)

    assert wheel.add(asked, 3) == 8


def test_whoever_is_removed_is_not_asked() -> None:
    """One that steps down is not asked; stepping down twice does no harm."""
    wheel, asked = TimerWheel(), Asked()
    second = wheel.add(asked, 2)

    wheel.remove(asked, second)
    wheel.remove(asked, second)
    wheel.turn(3)

    assert (asked.seconds, len(wheel)) == ([], 0)


def test_a_connection_takes_one_place_and_gives_it_back() -> None:
    """A long keep alive does not keep a closed connection in memory."""
    house = House()
    clients = [house.connect(f"c{number}", keep_alive=60_000) for number in range(5)]
    assert len(house.broker.wheel) == 5

    for client in clients:
        client.drop()

    assert len(house.broker.wheel) == 0


def test_a_silent_client_is_disconnected() -> None:
    """A client that is silent for one and a half times its keep alive gets 0x8D [MQTT-3.1.2-22]."""
    house = House()
    client = house.connect("c", V5, keep_alive=10)

    house.advance(14)
    assert not client.closed
    house.advance(3)

    assert client.of(DisconnectPacket)[0].reason is ReasonCode.KEEP_ALIVE_TIMEOUT


def test_a_client_that_talks_stays() -> None:
    """Any packet counts as a sign of life."""
    house = House()
    client = house.connect("c", V5, keep_alive=10)

    for _ in range(10):
        house.advance(9)
        client.publish("a")

    assert not client.closed


def test_a_connection_that_says_nothing_is_closed() -> None:
    """Without a CONNECT in time a connection is closed, and nothing is sent on it."""
    house = House(connect_time_limit_s=5)
    peer = house.open(V5)

    house.advance(7)

    assert peer.closed
    assert peer.of(Connack) == []


@pytest.mark.parametrize("limit_s", [0.1, 0.5, 1.0, 1.4, 1.6, 2.5, 5.0])
@pytest.mark.parametrize("offset_s", [0.0, 0.25, 0.5, 0.99])
def test_the_time_to_connect_is_not_cut_short(limit_s: float, offset_s: float) -> None:
    """Wherever between two turns of the wheel it begins a connection has it in full, and two seconds more at most."""
    house = House(connect_time_limit_s=limit_s)
    house.advance(offset_s)
    peer = house.open(V5)

    house.clock.advance(limit_s)
    early = peer.closed
    house.clock.advance(2.01)

    assert (early, peer.closed) == (False, True)
