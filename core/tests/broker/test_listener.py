"""The ways in: limits and authenticators of their own, and how many may come."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import V5, Connect, DisconnectPacket
from kinmqtt.settings import ListenerLimitSettings, ListenerSettings
from kinmqtt_spi import ALLOW, Decision, deny, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.metric import GaugeSample

DENIED = 0x87


class Says:
    """An authenticator with one answer."""

    def __init__(self, answer: Decision | None) -> None:
        self.answer = answer
        self.asked = 0

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision | None:
        self.asked += 1
        return self.answer


def _listener(*authenticators: str, **limits: object) -> ListenerSettings:
    return ListenerSettings(
        endpoint="1883",
        authenticators=authenticators or None,
        limits=ListenerLimitSettings(**limits),  # type: ignore[arg-type]
    )


def _comes_in(house: House, listener: str, client_id: str = "c", version: int = V5) -> Peer:
    peer = house.open(version, listener=listener)
    connect = Connect(
        version=version, client_id=client_id, clean_start=True, keep_alive=0, will=None, username="u", password=b"p"
    )
    return peer.send(connect)


def test_each_listener_asks_its_own_authenticators() -> None:
    """In its own order; a listener that names none asks all in the order of the settings."""
    yes, no = Says(ALLOW), Says(deny())
    house = House(
        plugins={"no": no, "yes": yes},
        order=("no", "yes"),
        listeners={
            "inner": _listener("yes"),
            "outer": _listener("no"),
            "both": _listener("yes", "no"),
            "all": _listener(),
        },
    )

    reasons = {name: int(_comes_in(house, name).connack.reason) for name in ("inner", "outer", "both", "all")}

    assert reasons == {"inner": 0, "outer": DENIED, "both": 0, "all": DENIED}


def test_anonymous_may_be_for_one_listener() -> None:
    """Named by one, it is asked there and nowhere else, though another plugin authenticates."""
    house = House(plugins={"no": Says(None)}, listeners={"inner": _listener("anonymous"), "outer": _listener()})

    assert int(_comes_in(house, "inner").connack.reason) == 0
    assert int(_comes_in(house, "outer").connack.reason) == DENIED


def test_a_certificate_may_be_enough() -> None:
    """Where a listener says so; a client without one is refused there."""
    house = House(listeners={"tls": _listener("certificate"), "plain": _listener()})
    peer = house.open(V5, listener="tls")
    peer.link.certificate_subject = "CN=sensor-1,O=example"
    peer.link.certificate_username = "sensor-1"

    peer.send(
        Connect(version=V5, client_id="c", clean_start=True, keep_alive=0, will=None, username="root", password=None)
    )
    without = _comes_in(house, "tls", "other")

    client = house.broker.client("c")
    assert client is not None
    assert (client.username, client.certificate_subject) == ("sensor-1", "CN=sensor-1,O=example")
    assert int(without.connack.reason) == DENIED


def test_nobody_is_let_in_by_a_certificate_unless_a_listener_says_so() -> None:
    """Installed with the core, it is out of use otherwise, and does not keep anonymous clients out."""
    house = House()

    assert "certificate" not in house.assembly.manager.active
    assert "anonymous" in house.assembly.manager.active


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"receive_maximum": 3}, {"receive_maximum": 3}),
        ({"max_packet_bytes": 100}, {"maximum_packet_size": 100}),
        ({"topic_alias_maximum": 2}, {"topic_alias_maximum": 2}),
        ({"max_keep_alive_s": 9}, {"server_keep_alive": 9}),
    ],
)
def test_each_listener_has_its_own_limits(limits: dict[str, int], told: dict[str, int]) -> None:
    """An MQTT 5 client is told those of the listener it came in by (section 3.2.2.3)."""
    house = House(listeners={"tight": _listener(**limits), "wide": _listener()})

    tight = _comes_in(house, "tight", "a").connack.properties.present
    wide = _comes_in(house, "wide", "b").connack.properties.present

    assert {name: tight[name] for name in told} == told
    assert {name: wide.get(name) for name in told} != told


def test_a_listeners_packet_size_holds() -> None:
    """What it promises it keeps: 0x95 [MQTT-3.2.2-15]."""
    house = House(listeners={"tight": _listener(max_packet_bytes=100), "wide": _listener()})
    tight, wide = _comes_in(house, "tight", "a"), _comes_in(house, "wide", "b")

    for peer in (tight, wide):
        peer.publish("t", bytes(100))

    assert [int(p.reason) for p in tight.of(DisconnectPacket)] == [ReasonCode.PACKET_TOO_LARGE]
    assert not wide.closed


def test_a_full_listener_takes_nobody_more() -> None:
    """Others do, and when somebody leaves there is room again."""
    house = House(listeners={"small": _listener(max_connections=1), "wide": _listener()})
    first = _comes_in(house, "small", "a")

    second = house.open(listener="small")
    assert second.closed
    assert not _comes_in(house, "wide", "b").closed
    second.drop()
    first.drop()

    assert not _comes_in(house, "small", "c").closed


def test_a_full_broker_takes_nobody_more() -> None:
    """By whichever listener; it is counted, and nobody else notices."""
    house = House(listeners={"a": _listener(), "b": _listener()}, max_connections=2)
    peers = [_comes_in(house, "a", "1"), _comes_in(house, "b", "2")]

    assert house.open(listener="a").closed
    assert house.broker.runtime.statistics.connections_refused.value == 1
    assert not any(peer.closed for peer in peers)


def test_each_listener_has_its_own_patience() -> None:
    """A connection that says nothing is closed when its listener's time is over [MQTT-3.1.0-1]."""
    house = House(listeners={"quick": _listener(connect_time_limit_s=2), "slow": _listener(connect_time_limit_s=8)})
    quick, slow = house.open(listener="quick"), house.open(listener="slow")

    house.advance(3)

    assert (quick.closed, slow.closed) == (True, False)


def test_connections_are_counted_by_listener() -> None:
    """For whoever watches the metrics."""
    house = House(listeners={"a": _listener(), "b": _listener()})
    _comes_in(house, "a", "1")
    _comes_in(house, "a", "2").drop()

    samples = house.assembly.metrics.snapshot(0.0, "test").samples
    gauges = [s for s in samples if isinstance(s, GaugeSample)]
    counted = {s.labels["listener"]: s.value for s in gauges if s.name == "listeners.connections"}

    assert counted == {"a": 1, "b": 0}
