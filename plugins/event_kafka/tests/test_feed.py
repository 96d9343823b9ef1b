"""The feed from a real Kafka keeps its contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from event_kafka_harness.making import feed, settings, shipper
from kinmqtt_event_kafka.feed import KafkaFeed
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import Recorded
from kinmqtt_spi.testing.event_feed import EventFeedContract

_topics = count()


class TestKafkaFeed(EventFeedContract):
    """Three partitions, and a topic of its own for each test."""

    reactor = "asyncio"
    has_nodes = True
    takes_awaitables = True

    @pytest.fixture
    def event_feed(self, kafka: Any, drive: Any) -> Iterator[KafkaFeed]:
        topic = kafka.create_topic(f"feed-{next(_topics)}", partitions=3)
        self.its = settings(kafka.address, topic)
        self.shipper = shipper(self.its)
        self.feeds = [feed(self.its, self.node, drive.loop)]
        yield self.feeds[0]
        for each in self.feeds:
            drive(each.close())
        drive(self.shipper.close())

    def record(self, feed: Any, drive: Any, *events: Any) -> None:
        async def ship() -> None:
            await self.shipper.ship([Recorded(number, event) for number, event in enumerate(events)])

        drive(ship())

    def other_node(self, event_feed: Any, drive: Any) -> Any:
        self.feeds.append(feed(self.its, "node-2", drive.loop))
        return self.feeds[-1]

    def pass_time(self, clock: TurnableClock, drive: Any, seconds: float) -> None:
        drive(asyncio.sleep(0.1))
