"""Ships client events to Kafka, and feeds plugins from there."""

from kinmqtt_event_kafka._plugin import EventKafka
from kinmqtt_event_kafka.settings import EventKafkaSettings

__all__ = ["EventKafka", "EventKafkaSettings"]
