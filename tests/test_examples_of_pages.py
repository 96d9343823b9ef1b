"""The plugins in the pages about events, taps, outboxes and bridges: each runs in a broker in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from kinmqtt.mqtt.packets import V5
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.bridge import ListSink
from kinmqtt_spi.services.bridge import SendSettings, SinkPlan
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Message

DOCS = Path(__file__).parent.parent / "docs"


def examples(page: str) -> SimpleNamespace:
    """The classes of a page's Python blocks, each of which names all that it imports."""
    found: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S):
        names: dict[str, Any] = {"__name__": page}
        exec(compile(block, page, "exec", dont_inherit=True), names)
        found |= names
    return SimpleNamespace(**found)


@contextmanager
def logged(plugin: str) -> Iterator[list[str]]:
    """What a plugin logs."""
    found: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") == f"kinmqtt.plugin.{plugin}":
            found.append(str(event["log_format"]).format(**event))

    globalLogPublisher.addObserver(observe)
    try:
        yield found
    finally:
        globalLogPublisher.removeObserver(observe)


class AlarmSink:
    """The sink that the page about taps puts alarms into."""

    def __init__(self) -> None:
        self.sink = ListSink()

    @hookimpl
    def sinks(self, context: Context) -> dict[str, SinkPlan]:
        return {"alarms": SinkPlan(self.sink, (), sending=SendSettings(linger_s=0))}


def test_events() -> None:
    """A consumer gets the events after its start, and a stop waits for it."""
    with logged("audit") as lines:
        broker = BrokerHarness(plugins={"audit": examples("event.md").Audit()})
        broker.connect("dev7", V5)
        broker.advance(1)
        broker.result(broker.broker.stop())

    assert "CONNECT of 'dev7'" in lines
    assert broker.assembly.metrics.sum("plugin.failures") == 0


def test_taps() -> None:
    """Each hot reading is published as an alarm and is in Kafka once; what is no number does no harm."""
    alarms = AlarmSink()
    broker = BrokerHarness(plugins={"alarms": examples("tap.md").Alarms(), "bridge_kafka": alarms})
    subscriber = broker.connect("s", V5).subscribe("alarms", qos=1)
    publisher = broker.connect("p", V5)

    for payload in (b"20", b"31", b"hot"):
        publisher.publish("sensors/kitchen/temperature", payload, qos=1)
    broker.advance(1)

    assert [payload for _, payload, _ in subscriber.messages] == [b"31"]
    assert [item.message.payload for item in alarms.sink.taken] == [b"31"]
    assert broker.assembly.metrics.sum("plugin.failures") == 0


def test_outboxes() -> None:
    """The plugin gets what its filters match, and acknowledges it."""
    with logged("orders") as lines:
        broker = BrokerHarness(plugins={"orders": examples("outbox.md").Orders()})
        broker.connect("p", V5).publish("orders/1", b"three", qos=1).publish("orders/2", b"", qos=0)
        broker.advance(1)

    assert lines == ["orders/1: 5 bytes"]
    assert broker.assembly.metrics.sum("outbox.inflight") == broker.assembly.metrics.sum("outbox.queued") == 0


def test_sinks(tmp_path: Path) -> None:
    """The sink has its settings, and appends what it gets to the file."""
    file = tmp_path / "messages"
    config = f"[plugins.files]\nfile = '{file}'\noutbox = {{ window = 1 }}\nsending = {{ linger_s = 0 }}\n"
    broker = BrokerHarness(plugins={"files": examples("bridge.md").Files()}, config=config)

    broker.connect("p", V5).publish("a", b"1", qos=1).publish("b", b"2", qos=1)
    broker.advance(1)

    assert file.read_bytes() == b"1\n2\n"


def test_sources(tmp_path: Path) -> None:
    """A file is deleted when it is published."""
    for name in ("1", "2"):
        (tmp_path / name).write_bytes(name.encode())
    published: list[Message] = []

    async def publish(messages: Sequence[Message]) -> None:
        assert (tmp_path / messages[0].payload.decode()).exists()
        published.extend(messages)
        task = asyncio.current_task()
        if len(published) == 2 and task is not None:
            task.cancel()  # it ends when it waits for more files

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(examples("bridge.md").FolderSource(tmp_path).run(publish))

    assert [(each.topic, each.qos) for each in published] == [("inbox/1", 1), ("inbox/2", 1)]
    assert not list(tmp_path.iterdir())
    assert list(examples("bridge.md").Inbox().sources()) == ["inbox"]
