"""``kinmqtt bridge import``: makes settings of the bridges of a Mosquitto, without a broker."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from kinmqtt_bridge_mqtt.importing import Import
from kinmqtt_bridge_mqtt.mosquitto_conf import read
from kinmqtt_spi.errors import SettingsError, SpiError


class BridgeCommandError(SpiError):
    """The command failed; the text says why."""


class BridgeCommand:
    """The command ``kinmqtt bridge``."""

    summary = "write settings for the bridges of a Mosquitto"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        imports = actions.add_parser("import", help="write settings for the connections of a mosquitto.conf")
        imports.add_argument("file", type=Path, metavar="FILE", help="the settings of Mosquitto 2")
        imports.add_argument("--out", type=Path, metavar="FILE", help="a new file; by default standard output")

    def run(self, parsed: Namespace) -> int:
        """Write the settings, and a line on standard error for each directive that is not in them."""
        try:
            found = Import(read(parsed.file))
        except (OSError, ValueError, SettingsError) as error:
            raise BridgeCommandError(f"{parsed.file} can't be read: {error}") from error
        for note in found.notes:
            print(note, file=sys.stderr)
        if not found.names:
            raise BridgeCommandError(f"{parsed.file} has no connection")
        if parsed.out is None:
            sys.stdout.write(found.toml)
            return 0
        try:
            # Not over a file that is there: it may have settings of its own.
            with parsed.out.open("x", encoding="utf-8") as file:
                file.write(found.toml)
        except OSError as error:
            raise BridgeCommandError(f"{parsed.out} can't be written: {error.strerror or error}") from error
        return 0


command: Final = BridgeCommand()
