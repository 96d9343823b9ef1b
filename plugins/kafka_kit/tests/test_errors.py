"""What errors of Kafka mean for the broker."""

from __future__ import annotations

import ssl

import aiokafka.errors
import pytest

from kinmqtt_kafka_kit import is_too_large, meaning, unavailable
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused


@pytest.mark.parametrize(
    "error",
    [
        aiokafka.errors.SaslAuthenticationFailed("no"),
        aiokafka.errors.AuthenticationFailedError("no"),
        aiokafka.errors.UnsupportedSaslMechanismError("no"),
        aiokafka.errors.TopicAuthorizationFailedError("t"),
        aiokafka.errors.GroupAuthorizationFailedError("g"),
        aiokafka.errors.ClusterAuthorizationFailedError(),
        ssl.SSLCertVerificationError("certificate verify failed"),
        SinkRefused("no"),
    ],
)
def test_what_an_operator_must_mend_is_a_refusal(error: Exception) -> None:
    """Trying again soon would not help."""
    assert isinstance(meaning(error), SinkRefused)


@pytest.mark.parametrize(
    "error",
    [
        aiokafka.errors.KafkaConnectionError("lost"),
        aiokafka.errors.RequestTimedOutError(),
        aiokafka.errors.NotLeaderForPartitionError(),
        aiokafka.errors.NotEnoughReplicasError(),
        aiokafka.errors.OutOfOrderSequenceNumber(),
        aiokafka.errors.ProducerFenced(),
        aiokafka.errors.ProducerClosed(),
        aiokafka.errors.UnknownError(),
        ConnectionRefusedError(111, "refused"),
        TimeoutError(),
        ServiceUnavailable("away"),
        RuntimeError("anything"),
    ],
)
def test_everything_else_may_pass(error: Exception) -> None:
    """It is tried again, with a new producer."""
    assert isinstance(meaning(error), ServiceUnavailable)


def test_errors_are_one_line_with_their_type() -> None:
    """An error without a text still says what it is."""
    assert str(meaning(ValueError("two\nlines"))) == "Kafka can't be used: ValueError: two lines"
    assert str(meaning(OSError())) == "Kafka can't be used: OSError"
    assert str(meaning(TimeoutError())) == "Kafka has not answered in time"


def test_what_is_too_large_is_told_apart() -> None:
    """A record, or the batch that it is in."""
    assert is_too_large(aiokafka.errors.MessageSizeTooLargeError())
    assert is_too_large(aiokafka.errors.RecordListTooLargeError())
    assert not is_too_large(aiokafka.errors.RequestTimedOutError())


def test_where_no_sink_can_be_refused_the_text_says_it() -> None:
    """A service over Kafka is unavailable, and its user reads why."""
    found = unavailable(aiokafka.errors.TopicAuthorizationFailedError("t"))

    assert isinstance(found, ServiceUnavailable)
    assert str(found).startswith("Kafka refuses this client: ")
    assert str(unavailable(TimeoutError())) == "Kafka has not answered in time"
