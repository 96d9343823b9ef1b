"""The README has every setting, and its example is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from kinmqtt_bridge_http import BridgeHttp, BridgeHttpSettings
from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.tls import ClientTls

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
CLASSES = (SinkSettings, ClientTls, OutboxSettings, SendSettings)


def example() -> str:
    """The settings to copy."""
    text: str
    [text] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    return text


def parsed(text: str) -> BridgeHttpSettings:
    """The settings of a file."""
    return parse(BridgeHttpSettings, Document.parse(text, "kinmqtt.toml"), ("plugins", "bridge_http"))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_described(cls: type[Any]) -> None:
    """In a table, and nothing is described that isn't there."""
    for attribute in attrs.fields(cls):
        assert f"`{attribute.name}`" in README


def test_no_other_setting_is_described() -> None:
    """A key that was renamed is found."""
    known = {attribute.name for cls in CLASSES for attribute in attrs.fields(cls)}
    text = README[README.index("## Settings") : README.index("In templates")]
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| \w", text, re.MULTILINE)

    assert rows
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} <= known


def test_the_example_is_valid() -> None:
    """Its sinks are made."""
    plugin = BridgeHttp()
    context = BareContext("bridge_http", parsed(example()))

    plugin.configure(context)

    assert list(plugin.sinks(context)) == ["readings", "alarms"]


def test_the_mistakes_are_those_of_the_example() -> None:
    """As `kinmqtt check` says them."""
    changed = example().replace("format =", "formats =").replace("hooks/${topic[2]}", "hooks/${topics}")

    with pytest.raises(SettingsError) as refused:
        parsed(changed)

    assert re.findall(r"^kinmqtt: (kinmqtt\.toml:.*)$", README, re.MULTILINE) == list(refused.value.problems)
