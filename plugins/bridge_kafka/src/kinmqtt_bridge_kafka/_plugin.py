"""The plugin: makes the sinks and sources that the settings describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinmqtt_bridge_kafka.notices import Notices
from kinmqtt_bridge_kafka.settings import BridgeKafkaSettings
from kinmqtt_bridge_kafka.sink import KafkaSink
from kinmqtt_bridge_kafka.source import KafkaSource
from kinmqtt_kafka_kit import AiokafkaLog
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.services.bridge import SinkPlan, Source
from kinmqtt_spi.services.plugin import Context, Requirements
from kinmqtt_spi.templates import key_maker


class BridgeKafka:
    """Brings messages to Kafka and records from there."""

    def __init__(self) -> None:
        self._settings = BridgeKafkaSettings()
        self._notices: Notices | None = None
        self._aiokafka: AiokafkaLog | None = None

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor that aiokafka needs."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[BridgeKafkaSettings]:
        """The class that the settings section is parsed into."""
        return BridgeKafkaSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Connections are made when the broker opens a sink."""
        settings: BridgeKafkaSettings = context.settings
        _check(settings)
        self._settings = settings
        self._notices = Notices(context.log, context.clock)
        self._aiokafka = AiokafkaLog(context.log)
        for name, connection in settings.connections.items():
            if connection.security.sends_the_password:
                context.log.warn(
                    "connection {name} to Kafka sends its password without encryption: use SASL_SSL", name=name
                )

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        """The sinks of the settings."""
        return {
            name: SinkPlan(
                KafkaSink(name, self._settings.connections[each.connection], each),
                each.filters,
                each.outbox,
                each.sending,
                key_maker(each.key),
            )
            for name, each in self._settings.sinks.items()
        }

    @hookimpl
    def sources(self, context: Context) -> Mapping[str, Source]:
        """The sources of the settings."""
        if self._notices is None:
            raise RuntimeError("the Kafka bridge was asked for sources before it was configured")
        return {
            name: KafkaSource(
                name,
                self._settings.connections[each.connection],
                each,
                self._notices,
                context.metrics.counter("source.skipped", "messages", {"name": name}),
            )
            for name, each in self._settings.sources.items()
        }

    @hookimpl
    def start(self, context: Context) -> None:
        """Take aiokafka's log."""
        if self._aiokafka is not None:
            self._aiokafka.begin()

    @hookimpl
    def reload(self, settings: BridgeKafkaSettings) -> Sequence[str]:
        """Take new settings; the broker asks for the sinks and sources afterwards. Raises ``SettingsError``."""
        _check(settings)
        self._settings = settings
        return ()

    @hookimpl
    def stop(self) -> None:
        """Give aiokafka's log back."""
        if self._aiokafka is not None:
            self._aiokafka.end()


def _check(settings: BridgeKafkaSettings) -> None:
    """Raise ``NotConfigured`` without sinks and sources, and ``SettingsError`` for an absent compression."""
    if not settings.sinks and not settings.sources:
        raise NotConfigured("plugins.bridge_kafka has neither sinks nor sources")
    problems = [
        f'plugins.bridge_kafka.sinks.{name}.compression: "{each.compression}" needs the package cramjam: '
        "pip install kinmqtt-bridge-kafka[compression]"
        for name, each in settings.sinks.items()
        if each.compression not in ("none", "gzip") and not _has_cramjam()
    ]
    if problems:
        raise SettingsError(problems)


def _has_cramjam() -> bool:
    from aiokafka.codec import has_lz4

    return bool(has_lz4())
