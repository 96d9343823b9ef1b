"""The plugin keeps the contract of plugins, and refuses settings with the place of each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinmqtt_bridge_mqtt import BridgeMqtt, BridgeMqttSettings
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract

SECTION = """
[plugins.bridge_mqtt.connections.cloud]
servers = ["127.0.0.1:1883"]
topics = ["sensors/# out 1", "cmd/# in 1 local/ dev7/"]
notifications = true
sending = { parallel = 2 }
[plugins.bridge_mqtt.connections.reads]
servers = ["127.0.0.1:1884", "127.0.0.1:1885"]
topics = ["news/# in 1"]
version = "3.1.1"
"""


def parsed(text: str) -> BridgeMqttSettings:
    """The settings of a file."""
    return parse(BridgeMqttSettings, Document.parse(text, "kinmqtt.toml"), ("plugins", "bridge_mqtt"))


def configured(text: str = SECTION) -> tuple[BridgeMqtt, BareContext]:
    """A plugin with these settings."""
    plugin = BridgeMqtt()
    context = BareContext("bridge_mqtt", parsed(text))
    plugin.configure(context)
    return plugin, context


class TestPlugin(PluginContract):
    """The plugin as any other."""

    reactor = "asyncio"
    reloads = True
    refuses_settings = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        section = SECTION.replace("plugins.bridge_mqtt.", "")
        changed = section.replace("sensors/#", "other/#")
        return PluginCase(BridgeMqtt, section, changed=changed, refused="", name="bridge_mqtt")

    def probe(self, plugin: Any) -> object:
        return [plan.filters for plan in plugin.sinks(BareContext("bridge_mqtt", None)).values()]


def test_a_connection_has_a_sink_and_a_source_as_its_topics_say() -> None:
    """Both share the connection."""
    plugin, context = configured()

    sinks, sources = plugin.sinks(context), plugin.sources(context)

    assert {name: plan.filters for name, plan in sinks.items()} == {"cloud": ("sensors/#",)}
    assert sinks["cloud"].sending.parallel == 2
    assert list(sources) == ["cloud", "reads"]
    assert sinks["cloud"].sink.connection is sources["cloud"].connection  # type: ignore[attr-defined]


def test_a_reload_leaves_unchanged_connections_alone() -> None:
    """A changed one is another, and the old one makes no link any more."""
    plugin, context = configured()
    before = plugin.sources(context)

    plugin.reload(parsed(SECTION.replace("cmd/#", "do/#")))
    after = plugin.sources(context)

    assert after["reads"].connection is before["reads"].connection  # type: ignore[attr-defined]
    assert after["cloud"].connection is not before["cloud"].connection  # type: ignore[attr-defined]
    assert before["cloud"].connection._is_retired  # type: ignore[attr-defined]


def test_the_state_is_published_here_too() -> None:
    """With notifications, under the topic that Mosquitto uses."""
    plugin, context = configured()
    plugin.sinks(context)

    [topic] = plugin.sys_topics()

    assert topic.topic == f"$SYS/broker/connection/{context.node.name}.cloud/state"
    assert topic.read() == "0"


def test_without_connections_the_plugin_abstains() -> None:
    """It is installed, and nobody has said what for."""
    with pytest.raises(NotConfigured):
        configured("")


@pytest.mark.parametrize(("server", "warns"), [("far.example:1883", True), ("127.0.0.1:1883", False)])
def test_a_password_without_encryption_is_warned_of(tmp_path: Path, server: str, warns: bool) -> None:
    """Where it goes over a network."""
    (tmp_path / "p").write_text("secret")
    user = f'username = "k"\npassword_file = "{tmp_path}/p"\n'

    _, context = configured(SECTION.replace("notifications = true\n", user).replace("127.0.0.1:1883", server))

    assert ["cloud sends its password" in line for line in context.log.texts("warn")] == [True] * warns
    assert "secret" not in repr(context.settings)


@pytest.mark.parametrize(
    ("found", "instead", "problem"),
    [
        (
            "out 1",
            "uot 1",
            "kinmqtt.toml:4:10: plugins.bridge_mqtt.connections.cloud.topics: 'sensors/# uot 1': "
            "'uot' is no direction; did you mean 'out'?",
        ),
        ('"3.1.1"', '"3.1"', "kinmqtt.toml:10:11: plugins.bridge_mqtt.connections.reads.version"),
        (
            "127.0.0.1:1884",
            "far",
            "kinmqtt.toml:8:11: plugins.bridge_mqtt.connections.reads.servers: 'far' is",
        ),
        ("notifications", "notification", "unknown key; did you mean 'notifications'?"),
        ("connections.reads", "connections.Reads", "'Reads' is not a name"),
        ('version = "3.1.1"', 'version = "3.1.1"\nshare = "g"', 'share needs version = "5"'),
        ('version = "3.1.1"', 'tls = { ca_file = "/no/such" }', "ca_file"),
        ('version = "3.1.1"', 'password_file = "/no/such"', "password_file"),
    ],
)
def test_mistakes_are_named_with_their_places(found: str, instead: str, problem: str) -> None:
    """As `kinmqtt check` prints them."""
    with pytest.raises(SettingsError) as caught:
        parsed(SECTION.replace(found, instead, 1))

    assert problem in str(caught.value)
