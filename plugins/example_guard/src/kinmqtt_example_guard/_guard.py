"""The plugin."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kinmqtt_spi import Client, Message, Reject, hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements
from kinmqtt_spi.settings import setting
from kinmqtt_spi.topics import matches

CACHED_TOPICS = 4096
"""The most cached topics. Clients choose topics, so the memory for them must be bounded."""


def _check_filters(_: object, attribute: attrs.Attribute[tuple[str, ...]], filters: tuple[str, ...]) -> None:
    """Refuse a filter that matches no topic: a guard with a mistyped filter would guard nothing."""
    for filter in filters:
        levels = filter.split("/")
        whole = all(level in ("#", "+") or not {"#", "+"} & set(level) for level in levels)
        if not filter or "\0" in filter or not whole or "#" in levels[:-1] or levels[0] == "$share":
            raise ValueError(f"{filter!r} is not a topic filter that a topic can match")


@attrs.frozen(slots=True)
class GuardSettings:
    """``[plugins.example_guard]``."""

    deny: tuple[str, ...] = setting(
        (), help="topic filters that clients may not publish to", validator=_check_filters
    )
    reason: str = setting("publishing here is not allowed", help="the reason string for MQTT 5 clients")
    max_payload_bytes: int | None = setting(
        None,
        help="refuse longer payloads, whatever their topic; by default there is no limit",
        unit="bytes",
        minimum=0,
    )


class Guard:
    """Refuses publishes whose topic matches one of the filters, or whose payload is too long."""

    def __init__(self) -> None:
        self._settings = GuardSettings()
        self._denied: dict[str, bool] = {}

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI (a literal, because SPI_VERSION is the installed version)."""
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[GuardSettings]:
        """The class that the settings section is parsed into."""
        return GuardSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings; abstain if there is nothing to guard."""
        self._take(context.settings)
        self._vetoed = context.metrics.counter("vetoed", "messages")

    @hookimpl
    def reload(self, settings: GuardSettings) -> Sequence[str]:
        """Take new settings at once; if they leave nothing to guard, raise and keep the old ones."""
        self._take(settings)
        return ()

    @hookimpl
    def publish_received(self, client: Client, message: Message) -> Reject | None:
        """Refuse a publish that matches."""
        return self._veto(message)

    @hookimpl
    def will_publishing(self, client: Client, message: Message) -> Reject | None:
        """Refuse a will that matches; wills are published without a PUBLISH packet."""
        return self._veto(message)

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        """Publish the number of refused publishes."""
        return [SysTopic("$SYS/example_guard/vetoed", lambda: str(self._vetoed.value))]

    @hookimpl
    def health(self) -> Health:
        """Report the number of refused publishes; the guard is always healthy."""
        return Health(HealthState.HEALTHY, f"{self._vetoed.value} publishes refused")

    def _take(self, settings: GuardSettings) -> None:
        if not settings.deny and settings.max_payload_bytes is None:
            raise NotConfigured("plugins.example_guard has neither deny nor max_payload_bytes")
        self._settings = settings
        self._denied.clear()

    def _veto(self, message: Message) -> Reject | None:
        longest = self._settings.max_payload_bytes
        too_long = longest is not None and len(message.payload) > longest
        if not too_long and not self._is_denied(message.topic):
            return None
        self._vetoed.value += 1
        return Reject(ReasonCode.NOT_AUTHORIZED, self._settings.reason)

    def _is_denied(self, topic: str) -> bool:
        """Whether a filter matches; the filters are tried once for each topic, not once for each message."""
        denied = self._denied.get(topic)
        if denied is None:
            if len(self._denied) >= CACHED_TOPICS:
                self._denied.clear()
            denied = any(matches(filter, topic) for filter in self._settings.deny)
            self._denied[topic] = denied
        return denied
