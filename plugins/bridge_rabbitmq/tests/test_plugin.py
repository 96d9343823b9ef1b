"""The plugin keeps the contract of plugins, and refuses settings with the place of each mistake."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_bridge_rabbitmq import BridgeRabbitMQ, BridgeRabbitMQSettings
from kinmqtt_bridge_rabbitmq.sink import RabbitMQSink
from kinmqtt_bridge_rabbitmq.source import RabbitMQSource
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.outbox import WhenFull
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract

SECTION = """
[plugins.bridge_rabbitmq.connections.main]
servers = ["127.0.0.1:5672"]
[plugins.bridge_rabbitmq.sinks.readings]
connection = "main"
filters = ["sensors/#"]
exchange = "mqtt"
routing_key = "readings.${topic[1]}"
headers = { site = "north" }
outbox = { max_bytes = "1 GiB", when_full = "refuse" }
sending = { parallel = 4, poison = "drop" }
[plugins.bridge_rabbitmq.sources.commands]
connection = "main"
queues = ["commands"]
publish = { topic = "devices/${header.device}/do", qos = 1 }
"""


def parsed(text: str) -> BridgeRabbitMQSettings:
    """The settings of a file."""
    return parse(BridgeRabbitMQSettings, Document.parse(text, "kinmqtt.toml"), ("plugins", "bridge_rabbitmq"))


def configured(text: str = SECTION) -> tuple[BridgeRabbitMQ, BareContext]:
    """A plugin with these settings."""
    plugin = BridgeRabbitMQ()
    context = BareContext("bridge_rabbitmq", parsed(text))
    plugin.configure(context)
    return plugin, context


class TestPlugin(PluginContract):
    """The plugin as any other."""

    reactor = "asyncio"
    reloads = True
    refuses_settings = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        section = SECTION.replace("plugins.bridge_rabbitmq.", "")
        changed = section.replace("readings.${topic[1]}", "other")
        return PluginCase(BridgeRabbitMQ, section, changed=changed, refused="", name="bridge_rabbitmq")

    def probe(self, plugin: Any) -> object:
        return [sink.sink._settings for sink in plugin.sinks(BareContext("bridge_rabbitmq", None)).values()]


def test_sinks_are_those_of_the_settings() -> None:
    """With their filters and bounds."""
    plugin, context = configured()

    [(name, plan)] = plugin.sinks(context).items()

    assert name == "readings"
    assert isinstance(plan.sink, RabbitMQSink)
    assert plan.filters == ("sensors/#",)
    assert (plan.outbox.max_bytes, plan.outbox.when_full) == (1 << 30, WhenFull.REFUSE)
    assert (plan.sending.parallel, plan.sending.poison) == (4, "drop")


def test_sources_are_those_of_the_settings() -> None:
    """By name."""
    plugin, context = configured()

    [(name, source)] = plugin.sources(context).items()

    assert name == "commands"
    assert isinstance(source, RabbitMQSource)


def test_without_sinks_and_sources_the_plugin_abstains() -> None:
    """It is installed, and nobody has said what for."""
    with pytest.raises(NotConfigured):
        configured("")


def test_a_password_without_encryption_is_warned_of(tmp_path: Path) -> None:
    """AMQP sends it as it is."""
    (tmp_path / "p").write_text("secret")
    more = f'["127.0.0.1:5672"]\nusername = "k"\npassword_file = "{tmp_path}/p"\n'

    _, context = configured(SECTION.replace('["127.0.0.1:5672"]\n', more))

    assert "main" in context.log.texts("warn")[0]
    assert "secret" not in repr(context.settings)


def test_the_prefetch_keeps_both_bounds() -> None:
    """As many messages as fit if each is as long as allowed, and at least one."""
    settings = parsed(SECTION).sources["commands"]
    small = SECTION.replace('["commands"]\n', '["a", "b"]\nprefetch_bytes = 1000\nmax_message_bytes = 100\n')

    assert settings.prefetch_messages == 256
    assert parsed(small).sources["commands"].prefetch_messages == 5
    assert parsed(small.replace("1000", "10")).sources["commands"].prefetch_messages == 1


def test_pikas_lines_are_for_debugging() -> None:
    """Several come with each attempt to reconnect; with the stop pika's log is as it was."""
    plugin, context = configured()
    plugin.start(context)
    logging.getLogger("pika.connection").error("it failed")
    plugin.stop()

    assert context.log.texts("debug") == ["pika: it failed"]
    assert logging.getLogger("pika").propagate


