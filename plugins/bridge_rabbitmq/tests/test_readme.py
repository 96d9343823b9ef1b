"""The README has every setting, and its example is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from kinmqtt_bridge_rabbitmq import BridgeRabbitMQ, BridgeRabbitMQSettings
from kinmqtt_bridge_rabbitmq.settings import (
    ConnectionSettings,
    PublishSettings,
    SinkSettings,
    SourceSettings,
)
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.tls import ClientTls

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
CLASSES = (
    ConnectionSettings, ClientTls, SinkSettings, SourceSettings, PublishSettings, OutboxSettings, SendSettings,
)  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_described(cls: type[Any]) -> None:
    """In a table, and nothing is described that isn't there."""
    for attribute in attrs.fields(cls):
        assert f"`{attribute.name}`" in README


def test_no_other_setting_is_described() -> None:
    """A key that was renamed is found."""
    known = {attribute.name for cls in CLASSES for attribute in attrs.fields(cls)}
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| \w", README, re.MULTILINE)

    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} <= known


def test_its_mistakes_are_found_as_shown() -> None:
    """In the example, with the place of each."""
    [example] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    wrong = example.replace("exchange =", "exchagne =").replace(
        'commands]\nconnection = "main"', 'commands]\nconnection = "mian"'
    )

    with pytest.raises(SettingsError) as refused:
        parse(BridgeRabbitMQSettings, Document.parse(wrong, "kinmqtt.toml"), ("plugins", "bridge_rabbitmq"))

    assert list(refused.value.problems) == re.findall(r"^kinmqtt: (kinmqtt.toml:.*)$", README, re.MULTILINE)


def test_the_example_is_valid() -> None:
    """Its sink and its source are made."""
    [example] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    plugin = BridgeRabbitMQ()
    context = BareContext(
        "bridge_rabbitmq", parse(BridgeRabbitMQSettings, Document.parse(example), ("plugins", "bridge_rabbitmq"))
    )

    plugin.configure(context)

    assert list(plugin.sinks(context)) == ["readings"]
    assert list(plugin.sources(context)) == ["commands"]
