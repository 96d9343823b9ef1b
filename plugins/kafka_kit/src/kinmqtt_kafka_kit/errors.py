"""What Kafka's errors mean for the broker."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from aiokafka import errors as kafka

from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused

_CREDENTIALS: Final = "check username, password_file and mechanism of security"

_WAYS_OUT: Final[Mapping[type[Exception], str]] = {
    kafka.AuthenticationFailedError: _CREDENTIALS,
    kafka.AuthenticationMethodNotSupported: _CREDENTIALS,
    kafka.SaslAuthenticationFailed: _CREDENTIALS,
    kafka.UnsupportedSaslMechanismError: "check mechanism of security",
    kafka.IllegalSaslStateError: "check protocol of security",
    kafka.SecurityDisabled: "Kafka needs an authorizer for this",
    kafka.TopicAuthorizationFailedError: "the user needs DESCRIBE on the topic, and WRITE to send or READ to receive",
    kafka.GroupAuthorizationFailedError: "the user needs READ on the consumer group",
    kafka.ClusterAuthorizationFailedError: "the user needs WRITE on a topic",
    kafka.TransactionalIdAuthorizationFailed: "the user needs WRITE on the transactional id",
    kafka.InvalidGroupIdError: "name another consumer group",
    kafka.UnsupportedVersionError: "Kafka 2.1 or newer is needed",
    kafka.IncompatibleBrokerVersion: "Kafka 2.1 or newer is needed",
    kafka.UnsupportedForMessageFormatError: "the topic needs message format 2 (Kafka 0.11) or newer",
    kafka.UnsupportedCodecError: "use another compression",
    ssl.SSLCertVerificationError: "check servers, and ca_file of security",
}
"""What only an operator can change, and how."""

_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordTooLargeError, kafka.RecordListTooLargeError)


def meaning(error: BaseException) -> SinkRefused | ServiceUnavailable:
    """Return the error of the SPI for an error of Kafka or of a connection to it."""
    if isinstance(error, SinkRefused | ServiceUnavailable):
        return error
    if isinstance(error, tuple(_WAYS_OUT)):
        way_out = next(text for refusal, text in _WAYS_OUT.items() if isinstance(error, refusal))
        return SinkRefused(f"Kafka refuses this client: {text_of(error)}: {way_out}")
    if isinstance(error, TimeoutError):
        return ServiceUnavailable("Kafka has not answered in time")
    return ServiceUnavailable(f"Kafka can't be used: {text_of(error)}")


def unavailable(error: BaseException) -> ServiceUnavailable:
    """Return :func:`meaning` where there is no sink that could be refused; the text says that Kafka refuses."""
    found = meaning(error)
    return ServiceUnavailable(str(found)) if isinstance(found, SinkRefused) else found


def is_too_large(error: BaseException) -> bool:
    """Tell whether a topic does not accept records or batches of that size."""
    return isinstance(error, _TOO_LARGE)


def text_of(error: BaseException) -> str:
    """Return an error in one line, with its type if that isn't in its text."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return text if name in text else f"{name}: {text}" if text else name
