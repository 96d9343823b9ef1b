"""The sink over a real Mosquitto: what a message becomes there, and what happens where that broker refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.properties import Properties as PahoProperties

from bridge_mqtt_harness.clients import far_client
from bridge_mqtt_harness.making import NOW, Made, message
from bridge_mqtt_harness.mosquitto import Mosquitto, mosquitto, with_user
from bridge_mqtt_harness.observer import observed
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.bridge import REFUSED_PAUSE_S, Item, Poison, Retry
from kinmqtt_spi.values import Message
from spi_harness.processes import free_port


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path_factory.mktemp("far")) as broker:
        yield broker


def run(test: Coroutine[Any, Any, Any]) -> Any:
    """Run a test in an event loop."""
    return asyncio.run(asyncio.wait_for(test, 60))


def items(*messages: Message) -> list[Item]:
    """Messages as the broker gives them to a sink."""
    return [Item(each, each.publisher.client_id.encode(), 1) for each in messages]


async def send(made: Made, *messages: Message) -> Any:
    """Open a sink, send one batch, and close it."""
    await made.sink.open()
    try:
        return await made.sink.send(items(*messages))
    finally:
        await made.sink.close()


def user_properties(found: PahoProperties) -> list[tuple[str, str]]:
    return list(getattr(found, "UserProperty", []))


def test_a_message_arrives_with_what_mqtt_5_knows_of_it(far: Mosquitto) -> None:
    """Topic by its line, payload, properties, the time that it has left, and the broker's name."""
    made = Made(far.address, 'out/# out 2 "" there/', 'say/# in 1 "" there/')
    properties = Properties(
        content_type="text/plain",
        payload_format_indicator=1,
        correlation_data=b"c",
        response_topic="say/back",
        message_expiry_interval=100,
        user_property=(("a", "1"), ("a", "2")),
    )
    with far_client(far.port, "sub", "there/#") as client:
        answers = run(send(made, message("out/a", b"x", 2, properties=properties, expires_at=NOW + 30.5)))
        client.wait_for(1)
        [found] = client.messages

    assert answers is None
    assert (found.topic, found.payload, found.qos) == ("there/out/a", b"x", 1)
    theirs: Any = found.properties
    assert (theirs.ContentType, theirs.PayloadFormatIndicator, theirs.CorrelationData) == ("text/plain", 1, b"c")
    assert theirs.ResponseTopic == "there/say/back"
    assert theirs.MessageExpiryInterval in (30, 31)
    assert user_properties(theirs) == [("a", "1"), ("a", "2"), ("via", "here")]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_the_retained_flag_is_kept(far: Mosquitto, version: str) -> None:
    """Who subscribes later gets it, and an empty one deletes it."""
    topic = f"kept/{version}"
    run(send(Made(far.address, "kept/# out 1", version=version), message(topic, b"x", retain=True)))
    with far_client(far.port, "late", topic) as client:
        assert client.wait_for(1) == [(topic, b"x")]
    run(send(Made(far.address, "kept/# out 1", version=version), message(topic, b"", retain=True)))
    with far_client(far.port, "later", topic, "kept/end") as client:
        client.publish("kept/end", b"end")
        assert client.wait_for(1) == [("kept/end", b"end")]


def test_what_came_from_there_does_not_go_back(far: Mosquitto) -> None:
    """Over this connection, or round through other brokers; a source's own name does not count for other sinks."""
    made = Made(far.address, "loop/# both 1")
    came = message("loop/a", b"came", client="$bridge/far")
    round_trip = message("loop/a", b"round", properties=Properties(user_property=(("via", "here"), ("via", "b"))))
    other = message(
        "loop/a", b"other", client="$bridge/else", properties=Properties(user_property=(("via", "here"),))
    )
    with far_client(far.port, "sub", "loop/#") as client:
        assert run(send(made, came, round_trip, other)) is None
        assert client.wait_for(1) == [("loop/a", b"other")]
        [found] = client.messages

    assert made.looped.value == 1
    assert found.properties is not None
    assert user_properties(found.properties) == [("via", "here")]


