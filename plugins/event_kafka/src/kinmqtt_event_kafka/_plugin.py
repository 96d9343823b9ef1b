"""The plugin: ships the node's event log and retained messages, and provides the feed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kinmqtt_event_kafka.feed import KafkaFeed
from kinmqtt_event_kafka.retained import RetainedShipper
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_event_kafka.shipping import GROUP, Shipper
from kinmqtt_kafka_kit import AiokafkaLog, settled
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.services.event import Consumer, EventFeed, EventLog
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements
from kinmqtt_spi.values import Message

_HEALTHY = Health(HealthState.HEALTHY)

GIVE_UP_S = 1.0
"""How long a stop waits for an attempt that Kafka does not answer."""


class EventKafka:
    """Ships client events to Kafka, and feeds plugins from there."""

    def __init__(self) -> None:
        self._settings = EventKafkaSettings()
        self._shipper: Shipper | None = None
        self._feed: KafkaFeed | None = None
        self._retained: RetainedShipper | None = None
        self._log: EventLog | None = None
        self._consumer: Consumer | None = None
        self._aiokafka_log: AiokafkaLog | None = None

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor that the Kafka client needs."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[EventKafkaSettings]:
        """The class that the settings section is parsed into."""
        return EventKafkaSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Connections are made at the start."""
        self._settings = context.settings
        if not self._settings.servers:
            raise NotConfigured("plugins.event_kafka.servers names no server")
        if self._settings.security.sends_the_password:
            context.log.warn("the password for Kafka is sent without encryption: use SASL_SSL")
        self._shipper = Shipper(context.node.name, self._settings, context.log, context.metrics)
        self._feed = KafkaFeed(context.node.name, self._settings, context.log, context.metrics)

        if self._settings.retained_topic:
            self._retained = RetainedShipper(self._settings, context)
        else:
            context.leave_out("retaining", "retain_cleared")

    @hookimpl
    def retaining(self, message: Message) -> None:
        """Note that a topic's retained message changes; leaves it as it is."""
        assert self._retained is not None
        self._retained.note(message.topic)

    @hookimpl
    def retain_cleared(self, topic: str) -> None:
        """Note that a topic's retained message may have expired."""
        assert self._retained is not None
        self._retained.note(topic)

    @hookimpl
    def event_feed(self, log: EventLog) -> EventFeed:
        """The feed of all nodes that ship to the same topic."""
        assert self._feed is not None
        self._log = log
        return self._feed

    @hookimpl
    def start(self, context: Context) -> None:
        """Begin to ship; whether Kafka is there is not waited for."""
        self._aiokafka_log = AiokafkaLog(context.log)
        self._aiokafka_log.begin()
        if self._retained is not None:
            self._retained.start()
        if self._log is None or self._shipper is None:
            context.log.warn("events are not shipped, because another plugin provides the feed (services.feed)")
            return
        self._log.hold(GROUP)
        self._consumer = self._log.consume(GROUP, self._shipper.ship)

    @hookimpl
    def ready(self) -> None:
        """Begin to write retained messages."""
        if self._retained is not None:
            self._retained.begin()

    @hookimpl
    def values_adopted(self, values: Mapping[str, bytes]) -> None:
        """Take over what a node that is gone has known of retained messages in Kafka."""
        if self._retained is not None:
            self._retained.adopt(values.values())

    @hookimpl
    def health(self) -> Health:
        """Report whether events are shipped."""
        waiting = []
        if self._shipper is not None and self._shipper.problem is not None and self._log is not None:
            waiting.append(f"{self._log.lag(GROUP)} events wait: {self._shipper.problem}")
        if self._retained is not None and self._retained.problem is not None:
            waiting.append(f"{self._retained.waiting} topics with retained messages wait: {self._retained.problem}")
        return Health(HealthState.DEGRADED, "; ".join(waiting)) if waiting else _HEALTHY

    @hookimpl
    def reload(self, settings: EventKafkaSettings) -> tuple[str, ...]:
        """Take no settings: any change needs a restart."""
        return () if settings == self._settings else ("plugins.event_kafka: a change needs a restart",)

    @hookimpl
    async def drain(self, deadline_s: float) -> None:
        """Ship what is left if Kafka answers; what it does not take stays in the log and in the outbox."""
        if self._retained is not None:
            await self._retained.drain(deadline_s / 4)
        log, shipper, consumer = self._log, self._shipper, self._consumer
        if log is None or shipper is None or consumer is None:
            return
        try:
            async with asyncio.timeout(deadline_s / 2):
                while log.lag(GROUP) and shipper.problem is None:
                    await shipper.progress()
        except TimeoutError:
            pass
        stopped = consumer.stop()
        asyncio.get_running_loop().call_later(GIVE_UP_S, shipper.give_up)
        await settled(stopped)

    @hookimpl
    async def stop(self) -> None:
        """Disconnect."""
        if self._feed is not None:
            await self._feed.close()
        if self._retained is not None:
            await self._retained.stop()
        if self._shipper is not None:
            self._shipper.give_up()
            await self._shipper.close()
        if self._aiokafka_log is not None:
            self._aiokafka_log.end()
