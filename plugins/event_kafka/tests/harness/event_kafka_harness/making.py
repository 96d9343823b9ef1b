"""Makes shippers and feeds without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

from kinmqtt_event_kafka.feed import KafkaFeed
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_event_kafka.shipping import Shipper
from kinmqtt_spi.memory.plugin import BareContext


def settings(address: str, topic: str, **more: Any) -> EventKafkaSettings:
    """Settings for a Kafka; group names are prefixed by the topic, because tests share it."""
    return EventKafkaSettings(servers=(address,), topic=topic, group_prefix=f"{topic}.", **{"timeout_s": 5.0, **more})


def shipper(its: EventKafkaSettings, node: str = "node-1", context: BareContext | None = None) -> Shipper:
    """A node's shipper; ``context`` has its log and metrics."""
    context = context or BareContext("event_kafka")
    return Shipper(node, its, context.log, context.metrics)


def feed(
    its: EventKafkaSettings, node: str, loop: asyncio.AbstractEventLoop, context: BareContext | None = None
) -> KafkaFeed:
    """A node's feed, whose consumers run in ``loop``."""
    context = context or BareContext("event_kafka")
    return KafkaFeed(node, its, context.log, context.metrics, loop)
