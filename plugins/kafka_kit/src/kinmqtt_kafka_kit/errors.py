"""What Kafka's errors mean for the broker."""

from __future__ import annotations

import ssl
from typing import Final

from aiokafka import errors as kafka

from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused

_REFUSING: Final = (
    kafka.AuthenticationFailedError,
    kafka.AuthenticationMethodNotSupported,
    kafka.SaslAuthenticationFailed,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
    kafka.SecurityDisabled,
    kafka.TopicAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.ClusterAuthorizationFailedError,
    kafka.TransactionalIdAuthorizationFailed,
    kafka.InvalidGroupIdError,
    kafka.UnsupportedVersionError,
    kafka.IncompatibleBrokerVersion,
    kafka.UnsupportedForMessageFormatError,
    kafka.UnsupportedCodecError,
    ssl.SSLCertVerificationError,
)
"""Only an operator can change these."""

_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordTooLargeError, kafka.RecordListTooLargeError)


def meaning(error: BaseException) -> SinkRefused | ServiceUnavailable:
    """Return the error of the SPI for an error of Kafka or of a connection to it."""
    if isinstance(error, SinkRefused | ServiceUnavailable):
        return error
    if isinstance(error, _REFUSING):
        return SinkRefused(f"Kafka refuses this client: {text_of(error)}")
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
