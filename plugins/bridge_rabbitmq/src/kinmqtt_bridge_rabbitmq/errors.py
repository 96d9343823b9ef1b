"""What RabbitMQ's errors mean for the broker."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pika import exceptions as amqp

from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused

NOT_FOUND: Final = 404
ACCESS_REFUSED: Final = 403
PRECONDITION_FAILED: Final = 406
NOT_ALLOWED: Final = 530

_WAYS_OUT: Final[Mapping[int, str]] = {
    ACCESS_REFUSED: "check username and password_file, and the user's permissions in the virtual host",
    NOT_ALLOWED: "check virtual_host, and whether the user may use it",
}
"""What only an operator can change, by reply code, and how."""

_REFUSALS: Final[Mapping[int, str]] = {
    ACCESS_REFUSED: "it does not accept username and password",
    NOT_ALLOWED: "the virtual host is missing, or not for this user",
}


def meaning(error: BaseException) -> SinkRefused | ServiceUnavailable:
    """Return the error of the SPI for an error of RabbitMQ or of a connection to it."""
    if isinstance(error, SinkRefused | ServiceUnavailable):
        return error
    for each in _causes(error):
        if isinstance(each, amqp.ConnectionClosed | amqp.ChannelClosed):
            way_out = _WAYS_OUT.get(each.reply_code)
            if way_out is not None:
                return SinkRefused(f"RabbitMQ refuses this client: {each.reply_text}: {way_out}")
            return ServiceUnavailable(f"RabbitMQ has closed the {_what(each)}: {each.reply_code} {each.reply_text}")
        if isinstance(each, amqp.ProbableAuthenticationError | amqp.ProbableAccessDeniedError):
            # pika's guess, also where a connection was only lost: RabbitMQ says it with a code.
            code = next((code for code in _WAYS_OUT if f"ConnectionClosedByBroker: ({code})" in str(each)), None)
            if code is not None:
                return SinkRefused(f"RabbitMQ refuses this client: {_REFUSALS[code]}: {_WAYS_OUT[code]}")
            return ServiceUnavailable("the connection was lost while RabbitMQ checked the user")
        if isinstance(each, ssl.SSLCertVerificationError):
            return SinkRefused(
                f"the server's certificate can't be verified: {line_of(each)}: check servers, and ca_file of tls"
            )
        if isinstance(each, ssl.SSLError | amqp.AMQPConnectionError) and "_ALERT_" in str(each):
            # With TLS 1.3 only what is read later says it, and pika gives that as a text.
            return SinkRefused(
                f"RabbitMQ refuses to speak TLS: {line_of(each)}: check certificate_file and key_file of tls"
            )
        if isinstance(each, ssl.SSLError):
            return ServiceUnavailable(f"no TLS there: {line_of(each)}: check the port of servers, and tls")
        if isinstance(each, amqp.IncompatibleProtocolError):
            return ServiceUnavailable(f"no AMQP 0-9-1 there: {line_of(each)}: check the port of servers, and tls")
    causes = list(_causes(error))
    if any(isinstance(each, TimeoutError) for each in causes):
        return ServiceUnavailable("RabbitMQ has not answered in time")
    return ServiceUnavailable(f"RabbitMQ can't be used: {line_of(causes[-1])}")


def reply_code(error: BaseException) -> int:
    """Return the reply code with which RabbitMQ has closed a channel or connection; 0 for another error."""
    closed = isinstance(error, amqp.ChannelClosed | amqp.ConnectionClosed)
    return int(error.reply_code) if closed else 0  # type: ignore[attr-defined]


def line_of(error: BaseException) -> str:
    """Return an error in one line, with its type if that isn't in its text."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return text if name in text else f"{name}: {text}" if text else name


def _what(error: Any) -> str:
    return "channel" if isinstance(error, amqp.ChannelClosed) else "connection"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that pika has packed into it."""
    yield error
    inner = getattr(error, "exceptions", None) or [getattr(error, "exception", None), *error.args]
    for each in inner:
        if isinstance(each, BaseException):
            yield from _causes(each)
