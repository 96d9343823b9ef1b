"""Connections are encrypted, both ends are verified, and none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from bridge_rabbitmq_harness.making import connection, item, opened, sink
from kinmqtt_bridge_rabbitmq import connecting
from kinmqtt_bridge_rabbitmq.link import Connection
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.tls import ClientTls
from root_harness.rabbitmq import RabbitMQ
from spi_harness.certificates import Pair, self_signed, signed
from spi_harness.processes import free_port
from spi_harness.waiting import until


def send(address: str, queue: str, tls: ClientTls | None) -> None:
    """Send a message."""

    async def test() -> None:
        async with opened(connection(address, tls=tls), routing_key=queue) as out:
            assert await out.send([item(payload=b"1")]) is None

    asyncio.run(test())


def test_a_server_with_a_trusted_certificate_gets_messages(rabbitmq: RabbitMQ, right: Pair) -> None:
    """Over TLS."""
    queue = rabbitmq.declare("tls-right")

    send(rabbitmq.listen_with_tls(right), queue, ClientTls(ca_file=right[0]))

    assert len(rabbitmq.take(queue)) == 1


def test_a_server_that_nobody_trusts_is_refused(rabbitmq: RabbitMQ, right: Pair) -> None:
    """The text says what failed, and what to check."""
    address = rabbitmq.listen_with_tls(right)

    with pytest.raises(SinkRefused, match=r"main: .*certificate can't be verified: .*self.signed.*ca_file of tls"):
        send(address, "none", ClientTls())


def test_a_server_with_another_name_is_refused(rabbitmq: RabbitMQ, wrong: Pair) -> None:
    """Its certificate is trusted, and names another host; without ``verify_hostname`` that is enough."""
    queue = rabbitmq.declare("tls-name")
    address = rabbitmq.listen_with_tls(wrong)

    with pytest.raises(SinkRefused, match=r"IP address mismatch.*127\.0\.0\.1.*check servers"):
        send(address, queue, ClientTls(ca_file=wrong[0]))
    send(address, queue, ClientTls(ca_file=wrong[0], verify_hostname=False))

    assert len(rabbitmq.take(queue)) == 1


def test_a_server_that_is_refused_does_not_keep_it_from_the_next_one(
    rabbitmq: RabbitMQ, right: Pair, wrong: Pair
) -> None:
    """Both are named where none is left; it is REFUSED only if that holds for all."""
    queue = rabbitmq.declare("tls-next")
    refused, trusted = rabbitmq.listen_with_tls(wrong), rabbitmq.listen_with_tls(right)
    tls = ClientTls(ca_file=right[0])

    async def sending(*servers: str) -> None:
        async with opened(evolve(connection(trusted, tls=tls), servers=servers), routing_key=queue) as out:
            assert await out.send([item(payload=b"1")]) is None

    asyncio.run(sending(refused, trusted))
    assert len(rabbitmq.take(queue)) == 1
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServiceUnavailable, match=rf"{refused}: .*can't be verified.*; {nobody}: "):
        asyncio.run(sending(refused, nobody))
    with pytest.raises(SinkRefused, match=rf"{refused}: .*; {refused}: "):
        asyncio.run(sending(refused, refused))


def test_a_server_knows_the_broker_by_its_certificate(rabbitmq: RabbitMQ, right: Pair, folder: Path) -> None:
    """With another one, or none, it refuses, and the text says so."""
    queue = rabbitmq.declare("tls-client")
    address = rabbitmq.listen_with_tls(right, clients=right[0])
    client, stranger = signed(folder, "client", right), self_signed(folder, "stranger")

    send(address, queue, ClientTls(ca_file=right[0], certificate_file=client[0], key_file=client[1]))
    for certificate, key in ((None, None), stranger):
        with pytest.raises(SinkRefused, match=r"refuses to speak TLS: .*key_file of tls"):
            send(address, queue, ClientTls(ca_file=right[0], certificate_file=certificate, key_file=key))

    assert len(rabbitmq.take(queue)) == 1


def test_a_port_of_the_other_kind_is_named(rabbitmq: RabbitMQ, right: Pair) -> None:
    """TLS where there is none, and none where there is."""
    for address, tls in (
        (rabbitmq.address, ClientTls(ca_file=right[0])),
        (rabbitmq.listen_with_tls(right), None),
    ):
        with pytest.raises(ServiceUnavailable, match="check the port of servers, and tls"):
            send(address, "none", tls)


@pytest.mark.parametrize("tls", [False, True])
def test_an_opening_that_takes_too_long_leaves_no_connection(tls: bool) -> None:
    """The server takes the connection, and says nothing any more."""

    async def test() -> None:
        ended = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            ended.set()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            settings = connection(f"127.0.0.1:{port}", timeout_s=0.2, tls=ClientTls() if tls else None)
            with pytest.raises(ServiceUnavailable, match="has not answered in time"):
                await sink(settings).open()
            async with asyncio.timeout(5):
                await ended.wait()

    asyncio.run(test())


def test_an_opening_that_is_cancelled_as_it_succeeds_leaves_no_connection(
    rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives up in the moment in which the connection is open."""
    before = rabbitmq.connections()
    tasks: list[asyncio.Task[None]] = []

    class Cancelling(Connection):
        def __init__(self, *arguments: Any, on_open_callback: Callable[[object], None], **more: Any) -> None:
            def opened(connection: object) -> None:
                on_open_callback(connection)
                tasks[0].cancel()

            super().__init__(*arguments, on_open_callback=opened, **more)

    monkeypatch.setattr(connecting, "Connection", Cancelling)

    async def test() -> None:
        tasks.append(asyncio.ensure_future(sink(connection(rabbitmq.address)).open()))
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        await until(lambda: rabbitmq.connections() == before, "it is closed")

    asyncio.run(test())
