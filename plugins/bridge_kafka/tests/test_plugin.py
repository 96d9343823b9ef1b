"""The plugin keeps the contract of plugins, and refuses settings with the place of each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinmqtt_bridge_kafka import BridgeKafka, BridgeKafkaSettings
from kinmqtt_bridge_kafka.sink import KafkaSink
from kinmqtt_bridge_kafka.source import KafkaSource
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.outbox import WhenFull
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Message, Publisher

SECTION = """
[plugins.bridge_kafka.connections.main]
servers = ["127.0.0.1:9092"]
[plugins.bridge_kafka.sinks.readings]
connection = "main"
filters = ["sensors/#"]
topic = "mqtt.${topic[1]}"
key = "${clientid}/${topic}"
headers = { site = "north" }
outbox = { max_bytes = "1 GiB", when_full = "refuse" }
sending = { parallel = 4, poison = "drop" }
[plugins.bridge_kafka.sources.commands]
connection = "main"
topics = ["commands"]
group = "kinmqtt"
publish = { topic = "devices/${key}/do", qos = 1 }
"""


def parsed(text: str) -> BridgeKafkaSettings:
    """The settings of a file."""
    return parse(BridgeKafkaSettings, Document.parse(text, "kinmqtt.toml"), ("plugins", "bridge_kafka"))


def configured(text: str = SECTION) -> tuple[BridgeKafka, BareContext]:
    """A plugin with these settings."""
    plugin = BridgeKafka()
    context = BareContext("bridge_kafka", parsed(text))
    plugin.configure(context)
    return plugin, context


class TestPlugin(PluginContract):
    """The plugin as any other."""

    reactor = "asyncio"
    reloads = True
    refuses_settings = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        section = SECTION.replace("plugins.bridge_kafka.", "")
        changed = section.replace("mqtt.${topic[1]}", "other")
        return PluginCase(BridgeKafka, section, changed=changed, refused="", name="bridge_kafka")

    def probe(self, plugin: Any) -> object:
        return [sink.sink._settings for sink in plugin.sinks(BareContext("bridge_kafka", None)).values()]


def test_sinks_are_those_of_the_settings() -> None:
    """With their filters, bounds and keys."""
    plugin, context = configured()

    [(name, plan)] = plugin.sinks(context).items()

    assert name == "readings"
    assert isinstance(plan.sink, KafkaSink)
    assert plan.filters == ("sensors/#",)
    assert (plan.outbox.max_bytes, plan.outbox.when_full) == (1 << 30, WhenFull.REFUSE)
    assert (plan.sending.parallel, plan.sending.poison) == (4, "drop")
    assert plan.key(Message("a/b", publisher=Publisher("ada"))) == b"ada/a/b"


def test_sources_are_those_of_the_settings() -> None:
    """By name."""
    plugin, context = configured()

    [(name, source)] = plugin.sources(context).items()

    assert name == "commands"
    assert isinstance(source, KafkaSource)


def test_without_sinks_and_sources_the_plugin_abstains() -> None:
    """It is installed, and nobody has said what for."""
    with pytest.raises(NotConfigured):
        configured("")


def test_a_compression_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, with what to install."""
    monkeypatch.setattr("aiokafka.codec.has_lz4", lambda: False)

    with pytest.raises(SettingsError, match=r"sinks.readings.compression: .*pip install kinmqtt-bridge-kafka"):
        configured(SECTION.replace("key = ", 'compression = "lz4"\nkey = '))


def test_a_password_without_encryption_is_warned_of(tmp_path: Path) -> None:
    """PLAIN sends it as it is."""
    (tmp_path / "p").write_text("secret")
    security = f"""security = {{ protocol = "SASL_PLAINTEXT", mechanism = "PLAIN", username = "k",
        password_file = "{tmp_path}/p" }}""".replace("\n", " ")

    _, context = configured(SECTION.replace('["127.0.0.1:9092"]\n', f'["127.0.0.1:9092"]\n{security}\n'))

    assert "main" in context.log.texts("warn")[0]
    assert "secret" not in repr(context.settings)


@pytest.mark.parametrize(
    ("found", "instead", "problem"),
    [
        (
            'connection = "main"\nfilters',
            'connection = "mian"\nfilters',
            "kinmqtt.toml:4:23: plugins.bridge_kafka.sinks: readings.connection: no connection 'mian'; "
            "did you mean 'main'?; there are: main",
        ),
        (
            'connection = "main"\ntopics',
            'connection = "other"\ntopics',
            "kinmqtt.toml:12:23: plugins.bridge_kafka.sources: commands.connection: no connection 'other'; "
            "there are: main",
        ),
        (
            "mqtt.${topic[1]}",
            "mqtt.${topics}",
            "kinmqtt.toml:7:9: plugins.bridge_kafka.sinks.readings.topic: 'mqtt.${topics}': unknown placeholder "
            "${topics}; did you mean 'topic'?; use ${topic}, ${topic[N]}, ${clientid} or ${username}",
        ),
        (
            "mqtt.${topic[1]}",
            "m q",
            "kinmqtt.toml:7:9: plugins.bridge_kafka.sinks.readings.topic: 'm q' can't be the name of a Kafka topic: "
            "it has 1 to 249 letters, digits, dots, underscores and hyphens, and is not . or ..",
        ),
        (
            "sensors/#",
            "sensors/#/x",
            "kinmqtt.toml:6:11: plugins.bridge_kafka.sinks.readings.filters: 'sensors/#/x' is not a topic filter "
            "that a topic can match",
        ),
        (
            "max_bytes",
            "max_byte",
            "kinmqtt.toml:10:12: plugins.bridge_kafka.sinks.readings.outbox.max_byte: unknown key; "
            "did you mean 'max_bytes'?",
        ),
        (
            "site = ",
            "mqtt-id = ",
            "kinmqtt.toml:9:11: plugins.bridge_kafka.sinks.readings.headers: 'mqtt-id' can't be a header: names that "
            "begin with mqtt- are the bridge's own",
        ),
        (
            "127.0.0.1:9092",
            "127.0.0.1",
            "kinmqtt.toml:3:11: plugins.bridge_kafka.connections.main.servers: '127.0.0.1' is not host:port",
        ),
        (
            "devices/${key}/do",
            "devices/${clientid}/do",
            "kinmqtt.toml:16:21: plugins.bridge_kafka.sources.commands.publish.topic: 'devices/${clientid}/do': "
            "unknown placeholder ${clientid}; use ${topic}, ${key} or ${header.NAME}",
        ),
        (
            'group = "kinmqtt"\n',
            "",
            "kinmqtt.toml:12: plugins.bridge_kafka.sources.commands.group: required key is missing (a string)",
        ),
        (
            'group = "kinmqtt"\n',
            'group = "kinmqtt"\ngroups = 1\n',
            "kinmqtt.toml:16:1: plugins.bridge_kafka.sources.commands.groups: unknown key; did you mean 'group'?",
        ),
    ],
)
def test_each_mistake_has_its_place(found: str, instead: str, problem: str) -> None:
    """File, line, key, what is wrong and what would do."""
    assert found in SECTION

    with pytest.raises(SettingsError) as refused:
        parsed(SECTION.replace(found, instead))

    assert refused.value.problems == (problem,)
