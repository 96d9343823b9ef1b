"""Connections over a real Mosquitto: which server, how it is encrypted, and both directions over one link."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage

from bridge_mqtt_harness.clients import far_client
from bridge_mqtt_harness.making import Made, message
from bridge_mqtt_harness.mosquitto import PLAIN, Mosquitto, mosquitto, with_user
from bridge_mqtt_harness.observer import Observer, observed
from kinmqtt_bridge_mqtt.settings import TlsSettings
from kinmqtt_spi.errors import PublishRefused, ServiceUnavailable, SinkRefused
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.bridge import Item, Poison
from kinmqtt_spi.services.plugin import HealthState
from kinmqtt_spi.tls import client_context
from kinmqtt_spi.values import Message
from spi_harness.certificates import self_signed
from spi_harness.processes import free_port


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path_factory.mktemp("far")) as broker:
        yield broker


def run(test: Coroutine[Any, Any, Any]) -> Any:
    """Run a test in an event loop.

    A connection with TLS that is closed waits for the other side. The loop would not: its socket would be found by
    the garbage collector, whose warning fails whichever test comes then.
    """

    async def whole() -> Any:
        transports: Any = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]
        found = await test
        await until(lambda: not any(not each.is_closing() or each._sock for each in transports.values()))
        return found

    return asyncio.run(asyncio.wait_for(whole(), 60))


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


def items(*messages: Message) -> list[Item]:
    """Messages as the broker gives them to a sink."""
    return [Item(each, each.publisher.client_id.encode(), 1) for each in messages]


# Servers


def test_it_returns_to_the_first_server_once_that_accepts_it(far: Mosquitto, tmp_path: Path) -> None:
    """Taking TCP connections is not enough; meanwhile the second one is used."""

    async def test(first: Observer, second: Observer) -> None:
        made = Made(first.address, "back/# out 1", others=[second.address])
        first.down()
        await made.sink.open()
        await until(lambda: made.waits)
        assert (await made.sink.send(items(message("back/a", b"1")))) is None
        assert second.taken == [b"1"]

        made.waited()  # The first one closes each connection.
        await until(lambda: made.waits == 2)
        assert (await made.sink.send(items(message("back/a", b"2")))) is None
        assert second.taken == [b"1", b"2"]

        first.up()
        made.waited()
        await until(lambda: second.goodbyes)
        with pytest.raises(ServiceUnavailable, match="the first server is back"):
            await made.sink.send(items(message("back/a", b"3")))
        await made.sink.open()
        assert (await made.sink.send(items(message("back/a", b"3")))) is None
        assert first.taken == [b"3"]
        await made.sink.close()
        await until(lambda: first.goodbyes)

    with mosquitto(tmp_path) as other, observed(far.port) as first, observed(other.port) as second:
        run(test(first, second))


def test_it_returns_to_a_first_server_that_takes_over_its_session(far: Mosquitto) -> None:
    """Brokers of a cluster end the connection to the second one; that is no other client with the same id."""

    async def test(first: Observer, second: Observer) -> None:
        made = Made(first.address, "back/# out 1", others=[second.address])
        first.down()
        await made.sink.open()
        await until(lambda: made.waits)
        first.up()
        made.waited()
        link = made.sink._link
        assert link is not None
        await until(lambda: link.error)
        with pytest.raises(ServiceUnavailable):
            await made.sink.send(items(message("back/a", b"1")))
        await made.sink.open()
        assert (await made.sink.send(items(message("back/a", b"1")))) is None
        assert first.taken == [b"1"]
        await made.sink.close()

    with observed(far.port) as first, observed(far.port) as second:
        run(test(first, second))


def test_who_retires_meanwhile_keeps_no_connection_to_the_first_server(far: Mosquitto) -> None:
    """Its client id belongs to another connection by then."""

    async def test(first: Observer, second: Observer) -> None:
        made = Made(first.address, "back/# out 1", others=[second.address])
        first.down()
        await made.sink.open()
        await until(lambda: made.waits)
        first.up()
        first.hang()
        made.waited()
        await until(lambda: first.connections)
        made.connection.retire()
        first.flow()
        with pytest.raises(ServiceUnavailable):
            await made.sink.open()
        await until(lambda: not made.connection._lock.locked())
        assert not made.connection.is_up

    with observed(far.port) as first, observed(far.port) as second:
        run(test(first, second))


def test_a_server_that_refuses_does_not_keep_it_from_the_next_one(far: Mosquitto, tmp_path: Path) -> None:
    """Both are named where none is left; it is REFUSED only if all refuse."""
    with mosquitto(tmp_path / "closed", with_user(tmp_path / "closed", [])) as closed:
        made = Made(closed.address, "# out 1", others=[far.address])

        async def test() -> None:
            await made.sink.open()
            assert await made.sink.send(items(message("next/a"))) is None
            await made.sink.close()

        run(test())
        nobody = f"127.0.0.1:{free_port()}"
        with pytest.raises(ServiceUnavailable, match=f"{closed.address}: .*refuses.*; {nobody}: "):
            run(Made(closed.address, "# out 1", others=[nobody]).sink.open())
        with pytest.raises(SinkRefused, match=r"connections\.far: .*refuses.*; .*refuses"):
            run(Made(closed.address, "# out 1", others=[closed.address]).sink.open())


def test_a_name_that_no_host_can_have_is_refused() -> None:
    """Not an error of the program: the search for another server goes on."""
    with pytest.raises(SinkRefused, match="can't be the name of a host"):
        run(Made(f"{'a' * 64}.example:1883", "# out 1").sink.open())


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", b""], ids=["refused", "closed"])
def test_a_broker_that_knows_no_bridges_is_asked_without_the_bit(far: Mosquitto, answer: bytes) -> None:
    """MQTT 3.1.1: some answer with return code 1, some just close."""
    with observed(far.port) as observer:
        observer.answer_to_bridges = answer
        made = Made(observer.address, "# out 1", version="3.1.1")

        async def test() -> None:
            await made.sink.open()
            assert await made.sink.send(items(message("bit/a"))) is None
            await made.sink.close()

        run(test())

    assert made.warnings == ["connection far: the far broker knows no bridges; it may send our own messages back"]


# TLS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def encrypted(folder: Path) -> Iterator[Mosquitto]:
    """It wants a certificate of its clients."""
    certificate, key = self_signed(folder, "server")
    client, _ = self_signed(folder, "client")
    tls = f"cafile {client}\ncertfile {certificate}\nkeyfile {key}\nrequire_certificate true\n"
    with mosquitto(folder / "far", PLAIN + tls) as broker:
        yield broker


def test_a_connection_is_encrypted(folder: Path, encrypted: Mosquitto) -> None:
    """With the certificate of the client."""
    tls = TlsSettings(
        ca_file=folder / "server.pem", certificate_file=folder / "client.pem", key_file=folder / "client.key"
    )
    made = Made(encrypted.address, "a/# both 1", tls=tls)

    async def test() -> None:
        published = Published()
        task = asyncio.ensure_future(made.source.run(published))
        await until(lambda: made.connection._is_subscribed)
        await made.sink.open()
        assert await made.sink.send(items(*(message("a/b", b"x" * 10_000) for _ in range(100)))) is None
        await made.sink.close()
        task.cancel()
        await asyncio.wait([task])

    run(test())


def test_a_server_that_nobody_vouches_for_is_refused(folder: Path, encrypted: Mosquitto) -> None:
    """Before a byte of MQTT is sent; the error says where to look."""
    self_signed(folder, "other")
    made = Made(encrypted.address, "# out 1", tls=TlsSettings(ca_file=folder / "other.pem"))
    with pytest.raises(SinkRefused, match=r"its certificate is not trusted: .*; see tls"):
        run(made.sink.open())


def test_a_server_of_another_name_is_refused(folder: Path) -> None:
    """Unless the settings say otherwise."""
    certificate, key = self_signed(folder, "elsewhere", "DNS:elsewhere.example")
    with mosquitto(folder / "named", f"{PLAIN}certfile {certificate}\nkeyfile {key}\n") as far:
        with pytest.raises(SinkRefused, match=r"its certificate is not trusted: .*mismatch"):
            run(Made(far.address, "# out 1", tls=TlsSettings(ca_file=certificate)).sink.open())

        async def test() -> None:
            made = Made(far.address, "# out 1", tls=TlsSettings(ca_file=certificate, verify_hostname=False))
            await made.sink.open()
            await made.sink.close()

        run(test())


def test_a_protocol_is_asked_for_by_alpn(folder: Path) -> None:
    """As brokers on port 443 want it."""
    certificate, key = self_signed(folder, "alpn")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    server.set_alpn_protocols(["http/1.1", "mqtt"])
    context = client_context(certificate, alpn="mqtt")

    async def test() -> str:
        ended = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            ended.set()

        async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server) as listening:
            port = listening.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            found: str = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            writer.close()
            await writer.wait_closed()
            await ended.wait()
            return found

    assert run(test()) == "mqtt"


# Both directions over one link


class Published:
    """What a source has published; it waits while ``flows`` is not set."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.refuses_above = 1000
        """The most messages of a batch that it takes."""
        self.flows = asyncio.Event()
        self.flows.set()

    async def __call__(self, messages: Sequence[Message]) -> None:
        await self.flows.wait()
        if len(messages) > self.refuses_above:
            raise PublishRefused("an outbox is full")
        self.messages += messages


