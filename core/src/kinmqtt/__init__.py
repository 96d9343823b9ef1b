"""kinmqtt: a pluggable MQTT broker. Plugins import ``kinmqtt_spi``; what is here may change with every version."""
