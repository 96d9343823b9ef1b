"""The plugin itself."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kinmqtt_spi import SPI_VERSION, Client, Message, Reject, hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.reference.subscription import matches
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements
from kinmqtt_spi.settings import setting

CACHED_TOPICS = 4096
"""Topics whose answer is remembered; clients choose topics, so the memory for them is bounded."""


@frozen(slots=True)
class GuardSettings:
    """``[plugins.example_guard]``."""

    deny: tuple[str, ...] = setting((), help="topic filters that clients may not publish to")
    reason: str = setting("publishing here is not allowed", help="what MQTT 5 clients are told")


class Guard:
    """Refuses publishes whose topic matches one of the filters."""

    def __init__(self) -> None:
        self._settings = GuardSettings()
        self._denied: dict[str, bool] = {}

    @hookimpl
    def requirements(self) -> Requirements:
        """Written for this version of the SPI, on any reactor."""
        return Requirements(SPI_VERSION)

    @hookimpl
    def settings_class(self) -> type[GuardSettings]:
        """The section is parsed into this."""
        return GuardSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings; abstain where there is nothing to guard."""
        if not context.settings.deny:
            raise NotConfigured("plugins.example_guard.deny names no topic filter")
        self._settings = context.settings
        self._vetoed = context.metrics.counter("vetoed", "messages")

    @hookimpl
    def reload(self, settings: GuardSettings) -> Sequence[str]:
        """Take new filters at once."""
        self._settings = settings
        self._denied.clear()
        return ()

    @hookimpl
    def publish_received(self, client: Client, message: Message) -> Reject | None:
        """The veto."""
        if not self._is_denied(message.topic):
            return None
        self._vetoed.value += 1
        return Reject(ReasonCode.NOT_AUTHORIZED, self._settings.reason)

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        """How many publishes were refused, for everybody to see."""
        return [SysTopic("$SYS/example_guard/vetoed", lambda: str(self._vetoed.value))]

    @hookimpl
    def health(self) -> Health:
        """A guard that stands here is well."""
        return Health(HealthState.HEALTHY, f"{self._vetoed.value} publishes refused")

    def _is_denied(self, topic: str) -> bool:
        denied = self._denied.get(topic)
        if denied is None:
            if len(self._denied) >= CACHED_TOPICS:
                self._denied.clear()
            denied = any(matches(filter, topic) for filter in self._settings.deny)
            self._denied[topic] = denied
        return denied
