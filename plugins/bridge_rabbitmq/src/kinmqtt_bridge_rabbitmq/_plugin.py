"""The plugin: makes the sinks and sources that the settings describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinmqtt_bridge_rabbitmq.blocked import BlockedLink
from kinmqtt_bridge_rabbitmq.pika_log import PikaLog
from kinmqtt_bridge_rabbitmq.settings import BridgeRabbitMQSettings
from kinmqtt_bridge_rabbitmq.sink import RabbitMQSink
from kinmqtt_bridge_rabbitmq.source import RabbitMQSource
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.services.bridge import SinkPlan, Source
from kinmqtt_spi.services.plugin import Context, Requirements


class BridgeRabbitMQ:
    """Brings messages to RabbitMQ and from there."""

    def __init__(self) -> None:
        self._settings = BridgeRabbitMQSettings()
        self._pika: PikaLog | None = None
        self._blocked: dict[str, BlockedLink] = {}
        """By the name of a sink."""

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor on which pika's connections run."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[BridgeRabbitMQSettings]:
        """The class that the settings section is parsed into."""
        return BridgeRabbitMQSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Connections are made when the broker opens a sink."""
        settings: BridgeRabbitMQSettings = context.settings
        _check(settings)
        self._settings = settings
        self._pika = PikaLog(context.log)
        for name, connection in settings.connections.items():
            if connection.sends_the_password:
                context.log.warn(
                    "connection {name} to RabbitMQ sends its password without encryption: set tls",
                    name=name,
                )

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        """The sinks of the settings."""
        return {
            name: SinkPlan(
                RabbitMQSink(name, self._settings.connections[each.connection], each, self._blocked_link(name)),
                each.filters,
                each.outbox,
                each.sending,
            )
            for name, each in self._settings.sinks.items()
        }

    @hookimpl
    def sources(self, context: Context) -> Mapping[str, Source]:
        """The sources of the settings."""
        return {
            name: RabbitMQSource(
                name,
                self._settings.connections[each.connection],
                each,
                context.log,
                context.clock,
                context.metrics.counter("source.skipped", "messages", {"name": name}),
                context.metrics.counter("source.redelivered", "messages", {"name": name}),
            )
            for name, each in self._settings.sources.items()
        }

    @hookimpl
    def start(self, context: Context) -> None:
        """Take pika's log."""
        if self._pika is not None:
            self._pika.begin()

    @hookimpl
    def reload(self, settings: BridgeRabbitMQSettings) -> Sequence[str]:
        """Take new settings; the broker asks for the sinks and sources afterwards."""
        _check(settings)
        self._settings = settings
        return ()

    @hookimpl
    def stop(self) -> None:
        """Give pika's log back, and cut what is blocked."""
        for each in self._blocked.values():
            each.end()
        if self._pika is not None:
            self._pika.end()

    def _blocked_link(self, name: str) -> BlockedLink:
        return self._blocked.setdefault(name, BlockedLink())


def _check(settings: BridgeRabbitMQSettings) -> None:
    """Raise ``NotConfigured`` without sinks and sources."""
    if not settings.sinks and not settings.sources:
        raise NotConfigured("plugins.bridge_rabbitmq has neither sinks nor sources")
