"""The source over a real Mosquitto: what comes in, when it is acknowledged, and sessions that are lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from bridge_mqtt_harness.clients import far_client
from bridge_mqtt_harness.making import Made, message
from bridge_mqtt_harness.mosquitto import Mosquitto, mosquitto
from bridge_mqtt_harness.observer import observed
from kinmqtt_spi.errors import NotCommitted, ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Item
from kinmqtt_spi.values import Message


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path_factory.mktemp("far")) as broker:
        yield broker


def run(test: Coroutine[Any, Any, Any]) -> Any:
    """Run a test in an event loop."""
    return asyncio.run(asyncio.wait_for(test, 60))


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


class Published:
    """What a source has published."""

    def __init__(self, fails: int = 0) -> None:
        self.messages: list[Message] = []
        self.fails = fails

    async def __call__(self, messages: Sequence[Message]) -> None:
        if self.fails:
            self.fails -= 1
            raise NotCommitted("the store fails")
        self.messages += messages

    @property
    def payloads(self) -> list[bytes]:
        return [each.payload for each in self.messages]


@asynccontextmanager
async def running(made: Made, published: Published) -> AsyncIterator[None]:
    """A source that runs and has subscribed, until it is cancelled as the broker does."""
    task = asyncio.ensure_future(made.source.run(published))
    try:
        await until(lambda: made.connection._is_subscribed or task.done())
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ServiceUnavailable):
            await task


def test_a_message_comes_in_with_what_mqtt_5_knows_of_it(far: Mosquitto) -> None:
    """Its topic by its line, the retained flag, its properties, and the broker's name behind them."""
    made = Made(far.address, "cmd/# in 1 here/ dev7/", "ans/# out 1 here/ dev7/")
    properties = PahoProperties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.MessageExpiryInterval = 100
    properties.ResponseTopic = "dev7/ans/1"
    properties.CorrelationData = b"c"
    properties.UserProperty = ("a", "1")

    async def test() -> None:
        published = Published()
        async with running(made, published):
            with far_client(far.port, "pub") as client:
                client.publish("dev7/cmd/a", b"x", 2, retain=True, properties=properties)
                client.publish("dev7/cmd/b", b"bare", 0)
                await until(lambda: len(published.messages) == 2)
        one, bare = published.messages
        assert (one.topic, one.payload, one.qos, one.retain) == ("here/cmd/a", b"x", 1, True)
        assert (one.properties.content_type, one.properties.correlation_data) == ("text/plain", b"c")
        assert one.properties.message_expiry_interval in (99, 100)
        assert one.properties.response_topic == "here/ans/1"
        assert one.properties.user_property == (("a", "1"), ("via", "here"))
        assert one.publisher.client_id == "$bridge/far"
        assert (bare.topic, bare.qos, bare.retain) == ("here/cmd/b", 0, False)
        assert bare.properties.user_property == (("via", "here"),)

    run(test())


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_its_own_messages_do_not_come_back(far: Mosquitto, version: str) -> None:
    """No Local, or the bit of bridges in 3.1.1: what the sink sends of a line in both directions stays there."""

    made = Made(far.address, f"own/{version} both 1", version=version)

    async def test() -> None:
        published = Published()
        async with running(made, published):
            await made.sink.open()
            assert await made.sink.send([Item(message(f"own/{version}", b"mine"), b"", 1)]) is None
            with far_client(far.port, "pub") as client:
                client.publish(f"own/{version}", b"theirs")
            await until(lambda: published.messages)
            await made.sink.close()
        assert published.payloads == [b"theirs"]

    run(test())


def test_a_message_that_went_round_is_dropped_and_counted(far: Mosquitto) -> None:
    """Its user properties have our name already."""
    made = Made(far.address, "round/# in 1")
    properties = PahoProperties(PacketTypes.PUBLISH)
    properties.UserProperty = [("via", "here"), ("via", "there")]

    async def test() -> None:
        published = Published()
        async with running(made, published):
            with far_client(far.port, "pub") as client:
                client.publish("round/a", b"round", properties=properties)
                client.publish("round/a", b"new")
            await until(lambda: published.messages)
        assert (published.payloads, made.looped.value) == ([b"new"], 1)

    run(test())


