"""Wills that plugins make invalid: they are dropped, and their sessions end."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, a_will, payloads
from core_harness.stores import FailingSessions
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import Message, Properties, hookimpl
from kinmqtt_spi.reasons import ReasonCode


class UnfitWills:
    """A plugin that makes a message of each will that nobody can be sent."""

    @hookimpl
    def will_publishing(self, client: Any, message: Message) -> Message:
        return message.replace(topic="a/#")


@pytest.mark.parametrize("how", ["expired", "cut short", "clean start"])
def test_an_unfit_will_does_not_keep_its_session_alive(how: str) -> None:
    """Where a plugin makes something of a will that can't be published, the session still ends when it should."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions, "unfit": UnfitWills()})
    delay_s = 100 if how == "expired" else 30
    client = house.connect("a", V5, expiry_s=50, will=a_will("w", delay_s)).subscribe("t")

    if how == "cut short":
        leave = Properties(session_expiry_interval=0)
        client.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL, properties=leave)
    else:
        client.drop()
    if how == "clean start":
        house.connect("a", V5, clean_start=True)
    house.advance(100)

    session = house.broker.sessions.by_id.get("a")
    assert session is None or (how == "clean start" and not session.persistent)
    assert sessions.count() == 0


def test_a_will_of_which_a_plugin_makes_something_invalid_is_dropped() -> None:
    """As where the plugin raises: nobody gets what it was to change, and the session goes on without it."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions, "unfit": UnfitWills()})
    live = house.connect("live", V5).subscribe("w", qos=1)
    house.connect("a", V5, expiry_s=500, will=a_will("w", 2)).subscribe("t").drop()

    house.advance(20)

    assert payloads(live) == []
    assert sessions.due_wills(house.clock.now(), 10) == []
    assert "a" in house.broker.sessions.by_id
