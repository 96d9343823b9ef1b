"""The end of a connection: what it changes of the session, and what it leaves behind."""

from __future__ import annotations

import pytest

from core_harness.house import House
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Publish,
)
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize("how", ["takeover", "stop"])
def test_a_will_does_not_come_back_after_disconnect(how: str) -> None:
    """Whatever happens between DISCONNECT and the end of its turn [MQTT-3.14.4-3]."""
    house = House()
    sub = house.connect("s").subscribe("#")
    gone = house.connect("a", V5, will=ConnectWill("will", b"x"))
    again = house.open(V5)

    gone.connection.receive(encode(DisconnectPacket(), V5))
    if how == "takeover":
        again.connection.receive(encode(_connect("a"), V5))
        house.settle()
    else:
        house.result(house.broker.stop())

    assert sub.messages == []
    assert gone.of(DisconnectPacket) == []


def _connect(client_id: str) -> Connect:
    return Connect(
        version=V5, client_id=client_id, clean_start=True, keep_alive=0, will=None, username=None, password=None
    )


def test_a_dribble_is_no_sign_of_life() -> None:
    """Keep alive asks for packets, not for bytes [MQTT-3.1.2-22]."""
    house = House()
    peer = house.connect("a", V5, keep_alive=2)
    packet = encode(Publish.build("t", bytes(1000)), V5)

    for byte in packet[:10]:
        peer.send_bytes(bytes((byte,)))
        house.advance(1)

    assert peer.closed


def test_a_shorter_expiry_than_was_asked_for() -> None:
    """DISCONNECT may change what CONNECT asked for, whatever the broker made of it [MQTT-3.14.2-2]."""
    house = House(max_session_expiry_s=0)
    peer = house.connect("a", V5, expiry_s=100)

    peer.disconnect(properties=Properties(session_expiry_interval=50))

    assert peer.of(DisconnectPacket) == []


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
    assert list(house.broker.fanouts.cached) == ["elsewhere"]


def test_congestion_that_comes_with_the_end_is_none() -> None:
    """A connection that is closed waits for no client to take what it was sent last."""
    house = House()
    peer = house.connect("c", V5).subscribe("t")
    peer.connection.waiting_bytes = 1 << 30
    peer.link.ready = False
    peer.connection.send(b"\xd0\x00")

    peer.connection.fail(ReasonCode.UNSPECIFIED_ERROR, "an end")

    assert not peer.connection.congested
