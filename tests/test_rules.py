"""Rules in whole brokers: what they publish shares the fate of the message, and events reach them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import run_command
from core_harness.sinks import HangingSink
from kinmqtt.mqtt.packets import V5, Puback
from kinmqtt.testing import BrokerHarness
from kinmqtt_rules import Rules
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.bridge import SendSettings, SinkPlan
from kinmqtt_spi.services.outbox import OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context

HOT = """
[plugins.rules.hot]
sql = '''SELECT payload.temp AS t, clientid FROM "sensors/+/temp" WHERE payload.temp > 30'''
actions = [{ republish = { topic = "alarms/${clientid}", qos = 1 } }]
"""

TO_SINK = HOT.replace('{ republish = { topic = "alarms/${clientid}", qos = 1 } }', '{ sink = "sinks:out" }')


class Sinks:
    """A plugin with one sink, which only rules fill."""

    def __init__(self, **outbox: Any) -> None:
        self.sink = HangingSink()
        self.plan = SinkPlan(self.sink, (), OutboxSettings(**outbox), SendSettings(linger_s=0, batch=1))

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        return {"out": self.plan}


def house(config: str, **plugins: Any) -> BrokerHarness:
    """Return a broker with rules, and more plugins."""
    return BrokerHarness(plugins={"rules": Rules(), **plugins}, config=config)


def test_a_subscriber_gets_what_a_rule_publishes() -> None:
    """Before the publisher is acknowledged; a rule counts as a subscriber."""
    broker = house(HOT)
    alarms = broker.connect("watcher", V5).subscribe("alarms/#", qos=1)
    sensor = broker.connect("s7", V5)

    sensor.publish("sensors/a/temp", b'{"temp": 31}', qos=1).publish("sensors/a/temp", b'{"temp": 29}', qos=1)

    [(topic, payload, _)] = alarms.messages
    assert (topic, json.loads(payload)) == ("alarms/s7", {"t": 31, "clientid": "s7"})
    assert [packet.reason for packet in sensor.of(Puback)] == [ReasonCode.SUCCESS] * 2


def test_a_rule_fills_a_sink() -> None:
    """Named by its plugin; the publisher's client id goes along."""
    sinks = Sinks()
    broker = house(TO_SINK, sinks=sinks)
    broker.connect("s7", V5).publish("sensors/a/temp", b'{"temp": 31}', qos=1)
    sinks.sink.go_on()

    [item] = sinks.sink.taken

    assert json.loads(item.message.payload) == {"t": 31, "clientid": "s7"}
    assert (item.message.topic, item.message.publisher.client_id) == ("sensors/a/temp", "s7")
    assert item.message.id.counter


def test_a_full_sink_refuses_the_publisher() -> None:
    """Nobody is told that a message was taken which a rule must send on."""
    sinks = Sinks(max_messages=1, window=1, when_full=WhenFull.REFUSE)
    broker = house(TO_SINK, sinks=sinks)
    sensor = broker.connect("s7", V5)

    for _ in range(4):
        sensor.publish("sensors/a/temp", b'{"temp": 31}', qos=1)

    assert sensor.of(Puback)[-1].reason is ReasonCode.QUOTA_EXCEEDED


def test_a_missing_sink_stops_the_start() -> None:
    """With the rule, the action and the sinks that there are."""
    with pytest.raises(
        AssemblyError, match=r"rules.hot.actions\[0\]: no sink 'sinks:ou'; did you mean 'sinks:out'\?"
    ):
        house(TO_SINK.replace("sinks:out", "sinks:ou"), sinks=Sinks())


def test_rules_see_events_of_clients() -> None:
    """From the feed."""
    config = """
[plugins.rules.come]
sql = '''SELECT clientid, peerhost, proto_ver FROM "$events/client/connected"'''
actions = [{ republish = { topic = "come/${clientid}", qos = 1 } }]
[plugins.rules.gone]
sql = '''SELECT clientid, "by" FROM "$events/client_disconnected"'''
actions = [{ republish = { topic = "gone/${clientid}", qos = 1 } }]
"""
    broker = house(config)
    watcher = broker.connect("watcher", V5).subscribe("+/s7", qos=1)

    broker.connect("s7", V5).disconnect()
    broker.clock.advance(1)
    broker.settle()

    came, gone = [(topic, json.loads(payload)) for topic, payload, _ in watcher.messages]
    assert came[0] == "come/s7" and came[1]["proto_ver"] == 5
    assert gone == ("gone/s7", {"clientid": "s7", "by": "client"})


def test_rules_see_what_was_delivered() -> None:
    """But not their own messages."""
    config = """
[plugins.rules.told]
sql = '''SELECT clientid, from_clientid FROM "$events/message/delivered"'''
actions = [{ republish = { topic = "told" } }]
"""
    broker = house(config)
    watcher = broker.connect("watcher", V5).subscribe("#")

    broker.connect("s7", V5).publish("a", b"x")
    broker.settle()

    assert [(topic, payload) for topic, payload, _ in watcher.messages] == [
        ("a", b"x"),
        ("told", b'{"clientid":"watcher","from_clientid":"s7"}'),
    ]


def test_kinmqtt_check_tells_mistakes_in_rules(tmp_path: Path) -> None:
    """With file, line and column, and with line and column within the SQL."""
    (tmp_path / "kinmqtt.toml").write_text(HOT.replace("payload.temp > 30", "uppr(payload.temp) > 30"))

    done = run_command("check", "-c", "kinmqtt.toml", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "kinmqtt: kinmqtt.toml:3:7: plugins.rules.hot.sql: 1:64: unknown function 'uppr'; did you mean 'upper'?"
    ]
