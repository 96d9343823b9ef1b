"""The settings ``[plugins.event_kafka]``."""

from __future__ import annotations

from attrs import frozen

from kinmqtt_kafka_kit.settings import SecuritySettings, check_servers, check_topic
from kinmqtt_spi.settings import checked, setting


def _check_retained_topic(topic: str) -> None:
    if topic:
        check_topic(topic)


@frozen(slots=True)
class EventKafkaSettings:
    """Where Kafka is, and what it gets."""

    servers: tuple[str, ...] = setting(
        (), help="some of Kafka's brokers, as `host:port`; they name the others", validator=checked(check_servers)
    )
    topic: str = setting("kinmqtt.events", help="the topic of the events", validator=checked(check_topic))
    retained_topic: str = setting(
        "",
        help="a compacted topic for retained messages, by their MQTT topics; without one, they are not written",
        validator=checked(_check_retained_topic),
    )
    group_prefix: str = setting(
        "kinmqtt.", help="the prefix of consumer groups in Kafka; clusters of brokers with one Kafka need their own"
    )
    security: SecuritySettings = setting(factory=SecuritySettings, help="encryption and the user")
    timeout_s: float = setting(
        10.0, help="the time limit for an answer; after it Kafka counts as away", unit="s", minimum=0.1, maximum=600
    )
    batch: int = setting(500, help="events that a consumer gets at a time, at most", minimum=1, maximum=10_000)
    max_record_bytes: int = setting(
        1_000_000,
        help="a longer event is left out and counted; batches are not longer either",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )

    def __attrs_post_init__(self) -> None:
        if self.topic == self.retained_topic:
            raise ValueError("topic and retained_topic must differ: one of them is compacted")
