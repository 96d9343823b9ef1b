"""Checks that exchanges and queues are there, and creates them where the settings ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from pika.exceptions import ChannelClosedByBroker

from kinmqtt_bridge_rabbitmq.errors import NOT_FOUND, PRECONDITION_FAILED, reply_code
from kinmqtt_bridge_rabbitmq.link import Link
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused


async def declare(link: Link, exchange: str, queues: Sequence[str], binding_keys: Sequence[str]) -> None:
    """Create a durable topic exchange, durable quorum queues, and their bindings, unless they are there.

    Raises ``SinkRefused`` if one is there with other properties.
    """
    channel = link.channel
    try:
        if exchange and not exchange.startswith("amq."):
            await link.call(channel.exchange_declare, exchange, "topic", durable=True)
        for queue in queues:
            await link.call(channel.queue_declare, queue, durable=True, arguments={"x-queue-type": "quorum"})
            for key in binding_keys if exchange else ():
                await link.call(channel.queue_bind, queue, exchange, key)
    except ChannelClosedByBroker as error:
        if reply_code(error) == PRECONDITION_FAILED:
            # Its text names what is wanted and what is there.
            raise SinkRefused(f"what RabbitMQ has differs from what would be declared: {error.reply_text}") from error
        raise


async def require_exchange(link: Link, exchange: str) -> None:
    """Raise ``ServiceUnavailable`` if an exchange is missing."""
    if exchange:
        try:
            await link.call(link.channel.exchange_declare, exchange, passive=True)
        except ChannelClosedByBroker as error:
            raise missing(error) from error


def missing(error: Exception) -> Exception:
    """Return what to do about an exchange or a queue that is not there, or the error if it is another one."""
    if isinstance(error, ChannelClosedByBroker) and reply_code(error) == NOT_FOUND:
        return ServiceUnavailable(f"{error.reply_text}: create it, or set declare = true")
    return error