async def with_source(made: Made, test: Callable[[Published, asyncio.Task[None]], Awaitable[None]]) -> None:
    """Run a test while the source is subscribed."""
    published = Published()
    task = asyncio.ensure_future(made.source.run(published))
    await until(lambda: made.connection._is_subscribed)
    await test(published, task)
    task.cancel()
    await asyncio.wait([task])


def test_what_goes_out_is_acknowledged_while_nothing_can_be_published(far: Mosquitto) -> None:
    """Answers come behind the far broker's messages: not to read these would stop both directions for ever."""
    made = Made(far.address, "in/# in 0", "out/# out 1", max_inflight=10)

    async def test(published: Published, task: asyncio.Task[None]) -> None:
        published.flows.clear()
        await made.sink.open()
        link = made.sink._link
        assert link is not None
        with far_client(far.port, "pub") as client:
            for number in range(35):
                client.publish("in/a", b"%d" % number, 0)
        await until(lambda: link._wire._is_paused)
        assert await made.sink.send(items(message("out/a"))) is None
        published.flows.set()
        await until(lambda: len(published.messages) == 35)
        await made.sink.close()

    run(with_source(made, test))


def test_what_waits_is_bounded_while_answers_are_read(far: Mosquitto) -> None:
    """What is above QoS 0 comes again over another connection, the rest is counted."""
    made = Made(far.address, "in/# in 1", "out/# out 1", max_inflight=10, client_id="bounded", version="3.1.1")

    async def test(published: Published, task: asyncio.Task[None]) -> None:
        published.flows.clear()
        await made.sink.open()
        link = made.sink._link
        assert link is not None
        with far_client(far.port, "pub") as client:
            for number in range(60):
                client.publish("in/zero", b"%d" % number, 0)
            await until(lambda: link._wire._is_paused)
            client.publish("in/one", b"1", 1)
            client.publish("in/one", b"2", 1)
        assert await made.sink.send(items(message("out/a"))) is None
        await until(lambda: link._is_behind)
        assert len(link._incoming) == 40
        published.flows.set()
        with pytest.raises(ServiceUnavailable, match="must send that again"):
            await task
        await made.sink.close()

    async def again(published: Published, task: asyncio.Task[None]) -> None:
        await until(lambda: len(published.messages) == 2)
        assert [each.payload for each in published.messages] == [b"1", b"2"]

    run(with_source(made, test))
    assert made.skipped.value == 20
    assert "20 messages of QoS 0 came faster than they are published" in made.warnings[0]
    run(with_source(made, again))


