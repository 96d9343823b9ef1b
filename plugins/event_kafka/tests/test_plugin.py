"""The plugin's life without a Kafka: settings, health, reload and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_event_kafka import EventKafka, EventKafkaSettings
from kinmqtt_event_kafka.shipping import GROUP
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.plugin import HealthState
from kinmqtt_spi.testing.build import event

NOWHERE = "127.0.0.1:9"


def run_future(awaitable: Any, done: Callable[[], None], failed: Callable[[BaseException], None]) -> Any:
    """Drive what the shipper returns."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def over(future: asyncio.Future[None]) -> None:
        error = future.exception()
        if error is None:
            done()
        else:
            failed(error)
        ended.set_result(None)

    awaitable.add_done_callback(over)
    return ended


def configured(**more: Any) -> tuple[EventKafka, BareContext]:
    context = BareContext("event_kafka", EventKafkaSettings(servers=(NOWHERE,), **{"timeout_s": 0.5, **more}))
    plugin = EventKafka()
    plugin.configure(context)
    return plugin, context


def test_without_servers_it_abstains() -> None:
    """An installed plugin need not be used."""
    with pytest.raises(NotConfigured, match="servers"):
        EventKafka().configure(BareContext("event_kafka", EventKafkaSettings()))


def test_events_wait_while_kafka_is_away() -> None:
    """They are held, health says how many wait and why, and a stop does not hang."""

    async def main() -> None:
        plugin, context = configured()
        log = MemoryEventLog(context.clock.later, retention=2, run=run_future)
        plugin.event_feed(log)
        plugin.start(context)
        log.append([event("c", number) for number in range(5)])
        context.clock.advance()
        assert plugin._shipper is not None

        await plugin._shipper.progress()

        health = plugin.health()
        assert health.state is HealthState.DEGRADED
        assert health.text.startswith("5 events wait: ")
        assert log.held() == (GROUP,)
        async with asyncio.timeout(5):
            await plugin.drain(10.0)
            await plugin.stop()
        assert log.lag(GROUP) == 5

    asyncio.run(main())


def test_a_change_needs_a_restart() -> None:
    """And the reload says so."""
    plugin, context = configured()

    assert plugin.reload(context.settings) == ()
    assert plugin.reload(EventKafkaSettings(servers=("other:9092",))) == (
        "plugins.event_kafka: a change needs a restart",
    )


def test_another_feed_is_said(tmp_path: Path) -> None:
    """If the settings name another provider of the feed, nothing is shipped, and the log says it."""
    plugin, context = configured()

    async def main() -> None:
        plugin.start(context)
        await plugin.stop()

    asyncio.run(main())

    assert "services.feed" in context.log.texts("warn")[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"servers": ("kafka",)},
        {"servers": ("kafka:99999",)},
        {"topic": "a b"},
        {"topic": ".."},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    """With a value error that names the value."""
    with pytest.raises(ValueError, match=r"kafka|a b|\.\."):
        EventKafkaSettings(**wrong)
