"""kinmqtt: a pluggable MQTT broker. Plugins import ``kinmqtt_spi``; what is here may change with every version."""

from pathlib import Path

from kinmqtt import _twin

TWIN = _twin.choose(Path(__file__).parent)
"""How the message path runs: ``compiled``, or ``plain Python`` and why."""