def test_more_than_an_outbox_here_holds_gets_in(far: Mosquitto) -> None:
    """Bit by bit, instead of coming again from the far broker for ever."""
    made = Made(far.address, "bit/# in 1")

    async def test(published: Published, task: asyncio.Task[None]) -> None:
        published.flows.clear()
        with far_client(far.port, "pub") as client:
            for number in range(5):
                client.publish("bit/a", b"%d" % number)
            published.refuses_above = 2
            published.flows.set()
            await until(lambda: len(published.messages) >= 5)
        assert not task.done()
        assert {each.payload for each in published.messages} == {b"0", b"1", b"2", b"3", b"4"}

    run(with_source(made, test))


def test_the_keep_alive_holds_while_nothing_can_be_published(far: Mosquitto) -> None:
    """PINGREQ is sent though the link is not read, or the far broker would end it after 1.5 times the keep alive."""
    made = Made(far.address, "in/# in 0", max_inflight=10, keep_alive_s=1)

    async def test(published: Published, task: asyncio.Task[None]) -> None:
        published.flows.clear()
        link = made.connection._link
        assert link is not None
        sent: list[bytes] = []
        send = link._wire.send

        def noted(data: bytes | bytearray) -> int:
            sent.append(bytes(data))
            return send(data)

        link._wire.send = noted  # type: ignore[method-assign]
        with far_client(far.port, "pub") as client:
            for number in range(30):
                client.publish("in/a", b"%d" % number, 0)
        await until(lambda: link._wire._is_paused)
        await until(lambda: sent.count(b"\xc0\x00") >= 3)
        assert link.error is None

    run(with_source(made, test))


