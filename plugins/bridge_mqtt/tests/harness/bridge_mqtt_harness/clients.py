"""A client of the far broker, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from spi_harness.processes import wait_until


class FarClient:
    """Subscribes and publishes at the far broker."""

    def __init__(self, port: int, name: str, *filters: str) -> None:
        self.messages: list[MQTTMessage] = []
        subscribed = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_message = lambda client, user, message: self.messages.append(message)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        if filters:
            self._client.subscribe([(each, 1) for each in filters])
            assert subscribed.wait(10)

    def publish(self, topic: str, payload: bytes, qos: int = 1, **more: Any) -> None:
        """Publish, and wait until it is acknowledged."""
        self._client.publish(topic, payload, qos, **more).wait_for_publish(10)

    def wait_for(self, count: int) -> list[tuple[str, bytes]]:
        """Wait for so many messages; return their topics and payloads."""
        wait_until(lambda: len(self.messages) >= count, f"{count} messages have come; there are {len(self.messages)}")
        return [(each.topic, bytes(each.payload)) for each in self.messages]

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def far_client(port: int, name: str, *filters: str) -> Iterator[FarClient]:
    """A client, for as long as the block lasts."""
    client = FarClient(port, name, *filters)
    try:
        yield client
    finally:
        client.close()
