"""A bridge between the broker and other MQTT brokers."""

from kinmqtt_bridge_mqtt._plugin import BridgeMqtt
from kinmqtt_bridge_mqtt.settings import BridgeMqttSettings

__all__ = ["BridgeMqtt", "BridgeMqttSettings"]
