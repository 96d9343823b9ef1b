"""The README has every setting, and its example is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from kinmqtt_event_kafka import EventKafkaSettings
from kinmqtt_kafka_kit import SecuritySettings
from kinmqtt_spi.settings import Document, parse

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("cls", "prefix"), [(EventKafkaSettings, ""), (SecuritySettings, "security.")])
def test_every_setting_is_described(cls: type[Any], prefix: str) -> None:
    """In the table."""
    rows = "\n".join(re.findall(r"^\| (`.*?) \|", README, re.MULTILINE))

    assert [
        each.name for each in attrs.fields(cls) if each.name != "security" and f"`{prefix}{each.name}`" not in rows
    ] == []


def test_the_example_is_valid(tmp_path: Path) -> None:
    """With a password that is there."""
    [example] = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "k").write_text("secret")

    settings = parse(
        EventKafkaSettings,
        Document.parse(example.replace("/run/k", str(tmp_path / "k"))),
        ("plugins", "event_kafka"),
    )

    assert settings.servers == ("kafka:9092",)
    assert settings.retained_topic == "kinmqtt.retained"
