"""Mistakes of brokers over such a store, as they show on the wire; test_known_defects.py of the plugin lists all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from core_harness.brokers import BrokerProcess, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, ConnectWill, DisconnectPacket, Puback, Publish
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisServer, redis_server
from spi_harness.processes import wait_until

KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=60)}

SETTINGS = """
[services]
session = "redis_session"
queue = "redis_session"
retain = "redis_session"
[plugins.redis_session]
socket = "%s"
timeout_s = 0.5
reconnect_max_s = 0.1
"""


@frozen
class Place:
    """Two brokers that share a Redis."""

    server: RedisServer
    one: BrokerProcess
    two: BrokerProcess


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Both are there."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(tmp_path / "redis", on_socket=True))
        settings = tmp_path / "kinmqtt.toml"
        settings.write_text(SETTINGS % server.socket, "utf-8")
        brokers = [stack.enter_context(running_broker("--config", str(settings))) for _ in range(2)]
        yield Place(server, *brokers)


def test_what_is_not_kept_is_not_acknowledged(place: Place) -> None:
    """While Redis stands still no PUBACK comes; the client is disconnected, sends again, and then one does."""
    with wire(place.one.port, "s", **KEPT) as sub:
        sub.subscribe("t", 1)
    with wire(place.one.port, "p") as pub:
        place.server.pause()
        pub.publish("t", b"x", 1, packet_id=1)
        answers = pub.rest()
    place.server.go_on()

    assert [type(answer) for answer in answers] == [DisconnectPacket]
    wait_until(lambda: _acknowledged(place.one), "it is kept again")
    with wire(place.one.port, "s", **KEPT) as sub:
        assert sub.expect(Publish).payload == b"x"


def _acknowledged(broker: BrokerProcess) -> bool:
    with wire(broker.port, "p") as pub:
        answer = pub.publish("t", b"x", 1, packet_id=1, dup=True).receive()
        return isinstance(answer, Puback) and answer.reason is ReasonCode.SUCCESS


def test_the_second_connection_takes_over_at_each_broker(place: Place) -> None:
    """Who comes again is let in, at the same broker and at another; the connection before is the one that ends."""
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(wire(broker.port, version=V5)) for broker in (place.one, place.one, place.two)
        )
        answers = [first.connect("c", **KEPT)]
        first.subscribe("t", 1)
        answers.append(second.connect("c", **KEPT))
        told: list[Any] = first.rest()
        answers.append(third.connect("c", **KEPT))
        # A broker does not hear of a claim at another; it is told by Redis as soon as it has something to keep.
        fenced: list[Any] = second.publish("t", b"of the second", 1, packet_id=1).rest()
        third.publish("t", b"of the third", 1, packet_id=1)
        came = [third.receive(), third.receive()]

    assert [answer.reason for answer in answers] == [ReasonCode.SUCCESS] * 3
    assert [answer.session_present for answer in answers] == [False, True, True]
    for packets in (told, fenced):
        assert [(type(each), each.reason) for each in packets] == [(DisconnectPacket, ReasonCode.SESSION_TAKEN_OVER)]
    assert {type(each) for each in came} == {Publish, Puback}
    assert [each.payload for each in came if isinstance(each, Publish)] == [b"of the third"]


def test_connack_denies_nothing_that_works(place: Place) -> None:
    """Retained messages, QoS 2, wildcards, shared subscriptions and the expiry that was asked for: none is denied."""
    with wire(place.one.port, version=V5) as client:
        answer = client.connect("c", **KEPT)
        granted = [client.subscribe(each, 2).reasons for each in ("t/#", "$share/g/t")]
        client.publish("t", b"x", 1, retain=True, packet_id=2)

    said = answer.properties
    assert said.retain_available in (None, True)
    assert said.maximum_qos in (None, 2)
    assert said.wildcard_subscription_available in (None, True)
    assert said.shared_subscription_available in (None, True)
    assert said.subscription_identifier_available in (None, True)
    assert said.session_expiry_interval in (None, 60)
    assert [[int(each) for each in reasons] for reasons in granted] == [[2], [2]]


def test_what_was_sent_and_not_acknowledged_comes_again(place: Place) -> None:
    """A message that waited for its client leaves Redis with its PUBACK, and not as it is sent."""
    with wire(place.one.port, "s", **KEPT) as sub:
        sub.subscribe("t", 1)
    with wire(place.one.port, "p") as pub:
        pub.publish("t", b"x", 1, packet_id=1).expect(Puback)
    came = []
    for broker in (place.one, place.two):
        with wire(broker.port, "s", **KEPT) as sub:
            came.append(sub.expect(Publish))
            sub.reset()

    with wire(place.two.port, "s", **KEPT) as sub:
        came.append(sub.expect(Publish))
        sub.send(Puback(came[-1].packet_id))
        wait_until(lambda: place.server.ask("hlen", "kinmqtt:{s}:d") == "0", "it has left Redis")
    with wire(place.one.port, "s", **KEPT) as sub:
        sub.ping()

    assert [(each.payload, each.dup) for each in came] == [(b"x", False), (b"x", True), (b"x", True)]


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_reset_publishes_the_will(place: Place, how: str) -> None:
    """However the socket ends without a DISCONNECT, the will is published, once."""
    with wire(place.one.port, "s") as sub:
        sub.subscribe("gone", 1)
        dying = Wire(place.one.port, V5)
        dying.connect("w", will=ConnectWill("gone", b"will", 1, False, Properties()), **KEPT)
        getattr(dying, how)()
        came = sub.expect(Publish)
        sub.send(Puback(came.packet_id)).ping()

    assert came.payload == b"will"
