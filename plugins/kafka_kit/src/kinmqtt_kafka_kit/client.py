"""Connects to Kafka: the options of aiokafka's clients, why a connection fails, and the end of a producer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, ProducerClosed

from kinmqtt_kafka_kit.errors import meaning, text_of
from kinmqtt_kafka_kit.settings import Connection, SecuritySettings, address
from kinmqtt_spi.errors import ServiceUnavailable, SettingsError, SinkRefused
from kinmqtt_spi.settings import read_file
from kinmqtt_spi.tls import client_context

MAX_PASSWORD_BYTES: Final = 4096

FLUSH_LIMIT_S: Final = 0.5
"""How long the end of a producer waits for what is under way."""

END_LIMIT_S: Final = 1.0
"""How long the end of a producer or consumer is waited for; after that it goes on in the background."""


def options(connection: Connection) -> dict[str, Any]:
    """Return what producers and consumers are made with; raises ``SinkRefused`` if a file can't be used."""
    security = connection.security
    try:
        more = _security(security)
    except (SettingsError, OSError, ValueError) as error:
        raise SinkRefused(f"the files of the connection can't be used: {text_of(error)}") from error
    return {
        "bootstrap_servers": list(connection.servers),
        "client_id": "kinmqtt",
        "request_timeout_ms": int(connection.timeout_s * 1000),
        "security_protocol": security.protocol,
        **more,
    }


def _security(security: SecuritySettings) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if security.encrypts:
        more["ssl_context"] = client_context(
            security.ca_file,
            security.certificate_file,
            security.key_file,
            verify_hostname=security.verify_hostname,
        )
    if security.authenticates:
        assert security.password_file is not None
        password = read_file(security.password_file, max_bytes=MAX_PASSWORD_BYTES).decode().rstrip("\r\n")
        if not password:
            raise ValueError(f"{security.password_file} is empty")
        more["sasl_mechanism"] = security.mechanism
        more["sasl_plain_username"] = security.username
        more["sasl_plain_password"] = password
    return more


async def why(connection: Connection, error: BaseException) -> SinkRefused | ServiceUnavailable:
    """Return what it means that a client could not start, within the connection's time limit.

    aiokafka says only that no server could be used. So each is tried once more, until one refuses this client.
    """
    found = meaning(error)
    if found is error or isinstance(found, SinkRefused):
        return found
    try:
        given = options(connection)
        del given["bootstrap_servers"]
        async with asyncio.timeout(connection.timeout_s):
            for each in connection.servers:
                host, port = address(each)
                try:
                    made = await create_conn(host, port, **given)
                except (KafkaError, OSError) as failure:
                    found = meaning(failure)
                    if isinstance(found, SinkRefused):
                        return found
                else:
                    made.close()
    except SinkRefused as refused:
        return refused
    except TimeoutError:
        pass
    return found


async def start_producer(connection: Connection, **more: Any) -> AIOKafkaProducer:
    """Return a producer that knows all topics; raises ``SinkRefused`` and ``ServiceUnavailable``."""
    producer = AIOKafkaProducer(**options(connection), acks="all", enable_idempotence=True, **more)
    try:
        async with asyncio.timeout(connection.timeout_s):
            await producer.start()
            # Without naming any, so that a broker with auto.create.topics.enable creates none.
            await producer.client.force_metadata_update()
    except asyncio.CancelledError:
        await _stop(producer)
        raise
    except Exception as error:
        await _stop(producer)
        raise await why(connection, error) from error
    return producer


async def _stop(producer: AIOKafkaProducer) -> None:
    try:
        await producer.stop()
    except Exception:
        pass  # It has not begun properly: what matters is that its connections are closed.


async def end_producer(producer: AIOKafkaProducer) -> None:
    """Send what is under way for :data:`FLUSH_LIMIT_S`, drop the rest, and close the connections.

    An idempotent producer of aiokafka retries for ever, and its ``stop`` waits for that. So the task that sends is
    cancelled. It then waits for requests that are under way, each of which has a time limit.
    """
    stopping = asyncio.ensure_future(_stop(producer))
    done, _ = await asyncio.wait([stopping], timeout=FLUSH_LIMIT_S)
    if done:
        return
    sender, accumulator = producer._sender, producer._message_accumulator
    if sender.sender_task is not None:
        sender.sender_task.cancel()
    await stopping
    left = [batch for batches in accumulator._batches.values() for batch in batches]
    left += accumulator._pending_batches
    # A batch that waits for another attempt is not among the pending ones, from which its end removes it.
    accumulator._pending_batches.update(left)
    accumulator.fail_all(ProducerClosed())
    for batch in left:
        for future in (batch.future, batch._drain_waiter):
            if future.done() and not future.cancelled():
                future.exception()  # Or it would be reported as lost where nobody waits any more.


class Endings:
    """Ends of clients that go on in the background because Kafka does not answer."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    async def end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run an end; returns after :data:`END_LIMIT_S` at the latest."""
        task = asyncio.ensure_future(ending)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await asyncio.wait([task], timeout=END_LIMIT_S)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # A client that could not end properly is gone all the same.
