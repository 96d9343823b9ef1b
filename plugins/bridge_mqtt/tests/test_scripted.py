"""Far brokers that are allowed what Mosquitto never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from bridge_mqtt_harness.making import Made, message
from bridge_mqtt_harness.scripted import CONNACK_3, PUBCOMP, PUBLISH, PUBREC, SUBSCRIBE, Scripted, scripted
from kinmqtt_bridge_mqtt import wire as wire_module
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.bridge import Item
from kinmqtt_spi.values import Message


def run(test: Coroutine[Any, Any, Any]) -> Any:
    """Run a test in an event loop."""
    return asyncio.run(asyncio.wait_for(test, 60))


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


def items(*messages: Message) -> list[Item]:
    """Messages as the broker gives them to a sink."""
    return [Item(each, b"", 1) for each in messages]


def has_come(far: Scripted, count: int) -> bool:
    """Whether so many PUBLISH packets have come."""
    return len(far.of(PUBLISH)) >= count


def puback(packet: bytes) -> bytes:
    """Acknowledge a short PUBLISH with QoS 1."""
    place = 4 + packet[3]
    return b"\x40\x02" + packet[place : place + 2]


def test_a_message_of_qos_0_acknowledges_none_of_qos_1() -> None:
    """paho numbers them, too: after 65,535 it came to the number of one that still waits, and that was lost."""

    async def test() -> None:
        async with scripted() as far:
            made = Made(far.address, "# out 1")
            await made.sink.open()
            waiting = asyncio.ensure_future(made.sink.send(items(message("a"))))
            await until(lambda: far.of(PUBLISH))
            link = made.sink._link
            assert link is not None
            link._client._last_mid -= 1  # As if all others had been used.
            assert await made.sink.send(items(message("b", qos=0))) is None
            await until(lambda: len(far.of(PUBLISH)) == 2)
            await asyncio.wait([waiting], timeout=0)
            assert not waiting.done()
            far.send(puback(far.of(PUBLISH)[0]))
            assert await waiting is None
            await made.sink.close()

    run(test())


def test_the_state_counts_for_receive_maximum() -> None:
    """A far broker may end the connection for one message more, and would so each time."""

    async def test() -> None:
        async with scripted(b"\x20\x06\x00\x00\x03\x21\x00\x01") as far:
            made = Made(far.address, "# out 1", notifications=True)
            await made.sink.open()
            sending = asyncio.ensure_future(made.sink.send(items(message("a"), message("b"))))
            for count in (1, 2, 3):
                await until(partial(has_come, far, count))
                await asyncio.wait([sending], timeout=0)
                assert len(far.of(PUBLISH)) == count
                far.send(puback(far.of(PUBLISH)[-1]))
            assert await sending is None
            await made.sink.close()

    run(test())


def test_a_connection_that_the_far_broker_does_not_read_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reload, and each return to the first server, would leave one behind, with what waits in it."""
    monkeypatch.setattr(wire_module, "CLOSE_LIMIT_S", 0.01)

    async def test() -> None:
        async with scripted() as far:
            made = Made(far.address, "# out 1")
            await made.sink.open()
            link = made.sink._link
            assert link is not None
            transport = link._wire._transport
            assert transport is not None
            far.reads.clear()
            large = [message("a", b"x" * 1_000_000) for _ in range(20)]
            sending = asyncio.ensure_future(made.sink.send(items(*large)))
            await until(transport.get_write_buffer_size)
            made.connection.retire()
            with pytest.raises(ServiceUnavailable):
                await sending
            assert transport.get_write_buffer_size()
            await until(lambda: not transport.get_write_buffer_size())
            assert not far.reads.is_set()

    run(test())


async def publish_nothing(messages: Sequence[Message]) -> None:
    """Wait for ever, as for a full outbox."""
    await asyncio.Event().wait()


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a source."""
    task.cancel()
    with suppress(asyncio.CancelledError, ServiceUnavailable):
        await task


def test_a_message_of_qos_2_is_acknowledged_once_it_is_published() -> None:
    """Of a session of another bridge: PUBREC in advance lost it with the connection, and PUBCOMP never came."""

    async def test() -> None:
        async with scripted() as far:
            made = Made(far.address, "a/# in 1")
            over = asyncio.Event()
            far.answer = lambda packet: (
                b"\x90\x04" + packet[2:4] + b"\x00\x01\x34\x09\x00\x03a/b\x00\x07\x00x"
                if packet[0] >> 4 == SUBSCRIBE
                else b""
            )

            async def publish(messages: Sequence[Message]) -> None:
                await over.wait()

            task = asyncio.ensure_future(made.source.run(publish))
            await until(lambda: (link := made.connection._link) is not None and link._incoming)
            far.send(b"\x62\x02\x00\x06")  # PUBREL for a message of an earlier connection
            await until(lambda: far.of(PUBCOMP) == [b"\x70\x02\x00\x06"])
            assert not far.of(PUBREC)
            over.set()
            await until(lambda: far.of(PUBREC) == [b"\x50\x02\x00\x07"])
            far.send(b"\x62\x02\x00\x07")
            await until(lambda: far.of(PUBCOMP)[1:] == [b"\x70\x02\x00\x07"])
            await end(task)

    run(test())


def test_each_server_is_subscribed_to() -> None:
    """MQTT 3.1.1: a session that another one has kept may be older than the topics of the settings."""

    def suback(packet: bytes) -> bytes:
        return b"\x90\x03" + packet[2:4] + b"\x01" if packet[0] >> 4 == SUBSCRIBE else b""

    async def test() -> None:
        async with scripted(CONNACK_3) as first, scripted(b"\x20\x02\x01\x00") as second:
            first.answer = second.answer = suback
            made = Made(first.address, "a/# in 1", others=[second.address], version="3.1.1", round_robin=True)
            task = asyncio.ensure_future(made.source.run(publish_nothing))
            await until(lambda: made.connection._is_subscribed)
            first.cut()
            with suppress(ServiceUnavailable):
                await task
            task = asyncio.ensure_future(made.source.run(publish_nothing))
            await until(lambda: second.of(SUBSCRIBE))
            await end(task)

    run(test())


def test_an_answer_to_subscribe_behind_what_waits_is_waited_for() -> None:
    """While nothing can be published it is not read: the far broker must not count as away, for the sink's sake."""

    async def test() -> None:
        async with scripted() as far:
            made = Made(far.address, "a/# in 1", max_inflight=1, timeout_s=0.1)

            def answer(packet: bytes) -> bytes:
                flood = b"\x30\x07\x00\x03a/b\x00x" * 3
                return flood + b"\x90\x04" + packet[2:4] + b"\x00\x01" if packet[0] >> 4 == SUBSCRIBE else b""

            far.answer = answer
            over = asyncio.Event()

            async def publish(messages: Sequence[Message]) -> None:
                await over.wait()

            task = asyncio.ensure_future(made.source.run(publish))
            await until(lambda: far.of(SUBSCRIBE))
            await asyncio.wait([task], timeout=0.3)  # More than its time limit.
            over.set()
            await until(lambda: made.connection._is_subscribed or task.done())
            assert not task.done()
            await end(task)

    run(test())
