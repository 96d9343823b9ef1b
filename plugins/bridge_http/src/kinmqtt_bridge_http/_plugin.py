"""The plugin: makes the sinks that the settings describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinmqtt_bridge_http.settings import BridgeHttpSettings
from kinmqtt_bridge_http.sink import HttpSink
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.services.bridge import SinkPlan, publisher_key
from kinmqtt_spi.services.plugin import Context, Requirements
from kinmqtt_spi.templates import key_maker


class BridgeHttp:
    """Brings messages to HTTP servers."""

    def __init__(self) -> None:
        self._settings = BridgeHttpSettings()

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor that aiohttp needs."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[BridgeHttpSettings]:
        """The class that the settings section is parsed into."""
        return BridgeHttpSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Connections are made when there are messages."""
        settings: BridgeHttpSettings = context.settings
        _check(settings)
        self._settings = settings
        for name, sink in settings.sinks.items():
            if sink.secret_headers and not sink.is_encrypted:
                context.log.warn(
                    "sink {name} to HTTP sends its secret headers without encryption: use https", name=name
                )

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        """The sinks of the settings."""
        return {
            name: SinkPlan(
                HttpSink(name, each, context.clock),
                each.filters,
                each.outbox,
                each.sending,
                # The same key as the template makes, at a fraction of the cost.
                publisher_key if each.key == "${clientid}" else key_maker(each.key),
            )
            for name, each in self._settings.sinks.items()
        }

    @hookimpl
    def reload(self, settings: BridgeHttpSettings) -> Sequence[str]:
        """Take new settings; the broker asks for the sinks afterwards."""
        _check(settings)
        self._settings = settings
        return ()


def _check(settings: BridgeHttpSettings) -> None:
    """Raise ``NotConfigured`` without sinks."""
    if not settings.sinks:
        raise NotConfigured("plugins.bridge_http has no sinks")