def test_reason_codes_say_what_becomes_of_a_message(far: Mosquitto) -> None:
    """0x97: again; 0x90: never; 0x87: again in a minute; the others are taken."""
    with observed(far.port) as observer:
        observer.answers = {1: 0x97, 2: 0x90, 3: 0x87, 4: 0x10}
        answers = run(send(Made(observer.address, "# out 1"), *(message("a", b"%d" % number) for number in range(6))))

    assert isinstance(answers[1], Retry) and answers[1].after_s is None
    assert isinstance(answers[2], Poison) and "0x90" in answers[2].text
    assert isinstance(answers[3], Retry) and answers[3].after_s == REFUSED_PAUSE_S
    assert (answers[0], answers[4], answers[5]) == (None, None, None)


def test_a_user_without_rights_is_refused(far: Mosquitto) -> None:
    """B7: 0x87 for all of them; the error names the place in the settings and what to check."""
    with observed(far.port) as observer:
        observer.answers = {0: 0x87, 1: 0x87}
        with pytest.raises(SinkRefused, match=r"connections\.far: .*0x87.*check the rights"):
            run(send(Made(observer.address, "# out 1"), message("a", b"0"), message("a", b"1")))


def test_what_no_line_is_about_is_poison(far: Mosquitto) -> None:
    """As a rule may put it in."""
    [answer] = run(send(Made(far.address, "a/# out 1"), message("b/c")))

    assert answer == Poison("no line of topics is about 'b/c'")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_wrong_password_is_refused(tmp_path: Path, version: str) -> None:
    """B7: with the place, without the password."""
    (tmp_path / "password").write_text("wrong-one\n")
    with mosquitto(tmp_path / "far", with_user(tmp_path / "far", [])) as far:
        made = Made(far.address, "# out 1", version=version, username="ada", password_file=tmp_path / "password")
        with pytest.raises(SinkRefused, match=r"plugins.bridge_mqtt.connections.far: 127.*refuses") as caught:
            run(send(made, message("a")))

    assert "check username" in str(caught.value)
    assert "wrong-one" not in str(caught.value)


def test_servers_are_tried_in_turn(far: Mosquitto) -> None:
    """The first that answers is used."""
    nobody = f"127.0.0.1:{free_port()}"
    for turns in (False, True):
        made = Made(nobody, "turn/# out 1", others=[far.address], round_robin=turns)

        assert run(send(made, message("turn/a"))) is None


def test_a_broker_that_hangs_is_given_up(far: Mosquitto) -> None:
    """B4: nothing is acknowledged for the time limit, and then the link is closed: the batch comes again whole."""

    async def test(port: str) -> None:
        made = Made(port, "# out 1", timeout_s=0.3)
        await made.sink.open()
        observer.hang()
        with pytest.raises(ServiceUnavailable, match="acknowledged nothing"):
            await made.sink.send(items(message("a", b"1")))
        with pytest.raises(ServiceUnavailable):
            await made.sink.open()
        observer.flow()
        await made.sink.open()
        assert await made.sink.send(items(message("a", b"1"))) is None
        await made.sink.close()

    with observed(far.port) as observer:
        run(test(observer.address))


def test_the_state_is_published_at_the_far_broker(far: Mosquitto) -> None:
    """1 while it is connected, 0 afterwards, and 0 as the will of a connection that is lost."""
    made = Made(far.address, "# out 1", notifications=True, client_id="stated")
    topic = "$SYS/broker/connection/stated/state"

    async def test() -> None:
        await made.sink.open()
        await asyncio.to_thread(client.wait_for, 1)
        await made.sink.close()
        await asyncio.to_thread(client.wait_for, 2)
        await made.sink.open()
        await asyncio.to_thread(client.wait_for, 3)
        made.sink._link.fail(ServiceUnavailable("the test cuts it"))  # type: ignore[union-attr]
        await asyncio.to_thread(client.wait_for, 4)
        await made.sink.close()

    with far_client(far.port, "watch", topic) as client:
        run(test())
        assert [payload for _, payload in client.wait_for(4)] == [b"1", b"0", b"1", b"0"]


def test_more_than_the_far_broker_takes_at_a_time_goes_out_bit_by_bit(far: Mosquitto) -> None:
    """In order, and no more is under way than max_inflight."""
    made = Made(far.address, "many/# out 1", max_inflight=5)
    with far_client(far.port, "sub", "many/#") as client:
        assert run(send(made, *(message("many/a", b"%d" % number) for number in range(300)))) is None
        assert [int(payload) for _, payload in client.wait_for(300)] == list(range(300))
