"""The README says what the settings are, and shows a record as it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics.record import FIELDS
from kinmqtt_metrics.settings import CHOICES, MetricsSettings
from kinmqtt_metrics.spool import REASONS
from kinmqtt_spi.settings import Document, describe, parse

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_each_key_is_explained() -> None:
    """With its type, its default and its meaning, as the settings have them."""
    for row in describe(MetricsSink().settings_class()):
        default = f"`{row.default}`" if row.default else ""
        assert f"| `{row.key}` | {row.type} | {default} | {row.help} |" in TEXT


def test_the_section_is_sound() -> None:
    """It can be copied."""
    [example, _] = [text for text in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL) if "[plugins.metrics]" in text]

    settings = parse(MetricsSettings, Document.parse(example, "README.md"), ("plugins", "metrics"))

    assert settings.landing is not None


def test_events_and_reasons_are_named() -> None:
    """All that can be asked for, and all for which something is dropped."""
    for word in (*CHOICES, *REASONS):
        assert f"`{word}`" in TEXT


def test_the_line_is_one() -> None:
    """With the keys that records have, in their order."""
    [line] = re.findall(r"```json\n(.*?)\n```", TEXT, re.DOTALL)

    keys = list(json.loads(line))
    assert keys == [key for key in FIELDS if key in keys]
