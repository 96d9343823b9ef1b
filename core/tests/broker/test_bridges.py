"""Sinks and sources of a whole broker, over its outboxes: from PUBLISH to a sink, from a source to clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from core_harness.sinks import HangingSink
from kinmqtt.hooks.awaitables import run
from kinmqtt.mqtt.packets import V5, Puback
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.memory.bridge import ListSink
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.bridge import Item, Poison, Publish, SendSettings, SinkPlan, Source
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.plugin import Context, HealthState
from kinmqtt_spi.values import Message


class Bridges:
    """A plugin with the sinks and sources that a test gives it."""

    def __init__(self, **sinks: SinkPlan) -> None:
        self.plans = dict(sinks)
        self.origins: dict[str, Source] = {}

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        return self.plans

    @hookimpl
    def sources(self, context: Context) -> Mapping[str, Source]:
        return self.origins

    @hookimpl
    def reload(self, settings: Any) -> None:
        """Take what the test has changed."""


class OneSource(Source):
    """Publishes one message, and notes when that was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = 0

    async def run(self, publish: Publish) -> None:
        await publish([Message("from/source", b"x", 1)])
        self.acknowledged += 1
        await Deferred()


def plan_of(sink: ListSink, *filters: str, **sending: Any) -> SinkPlan:
    """Return a plan that sends at once."""
    return SinkPlan(sink, filters or ("a/#",), sending=SendSettings(linger_s=0, **sending))


def published(broker: BrokerHarness, *payloads: bytes) -> list[ReasonCode]:
    """Publish from a client, and return how that was answered."""
    client = broker.connect("p", V5)
    for payload in payloads:
        client.publish("a/b", payload, qos=1)
    broker.settle()
    return [packet.reason for packet in client.of(Puback)]


def payloads(sink: ListSink) -> list[bytes]:
    """Return what a sink has got."""
    return [item.message.payload for item in sink.taken]


def test_a_message_goes_by_the_outbox_to_the_sink() -> None:
    """The publisher is told that somebody gets it, and the outbox is empty when the sink has it."""
    sink = ListSink()
    broker = BrokerHarness(plugins={"bridges": Bridges(out=plan_of(sink))})

    assert published(broker, b"1", b"2") == [ReasonCode.SUCCESS] * 2
    broker.advance(1)
    assert payloads(sink) == [b"1", b"2"]
    assert broker.assembly.metrics.sum("outbox.inflight") == 0
    assert broker.assembly.metrics.sum("bridge.sent") == 2


def test_messages_for_a_sink_that_is_away_wait_and_clients_notice_nothing() -> None:
    """B4: they come in their order when it is back."""
    sink = ListSink()
    broker = BrokerHarness(plugins={"bridges": Bridges(out=plan_of(sink))})
    sink.errors.extend(ServiceUnavailable("away") for _ in range(5))

    assert published(broker, b"1", b"2", b"3") == [ReasonCode.SUCCESS] * 3
    broker.advance(1)
    assert payloads(sink) == []
    assert broker.result(broker.broker.health())["bridges"].state is HealthState.DEGRADED
    broker.advance(40)
    assert payloads(sink) == [b"1", b"2", b"3"]


def test_a_poison_message_is_parked_and_the_others_go_on() -> None:
    """B6: it is in an outbox of its own, with the reason."""
    sink = ListSink()
    broker = BrokerHarness(plugins={"bridges": Bridges(out=plan_of(sink))})
    sink.answer = lambda item: Poison("too bad") if item.message.payload == b"2" else None

    published(broker, b"1", b"2", b"3")
    broker.advance(5)
    parked = next(each for each in broker.broker.sessions.outboxes.all if each.client_id.endswith("/out.parked"))
    assert payloads(sink) == [b"1", b"3"]
    assert parked.queue.count == 1


