"""The settings ``[plugins.bridge_kafka]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from attrs import frozen

from kinmqtt_bridge_kafka.templates import kafka_topic, mqtt_topic
from kinmqtt_kafka_kit.settings import SecuritySettings, check_servers, check_topic
from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import checked, referring, setting
from kinmqtt_spi.templates import key_maker, of_message
from kinmqtt_spi.topics import check_filters

OURS: Final = "mqtt-"
"""The prefix of the header names that the bridge sets itself."""


def _check_servers(servers: Sequence[str]) -> None:
    if not servers:
        raise ValueError("name at least one server, as host:port")
    check_servers(servers)


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, text in headers.items():
        if not name or name.startswith(OURS):
            raise ValueError(f"{name!r} can't be a header: names that begin with {OURS} are the bridge's own")
        of_message(text)


def _check_topics(topics: Sequence[str]) -> None:
    if not topics:
        raise ValueError("name at least one topic")
    for each in topics:
        check_topic(each)


def _check_group(group: str) -> None:
    if not group:
        raise ValueError("name the consumer group, in which Kafka stores how far the source is")


@frozen(slots=True)
class ConnectionSettings:
    """A Kafka cluster."""

    servers: tuple[str, ...] = setting(
        help="some of its brokers, as `host:port`; they name the others", validator=checked(_check_servers)
    )
    security: SecuritySettings = setting(factory=SecuritySettings, help="encryption and the user")
    timeout_s: float = setting(
        10.0, help="the time limit for an answer; after it Kafka counts as away", unit="s", minimum=0.1, maximum=600
    )


@frozen(slots=True)
class _OfAConnection:
    """What uses a connection."""

    connection: str = setting(help="the name of a connection")

    def at_connection(self, refused: SinkRefused) -> SinkRefused:
        """Return a refusal that names the place in the settings."""
        return SinkRefused(f"plugins.bridge_kafka.connections.{self.connection}: {refused}")


@frozen(slots=True)
class SinkSettings(_OfAConnection):
    """Messages that go to Kafka."""

    filters: tuple[str, ...] = setting(
        (), help="topic filters of the messages; without any, only rules feed it", validator=checked(check_filters)
    )
    topic: str = setting(help="the Kafka topic, a template", validator=checked(kafka_topic))
    key: str = setting("${clientid}", help="the key of records, a template", validator=checked(key_maker))
    headers: dict[str, str] = setting(
        factory=dict, help="further headers of records, each a template", validator=checked(_check_headers)
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "none", help="of batches; all but gzip need the package cramjam"
    )
    max_record_bytes: int = setting(
        1 << 20,
        help="longer records are poison, without asking Kafka; batches are not longer either",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )
    outbox: OutboxSettings = setting(factory=OutboxSettings, help="the bounds of its outbox")
    sending: SendSettings = setting(factory=SendSettings, help="how it is sent")


@frozen(slots=True)
class PublishSettings:
    """What becomes of a record in MQTT."""

    topic: str = setting(help="the MQTT topic, a template", validator=checked(mqtt_topic))
    qos: int = setting(1, help="the QoS", minimum=0, maximum=2)
    retain: bool = setting(False, help="whether messages are retained")
    user_properties: bool = setting(True, help="whether headers become user properties")


@frozen(slots=True)
class SourceSettings(_OfAConnection):
    """Records that come from Kafka."""

    topics: tuple[str, ...] = setting(help="the Kafka topics", validator=checked(_check_topics))
    group: str = setting(help="the consumer group", validator=checked(_check_group))
    start: Literal["oldest", "newest"] = setting(
        "oldest", help="where a partition begins of which the group has committed nothing"
    )
    batch: int = setting(500, help="records that are published at a time, at most", minimum=1, maximum=10_000)
    publish: PublishSettings = setting(help="what becomes of a record")


@frozen(slots=True)
class BridgeKafkaSettings:
    """Connections to Kafka clusters, and the sinks and sources that use them."""

    connections: dict[str, ConnectionSettings] = setting(factory=dict, help="Kafka clusters, by name")
    sinks: dict[str, SinkSettings] = setting(
        factory=dict, help="messages that go to Kafka, by name", validator=referring("connection", "connections")
    )
    sources: dict[str, SourceSettings] = setting(
        factory=dict, help="records that come from Kafka, by name", validator=referring("connection", "connections")
    )
