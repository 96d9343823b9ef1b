"""Settings that every plugin for Kafka has: servers, encryption and the user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

from attrs import frozen

from kinmqtt_spi.settings import problem_with_file, setting

TOPIC_RULE: Final = "it has 1 to 249 letters, digits, dots, underscores and hyphens, and is not . or .."

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(text: str) -> bool:
    """Tell whether a text can be the name of a Kafka topic."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in (".", "..")


def check_topic(name: str) -> None:
    """Raise ``ValueError`` if a text can't be the name of a Kafka topic."""
    if not is_topic_name(name):
        raise ValueError(f"{name!r} can't be the name of a Kafka topic: {TOPIC_RULE}")


def address(text: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port; raises ``ValueError`` if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


def check_servers(servers: Sequence[str]) -> None:
    """Raise ``ValueError`` if one of these is not ``host:port``."""
    for each in servers:
        address(each)


@frozen(slots=True)
class SecuritySettings:
    """How a connection is encrypted, and who the broker is there."""

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

    @property
    def sends_the_password(self) -> bool:
        """Whether the password goes over the network as it is."""
        return self.protocol == "SASL_PLAINTEXT" and self.mechanism == "PLAIN"

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


class Connection(Protocol):
    """What a client is made with: a plugin's settings of one Kafka cluster."""

    @property
    def servers(self) -> Sequence[str]:
        """Some of its brokers, as ``host:port``."""

    @property
    def security(self) -> SecuritySettings:
        """Encryption and the user."""

    @property
    def timeout_s(self) -> float:
        """The time limit for an answer, in seconds."""
