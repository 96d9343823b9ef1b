"""Clients are made with what the settings say, and aiokafka's lines are for debugging."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from attrs import frozen

from kinmqtt_kafka_kit import AiokafkaLog, Endings, SecuritySettings, options, pauses, settled, why
from kinmqtt_kafka_kit.aiokafka_log import MAX_WAITING
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.memory.plugin import RecordingLog


@frozen(slots=True)
class Cluster:
    """A plugin's settings of a Kafka cluster that is not there."""

    servers: tuple[str, ...] = ("127.0.0.1:9",)
    security: SecuritySettings = SecuritySettings()
    timeout_s: float = 5.0


def with_password(folder: Path, password: str) -> Cluster:
    """A cluster with a user."""
    (folder / "p").write_text(password)
    security = SecuritySettings(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="k", password_file=folder / "p"
    )
    return Cluster(security=security)


def test_a_password_is_read_when_a_client_is_made(tmp_path: Path) -> None:
    """So a new one needs no restart."""
    cluster = with_password(tmp_path, "first\n")
    assert options(cluster)["sasl_plain_password"] == "first"

    (tmp_path / "p").write_text("second")
    assert options(cluster)["sasl_plain_password"] == "second"


@pytest.mark.parametrize("left", ["", "\n"])
def test_a_file_without_a_password_is_named(tmp_path: Path, left: str) -> None:
    """As a refusal: an operator must act."""
    with pytest.raises(SinkRefused, match=f"can't be used: .*{tmp_path}/p is empty"):
        options(with_password(tmp_path, left))


def test_a_server_that_is_away_is_no_refusal() -> None:
    """It is tried once more, and may come back."""
    found = asyncio.run(why(Cluster(), RuntimeError("no server could be used")))

    assert isinstance(found, ServiceUnavailable)
    assert "127.0.0.1" in str(found)


def test_what_is_an_error_of_the_spi_stays_as_it_is() -> None:
    """Nothing is connected for it."""
    error = ServiceUnavailable("there is no topic")

    assert asyncio.run(why(Cluster(), error)) is error


def test_aiokafkas_lines_are_for_debugging() -> None:
    """It logs each attempt to reconnect as an error, and keys and values when it debugs: those are left out."""
    log = RecordingLog()
    handler = AiokafkaLog(log)
    logger = logging.getLogger("aiokafka.client")

    handler.begin()
    logger.error("Unable connect to %s", "a:1")
    logger.debug("Sending (key=%s)", "secret")
    handler.end()

    assert log.texts("debug") == ["aiokafka: Unable connect to a:1"]
    assert log.texts("error") == []
    assert logging.getLogger("aiokafka").propagate
    assert logging.getLogger("aiokafka").handlers == []


def test_a_line_comes_once_however_many_plugins_take_it() -> None:
    """To the first one; when that has ended, to the next."""
    logs = [RecordingLog(), RecordingLog(), RecordingLog()]
    takers = [AiokafkaLog(log) for log in logs]
    logger = logging.getLogger("aiokafka.conn")
    for taker in takers:
        taker.begin()

    logger.error("one")
    takers[1].end()
    logger.error("two")
    takers[0].end()
    logger.error("three")
    takers[2].end()

    assert [log.texts() for log in logs] == [["aiokafka: one", "aiokafka: two"], [], ["aiokafka: three"]]
    assert logging.getLogger("aiokafka").handlers == []


def test_a_line_of_another_thread_is_logged_by_the_loop() -> None:
    """The broker's log belongs to the reactor's thread."""
    log, threads = RecordingLog(), []

    def debug(format: str, **values: object) -> None:
        threads.append(threading.get_ident())
        RecordingLog.debug(log, format, **values)

    log.debug = debug  # type: ignore[method-assign]
    taker = AiokafkaLog(log)

    async def main() -> None:
        taker.begin()
        await asyncio.to_thread(logging.getLogger("aiokafka").error, "from a thread")
        await asyncio.sleep(0)
        taker.end()

    asyncio.run(main())

    assert log.texts("debug") == ["aiokafka: from a thread"]
    assert threads == [threading.get_ident()]


def test_without_a_loop_lines_of_other_threads_wait_for_the_plugin() -> None:
    """Not without bound; what is left is logged at the end."""
    log = RecordingLog()
    taker = AiokafkaLog(log)
    taker.begin()

    def lines() -> None:
        for number in range(MAX_WAITING + 5):
            logging.getLogger("aiokafka").error("%d", number)

    for last in (taker.flush, taker.end):
        thread = threading.Thread(target=lines)
        thread.start()
        thread.join()
        assert log.lines == []
        last()
        assert log.texts() == [f"aiokafka: {number}" for number in range(5, MAX_WAITING + 5)]
        log.lines.clear()


def test_pauses_double_up_to_the_longest() -> None:
    """Less a share that chance decides; a success begins anew."""
    waits = pauses(Random(1))

    some = [waits.next_s() for _ in range(12)]
    waits.reset()

    assert all(0.8 * full <= pause_s <= full for full, pause_s in zip([0.1, 0.2, 0.4, 0.8], some, strict=False))
    assert 24 <= some[-1] <= 30
    assert waits.next_s() <= 0.1


def test_what_may_be_an_answer_or_one_that_comes_is_settled() -> None:
    """A value, a future, or something like a Deferred."""

    class LikeADeferred:
        def __await__(self) -> Iterator[None]:
            raise AssertionError("it would wait for another loop")

        def asFuture(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[str]:
            future: asyncio.Future[str] = loop.create_future()
            future.set_result("deferred")
            return future

    async def main() -> list[object]:
        return [await settled("value"), await settled(asyncio.sleep(0, "later")), await settled(LikeADeferred())]

    assert asyncio.run(main()) == ["value", "later", "deferred"]


def test_an_end_that_fails_is_over_all_the_same() -> None:
    """Nobody hears of it as an exception that was never retrieved."""

    async def fails() -> None:
        raise RuntimeError("already closed")

    async def main() -> list[object]:
        heard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
        await Endings().end(fails())
        return heard

    assert asyncio.run(main()) == []