def test_properties_that_paho_reads_badly_do_not_end_the_link(far: Mosquitto) -> None:
    """U+FEFF, and very many: such a message would stop both directions each time it comes again."""
    made = Made(far.address, "odd/# in 1")
    properties = PahoProperties(PacketTypes.PUBLISH)
    object.__setattr__(properties, "UserProperty", [("\ufeff", "")] * 2_000)

    async def test() -> None:
        published = Published()
        async with running(made, published):
            with far_client(far.port, "pub") as client:
                client.publish("odd/a", b"x", properties=properties)
            await until(lambda: published.messages)
        assert len(published.messages[0].properties.user_property) == 2_001

    run(test())


def test_what_is_not_committed_comes_again(far: Mosquitto) -> None:
    """B11: it is acknowledged there only once it is committed here, in its order."""
    with observed(far.port) as observer:
        made = Made(observer.address, "again/# in 1")

        async def test() -> None:
            async with running(made, Published()):
                pass
            with far_client(far.port, "pub") as client:
                for number in range(20):
                    client.publish("again/a", b"%d" % number)
            with pytest.raises(NotCommitted):
                await made.source.run(Published(fails=1))
            assert observer.acknowledged == []
            published = Published()
            async with running(made, published):
                await until(lambda: len(observer.acknowledged) == 20)
            assert published.payloads == [b"%d" % number for number in range(20)]

        run(test())


def test_a_refused_subscription_is_told_of(far: Mosquitto) -> None:
    """With the filter and the place in the settings. Mosquitto refuses none, so its answer is exchanged."""
    made = Made(far.address, "closed/# in 1")

    async def test() -> None:
        link = await made.connection.join()
        told: Any = link._client.on_subscribe

        def refuse(client: Any, user: Any, mid: int, reasons: Any, said: Any) -> None:
            for each in reasons:
                each.value = 0x87
            told(client, user, mid, reasons, said)

        link._client.on_subscribe = refuse
        with pytest.raises(SinkRefused, match=r"connections\.far: .*'closed/#'.*0x87"):
            await made.source.run(Published())
        made.connection.leave(link)

    run(test())


def test_a_lost_session_is_told_of(tmp_path: Path) -> None:
    """A far broker that stores nothing has lost what waited when it comes back; the source goes on."""
    with mosquitto(tmp_path) as far:
        made = Made(far.address, "a/# in 1")

        async def test() -> None:
            async with running(made, Published()):
                pass
            far.signal(signal.SIGKILL)
            far.end()
            far.start()
            published = Published()
            task = asyncio.ensure_future(made.source.run(published))
            await until(lambda: made.warnings)
            await until(lambda: made.connection._is_subscribed)
            with far_client(far.port, "pub") as client:
                client.publish("a/b", b"x")
            await until(lambda: published.messages)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        run(test())

    assert "lost the session" in made.warnings[0]


def test_a_far_broker_that_stands_still_is_noticed(tmp_path: Path) -> None:
    """The keep alive ends the connection, though TCP has nothing against it."""
    with mosquitto(tmp_path) as far:
        made = Made(far.address, "a/# in 1", keep_alive_s=1)

        async def test() -> None:
            task = asyncio.ensure_future(made.source.run(Published()))
            await until(lambda: made.connection._is_subscribed)
            far.signal(signal.SIGSTOP)
            with pytest.raises(ServiceUnavailable, match="Keep alive"):
                await task
            far.signal(signal.SIGCONT)

        run(test())


def test_more_than_is_published_in_time_is_not_read(far: Mosquitto) -> None:
    """What waits in memory is bounded; everything comes in the end."""
    made = Made(far.address, "flood/# in 0", max_inflight=10)

    async def test() -> None:
        link = await made.connection.join()
        await made.connection.subscribe(link)
        with far_client(far.port, "pub") as client:
            for number in range(500):
                client.publish("flood/a", b"%d" % number, 0)
        await until(lambda: link._wire._is_paused)
        assert len(link._incoming) == 20
        published = Published()
        async with running(made, published):
            await until(lambda: len(published.messages) == 500)
            assert link.error is None
        made.connection.leave(link)
        assert published.payloads == [b"%d" % number for number in range(500)]

    run(test())
