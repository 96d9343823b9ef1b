"""The settings section: strict, and every mistake with its place."""

from __future__ import annotations

import sys

import pytest

from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics.settings import BY_ITSELF, MetricsSettings
from kinmqtt_metrics.spool import RECORD_BYTES
from kinmqtt_spi.errors import AssemblyError, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.settings import Document, parse


def parsed(text: str) -> MetricsSettings:
    """The section as the broker parses it."""
    return parse(MetricsSettings, Document.parse(text, "kinmqtt.toml"), ())


def test_what_is_left_out_has_a_default() -> None:
    """Nothing is told that costs for each message, unless somebody asks for it."""
    settings = parsed('landing = "/srv/metrics"')

    assert (settings.roll_s, settings.roll_bytes, settings.capture) == (5.0, 8 << 20, ())
    assert settings.events == BY_ITSELF
    assert not {"dropped", "retained", "retain_cleared"} & set(settings.events)


def test_units_can_be_written() -> None:
    """Sizes and durations as everywhere."""
    settings = parsed('roll_s = "10 s"\nroll_bytes = "1 MiB"\nkeep_free_bytes = "2 GiB"\nevents = []')

    assert (settings.roll_s, settings.roll_bytes, settings.keep_free_bytes) == (10.0, 1 << 20, 2 << 30)
    assert settings.events == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("roll_s = 1", r"kinmqtt.toml:1:10: roll_s: "),
        ("roll_s = 60", r"kinmqtt.toml:1:10: roll_s: "),
        ("rolls = 5", r"kinmqtt.toml:1:1: rolls: "),
        ('events = ["conected"]', r"kinmqtt.toml:1:\d+: events\[0\]: .*connected"),
        ('capture = ["a/#/b"]', r"kinmqtt.toml:1:\d+: capture: 'a/#/b' is not a topic filter that matches a topic"),
        ('capture = ["$share/g/a"]', r"capture: '\$share/g/a' is not a topic filter"),
        ("max_waiting_bytes = 1", r"max_waiting_bytes: "),
    ],
)
def test_mistakes_have_a_place(text: str, problem: str) -> None:
    """What, where, and what it may be."""
    with pytest.raises(SettingsError, match=problem):
        parsed(text)


def test_the_largest_message_that_is_archived_fits() -> None:
    """With any pair of limits; else its payload would be asked for and never be there."""
    most = parsed('max_waiting_bytes = "2 MiB"\ncapture_max_payload_bytes = "1 MiB"')

    longest = 4 * (65_535 + 65_535)
    assert most.capture_max_payload_bytes + longest + RECORD_BYTES <= most.max_waiting_bytes


def test_kafka_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed the error says how to install it; the landing folder needs nothing."""
    monkeypatch.setitem(sys.modules, "kinmqtt_metrics.kafka_settings", None)
    sink = MetricsSink()
    settings = parse(
        sink.settings_class(), Document.parse('[plugins.metrics]\nsink = "kafka"', "t"), ("plugins", "metrics")
    )

    with pytest.raises(AssemblyError, match=r"pip install \"kinmqtt-metrics\[kafka\]\""):
        sink.configure(BareContext("metrics", settings))
