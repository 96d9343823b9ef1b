"""The plugin: makes the sinks and sources that the settings describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from kinmqtt_bridge_mqtt.connection import Connection
from kinmqtt_bridge_mqtt.settings import BridgeMqttSettings
from kinmqtt_bridge_mqtt.sink import MqttSink
from kinmqtt_bridge_mqtt.source import MqttSource
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.bridge import SinkPlan, Source
from kinmqtt_spi.services.metric import Counter, SysTopic
from kinmqtt_spi.services.plugin import Context, Requirements

NOTICE_EVERY_S: Final = 60.0
"""The least time between two warnings about one connection."""


class BridgeMqtt:
    """Brings messages to other MQTT brokers, and from there."""

    def __init__(self) -> None:
        self._settings = BridgeMqttSettings()
        self._connections: dict[str, Connection] = {}

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[BridgeMqttSettings]:
        """The class that the settings section is parsed into."""
        return BridgeMqttSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Connections are made when the broker opens a sink or runs a source."""
        settings: BridgeMqttSettings = context.settings
        _check(settings)
        self._settings = settings
        for name, each in settings.connections.items():
            if each.sends_the_password:
                context.log.warn("connection {name} sends its password without encryption: set tls", name=name)

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        """One sink for each connection with a topic that goes out."""
        found = {}
        for name, connection in self._present(context).items():
            filters = connection.mapping.local_filters
            if filters:
                settings = connection.settings
                sink = MqttSink(connection, context.clock.now, _looped(context, name))
                found[name] = SinkPlan(sink, filters, settings.outbox, settings.sending)
        return found

    @hookimpl
    def sources(self, context: Context) -> Mapping[str, Source]:
        """One source for each connection with a topic that comes in."""
        return {
            name: MqttSource(
                connection,
                _looped(context, name),
                context.metrics.counter("source.skipped", "messages", {"name": name}),
                _Notices(context).warn,
            )
            for name, connection in self._present(context).items()
            if connection.mapping.remote_filters
        }

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        """The states of the connections that publish theirs, as Mosquitto does on both sides."""
        return [
            SysTopic(
                f"$SYS/broker/connection/{each.client_id}/state", partial(self._state, name), on_change_only=True
            )
            for name, each in self._connections.items()
            if each.settings.notifications
        ]

    @hookimpl
    def reload(self, settings: BridgeMqttSettings) -> Sequence[str]:
        """Take new settings; the broker asks for the sinks and sources afterwards. Raises ``NotConfigured``."""
        _check(settings)
        self._settings = settings
        return ()

    @hookimpl
    def stop(self) -> None:
        """Close what is left of the connections: sinks and sources have ended."""
        for connection in self._connections.values():
            connection.retire()

    def _present(self, context: Context) -> Mapping[str, Connection]:
        """Return the connections of the settings: unchanged ones stay, the others end."""
        wanted = self._settings.connections
        for name, connection in list(self._connections.items()):
            if wanted.get(name) != connection.settings:
                connection.retire()
                del self._connections[name]
        for name, settings in wanted.items():
            if name not in self._connections:
                self._connections[name] = Connection(name, settings, context.node.name, _Notices(context).warn)
        return {name: self._connections[name] for name in wanted}

    def _state(self, name: str) -> str:
        connection = self._connections.get(name)
        return "1" if connection is not None and connection.is_up else "0"


def _looped(context: Context, name: str) -> Counter:
    return context.metrics.counter("bridge.looped", "messages", {"name": name})


def _check(settings: BridgeMqttSettings) -> None:
    if not settings.connections:
        raise NotConfigured("plugins.bridge_mqtt has no connections")


class _Notices:
    """Logs warnings, at most one a minute."""

    def __init__(self, context: Context) -> None:
        self._log = context.log
        self._pace = Pace(context.clock, NOTICE_EVERY_S)

    def warn(self, text: str) -> None:
        """Log a warning, unless there was one lately."""
        more = self._pace.due()
        if more is not None:
            self._log.warn("{text}{more}", text=text, more=f" ({more} more like this)" if more else "")
