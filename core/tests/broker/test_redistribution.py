"""What a lost member of a shared subscription held, and who gets it (section 4.8.2)."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from core_harness.stores import SlowQueues
from kinmqtt.mqtt.packets import V5, Puback, Publish, Pubrel
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import OverflowPolicy

SHARE = "$share/g/t"


def _member(house: House, name: str, expiry_s: int | None = None, **more: Any) -> Peer:
    peer = house.connect(name, V5, expiry_s=expiry_s, clean_start=more.pop("clean_start", True), **more)
    return peer.subscribe(SHARE, qos=2)


def _payloads(peer: Peer) -> list[bytes]:
    return [payload for _, payload, _ in peer.messages]


@pytest.mark.parametrize("expiry_s", [None, 60], ids=["on_commit_failed", "kept"])
def test_unacknowledged_messages_go_to_another(expiry_s: int | None) -> None:
    """QoS 1: what the lost member had not acknowledged is given to one that is there."""
    house = House()
    lost = _member(house, "a", expiry_s, silent=True)
    house.connect("pub").publish("t", b"1", qos=1)
    other = _member(house, "b")

    lost.drop()

    assert _payloads(other) == [b"1"]
    assert house.broker.runtime.stores.queue.sizes("a").inflight == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("expiry_s", [None, 60], ids=["on_commit_failed", "kept"])
def test_waiting_messages_go_to_another(expiry_s: int | None, qos: int) -> None:
    """What had not been sent yet, of QoS 2 too."""
    house = House()
    lost = _member(house, "a", expiry_s, silent=True, properties=Properties(receive_maximum=1))
    pub = house.connect("pub")
    pub.publish("t", b"1", qos=2)
    for payload in (b"2", b"3"):
        pub.publish("t", payload, qos=qos)
    other = _member(house, "b")

    lost.drop()

    assert _payloads(other) == [b"2", b"3"]
    assert house.broker.runtime.stores.queue.sizes("a").queued == 0


def test_a_qos_2_exchange_stays_with_its_member() -> None:
    """One that has begun is ended with the same client when it comes back [MQTT-4.8.2-4]."""
    house = House()
    lost = _member(house, "a", 60, silent=True)
    house.connect("pub").publish("t", b"1", qos=2)
    other = _member(house, "b")

    lost.drop()
    again = house.connect("a", V5, clean_start=False, expiry_s=60)

    assert _payloads(other) == []
    assert _payloads(again) == [b"1"]
    assert again.of(Publish)[0].dup
    assert len(again.of(Pubrel)) == 1


def test_a_qos_2_exchange_ends_with_its_member() -> None:
    """Where the session ends first, nobody else gets the message [MQTT-4.8.2-5]."""
    house = House()
    lost = _member(house, "a", 10, silent=True)
    house.connect("pub").publish("t", b"1", qos=2)
    other = _member(house, "b")

    lost.drop()
    house.advance(12)

    assert _payloads(other) == []


def test_a_refused_message_goes_to_nobody_else() -> None:
    """A member that answers with a failing reason has spoken for all [MQTT-4.8.2-6]."""
    house = House()
    refusing = _member(house, "a", silent=True)
    house.connect("pub").publish("t", b"1", qos=1)
    other = _member(house, "b")

    refusing.send(Puback(1, ReasonCode.UNSPECIFIED_ERROR)).drop()

    assert _payloads(other) == []


def test_where_all_are_away_it_waits_for_its_member() -> None:
    """A member that comes back finds what it was sent."""
    house = House()
    lost = _member(house, "a", 60, silent=True)
    _member(house, "b", 60).drop()
    house.connect("pub").publish("t", b"1", qos=1)

    lost.drop()

    assert _payloads(house.connect("a", V5, clean_start=False, expiry_s=60)) == [b"1"]
    assert _payloads(house.connect("b", V5, clean_start=False, expiry_s=60)) == []


@pytest.mark.parametrize("how", ["expired", "clean start", "cut short"])
def test_what_waits_for_a_session_that_ends_is_for_others(how: str) -> None:
    """Also for members that are away: the last to hold it is gone for good."""
    house = House()
    lost = _member(house, "a", 10)
    _member(house, "b", 600).drop()
    if how == "cut short":
        lost.silent = True
        lost.link.blocked = True
    else:
        lost.drop()
    pub = house.connect("pub")
    pub.publish("t", b"1", qos=1)

    if how == "expired":
        house.advance(12)
    elif how == "clean start":
        house.connect("a", V5, clean_start=True)
    else:
        lost.disconnect(properties=Properties(session_expiry_interval=0))

    assert _payloads(house.connect("b", V5, clean_start=False, expiry_s=600)) == [b"1"]


def test_a_member_with_a_full_queue_passes_it_on() -> None:
    """Where a queue refuses by its policy, the next member is asked; only if all refuse is the publisher told."""
    house = House(max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    for name in ("a", "b"):
        _member(house, name, 60).drop()
    pub = house.connect("pub", V5)

    for _ in range(3):
        pub.publish("t", b"x", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == [0, 0, 0x97]
    for name in ("a", "b"):
        assert _payloads(house.connect(name, V5, clean_start=False, expiry_s=60)) == [b"x"]


def test_one_that_comes_back_meanwhile_keeps_its_own() -> None:
    """The queue of a member whose store is slow is left alone once the member is there again."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    _member(house, "a", 60, silent=True, properties=Properties(receive_maximum=1)).drop()
    pub = house.connect("pub")
    for payload in (b"1", b"2"):
        pub.publish("t", payload, qos=1)
    back = house.connect(
        "a", V5, clean_start=False, expiry_s=60, silent=True, properties=Properties(receive_maximum=1)
    )
    other = _member(house, "b")
    queues.reads.slow = True

    back.drop()
    queues.reads.slow = False
    again = house.connect("a", V5, clean_start=False, expiry_s=60)
    queues.reads.answer_all()
    house.settle()

    assert sorted(_payloads(other) + _payloads(again)) == [b"1", b"2"]
