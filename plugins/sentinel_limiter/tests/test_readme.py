"""The README says what the rules are: its tables and examples are held against the settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinmqtt_sentinel_limiter import Rules, SentinelSettings
from kinmqtt_sentinel_limiter._settings import (
    AnswerSettings,
    DegradeSettings,
    FlowSettings,
    MatchSettings,
    ParamSettings,
    SystemSettings,
)
from kinmqtt_spi.settings import Document, describe, parse

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(
    "settings",
    [AnswerSettings, MatchSettings, FlowSettings, ParamSettings, SystemSettings, DegradeSettings, SentinelSettings],
)
def test_each_key_is_explained(settings: type) -> None:
    """With its type, its default and its meaning, as the settings have them."""
    rows = [row for row in describe(settings) if "[" not in row.key and row.key not in ("flow", "degrade", "system")]
    shown = {"": "", "required": "required"}

    for row in rows:
        default = shown.get(row.default, f"`{row.default}`")
        if row.key != "param" or settings is ParamSettings:
            assert f"| `{row.key}` | {row.type} | {default} | {row.help} |" in TEXT


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_sound(example: str) -> None:
    """As a section of the settings, or as a rules file."""
    document = Document.parse(example, "README.md")

    if "plugins" in document.data:
        assert parse(SentinelSettings, document, ("plugins", "sentinel_limiter")).all()
    else:
        assert parse(Rules, document, ()).all()
