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


def test_the_examples_are_valid(tmp_path: Path) -> None:
    """That of a plain Kafka, and that with a password that is there."""
    (tmp_path / "k").write_text("secret")
    plain, secure = (
        parse(
            EventKafkaSettings,
            Document.parse(example.replace("/run/kafka-password", str(tmp_path / "k"))),
            ("plugins", "event_kafka"),
        )
        for example in re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    )

    assert plain.servers == ("127.0.0.1:9092",)
    assert plain.retained_topic == "kinmqtt.retained"
    assert secure.servers == ("kafka-1:9093", "kafka-2:9093")
    assert secure.security.username == "kinmqtt"
