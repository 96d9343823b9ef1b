"""The broker that rows are published to, from the options of a query."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from kinmqtt_metrics.source.messages import TEXT_BYTES, NotPublished, shown, text_problem

_OWN_BYTES = 200
"""How long what is added to client ids and ids of messages may get."""


@frozen(slots=True, kw_only=True)
class Endpoint:
    """The broker, and how to talk to it."""

    host: str
    port: int
    username: str = ""
    password_file: str = ""
    password_variable: str = ""
    tls: bool = False
    ca_file: str = ""
    client_id: str = "kinmqtt-spark"
    max_in_flight: int = 100
    timeout_s: float = 30.0

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Endpoint:
        """Raises ``ValueError`` that names the option."""
        if options.get("password"):
            raise ValueError(
                "option password would appear in plans and logs: give passwordFile, the path of a file that holds "
                "it, or passwordVariable, the name of an environment variable, where the executors run"
            )
        if options.get("passwordFile") and options.get("passwordVariable"):
            raise ValueError("options passwordFile and passwordVariable: give one of them")
        if not options.get("host"):
            raise ValueError("format('kinmqtt') publishes to a broker: give option host, and port if it is not 1883")
        for name in ("host", "username", "clientId", "idPrefix", "caFile", "passwordFile", "passwordVariable"):
            more_bytes = _OWN_BYTES if name in ("clientId", "idPrefix") else 0
            why = text_problem(options.get(name, ""), TEXT_BYTES - more_bytes)
            if why:
                raise ValueError(f"option {name} {why}")
        if not _is_host(options["host"]):
            raise ValueError(f"option host is {shown(options['host'])}: it is a name or an address, without a port")
        if (options.get("passwordFile") or options.get("passwordVariable")) and not options.get("username"):
            raise ValueError("options passwordFile and passwordVariable: give option username, too")
        tls = _boolean(options, "tls") or bool(options.get("caFile"))
        return cls(
            host=options["host"],
            port=int(_number(options, "port", 8883 if tls else 1883, 1, 65_535)),
            username=options.get("username", ""),
            password_file=options.get("passwordFile", ""),
            password_variable=options.get("passwordVariable", ""),
            tls=tls,
            ca_file=options.get("caFile", ""),
            client_id=options.get("clientId", "kinmqtt-spark"),
            max_in_flight=int(_number(options, "maxInFlight", 100, 1, 65_535)),
            timeout_s=_number(options, "timeout_s", 30.0, 0.1, 86_400.0),
        )

    def password(self) -> str | None:
        """Read where the task runs. Raises :class:`NotPublished`."""
        password = self._password()
        if password is not None and (why := text_problem(password, TEXT_BYTES)):
            told = "passwordVariable" if self.password_variable else "passwordFile"
            raise NotPublished(f"{told}: the password {why}")
        return password

    def _password(self) -> str | None:
        if self.password_variable:
            try:
                return os.environ[self.password_variable]
            except KeyError:
                raise NotPublished(
                    f"passwordVariable: the environment variable {self.password_variable} is not set on "
                    f"{socket.gethostname()}, where this task runs"
                ) from None
        if self.password_file:
            try:
                return Path(self.password_file).read_text("utf-8").rstrip("\r\n")
            except OSError as error:
                raise NotPublished(
                    f"passwordFile {self.password_file} on {socket.gethostname()}: {error.strerror}"
                ) from None
            except UnicodeDecodeError:
                raise NotPublished(
                    f"passwordFile {self.password_file} on {socket.gethostname()}: it is not UTF-8"
                ) from None
        return None


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return not any(sign.isspace() for sign in host)


def _boolean(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name} is {text!r}: it is true or false")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = options.get(name, "")
    try:
        number = type(default)(text) if text else default
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ValueError(f"option {name} is {text!r}: it is a number from {least:g} to {most:g}")
    return number
