"""The README has every setting, and its example is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from kinmqtt_bridge_mqtt import BridgeMqtt, BridgeMqttSettings
from kinmqtt_bridge_mqtt.settings import ConnectionSettings, TlsSettings
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.settings import Document, parse

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
CLASSES = (ConnectionSettings, TlsSettings)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_described(cls: type[Any]) -> None:
    """In the table."""
    for attribute in attrs.fields(cls):
        assert f"`{attribute.name}`" in README


def test_no_other_setting_is_described() -> None:
    """A key that was renamed is found."""
    known = {attribute.name for cls in CLASSES for attribute in attrs.fields(cls)}
    [table] = re.findall(r"\| key \| type .*?\n\n", README, re.DOTALL)
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", table, re.MULTILINE)

    assert rows
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} <= known


def test_the_example_is_valid() -> None:
    """Its sink and its source are made."""
    [example] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    plugin = BridgeMqtt()
    context = BareContext(
        "bridge_mqtt", parse(BridgeMqttSettings, Document.parse(example), ("plugins", "bridge_mqtt"))
    )

    plugin.configure(context)

    assert plugin.sinks(context)["cloud"].filters == ("sensors/#", "state/#")
    assert list(plugin.sources(context)) == ["cloud"]