def test_a_lost_link_is_no_drained_one(far: Mosquitto) -> None:
    """Or messages of QoS 0, which nobody acknowledges, would count as sent."""

    async def test() -> None:
        made = Made(observer.address, "# out 0")
        await made.sink.open()
        link = made.sink._link
        assert link is not None
        link._wire.pause_writing()
        sending = asyncio.ensure_future(made.sink.send(items(message("a", qos=0))))
        await asyncio.wait([sending], timeout=0)
        observer.cut()
        with pytest.raises(ServiceUnavailable, match="lost"):
            await sending

    with observed(far.port) as observer:
        run(test())


def test_a_connection_that_is_lost_while_nothing_is_sent_shows_in_the_health(far: Mosquitto) -> None:
    """Nothing else tells of it: the sink is not called without a message."""

    async def test() -> None:
        made = Made(observer.address, "# out 1")
        assert made.sink.check().state is HealthState.HEALTHY
        await made.sink.open()
        assert made.sink.check().state is HealthState.HEALTHY
        observer.cut()
        await until(lambda: made.sink.check().state is HealthState.DEGRADED)
        assert "lost" in made.sink.check().text
        await made.sink.open()
        assert made.sink.check().state is HealthState.HEALTHY
        await made.sink.close()

    with observed(far.port) as observer:
        run(test())


def test_a_link_ends_with_a_goodbye(far: Mosquitto) -> None:
    """So the far broker publishes no will, and keeps no connection that it would have to miss."""

    async def test() -> None:
        made = Made(observer.address, "# out 0")
        await made.sink.open()
        await made.sink.close()
        await until(lambda: observer.goodbyes)

    with observed(far.port) as observer:
        run(test())


# Messages


@pytest.mark.parametrize(
    "properties", [Properties(response_topic="r" * 65_536), Properties(user_property=(("a", "\ud800"),))]
)
def test_what_no_packet_can_have_is_poison(far: Mosquitto, properties: Properties) -> None:
    """As a rule or a plugin may make it; the others of its batch are sent."""
    made = Made(far.address, "odd/# out 1")

    async def test() -> Any:
        await made.sink.open()
        try:
            return await made.sink.send(items(message("odd/a", properties=properties), message("odd/b")))
        finally:
            await made.sink.close()

    odd, plain = run(test())
    assert isinstance(odd, Poison) and "can't be written" in odd.text
    assert plain is None


def test_a_topic_that_is_not_utf_8_is_skipped() -> None:
    """MQTT-1.5.4-1: the far broker should have refused it, and would send it again for ever."""
    made = Made("127.0.0.1:1", "# in 1")

    assert made.source._message(MQTTMessage(topic=b"a/\xff")) is None
    assert made.skipped.value == 1
    assert "its topic is not UTF-8" in made.warnings[0]


def test_brokers_with_one_share_divide_what_comes_in(far: Mosquitto) -> None:
    """A shared subscription."""

    async def test() -> None:
        pair = [Made(far.address, "part/# in 1", share="g", client_id=f"part{number}") for number in (1, 2)]
        got = [Published(), Published()]
        tasks = [asyncio.ensure_future(made.source.run(each)) for made, each in zip(pair, got, strict=True)]
        await until(lambda: all(made.connection._is_subscribed for made in pair))
        with far_client(far.port, "pub") as client:
            for number in range(20):
                client.publish("part/a", b"%d" % number)
        await until(lambda: sum(len(each.messages) for each in got) == 20)
        assert all(each.messages for each in got)
        assert len({m.payload for each in got for m in each.messages}) == 20
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run(test())