def test_a_halted_lane_leaves_the_window_to_the_others() -> None:
    """B6: however many messages it has; after a reload they are sent in their order."""
    sink = ListSink()
    plan = plan_of(sink, parallel=8, poison="stop")
    bridges = Bridges(out=evolve(plan, outbox=OutboxSettings(window=4), key=lambda message: message.payload[:1]))
    broker = BrokerHarness(plugins={"bridges": bridges})
    sink.answer = lambda item: Poison("too bad") if item.message.payload == b"a0" else None
    published(broker, *(b"a%d" % number for number in range(20)))
    broker.advance(1)
    published(broker, *(b"h%d" % number for number in range(10)))
    broker.advance(1)
    assert payloads(sink) == [b"h%d" % number for number in range(10)]
    sink.answer = lambda item: None
    broker.result(broker.broker.reload(lambda plugin, settings: None if settings is None else settings()))
    broker.advance(5)

    assert payloads(sink)[10:] == [b"a%d" % number for number in range(20)]
    assert broker.assembly.metrics.sum("outbox.inflight") == 0


def test_a_sink_that_hangs_holds_up_nobody_else() -> None:
    """B10: neither clients nor another sink for the same messages."""
    slow, quick = HangingSink(), ListSink()
    broker = BrokerHarness(plugins={"bridges": Bridges(slow=plan_of(slow), quick=plan_of(quick))})
    subscriber = broker.connect("s", V5).subscribe("a/#", qos=1)
    sent = [b"%d" % number for number in range(10)]

    assert published(broker, *sent) == [ReasonCode.SUCCESS] * 10
    assert [payload for _, payload, _ in subscriber.messages] == sent
    assert payloads(quick) == sent
    assert payloads(slow) == []


def test_what_a_source_brings_is_acknowledged_when_it_is_committed() -> None:
    """It comes to subscribers like a client's message."""
    source = OneSource()
    bridges = Bridges()
    bridges.origins["in"] = source
    broker = BrokerHarness(plugins={"bridges": bridges}, start=False)
    broker.result(broker.broker.start())
    subscriber = broker.connect("s", V5).subscribe("from/#", qos=1)
    broker.advance(1)

    assert source.acknowledged == 1
    assert [payload for _, payload, _ in subscriber.messages] in ([b"x"], [])


def test_a_new_sink_is_there_after_a_reload_and_shown_below_sys() -> None:
    """Its outbox gets messages from then on."""
    bridges = Bridges()
    broker = BrokerHarness(plugins={"bridges": bridges}, sys_interval_s=1)
    sink = ListSink()
    bridges.plans["late"] = plan_of(sink)
    lines: list[Any] = []
    run(broker.broker.reload(lambda plugin, settings: None if settings is None else settings())).addBoth(lines.append)
    broker.settle()
    assert lines == [[]]
    published(broker, b"1")
    watcher = broker.connect("w", V5).subscribe("$SYS/bridge/#")
    broker.advance(3)

    assert payloads(sink) == [b"1"]
    assert ("$SYS/bridge/bridges/late/state", b"open") in {(topic, payload) for topic, payload, _ in watcher.messages}


@pytest.mark.parametrize(("name", "filters"), [("Out", ("a",)), ("out", ("a/#/b",))])
def test_a_sink_that_cannot_be_is_named_at_assembly(name: str, filters: tuple[str, ...]) -> None:
    """B8: the broker does not start."""
    with pytest.raises(AssemblyError, match=rf"bridges.*{name}"):
        BrokerHarness(plugins={"bridges": Bridges(**{name: plan_of(ListSink(), *filters)})})


def test_an_item_names_its_key_and_attempt() -> None:
    """By default the key is the publisher's client id."""
    sink = ListSink()
    broker = BrokerHarness(plugins={"bridges": Bridges(out=plan_of(sink))})
    published(broker, b"1")
    broker.advance(1)
    (item,) = sink.taken

    assert isinstance(item, Item)
    assert (item.key, item.attempt) == (b"p", 1)
