"""The sink: publishes batches, and waits for RabbitMQ's confirms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import FRAME_MIN_SIZE

from kinmqtt_bridge_rabbitmq.blocked import BlockedLink
from kinmqtt_bridge_rabbitmq.confirms import Batch, Confirms
from kinmqtt_bridge_rabbitmq.connecting import connect
from kinmqtt_bridge_rabbitmq.declaring import declare, missing, require_exchange
from kinmqtt_bridge_rabbitmq.errors import PRECONDITION_FAILED, meaning, reply_code
from kinmqtt_bridge_rabbitmq.frames import Framer
from kinmqtt_bridge_rabbitmq.link import Link
from kinmqtt_bridge_rabbitmq.messages import MessageMaker
from kinmqtt_bridge_rabbitmq.settings import ConnectionSettings, SinkSettings
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Sink

AT_A_TIME: Final = 64
"""Messages that are published before others have their turn: some milliseconds."""

_TOO_LARGE: Final = re.compile(r"larger than (?:configured )?max size '?(\d+)")


class RabbitMQSink(Sink):
    """Sends messages to one exchange."""

    def __init__(
        self, name: str, connection: ConnectionSettings, settings: SinkSettings, blocked: BlockedLink
    ) -> None:
        """``blocked`` is shared by the sinks that have the name one after another."""
        self.name = name
        self._connection = connection
        self._settings = settings
        self._make = MessageMaker(settings).make
        self._link: Link | None = None
        self._confirms = Confirms()
        self._framer = Framer(0, FRAME_MIN_SIZE, settings.exchange)
        self._blocked = blocked
        self._largest: int | None = None
        """The longest payload that RabbitMQ allows, once it has refused one."""

    async def open(self) -> None:
        """Connect; raises ``SinkRefused`` and ``ServiceUnavailable``."""
        await self.close()
        await self._blocked.leave(self._connection)
        try:
            self._link = await self._open()
        except Exception as error:
            raise self._settings.at_connection(meaning(error)) from error

    async def send(self, items: Sequence[Item]) -> Sequence[Answer] | None:
        """Send a batch; see :meth:`kinmqtt_spi.services.bridge.Sink.send`."""
        link, confirms = self._link, self._confirms
        if link is None:
            raise ServiceUnavailable("not connected to RabbitMQ")
        batch = Batch(len(items))
        try:
            async with asyncio.timeout(self._connection.timeout_s):
                await self._publish(link, confirms, items, batch)
                if batch.left:
                    await batch.done
        except AMQPError as error:
            if link.lost is None:
                raise meaning(error) from error
        except TimeoutError as error:
            raise meaning(error) from error
        if link.lost is not None or batch.left:
            raise self._settings.at_connection(self._why(link)) from link.lost
        return batch.answers if any(batch.answers) else None

    async def close(self) -> None:
        """Disconnect. A blocked connection stays open until RabbitMQ takes messages again, or for two minutes."""
        link, self._link = self._link, None
        if link is None:
            return
        if link.is_blocked:
            self._blocked.keep(link, self._connection)
        else:
            await link.close()

    async def _open(self) -> Link:
        settings = self._settings
        link = await connect(self._connection)
        try:
            async with asyncio.timeout(self._connection.timeout_s):
                if settings.declare:
                    await declare(link, settings.exchange, settings.queues, settings.binding_keys)
                await require_exchange(link, settings.exchange)
                confirms = self._confirms = Confirms()
                link.channel.add_on_return_callback(confirms.returned)
                await link.call(link.channel.confirm_delivery, confirms.answered)
            link.watch(confirms.end)
            self._framer = Framer(link.channel.channel_number, link.frame_max, settings.exchange)
        except BaseException:
            link.abort()
            raise
        return link

    async def _publish(self, link: Link, confirms: Confirms, items: Sequence[Item], batch: Batch) -> None:
        make, longest, largest = self._make, link.max_header_bytes, self._largest
        add_to, published = self._framer.add_to, confirms.published
        for start in range(0, len(items), AT_A_TIME):
            if start:
                await asyncio.sleep(0)
            if link.lost is not None or link.blocked is not None:
                batch.left += 1  # Not everything is published.
                batch.end()
                return
            frames: list[bytes] = []
            try:
                for number, (message, _, _) in enumerate(items[start : start + AT_A_TIME], start):
                    made = make(message, longest)
                    if largest is not None and len(message.payload) > largest:
                        made = Poison(f"the payload has {len(message.payload)} bytes, and RabbitMQ allows {largest}")
                    if isinstance(made, Poison):
                        batch.answers[number] = made
                        continue
                    key, properties, identity = made
                    add_to(frames, key, properties, message.payload)
                    published(batch, number, identity, key)
            finally:  # RabbitMQ counts what it gets, and Confirms what was published: also if one of them raises.
                link.write(frames)

    def _why(self, link: Link) -> Exception:
        """Return why a batch has failed."""
        lost = link.lost
        if isinstance(lost, ChannelClosedByBroker):
            too_large = _TOO_LARGE.search(lost.reply_text)
            if reply_code(lost) == PRECONDITION_FAILED and too_large is not None:
                self._largest = int(too_large[1])
            return meaning(missing(lost))
        return link.error()
