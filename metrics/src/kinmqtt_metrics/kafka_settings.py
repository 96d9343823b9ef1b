"""``[plugins.metrics.kafka]``: needs the extra ``kafka``."""

from __future__ import annotations

import attrs

from kinmqtt_kafka_kit import SecuritySettings
from kinmqtt_kafka_kit.settings import check_servers, check_topic
from kinmqtt_metrics.settings import MetricsSettings
from kinmqtt_spi.settings import checked, setting


@attrs.frozen(slots=True)
class KafkaSettings:
    """Where Kafka is."""

    servers: tuple[str, ...] = setting(
        (), help="some of Kafka's brokers, as `host:port`; they name the others", validator=checked(check_servers)
    )
    topic: str = setting(
        "kinmqtt.metrics", help="the topic of the records; create it", validator=checked(check_topic)
    )
    security: SecuritySettings = setting(factory=SecuritySettings, help="encryption and the user")
    timeout_s: float = setting(
        10.0, help="the time limit for an answer; after it Kafka counts as away", unit="s", minimum=0.1, maximum=600
    )
    max_batch_bytes: int = setting(
        1_000_000,
        help="the size of a batch, before it is compressed; a longer record is dropped and counted",
        unit="bytes",
        minimum=1 << 16,
        maximum=1 << 30,
    )


@attrs.frozen(slots=True)
class SettingsWithKafka(MetricsSettings):
    """All of ``[plugins.metrics]``."""

    kafka: KafkaSettings = setting(factory=KafkaSettings, help='where Kafka is, for `sink = "kafka"`')
