"""Opens connections to RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pika
from attrs import asdict

from kinmqtt_bridge_rabbitmq.errors import line_of, meaning
from kinmqtt_bridge_rabbitmq.link import Connection, Link
from kinmqtt_bridge_rabbitmq.settings import GUEST, ConnectionSettings, address
from kinmqtt_spi.errors import ServiceUnavailable, SettingsError, SinkRefused
from kinmqtt_spi.settings import read_file
from kinmqtt_spi.tls import client_context

MAX_PASSWORD_BYTES: Final = 4096


async def connect(settings: ConnectionSettings) -> Link:
    """Return a link to the first server that takes it; raises ``SinkRefused`` and ``ServiceUnavailable``."""
    failures: list[Exception] = []
    for parameters in _parameters(settings):
        try:
            async with asyncio.timeout(settings.timeout_s):
                link = Link(await _opened(parameters))
                try:
                    await link.open_channel()
                except BaseException:
                    link.abort()
                    raise
        except Exception as error:
            found = meaning(error)
            kind = SinkRefused if isinstance(found, SinkRefused) else ServiceUnavailable
            failures.append(kind(f"{parameters.host}:{parameters.port}: {found}"))
        else:
            return link
    # A server that is away may be back soon: that is worth another attempt before somebody mends the others.
    is_refused = all(isinstance(each, SinkRefused) for each in failures)
    raise (SinkRefused if is_refused else ServiceUnavailable)("; ".join(map(str, failures)))


async def _opened(parameters: pika.ConnectionParameters) -> Connection:
    """Return an open connection. One that is given up is closed, whatever it was doing."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[BaseException | None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not failed.done():
            failed.set_result(error)

    # Not Connection.create_connection(): what that gives can't be aborted while AMQP begins, and stays open then.
    connection = Connection(
        parameters,
        on_open_callback=lambda _: settle(None),
        on_open_error_callback=lambda _, error: settle(error),
        custom_ioloop=loop,
    )
    try:
        error = await failed
    except BaseException:
        connection.cut()
        raise
    if error is not None:
        raise error
    return connection


def _parameters(settings: ConnectionSettings) -> Iterator[pika.ConnectionParameters]:
    """Yield what connections to the servers are made with; raises ``SinkRefused`` if a file can't be used."""
    try:
        tls = settings.tls
        context = None if tls is None else client_context(**asdict(tls))
        credentials = pika.PlainCredentials(settings.username, _password(settings))
    except (SettingsError, OSError, ValueError) as error:
        raise SinkRefused(f"the files of the connection can't be used: {line_of(error)}") from error
    for host, port in map(address, settings.servers):
        yield pika.ConnectionParameters(
            host,
            port,
            settings.virtual_host,
            credentials,
            heartbeat=settings.heartbeat_s,
            ssl_options=None if context is None else pika.SSLOptions(context, host),
            client_properties={"connection_name": "kinmqtt"},
            socket_timeout=settings.timeout_s,
            stack_timeout=settings.timeout_s,
            connection_attempts=1,
        )


def _password(settings: ConnectionSettings) -> str:
    if settings.password_file is None:
        return GUEST
    password = read_file(settings.password_file, max_bytes=MAX_PASSWORD_BYTES).decode().rstrip("\r\n")
    if not password:
        raise ValueError(f"{settings.password_file} is empty")
    return password
