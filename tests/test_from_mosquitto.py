"""docs/from-mosquitto.md: its example is sound, and the keys it names are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kinmqtt.config import Overrides, load
from kinmqtt.settings import BrokerSettings, LimitSettings, ListenerSettings
from kinmqtt_spi.settings import describe

PAGE = (Path(__file__).parent.parent / "docs" / "from-mosquitto.md").read_text(encoding="utf-8")


def keys(settings_class: type[Any]) -> set[str]:
    return {row.key for row in describe(settings_class)}


def test_the_example_is_sound(tmp_path: Path) -> None:
    """It can be loaded as it stands, where there are the files that it names."""
    [example] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "kinmqtt.toml"
    for name in ("server.crt", "server.key"):
        (tmp_path / name).touch()
    file.write_text(example.replace("/etc/mosquitto/certs", str(tmp_path)))

    settings = load(file, Overrides(), {})

    assert [name for name, _, _ in settings.listeners] == ["local", "tls", "web"]
    assert settings.limits.max_session_expiry_s == 14 * 86_400


def test_the_keys_are_there() -> None:
    """What stands in the second column of a table is a key of these settings."""
    known = {f"broker.{key}" for key in keys(BrokerSettings)}
    known |= {f"limits.{key}" for key in keys(LimitSettings)} | keys(ListenerSettings)
    named = set(re.findall(r"`((?:broker|limits|tls)\.\w+)", PAGE))

    assert len(named) > 20
    assert named - known == set()
