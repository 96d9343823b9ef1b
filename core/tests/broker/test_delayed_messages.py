"""Delayed messages over slow and failing stores, and forged schedules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House, back, payloads
from core_harness.stores import FULL, Failing, FailingSessions, Retaineds, SlowRetaineds, SlowSessions
from kinmqtt.builtins.delayed import DelayedSettings
from kinmqtt.mqtt.packets import V5, ConnectWill
from kinmqtt_spi import Message, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.plain import to_plain

DELAYED = {"delayed": DelayedSettings()}


class LongStart:
    """A plugin whose start takes a second."""

    @hookimpl
    async def start(self, context: Any) -> None:
        over: Deferred[None] = Deferred()
        context.clock.later(1.0, lambda: over.callback(None))
        await over


@pytest.mark.parametrize("qos", [1, 2])
def test_a_delayed_message_whose_time_comes_before_it_is_known_not_to_be_kept(qos: int) -> None:
    """Its publisher sends it again: it is published once."""
    retained = SlowRetaineds()
    house = House(plugins={"retained": retained}, plugin_settings=DELAYED)
    live = house.connect("live", V5).subscribe("t", qos=2)
    retained.writes.slow = True
    pub = house.connect("pub", V5, expiry_s=60).publish("$delayed/1/t", b"x", qos=qos, packet_id=7)
    house.advance(2)
    while retained.writes.pending:
        retained.writes.answer(FULL)
    house.settle()
    retained.writes.slow = False

    back(house, "pub").publish("$delayed/1/t", b"x", qos=qos, packet_id=7, dup=True)
    house.advance(6)

    assert pub.closed
    assert payloads(live) == [b"x"]


def test_a_delayed_message_that_was_due_while_the_broker_was_down() -> None:
    """It is published when all sessions are there again, however long the start of another plugin takes."""
    retained = Retaineds()
    plugins = {"queues": Failing(), "sessions": FailingSessions(), "retained": retained}
    before = House(plugins=plugins, plugin_settings=DELAYED)
    before.connect("off", V5, expiry_s=600).subscribe("w", qos=2).drop()
    before.connect("pub", V5).publish("$delayed/5/w", b"later", qos=2)
    house = House(
        plugins={**plugins, "slow": LongStart()},
        plugin_settings=DELAYED,
        clock=TurnableClock(before.clock.now() + 10),
        order=("delayed", "slow"),
        start=False,
    )
    started: list[Any] = []

    Deferred.fromCoroutine(house.broker.start()).addBoth(started.append)
    house.settle()
    early = list(started)
    house.advance(5)

    assert (early, started) == ([], [None])
    assert payloads(back(house, "off")) == [b"later"]
    assert retained.match("$plugin/#").messages == ()


def test_a_delayed_message_waits_for_a_session_store_that_takes_its_time() -> None:
    """What was due while the broker was down is for every session there was, the last one restored included."""
    sessions = SlowSessions()
    plugins = {"queues": Failing(), "sessions": sessions, "retained": Retaineds()}
    before = House(plugins=plugins, plugin_settings=DELAYED)
    for number in range(3):
        before.connect(f"off{number}", V5, expiry_s=600).subscribe("w", qos=2).drop()
    before.connect("pub", V5).publish("$delayed/5/w", b"later", qos=2)
    clock = TurnableClock(before.clock.now() + 10)
    house = House(plugins=plugins, plugin_settings=DELAYED, clock=clock, start=False)
    sessions.claims.slow = True

    Deferred.fromCoroutine(house.broker.start())
    for _ in range(3):
        house.advance(2)
        sessions.claims.answer()
    sessions.claims.answer_all()
    house.advance(2)

    assert [payloads(back(house, f"off{number}")) for number in range(3)] == [[b"later"]] * 3


def forged(due: float) -> bytes:
    """A delayed message as the plugin keeps it, of somebody who may not publish it."""
    return json.dumps({"due": due, "message": to_plain(Message("secret/door", b"open", 0, False))}).encode()


@pytest.mark.parametrize("after_s", [-10, 60])
@pytest.mark.parametrize("how", ["will", "delayed"])
def test_no_client_writes_where_plugins_keep_values(how: str, after_s: int) -> None:
    """Neither with its will nor with a delayed message: a plugin would take it for its own after a restart."""
    retained = Retaineds()
    house = House(plugins={"retained": retained}, plugin_settings=DELAYED)
    value = forged(house.clock.now() + after_s)
    if how == "will":
        house.connect("evil", V5, will=ConnectWill("$plugin/delayed/k", value, 1, True)).drop()
    else:
        house.connect("evil", V5).publish("$delayed/1/$plugin/delayed/k", value, qos=1, retain=True)
    house.advance(3)
    kept = retained.match("$plugin/#").messages

    later = House(plugins={"retained": retained}, plugin_settings=DELAYED, clock=TurnableClock(house.clock.now()))
    everybody = later.connect("s").subscribe("#")
    later.advance(61)

    assert kept == ()
    assert everybody.messages == []
