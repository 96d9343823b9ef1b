"""A bridge between the broker and Kafka."""

from kinmqtt_bridge_kafka._plugin import BridgeKafka
from kinmqtt_bridge_kafka.settings import BridgeKafkaSettings

__all__ = ["BridgeKafka", "BridgeKafkaSettings"]
