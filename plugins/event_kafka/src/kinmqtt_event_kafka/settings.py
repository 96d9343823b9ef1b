"""The settings ``[plugins.event_kafka]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from attrs import frozen

from kinmqtt_spi.settings import problem_with_file, setting

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _checked(check: Callable[[Any], object]) -> Callable[[object, object, Any], None]:
    """Return a validator: ``check`` raises ``ValueError``."""

    def validator(instance: object, attribute: object, value: Any) -> None:
        check(value)

    return validator


def _check_servers(servers: Sequence[str]) -> None:
    for each in servers:
        host, colon, port = each.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"{each!r} is not host:port")


def _check_topic(topic: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"{topic!r} can't be the name of a Kafka topic: up to 249 letters, digits, ., _ and -")


@frozen(slots=True)
class SecuritySettings:
    """How connections are encrypted, and who the broker is there."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", help="as Kafka's `security.protocol`"
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = setting(
        "SCRAM-SHA-512", help="as Kafka's `sasl.mechanism`"
    )
    username: str = setting("", help="the user, with SASL")
    password_file: Path | None = setting(None, help="a file with the user's password; read at each connection")
    ca_file: Path | None = setting(None, help="trusted CA certificates; by default the system's")
    certificate_file: Path | None = setting(None, help="the client certificate")
    key_file: Path | None = setting(None, help="its private key")
    verify_hostname: bool = setting(True, help="require that the certificate names the server")

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def authenticates(self) -> bool:
        """Whether there is a user with a password."""
        return self.protocol.startswith("SASL")

    def __attrs_post_init__(self) -> None:
        for name in ("password_file", "ca_file", "certificate_file", "key_file"):
            path = getattr(self, name)
            problem = None if path is None else problem_with_file(path)
            if problem is not None:
                raise ValueError(f"{name}: {problem}")
        if self.authenticates and not (self.username and self.password_file):
            raise ValueError(f'protocol "{self.protocol}" needs username and password_file')
        if not self.authenticates and (self.username or self.password_file):
            raise ValueError(f'protocol "{self.protocol}" has no user: use "SASL_SSL", or leave username out')
        if not self.encrypts and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError(f'protocol "{self.protocol}" does not encrypt: use "SSL" or "SASL_SSL"')
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file need each other")


@frozen(slots=True)
class EventKafkaSettings:
    """Where Kafka is, and what it gets."""

    servers: tuple[str, ...] = setting(
        (), help="some of Kafka's brokers, as `host:port`; they name the others", validator=_checked(_check_servers)
    )
    topic: str = setting("kinmqtt.events", help="the topic of the events", validator=_checked(_check_topic))
    group_prefix: str = setting(
        "kinmqtt.", help="the prefix of consumer groups in Kafka; clusters of brokers with one Kafka need their own"
    )
    security: SecuritySettings = setting(factory=SecuritySettings, help="encryption and the user")
    timeout_s: float = setting(
        10.0, help="the time limit for an answer; after it Kafka counts as away", unit="s", minimum=0.1, maximum=600
    )
    batch: int = setting(500, help="events that a consumer gets at a time, at most", minimum=1, maximum=10_000)
    max_record_bytes: int = setting(
        1_000_000,
        help="a longer event is left out and counted; batches are not longer either",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )
