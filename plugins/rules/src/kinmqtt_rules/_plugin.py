"""The plugin: opens a tap for each rule, and consumes events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinmqtt_rules.settings import RulesSettings
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Context, Requirements
from kinmqtt_spi.settings import did_you_mean
from kinmqtt_spi.values import Client, Message

if TYPE_CHECKING:
    from kinmqtt_rules.rulebook import Rulebook


class Rules:
    """Applies rules in SQL to messages and events."""

    def __init__(self) -> None:
        self._settings = RulesSettings()
        self._book: Rulebook | None = None
        self._context: Context | None = None

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI."""
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[RulesSettings]:
        """The class that the settings section is parsed into."""
        return RulesSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Compile the rules."""
        settings: RulesSettings = context.settings
        if not settings.rules:
            raise NotConfigured("plugins.rules has no rule")
        from kinmqtt_rules.rulebook import Rulebook  # sqlglot is imported only where there are rules

        self._settings = settings
        self._book = Rulebook(context, settings)
        context.leave_out(*self._book.unused_hooks)

    @hookimpl
    def start(self, context: Context) -> None:
        """Open the taps, and take events from now on."""
        if self._book is not None:
            problems = _missing_sinks(self._settings, context.sink_names())
            if problems:
                raise SettingsError(problems)
            self._context = context
            self._book.open()

    @hookimpl
    def reload(self, settings: RulesSettings) -> Sequence[str]:
        """Replace all rules at once; sinks that are not there yet are named."""
        if self._book is None:
            return ()
        left = list(self._book.replace(settings))
        self._settings = settings
        if self._context is not None:  # sinks of new settings are made after the plugins' reloads
            problems = _missing_sinks(settings, self._context.sink_names())
            left += (f"{problem}; the action fails while there is none" for problem in problems)
        return left

    @hookimpl
    async def drain(self, deadline_s: float) -> None:
        """Finish the batch of events that is under way."""
        if self._book is not None:
            await self._book.stop_events()

    @hookimpl
    def stop(self) -> None:
        """Close the taps."""
        if self._book is not None:
            self._book.close()

    @hookimpl
    def delivered(self, client: Client, message: Message) -> None:
        """A message was sent to a client."""
        self._notice("$events/message/delivered", message, client.client_id, client.username)

    @hookimpl
    def acknowledged(self, client: Client, message: Message, reason: ReasonCode) -> None:
        """A client has acknowledged a message."""
        self._notice("$events/message/acked", message, client.client_id, client.username, int(reason))

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        """A message was not delivered to a client."""
        self._notice("$events/message/dropped", message, client_id, None, why)

    def _notice(
        self, topic: str, message: Message, client_id: str, username: str | None, reason: int | str | None = None
    ) -> None:
        if self._book is not None:
            self._book.notices.see(topic, message, client_id, username, reason)


def _missing_sinks(settings: RulesSettings, known: Sequence[str]) -> list[str]:
    """Return a sentence for each action that names a sink which no plugin has."""
    there = ", ".join(known) or "none"
    return [
        f"plugins.rules.{name}.actions[{place}]: no sink {action.sink!r}"
        f"{did_you_mean(action.sink, known)}; there are: {there}"
        for name, rule in settings.rules.items()
        for place, action in enumerate(rule.actions)
        if action.sink is not None and action.sink not in known
    ]
