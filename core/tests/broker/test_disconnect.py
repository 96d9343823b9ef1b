"""The end of a connection, by its client or by the broker."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from core_harness.house import House
from kinmqtt.broker.lifecycle import FAREWELL_LIMIT_S
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    ConnectWill,
    DisconnectPacket,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi import NO_PROPERTIES


def test_what_came_before_a_disconnect_is_answered() -> None:
    """SUBACK and PUBACK go out though DISCONNECT came in the same read [MQTT-3.8.4-1, MQTT-3.3.4-1]."""
    client = House().connect("c", V5)
    packets: list[Packet] = [
        Subscribe(1, (SubscribeRequest("a", 0),), NO_PROPERTIES),
        Publish.build("b", b"x", qos=1, packet_id=2),
        DisconnectPacket(),
    ]

    client.send_bytes(b"".join(encode(packet, V5) for packet in packets))

    assert (len(client.of(Suback)), len(client.of(Puback))) == (1, 1)
    assert client.closed


def test_nothing_after_a_disconnect_is_read() -> None:
    """A packet behind DISCONNECT is not carried out [MQTT-3.14.4-1]."""
    house = House()
    sub = house.connect("s").subscribe("a")
    client = house.connect("c", V5)

    client.send_bytes(encode(DisconnectPacket(), V5) + encode(Publish.build("a", b"x"), V5))

    assert sub.messages == []


def test_a_goodbye_counts_though_the_connection_is_lost_behind_it() -> None:
    """A network connection that ends right after DISCONNECT publishes no will [MQTT-3.14.4-3]."""
    house = House()
    sub = house.connect("s").subscribe("wills")
    client = house.connect("c", V5, will=ConnectWill("wills", b"x", 0, False, NO_PROPERTIES))

    client.connection.receive(encode(DisconnectPacket(), V5))
    client.drop()

    assert sub.messages == []


def test_the_broker_waits_for_its_last_words() -> None:
    """A stop is over when every client has them, or has had its time."""
    house = House()
    quick, slow = house.connect("a", V5), house.connect("b", V5)
    slow.link.lingers = True

    stopped = Deferred.fromCoroutine(house.broker.stop())
    house.settle()
    early = stopped.called
    house.advance(FAREWELL_LIMIT_S)

    assert int(quick.of(DisconnectPacket)[0].reason) == 0x8B
    assert (early, stopped.called) == (False, True)
