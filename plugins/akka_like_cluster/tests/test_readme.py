"""The README says what the settings are: its tables are held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinmqtt_akka_like_cluster.settings import AkkaSettings, TlsSettings
from kinmqtt_spi.settings import describe

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def table_in_code(settings: type) -> list[str]:
    """The rows of a settings class, as a table has them; a table within it has one of its own."""
    shown = {"": "", "required": "required"}
    return [
        f"| `{row.key}` | {row.type} | {shown.get(row.default, f'`{row.default}`')} | {row.help} |"
        for row in describe(settings)
        if "." not in row.key
    ]


@pytest.mark.parametrize(
    ("section", "settings"),
    [("plugins.akka_like_cluster", AkkaSettings), ("plugins.akka_like_cluster.tls", TlsSettings)],
)
def test_each_table_has_the_keys_of_its_section(section: str, settings: type) -> None:
    """All of them in their order, each with its type, its default and its meaning, and no others."""
    table = TEXT.split(f"`[{section}]`", 1)[1].split("| key |", 1)[1].split("\n\n", 1)[0]

    rows = re.findall(r"^\| `.*\|$", table, re.MULTILINE)

    assert rows == table_in_code(settings)
