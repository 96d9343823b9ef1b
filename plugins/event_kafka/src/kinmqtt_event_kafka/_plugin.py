"""The plugin: ships the node's event log, and provides the feed."""

from __future__ import annotations

import asyncio

from kinmqtt_event_kafka.feed import KafkaFeed, settled
from kinmqtt_event_kafka.settings import EventKafkaSettings
from kinmqtt_event_kafka.shipping import GROUP, Shipper
from kinmqtt_kafka_kit import AiokafkaLog
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.services.event import Consumer, EventFeed, EventLog
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements

_HEALTHY = Health(HealthState.HEALTHY)

GIVE_UP_S = 1.0
"""How long a stop waits for an attempt that Kafka does not answer."""


class EventKafka:
    """Ships client events to Kafka, and feeds plugins from there."""

    def __init__(self) -> None:
        self._settings = EventKafkaSettings()
        self._shipper: Shipper | None = None
        self._feed: KafkaFeed | None = None
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
        if self._log is None or self._shipper is None:
            context.log.warn("events are not shipped, because another plugin provides the feed (services.feed)")
            return
        self._log.hold(GROUP)
        self._consumer = self._log.consume(GROUP, self._shipper.ship)

    @hookimpl
    def health(self) -> Health:
        """Report whether events are shipped."""
        problem = None if self._shipper is None else self._shipper.problem
        if problem is None or self._log is None:
            return _HEALTHY
        return Health(HealthState.DEGRADED, f"{self._log.lag(GROUP)} events wait: {problem}")

    @hookimpl
    def reload(self, settings: EventKafkaSettings) -> tuple[str, ...]:
        """Take no settings: any change needs a restart."""
        return () if settings == self._settings else ("plugins.event_kafka: a change needs a restart",)

    @hookimpl
    async def drain(self, deadline_s: float) -> None:
        """Ship what is left if Kafka answers; what it does not take stays in the log."""
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
        if self._shipper is not None:
            self._shipper.give_up()
            await self._shipper.close()
        if self._aiokafka_log is not None:
            self._aiokafka_log.end()
