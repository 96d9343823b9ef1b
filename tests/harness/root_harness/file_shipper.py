"""A plugin that appends what its outbox has to a file, for tests that kill brokers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from attrs import frozen

from core_harness.plugin_on_path import plugin_on_path
from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.outbox import Outbox, OutboxEntry, OutboxSettings
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.settings import setting

NAME: Final = "file_shipper"
HARNESS: Final = Path(__file__).parents[1]


@frozen(slots=True)
class FileShipperSettings:
    """``[plugins.file_shipper]``."""

    file: Path = setting(help="where messages are appended, a line for each")
    filter: str = setting("#", help="which ones")
    by_tap: bool = setting(False, help="whether a tap puts them into the outbox, and not the filter")
    delay_s: float = setting(0.01, help="how long it takes until they are acknowledged", unit="s")
    outbox: OutboxSettings = setting(factory=OutboxSettings, help="its outbox")


class FileShipper:
    """See the module's text."""

    def __init__(self) -> None:
        self._context: Context
        self._file: TextIO
        self._outbox: Outbox

    @hookimpl
    def settings_class(self) -> type[Any]:
        """Return the settings' class."""
        return FileShipperSettings

    @hookimpl
    def start(self, context: Context) -> None:
        """Open the file, and consume the outbox."""
        settings: FileShipperSettings = context.settings
        self._context = context
        self._file = settings.file.open("a", encoding="utf-8")
        self._outbox = context.outbox("file", settings.outbox, [] if settings.by_tap else [settings.filter])
        if settings.by_tap:
            context.tap([settings.filter], self._outbox.put)
        self._outbox.consume(self._ship)

    def _ship(self, entries: Sequence[OutboxEntry]) -> None:
        for entry in entries:
            message = entry.message
            line = [message.topic, message.payload.decode(), message.id.node, message.id.counter]
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        numbers = [entry.number for entry in entries]
        # Later, so that a broker can be killed in between.
        self._context.clock.later(self._context.settings.delay_s, lambda: self._outbox.acknowledge(numbers))


PLUGIN: Final = FileShipper()


def installed(folder: Path) -> str:
    """Return a PYTHONPATH with which a broker's process finds the plugin, as if it had been installed."""
    return plugin_on_path(folder, NAME, __name__, HARNESS)


def shipped(file: Path) -> dict[str, list[int]]:
    """Return the numbers that have come, by topic, in their order and as often as they came."""
    found: dict[str, list[int]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        topic, number, _, _ = json.loads(line)
        found.setdefault(topic, []).append(int(number))
    return found