@pytest.mark.parametrize(
    ("found", "instead", "problem"),
    [
        (
            'connection = "main"\nfilters',
            'connection = "mian"\nfilters',
            "kinmqtt.toml:4:26: plugins.bridge_rabbitmq.sinks: readings.connection: no connection 'mian'; "
            "did you mean 'main'?; there are: main",
        ),
        (
            "readings.${topic[1]}",
            "readings.${topics}",
            "kinmqtt.toml:8:15: plugins.bridge_rabbitmq.sinks.readings.routing_key: 'readings.${topics}': unknown "
            "placeholder ${topics}; did you mean 'topic'?; use ${topic}, ${topic[N]}, ${clientid} or ${username}",
        ),
        (
            "readings.${topic[1]}",
            "r" * 256,
            "kinmqtt.toml:8:15: plugins.bridge_rabbitmq.sinks.readings.routing_key: a routing key has at most 255 "
            "bytes",
        ),
        (
            'exchange = "mqtt"',
            'exchagne = "mqtt"',
            "kinmqtt.toml:7:1: plugins.bridge_rabbitmq.sinks.readings.exchagne: unknown key; "
            "did you mean 'exchange'?",
        ),
        (
            'exchange = "mqtt"',
            'exchange = "mqtt"\nqueues = ["a"]',
            "kinmqtt.toml:4:32: plugins.bridge_rabbitmq.sinks.readings: queues are only for declare = true: the "
            "exchange decides where messages go",
        ),
        (
            'exchange = "mqtt"',
            "",
            "kinmqtt.toml:4:32: plugins.bridge_rabbitmq.sinks.readings: without exchange the routing key names a "
            "queue, and 'readings.${topic[1]}' would let publishers choose any queue of the virtual host: name an "
            "exchange, or one queue as routing_key",
        ),
        (
            'exchange = "mqtt"\nrouting_key = "readings.${topic[1]}"',
            "",
            "kinmqtt.toml:4:32: plugins.bridge_rabbitmq.sinks.readings: without exchange the routing key names a "
            "queue, and '${topic}' would let publishers choose any queue of the virtual host: name an exchange, "
            "or one queue as routing_key",
        ),
        (
            "site = ",
            "CC = ",
            "kinmqtt.toml:9:11: plugins.bridge_rabbitmq.sinks.readings.headers: 'CC' can't be a header: names that "
            "begin with mqtt- are the bridge's own, those that begin with x-, CC and BCC are RabbitMQ's, and "
            "none has more "
            "than 255 bytes",
        ),
        (
            "127.0.0.1:5672",
            "127.0.0.1",
            "kinmqtt.toml:3:11: plugins.bridge_rabbitmq.connections.main.servers: '127.0.0.1' is not host:port",
        ),
        (
            'servers = ["127.0.0.1:5672"]',
            'servers = ["127.0.0.1:5672"]\nusername = "ada"',
            "kinmqtt.toml:2:38: plugins.bridge_rabbitmq.connections.main: username needs password_file",
        ),
        (
            'servers = ["127.0.0.1:5672"]',
            'servers = ["127.0.0.1:5672"]\ntls = { certificate_file = "/dev/null" }',
            "kinmqtt.toml:4:1: plugins.bridge_rabbitmq.connections.main.tls: certificate_file: /dev/null: "
            "can't be read: it is a device, not a regular file",
        ),
        (
            "${header.device}",
            "${clientid}",
            "kinmqtt.toml:15:21: plugins.bridge_rabbitmq.sources.commands.publish.topic: 'devices/${clientid}/do': "
            "unknown placeholder ${clientid}; use ${routing_key}, ${topic}, ${queue}, ${exchange} or ${header.NAME}",
        ),
        (
            'queues = ["commands"]',
            "queues = []",
            "kinmqtt.toml:14:10: plugins.bridge_rabbitmq.sources.commands.queues: name at least one queue",
        ),
    ],
)
def test_each_mistake_has_its_place(found: str, instead: str, problem: str) -> None:
    """File, line, key, what is wrong and what would do."""
    assert found in SECTION

    with pytest.raises(SettingsError) as refused:
        parsed(SECTION.replace(found, instead))

    assert refused.value.problems == (problem,)
