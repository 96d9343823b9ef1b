"""What kinmqtt's plugins for Kafka share: settings, clients, errors, and the log of aiokafka. It is no plugin."""

from kinmqtt_kafka_kit.aiokafka_log import AiokafkaLog
from kinmqtt_kafka_kit.client import Endings, end_producer, options, start_producer, why
from kinmqtt_kafka_kit.errors import is_too_large, meaning, text_of, unavailable
from kinmqtt_kafka_kit.gate import Gate
from kinmqtt_kafka_kit.pauses import pauses
from kinmqtt_kafka_kit.settings import Connection, SecuritySettings, is_topic_name
from kinmqtt_kafka_kit.settled import settled

__all__ = [
    "AiokafkaLog",
    "Connection",
    "Endings",
    "Gate",
    "SecuritySettings",
    "end_producer",
    "is_too_large",
    "is_topic_name",
    "meaning",
    "options",
    "pauses",
    "settled",
    "start_producer",
    "text_of",
    "unavailable",
    "why",
]
