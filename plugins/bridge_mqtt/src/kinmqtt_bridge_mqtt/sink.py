"""The sink: messages become PUBLISH packets, and are taken when the far broker has acknowledged them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from paho.mqtt import MQTTException

from kinmqtt_bridge_mqtt.connection import Connection
from kinmqtt_bridge_mqtt.link import Batch, Link
from kinmqtt_bridge_mqtt.properties import Outgoing, names_of
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import CLIENT_ID_PREFIX, REFUSED_PAUSE_S, Answer, Item, Poison, Retry, Sink
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.services.plugin import Health, HealthState
from kinmqtt_spi.values import Message

PACKET_OVERHEAD: Final = 16
"""More bytes than a PUBLISH takes besides its topic, payload and properties."""


_HEALTHY: Final = Health(HealthState.HEALTHY)


class MqttSink(Sink):
    """Sends messages to a far broker."""

    def __init__(self, connection: Connection, now: Callable[[], float], looped: Counter) -> None:
        """``now`` returns seconds since the epoch; ``looped`` counts messages that have come round."""
        self.connection = connection
        self._looped = looped
        self._mine = CLIENT_ID_PREFIX + connection.name
        self._is_v5 = connection.settings.version == "5"
        self._outgoing = Outgoing(connection.via, connection.mapping, now)
        self._link: Link | None = None

    async def open(self) -> None:
        """Connect; raises ``SinkRefused`` and ``ServiceUnavailable``."""
        await self.close()
        self._link = await self.connection.join()

    async def send(self, items: Sequence[Item]) -> Sequence[Answer] | None:
        """Send a batch; see :meth:`kinmqtt_spi.services.bridge.Sink.send`."""
        link = self._link
        if link is None:
            raise ServiceUnavailable("the sink is not connected")
        batch = Batch(len(items))
        try:
            link.check()
            for number, item in enumerate(items):
                while not link.has_room:
                    await self._progress(link, link.room())
                self._send(link, batch, number, item.message)
            await link.drained()
            link.check()  # A link that is lost counts as drained.
            while batch.left:
                await self._progress(link, batch.answered())
            return _answers(batch)
        except BaseException as error:
            # What is under way would otherwise overtake what is sent again.
            if not isinstance(error, ServiceUnavailable | SinkRefused):
                link.fail(ServiceUnavailable("a batch was given up"))
            if isinstance(error, SinkRefused):
                raise self.connection.located(error) from error
            raise

    async def close(self) -> None:
        """Disconnect, unless the source still needs the connection."""
        link, self._link = self._link, None
        if link is not None:
            self.connection.leave(link)

    def check(self) -> Health:
        """Report a connection that is lost, which nobody notices otherwise until a message is sent."""
        link = self._link
        if link is None or link.error is None:
            return _HEALTHY
        return Health(HealthState.DEGRADED, str(link.error))

    def _send(self, link: Link, batch: Batch, number: int, message: Message) -> None:
        if self._has_come_from_there(message):
            return
        found = self.connection.mapping.out(message.topic)
        if found is None:
            # A rule has put it in, or the lines have changed since.
            batch.answer(number, Poison(f"no line of topics is about {message.topic[:100]!r}"))
            return
        topic, most_qos = found
        payload = message.payload
        try:
            properties = self._outgoing.of(message) if self._is_v5 else None
            size = PACKET_OVERHEAD + len(topic.encode()) + len(payload)
            if properties is not None:
                size += len(properties.pack())
        except (MQTTException, ValueError, struct.error) as error:
            # A rule or a plugin has made it: paho refuses what no packet can have.
            batch.answer(number, Poison(f"it can't be written as a packet: {error}"))
            return
        if size > link.max_packet_bytes:
            text = f"it takes up to {size} bytes, and the far broker takes packets of {link.max_packet_bytes}"
            batch.answer(number, Poison(text))
            return
        qos = min(message.qos, most_qos, link.max_qos)
        link.publish(batch, number, topic, payload, qos, message.retain and link.can_retain, properties)

    def _has_come_from_there(self, message: Message) -> bool:
        """Whether the far broker has it already: it came over this connection, or round through another broker."""
        publisher = message.publisher.client_id
        if publisher == self._mine:
            return True
        if not message.properties.user_property or publisher.startswith(CLIENT_ID_PREFIX):
            return False
        if self.connection.via in names_of(message.properties):
            self._looped.value += 1
            return True
        return False

    async def _progress(self, link: Link, news: Awaitable[None]) -> None:
        """Wait for news; raises ``ServiceUnavailable`` if nothing was acknowledged for too long."""
        timeout_s = self.connection.settings.timeout_s
        before = link.acknowledged
        try:
            async with asyncio.timeout(timeout_s):
                await news
        except TimeoutError:
            if link.acknowledged == before:
                link.fail(ServiceUnavailable(f"the far broker acknowledged nothing for {timeout_s:g} s"))
        link.check()


def _answers(batch: Batch) -> Sequence[Answer] | None:
    """Return what was answered; raises ``SinkRefused`` if the user has no rights for any of the messages."""
    if not batch.has_failed:
        return None
    answers = batch.answers
    if all(isinstance(each, Retry) and each.after_s == REFUSED_PAUSE_S for each in answers):
        assert isinstance(answers[0], Retry)
        raise SinkRefused(f"{answers[0].text}; check the rights of the user there")
    return answers
