"""Clients are made with what the settings say, and aiokafka's lines are for debugging."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from attrs import frozen

from kinmqtt_kafka_kit import AiokafkaLog, Endings, SecuritySettings, options, why
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
