"""What the tests of bridge_mqtt share: a real Mosquitto, and what passes between it and the bridge."""
