"""The source: messages of queues are published, and acknowledged to RabbitMQ afterwards."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from pika.exceptions import AMQPError, ChannelClosedByBroker

from kinmqtt_bridge_rabbitmq.connecting import connect
from kinmqtt_bridge_rabbitmq.declaring import declare, missing
from kinmqtt_bridge_rabbitmq.errors import meaning
from kinmqtt_bridge_rabbitmq.link import Link, consume
from kinmqtt_bridge_rabbitmq.messages import Delivery, Incomer
from kinmqtt_bridge_rabbitmq.settings import ConnectionSettings, SourceSettings
from kinmqtt_spi.bridging.pauses import Pauses
from kinmqtt_spi.errors import NotCommitted, PublishRefused, ServiceUnavailable, SinkRefused
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.bridge import Publish, Source
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import Message

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""The pauses after the broker has refused a message."""

LINE_EVERY_S: Final = 60.0
"""The least time between two log lines of one kind."""

REFUSED: Final = "refused"
SKIPPED: Final = "skipped"


class RabbitMQSource(Source):
    """Brings the messages of some queues into the broker, in the order in which RabbitMQ delivers them."""

    def __init__(
        self,
        name: str,
        connection: ConnectionSettings,
        settings: SourceSettings,
        log: Log,
        clock: Clock,
        skipped: Counter,
        redelivered: Counter,
    ) -> None:
        """``skipped`` counts messages that can't become a PUBLISH, ``redelivered`` those that come once more."""
        self.name = name
        self._connection = connection
        self._settings = settings
        self._log = log
        self._paces = {kind: Pace(clock, LINE_EVERY_S) for kind in (REFUSED, SKIPPED)}
        self._skipped = skipped
        self._redelivered = redelivered
        self._incomer = Incomer(settings.publish)

    async def run(self, publish: Publish) -> None:
        """Publish messages until cancelled; raises ``SinkRefused`` or ``ServiceUnavailable``."""
        link: Link | None = None
        try:
            link = await connect(self._connection)
            inbox = _Inbox(self._settings.max_message_bytes)
            async with asyncio.timeout(self._connection.timeout_s):
                await self._consume(link, inbox)
            while True:
                await self._turn(link, await inbox.next(), publish)
        except (AMQPError, TimeoutError) as error:
            found = link.lost if link is not None and link.lost is not None else error
            found = missing(found) if isinstance(found, ChannelClosedByBroker) else found
            raise self._settings.at_connection(meaning(found)) from error
        except SinkRefused as error:
            raise self._settings.at_connection(error) from error
        finally:
            if link is not None:
                await link.close()

    async def _consume(self, link: Link, inbox: _Inbox) -> None:
        settings = self._settings
        if settings.declare:
            await declare(link, settings.exchange, settings.queues, settings.binding_keys)
        link.watch(lambda: inbox.end(link.error()) if link.lost is not None else None)
        await link.call(link.channel.basic_qos, prefetch_count=settings.prefetch_messages)
        await consume(link, settings.queues, inbox.arrived, inbox.cancelled)

    async def _turn(self, link: Link, deliveries: Sequence[Delivery], publish: Publish) -> None:
        """Publish what has come, and acknowledge it."""
        messages: list[Message] = []
        good: list[Delivery] = []
        for each in deliveries:
            if each.redelivered:
                self._redelivered.value += 1
            message = self._incomer.message(each)
            if message is None:
                self._reject(
                    link, each, "it is too long" if each.body is None else "its headers or keys make no topic"
                )
            else:
                messages.append(message)
                good.append(each)
        try:
            await self._published(link, publish, messages)
        except ValueError:
            # One of them is more than the broker's limits allow, and publish does not say which.
            good = await self._published_singly(link, publish, messages, good)
        if good and link.lost is None:
            link.channel.basic_ack(good[-1].tag, multiple=True)

    async def _published_singly(
        self, link: Link, publish: Publish, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Delivery]:
        """Publish one by one; return those that the broker has."""
        good: list[Delivery] = []
        for message, delivery in zip(messages, deliveries, strict=True):
            try:
                await self._published(link, publish, [message])
            except ValueError as error:
                self._reject(link, delivery, str(error))
            else:
                good.append(delivery)
        return good

    async def _published(self, link: Link, publish: Publish, messages: Sequence[Message]) -> None:
        """Publish, and try again while the broker refuses. RabbitMQ keeps them meanwhile, and sends nothing more.

        They are not given back: queues count that, and some drop a message after a number of times.
        """
        pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, Random())
        while messages and link.lost is None:
            try:
                await publish(messages)
                return
            except (NotCommitted, PublishRefused) as error:
                pause_s = pauses.next_s()
                self._warn(REFUSED, f"the broker refuses messages, it pauses: {error}")
                await link.rest(pause_s)
                if isinstance(error, PublishRefused) and len(messages) > 1:
                    # Together they may be more than an outbox holds, and some would come again each time.
                    for message in messages:
                        await self._published(link, publish, [message])
                    return

    def _reject(self, link: Link, delivery: Delivery, why: str) -> None:
        self._skipped.value += 1
        if link.lost is None:
            link.channel.basic_reject(delivery.tag, requeue=False)
        self._warn(SKIPPED, f"a message of queue {delivery.queue!r} was rejected: {why}")

    def _warn(self, kind: str, text: str) -> None:
        """Log a line, at most one of a kind a minute."""
        more = self._paces[kind].due()
        if more is not None:
            more_text = f" ({more} more like this)" if more else ""
            self._log.warn("source {name}: {text}{more}", name=self.name, text=text, more=more_text)


class _Inbox:
    """What was delivered and not taken yet; RabbitMQ bounds it by the prefetch."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._deliveries: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._error: Exception | None = None

    def arrived(self, queue: str, method: Any, properties: Any, body: bytes) -> None:
        """Take a delivery; one that is too long loses its bytes."""
        kept = body if len(body) <= self._max_bytes else None
        found = Delivery(
            method.delivery_tag, queue, method.exchange, method.routing_key, method.redelivered, properties, kept
        )
        self._deliveries.append(found)
        self._news.set()

    def cancelled(self) -> None:
        """Take that RabbitMQ has ended a consumer."""
        self.end(
            ServiceUnavailable("RabbitMQ has ended the delivery of a queue: it was deleted, or its node is gone")
        )

    def end(self, error: Exception) -> None:
        """Raise this from now on."""
        self._error = error
        self._news.set()

    async def next(self) -> Sequence[Delivery]:
        """Return what has come, at least one."""
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        found = list(self._deliveries)
        self._deliveries.clear()
        return found
