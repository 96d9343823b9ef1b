"""The source: what the far broker sends is published here, and acknowledged there once that is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from paho.mqtt.client import MQTTMessage

from kinmqtt_bridge_mqtt.connection import Connection
from kinmqtt_bridge_mqtt.link import Link
from kinmqtt_bridge_mqtt.properties import Incoming
from kinmqtt_spi.bridging.singly import publish_all
from kinmqtt_spi.services.bridge import CLIENT_ID_PREFIX, Publish, Source
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.values import Message, Publisher

BATCH: Final = 500
"""The most messages that are published at a time."""


class MqttSource(Source):
    """Brings the messages of a far broker in."""

    def __init__(
        self, connection: Connection, looped: Counter, skipped: Counter, warn: Callable[[str], object]
    ) -> None:
        """``looped`` counts messages that have come round, ``skipped`` those that can't be published.

        ``warn`` logs a warning about a skipped one, with some pace.
        """
        self.connection = connection
        self._looped = looped
        self._skipped = skipped
        self._warn = warn
        self._publisher = Publisher(CLIENT_ID_PREFIX + connection.name)
        self._incoming = Incoming(connection.via, connection.mapping)

    async def run(self, publish: Publish) -> None:
        """Publish until cancelled; raises ``SinkRefused``, ``ServiceUnavailable`` or publish's errors."""
        link = await self.connection.join()
        # At the same time: what waits in the session may come before the answer to SUBSCRIBE, and fill the link.
        tasks = [
            asyncio.ensure_future(self.connection.subscribe(link)),
            asyncio.ensure_future(self._bring(link, publish)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                self.connection.leave(link)  # Also where it is cancelled once more.

    async def _bring(self, link: Link, publish: Publish) -> None:
        while True:
            found = await link.take(BATCH)
            messages = [message for each in found if (message := self._message(each)) is not None]
            if messages:
                await publish_all(publish, messages, self._skip_message)
            link.acknowledge(len(found))
            if dropped := link.take_dropped():
                self._skipped.value += dropped
                self._warn(
                    f"source {self.connection.name}: {dropped} messages of QoS 0 came faster than they are published"
                )

    def _message(self, found: MQTTMessage) -> Message | None:
        try:
            name = found.topic
        except UnicodeDecodeError:
            self._skip("its topic is not UTF-8")
            return None
        topic = self.connection.mapping.into(name)
        if topic is None:
            self._skip(f"no line of topics is about {name[:100]!r}, or it would be a topic of the broker's own")
            return None
        properties = self._incoming.of(found.properties)
        if properties is None:
            self._looped.value += 1
            return None
        return Message(topic, bytes(found.payload), found.qos, found.retain, properties, self._publisher)

    def _skip_message(self, message: Message, error: ValueError) -> None:
        self._skip(f"the topic {message.topic[:100]!r}: {error}")

    def _skip(self, text: str) -> None:
        self._skipped.value += 1
        self._warn(f"source {self.connection.name}: a message was skipped: {text}")
