"""Stores and event logs that fail: clients are notified, and the broker goes on."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import fail

from core_harness.house import House, back, payloads
from core_harness.stores import FULL, FailingSessions, SlowQueues, SlowRetaineds
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.services.event import Event
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import NodeIdentity

OTHER = NodeIdentity("other", 9)


class FailingEvents(MemoryEventLog):
    """An event log that the test can make fail."""

    def __init__(self) -> None:
        super().__init__(lambda delay_s, call: None)
        self.fails = False

    def append(self, events: Sequence[Event]) -> None:
        if self.fails:
            raise FULL
        super().append(events)

    @hookimpl
    def event_log(self) -> FailingEvents:
        return self


@pytest.mark.parametrize("retain", [False, True])
def test_an_event_log_that_fails_holds_up_nobody(retain: bool) -> None:
    """Nobody was promised an event: messages are kept, acknowledged and delivered all the same."""
    events = FailingEvents()
    house = House(plugins={"events": events})
    sub = house.connect("s", V5, expiry_s=600).subscribe("t", qos=1)
    pub = house.connect("pub", V5, expiry_s=600)
    events.fails = True

    pub.publish("t", b"x", qos=1, retain=retain)

    assert (pub.closed, sub.closed) == (False, False)
    assert payloads(sub) == [b"x"]


def test_an_error_that_a_turn_ends_with_does_not_end_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster backend that raises as it is told of a session's end harms nobody else."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions})
    lost = house.connect("a", V5, expiry_s=60).subscribe("t", qos=1)
    other = house.connect("b", V5).subscribe("z")
    sessions.claim("a", OTHER)
    calls: list[object] = []

    def broken(version: int, added: Sequence[Any], removed: Sequence[Any]) -> None:
        calls.append(removed)
        if removed:
            raise RuntimeError("cluster")

    monkeypatch.setattr(house.assembly.cluster, "routes_update", broken)
    try:
        lost.subscribe("u", qos=1)
    except RuntimeError:
        calls.append("the reactor got the error")
    monkeypatch.undo()
    house.connect("pub").publish("z", b"1")
    house.advance(3)

    assert any(calls)
    assert payloads(other) == [b"1"]


def test_a_retained_qos_2_message_that_another_store_did_not_keep() -> None:
    """Its publisher repeats it, and it is taken as new: delivered and retained once [MQTT-4.3.3-10]."""
    retained = SlowRetaineds()
    house = House(plugins={"retained": retained})
    live = house.connect("live", V5).subscribe("t", qos=2)
    retained.writes.slow = True
    pub = house.connect("pub", V5, expiry_s=60).publish("t", b"x", qos=2, retain=True, packet_id=7)
    retained.writes.answer(FULL)
    house.settle()
    retained.writes.slow = False

    back(house, "pub").publish("t", b"x", qos=2, retain=True, packet_id=7, dup=True)
    house.advance(3)

    assert pub.closed
    assert payloads(live) == [b"x"]
    assert len(retained.match("t").messages) == 1


def test_a_store_that_is_claimed_by_another_is_not_given_back() -> None:
    """A clean session that ends late gives back its own claim only, not that of a newer owner."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions})
    client = house.connect("a", V5)
    epoch = sessions.claim("a", OTHER).epoch
    sessions.apply([OpenSession(epoch, StoredSession("a", 60))])

    client.drop()

    assert sessions.claim("a", OTHER).previous_owner == OTHER
    assert sessions.count() == 1


class WithAReason(Exception):
    """An error of another library, which has a ``reason`` as those of TLS and of codecs have."""

    reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize("error", [WithAReason(), CancelledError(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("late", [False, True])
def test_whatever_a_store_raises_its_clients_are_told_and_the_broker_goes_on(
    error: BaseException, late: bool
) -> None:
    """Nobody waits for ever, and no later turn waits for one that failed."""

    class Raises(SlowQueues):
        broken = True

        def apply(self, writes: Sequence[Any]) -> Any:
            if not self.broken:
                return super().apply(writes)
            if late:
                return fail(error) if not isinstance(error, GeneratorExit) else fail(WithAReason())
            raise error

    queues = Raises()
    house = House(plugins={"queues": queues})
    queues.broken = False
    sub = house.connect("sub", V5, expiry_s=60).subscribe("t", qos=1)
    queues.broken = True

    pub = house.connect("pub", V5).publish("t", b"1", qos=1)
    queues.broken = False
    house.advance(3)
    again = back(house, "sub")
    house.connect("pub2", V5).publish("t", b"2", qos=1)

    assert (pub.closed, house.broker.runtime.turn.commits_under_way) == (True, 0)
    assert b"2" in payloads(again) + payloads(sub)
