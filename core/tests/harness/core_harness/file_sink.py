"""A sink that appends messages to a file, for tests that run brokers and commands in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from attrs import frozen

from core_harness.plugin_on_path import plugin_on_path
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Sink, SinkPlan
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.settings import setting

NAME: Final = "file_sink"
HARNESS: Final = Path(__file__).parents[1]


@frozen(slots=True)
class FileSinkSettings:
    """``[plugins.file_sink]``."""

    file: Path = setting(help="where each message is appended, taken or not")
    sink: str = setting("lines", help="the sink's name")
    poison: bool = setting(False, help="whether payloads that begin with `bad` are poison")
    away: bool = setting(False, help="whether nothing can be reached")
    outbox: OutboxSettings = setting(factory=OutboxSettings, help="its outbox")


class FileSink(Sink):
    """Appends a line for each message."""

    def __init__(self, settings: FileSinkSettings) -> None:
        self._settings = settings

    def send(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Append the messages; some are poison, as the settings say."""
        if self._settings.away:
            raise ServiceUnavailable("it is away")
        poison = [self._settings.poison and item.message.payload.startswith(b"bad") for item in items]
        with self._settings.file.open("a", encoding="utf-8") as file:
            for item, is_poison in zip(items, poison, strict=True):
                message = item.message
                id = f"{message.id.node:x}-{message.id.counter}"
                line = [message.payload.decode(), id, not is_poison, len(message.properties.user_property or ())]
                file.write(json.dumps(line) + "\n")
        return [Poison("it is bad") if each else None for each in poison]


class FileSinkPlugin:
    """One sink, for all messages."""

    @hookimpl
    def settings_class(self) -> type[Any]:
        """Return the settings' class."""
        return FileSinkSettings

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        """Return the sink."""
        settings: FileSinkSettings = context.settings
        return {settings.sink: SinkPlan(FileSink(settings), ("#",), settings.outbox)}


PLUGIN: Final = FileSinkPlugin()


class Line(NamedTuple):
    """A message that the sink got."""

    payload: str
    id: str
    taken: bool
    user_properties: int


def installed(folder: Path) -> str:
    """Return a PYTHONPATH with which a process finds the plugin."""
    return plugin_on_path(folder, NAME, __name__, HARNESS)


def lines_in(file: Path) -> list[Line]:
    """Return what the sink got, in order."""
    if not file.exists():
        return []
    return [Line(*json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
