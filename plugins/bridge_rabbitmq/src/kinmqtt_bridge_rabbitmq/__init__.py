"""A bridge between the broker and RabbitMQ."""

from kinmqtt_bridge_rabbitmq._plugin import BridgeRabbitMQ
from kinmqtt_bridge_rabbitmq.settings import BridgeRabbitMQSettings

__all__ = ["BridgeRabbitMQ", "BridgeRabbitMQSettings"]
